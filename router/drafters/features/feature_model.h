#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "router/drafters/features/tfidf_projection.h"
#include "router/drafters/features/token_ngrams.h"
#include "tandem/v1/routing.pb.h"

namespace tandem::router {

// A prompt's input to the regressions: [dimension] numbers, each with mean about 0 and size about 1 over the
// prompts to which the features were fitted.
using FeatureVector = std::vector<double>;

// Prompt length, perplexity and TF-IDF as one vector (On-the-fly adaptation, section 5):
//
//   0    log(1 + tokens)
//   1    mean negative log probability per token, in nats
//   2..  TF-IDF, projected
//
// The first two are standardised separately, the others with one common scale, so that directions in which
// prompts differ little stay small. Entries are clamped to kBound, to limit extrapolation for a prompt unlike
// all others. Immutable, so thread-safe.
class FeatureModel {
 public:
  static constexpr uint32_t kDefaultDimension = 16;
  static constexpr uint32_t kLeastDimension = 3;
  static constexpr uint32_t kMaxDimension = 128;
  static constexpr double kBound = 4.0;
  // Perplexity and TF-IDF use at most this many of a prompt's last tokens. This bounds the cost, and the end
  // of a prompt says most about what follows.
  static constexpr size_t kPerplexityTokens = 1024;
  static constexpr size_t kTfidfTokens = 4096;

  // An unfitted model: a random projection, and the same perplexity for every prompt.
  FeatureModel(uint32_t dimension, uint32_t vocab_size);

  struct Fitted;
  // Fits a model to prompts. `dimension` is in [kLeastDimension, kMaxDimension].
  static Fitted Fit(absl::Span<const TokenIds> prompts, uint32_t dimension, uint32_t vocab_size);

  struct Extracted {
    FeatureVector features;
    double nats_per_token = 0.0;
  };
  // `nats_per_token` replaces the n-gram model's figure, for instance by that of a drafter's Score. If you
  // replace it for one prompt, replace it for all.
  Extracted Extract(absl::Span<const TokenId> prompt,
                    std::optional<double> nats_per_token = std::nullopt) const;

  uint32_t dimension() const { return dimension_; }
  bool fitted() const { return fitted_; }

  void Save(v1::FeatureModelState* state) const;
  // InvalidArgument names the field of a state that Save cannot have written.
  static absl::StatusOr<FeatureModel> Load(const v1::FeatureModelState& state);

 private:
  FeatureModel(TokenNgrams ngrams, TfidfProjection tfidf)
      : dimension_(tfidf.num_dimensions() + 2), ngrams_(std::move(ngrams)), tfidf_(std::move(tfidf)) {}
  // Before means and scales.
  std::vector<double> Raw(absl::Span<const TokenId> prompt, double nats_per_token) const;
  double PerplexityOf(const PromptPerplexity& model, absl::Span<const TokenId> prompt) const;
  void Standardise(std::vector<double>& raw) const;
  void LearnScales(const std::vector<std::vector<double>>& raw);

  uint32_t dimension_;
  bool fitted_ = false;
  TokenNgrams ngrams_;
  TfidfProjection tfidf_;
  std::vector<double> means_;
  std::vector<double> scales_;
};

struct FeatureModel::Fitted {
  FeatureModel model;
  // The features of the prompts used for fitting. Their perplexity comes from models that have not seen them
  // (cross-fitting), as it does for later prompts.
  std::vector<FeatureVector> features;
};

}  // namespace tandem::router
