#include "router/drafters/features/tfidf_projection.h"

#include <algorithm>
#include <cmath>

#include "Eigen/Dense"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/hash.h"

namespace tandem::router {
namespace {

// Directions whose singular value is below this share of the largest are noise.
constexpr double kLeastSingularValue = 1e-3;

// Signs by a hash, so that every router projects alike.
float RandomEntry(uint32_t bucket, uint32_t dimension, uint32_t num_dimensions) {
  const bool negative = (HashCombine(bucket, dimension) & 1) != 0;
  const float size = 1.0f / std::sqrt(static_cast<float>(std::max(num_dimensions, 1u)));
  return negative ? -size : size;
}

template <class Values>
absl::Status CheckFinite(absl::string_view field, const Values& values) {
  for (int i = 0; i < values.size(); ++i) {
    if (!(std::abs(values[i]) < 1e6)) {
      return absl::InvalidArgumentError(
          absl::StrCat("features.", field, "[", i, "]: ", values[i], ", expected a number below 1e6"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

TfidfProjection::TfidfProjection(uint32_t num_dimensions, uint32_t vocab_size)
    : num_dimensions_(num_dimensions),
      num_buckets_(std::clamp(vocab_size, 1u, kMaxBuckets)),
      inverse_document_frequencies_(num_buckets_, 1.0f),
      projection_(size_t{num_buckets_} * num_dimensions) {
  for (uint32_t bucket = 0; bucket < num_buckets_; ++bucket) {
    for (uint32_t d = 0; d < num_dimensions; ++d) {
      projection_[size_t{bucket} * num_dimensions + d] = RandomEntry(bucket, d, num_dimensions);
    }
  }
}

TfidfProjection TfidfProjection::Fit(absl::Span<const absl::Span<const TokenId>> texts,
                                     uint32_t num_dimensions, uint32_t vocab_size) {
  TfidfProjection model(num_dimensions, vocab_size);
  if (texts.empty()) return model;
  std::vector<uint32_t> documents(model.num_buckets_, 0);
  for (const absl::Span<const TokenId> text : texts) {
    for (const Term& term : model.TermsOf(text)) ++documents[term.bucket];
  }
  const auto num_texts = static_cast<float>(texts.size());
  for (uint32_t bucket = 0; bucket < model.num_buckets_; ++bucket) {
    model.inverse_document_frequencies_[bucket] =
        documents[bucket] == 0
            ? 0.0f
            : std::log((1.0f + num_texts) / (1.0f + static_cast<float>(documents[bucket]))) + 1.0f;
  }
  if (texts.size() <= kMaxTexts) {
    model.LearnDirections(texts);
  } else {
    std::vector<absl::Span<const TokenId>> some;
    for (size_t i = 0; i < kMaxTexts; ++i) some.push_back(texts[i * texts.size() / kMaxTexts]);
    model.LearnDirections(some);
  }
  return model;
}

// With X [texts, buckets], the right singular vectors are X' U / S, and U and S^2 come from the small X X'.
void TfidfProjection::LearnDirections(absl::Span<const absl::Span<const TokenId>> texts) {
  const auto num_texts = static_cast<Eigen::Index>(texts.size());
  Eigen::MatrixXf terms = Eigen::MatrixXf::Zero(num_texts, num_buckets_);
  for (Eigen::Index i = 0; i < num_texts; ++i) {
    for (const Term& term : TermsOf(texts[static_cast<size_t>(i)])) terms(i, term.bucket) = term.weight;
  }
  const Eigen::MatrixXd gram = (terms * terms.transpose()).cast<double>();
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(gram);
  if (solver.info() != Eigen::Success) return;
  // Eigenvalues come in increasing order.
  const double largest = std::sqrt(std::max(solver.eigenvalues()[num_texts - 1], 0.0));
  for (uint32_t d = 0; d < num_dimensions_ && d < texts.size(); ++d) {
    const Eigen::Index column = num_texts - 1 - static_cast<Eigen::Index>(d);
    const double singular_value = std::sqrt(std::max(solver.eigenvalues()[column], 0.0));
    if (singular_value <= kLeastSingularValue * largest) break;
    Eigen::VectorXd direction =
        terms.transpose().cast<double>() * solver.eigenvectors().col(column) / singular_value;
    // Both signs are right: the larger end is to be positive, so that fits can be compared.
    if (-direction.minCoeff() > direction.maxCoeff()) direction = -direction;
    for (uint32_t bucket = 0; bucket < num_buckets_; ++bucket) {
      projection_[size_t{bucket} * num_dimensions_ + d] = static_cast<float>(direction[bucket]);
    }
  }
}

uint32_t TfidfProjection::BucketOf(TokenId token) const {
  const auto id = static_cast<uint32_t>(token);
  return id < num_buckets_ && num_buckets_ < kMaxBuckets ? id
                                                         : static_cast<uint32_t>(Mix64(id) % num_buckets_);
}

std::vector<TfidfProjection::Term> TfidfProjection::TermsOf(absl::Span<const TokenId> tokens) const {
  std::vector<uint32_t> counts(num_buckets_, 0);
  std::vector<Term> terms;
  for (const TokenId token : tokens) {
    const uint32_t bucket = BucketOf(token);
    if (counts[bucket]++ == 0) terms.push_back({.bucket = bucket, .weight = 0.0f});
  }
  float squares = 0.0f;
  for (Term& term : terms) {
    term.weight = (1.0f + std::log(static_cast<float>(counts[term.bucket]))) *
                  inverse_document_frequencies_[term.bucket];
    squares += term.weight * term.weight;
  }
  if (squares <= 0.0f) return {};
  for (Term& term : terms) term.weight /= std::sqrt(squares);
  return terms;
}

void TfidfProjection::Project(absl::Span<const TokenId> tokens, absl::Span<double> out) const {
  std::vector<float> sum(num_dimensions_, 0.0f);
  for (const Term& term : TermsOf(tokens)) {
    const float* const row = &projection_[size_t{term.bucket} * num_dimensions_];
    for (uint32_t d = 0; d < num_dimensions_; ++d) sum[d] += term.weight * row[d];
  }
  for (uint32_t d = 0; d < num_dimensions_; ++d) out[d] += sum[d];
}

void TfidfProjection::Save(v1::FeatureModelState* state) const {
  state->set_num_buckets(num_buckets_);
  for (uint32_t bucket = 0; bucket < num_buckets_; ++bucket) {
    if (inverse_document_frequencies_[bucket] == 0.0f) continue;
    state->add_buckets(bucket);
    state->add_inverse_document_frequencies(inverse_document_frequencies_[bucket]);
    const float* const row = &projection_[size_t{bucket} * num_dimensions_];
    state->mutable_projection()->Add(row, row + num_dimensions_);
  }
}

absl::StatusOr<TfidfProjection> TfidfProjection::Load(const v1::FeatureModelState& state,
                                                      uint32_t num_dimensions) {
  if (state.num_buckets() == 0 || state.num_buckets() > kMaxBuckets) {
    return absl::InvalidArgumentError(
        absl::StrCat("features.num_buckets: ", state.num_buckets(), ", expected 1 to ", kMaxBuckets));
  }
  if (state.inverse_document_frequencies_size() != state.buckets_size() ||
      static_cast<uint64_t>(state.projection_size()) !=
          uint64_t{num_dimensions} * static_cast<uint64_t>(state.buckets_size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("features: ", state.buckets_size(), " buckets with ",
                     state.inverse_document_frequencies_size(), " frequencies and a projection of ",
                     state.projection_size(), " entries, expected ", num_dimensions, " a bucket"));
  }
  for (int i = 0; i < state.buckets_size(); ++i) {
    if (state.buckets(i) >= state.num_buckets() || (i > 0 && state.buckets(i) <= state.buckets(i - 1))) {
      return absl::InvalidArgumentError(absl::StrCat("features.buckets[", i, "]: ", state.buckets(i),
                                                     ", expected increasing numbers below ",
                                                     state.num_buckets()));
    }
  }
  for (const absl::Status& status :
       {CheckFinite("inverse_document_frequencies", state.inverse_document_frequencies()),
        CheckFinite("projection", state.projection())}) {
    if (!status.ok()) return status;
  }
  TfidfProjection model;
  model.num_dimensions_ = num_dimensions;
  model.num_buckets_ = state.num_buckets();
  model.inverse_document_frequencies_.assign(model.num_buckets_, 0.0f);
  model.projection_.assign(size_t{model.num_buckets_} * num_dimensions, 0.0f);
  for (int i = 0; i < state.buckets_size(); ++i) {
    const size_t bucket = state.buckets(i);
    model.inverse_document_frequencies_[bucket] = state.inverse_document_frequencies(i);
    std::copy_n(state.projection().data() + static_cast<size_t>(i) * num_dimensions, num_dimensions,
                &model.projection_[bucket * num_dimensions]);
  }
  return model;
}

}  // namespace tandem::router
