#include "router/drafters/features/feature_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::router {
namespace {

// Parts of the prompts that are left out in turn.
constexpr size_t kFolds = 5;
// Features that hardly vary among the prompts learned from are not blown up.
constexpr double kLeastScale = 1e-3;

template <class T>
absl::Span<const T> Last(absl::Span<const T> values, size_t count) {
  return values.subspan(values.size() - std::min(values.size(), count));
}

}  // namespace

FeatureModel::FeatureModel(uint32_t dimension, uint32_t vocab_size)
    : FeatureModel(TokenNgrams(vocab_size), TfidfProjection(dimension - 2, vocab_size)) {
  means_.assign(dimension, 0.0);
  scales_.assign(dimension, 1.0);
  // About what prompts are like: a few hundred tokens, give or take a factor of three.
  means_[0] = std::log(256.0);
  // The same for every prompt, so no feature at all.
  means_[1] = ngrams_.NatsPerToken({0});
}

FeatureModel::Fitted FeatureModel::Fit(absl::Span<const TokenIds> prompts, uint32_t dimension,
                                       uint32_t vocab_size) {
  if (prompts.size() < 2) return {.model = FeatureModel(dimension, vocab_size), .features = {}};
  std::vector<absl::Span<const TokenId>> texts;
  for (const TokenIds& prompt : prompts) {
    texts.push_back(Last(absl::MakeConstSpan(prompt), kTfidfTokens));
  }
  Fitted fitted{.model = FeatureModel(TokenNgrams::Train(texts, vocab_size),
                                      TfidfProjection::Fit(texts, dimension - 2, vocab_size)),
                .features = {}};
  FeatureModel& model = fitted.model;
  fitted.features.resize(prompts.size());
  const size_t folds = std::min(kFolds, prompts.size());
  for (size_t fold = 0; fold < folds; ++fold) {
    std::vector<absl::Span<const TokenId>> others;
    for (size_t i = 0; i < texts.size(); ++i) {
      if (i % folds != fold) others.push_back(texts[i]);
    }
    const TokenNgrams ngrams = TokenNgrams::Train(others, vocab_size);
    for (size_t i = fold; i < prompts.size(); i += folds) {
      fitted.features[i] = model.Raw(prompts[i], model.PerplexityOf(ngrams, prompts[i]));
    }
  }
  model.LearnScales(fitted.features);
  model.fitted_ = true;
  for (FeatureVector& features : fitted.features) model.Standardise(features);
  return fitted;
}

void FeatureModel::LearnScales(const std::vector<std::vector<double>>& raw) {
  means_.assign(dimension_, 0.0);
  scales_.assign(dimension_, 0.0);
  const auto count = static_cast<double>(raw.size());
  for (const std::vector<double>& row : raw) {
    for (uint32_t d = 0; d < dimension_; ++d) means_[d] += row[d] / count;
  }
  for (const std::vector<double>& row : raw) {
    for (uint32_t d = 0; d < dimension_; ++d)
      scales_[d] += (row[d] - means_[d]) * (row[d] - means_[d]) / count;
  }
  for (double& scale : scales_) scale = std::max(std::sqrt(scale), kLeastScale);
  const double common = *std::max_element(scales_.begin() + 2, scales_.end());
  std::fill(scales_.begin() + 2, scales_.end(), common);
}

double FeatureModel::PerplexityOf(const PromptPerplexity& model, absl::Span<const TokenId> prompt) const {
  return model.NatsPerToken(Last(prompt, kPerplexityTokens));
}

std::vector<double> FeatureModel::Raw(absl::Span<const TokenId> prompt, double nats_per_token) const {
  std::vector<double> raw(dimension_, 0.0);
  raw[0] = std::log1p(static_cast<double>(prompt.size()));
  raw[1] = nats_per_token;
  tfidf_.Project(Last(prompt, kTfidfTokens), absl::MakeSpan(raw).subspan(2));
  return raw;
}

void FeatureModel::Standardise(std::vector<double>& raw) const {
  for (uint32_t d = 0; d < dimension_; ++d) {
    raw[d] = std::clamp((raw[d] - means_[d]) / scales_[d], -kBound, kBound);
  }
}

FeatureModel::Extracted FeatureModel::Extract(absl::Span<const TokenId> prompt,
                                              std::optional<double> nats_per_token) const {
  Extracted extracted;
  extracted.nats_per_token = nats_per_token.has_value() ? *nats_per_token : PerplexityOf(ngrams_, prompt);
  extracted.features = Raw(prompt, extracted.nats_per_token);
  Standardise(extracted.features);
  return extracted;
}

void FeatureModel::Save(v1::FeatureModelState* state) const {
  state->set_dimension(dimension_);
  ngrams_.Save(state->mutable_ngrams());
  tfidf_.Save(state);
  state->mutable_means()->Add(means_.begin(), means_.end());
  state->mutable_scales()->Add(scales_.begin(), scales_.end());
}

absl::StatusOr<FeatureModel> FeatureModel::Load(const v1::FeatureModelState& state) {
  if (state.dimension() < kLeastDimension || state.dimension() > kMaxDimension) {
    return absl::InvalidArgumentError(absl::StrCat("features.dimension: ", state.dimension(), ", expected ",
                                                   kLeastDimension, " to ", kMaxDimension));
  }
  const auto dimension = static_cast<int>(state.dimension());
  if (state.means_size() != dimension || state.scales_size() != dimension) {
    return absl::InvalidArgumentError(absl::StrCat("features: ", state.means_size(), " means and ",
                                                   state.scales_size(), " scales, expected ", dimension));
  }
  for (int d = 0; d < dimension; ++d) {
    if (!(std::abs(state.means(d)) < 1e6) || !(state.scales(d) >= kLeastScale && state.scales(d) < 1e6)) {
      return absl::InvalidArgumentError(absl::StrCat("features: entry ", d, " of means or scales is ",
                                                     state.means(d), " or ", state.scales(d),
                                                     ", out of range"));
    }
  }
  TANDEM_ASSIGN_OR_RETURN(TokenNgrams ngrams, TokenNgrams::Load(state.ngrams()));
  TANDEM_ASSIGN_OR_RETURN(TfidfProjection tfidf, TfidfProjection::Load(state, state.dimension() - 2));
  FeatureModel model(std::move(ngrams), std::move(tfidf));
  model.means_.assign(state.means().begin(), state.means().end());
  model.scales_.assign(state.scales().begin(), state.scales().end());
  model.fitted_ = true;
  return model;
}

}  // namespace tandem::router
