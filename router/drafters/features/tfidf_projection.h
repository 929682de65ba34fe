#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "tandem/v1/routing.pb.h"

namespace tandem::router {

// Projects a prompt's TF-IDF vector to a few dimensions. Tokens are counted in buckets: one for each token of
// a small vocabulary, a hash of the token for a large one. A term weighs (1 + log count) * idf, and the
// vector has length 1. The projection is onto the leading right singular vectors of the training prompts'
// vectors (latent semantic analysis). If the prompts span fewer dimensions, or there are none, a fixed random
// projection fills the rest. Immutable, so thread-safe.
class TfidfProjection {
 public:
  static constexpr uint32_t kMaxBuckets = 8192;
  // Singular vectors are computed from at most this many texts, evenly spaced.
  static constexpr size_t kMaxTexts = 512;

  // A random projection, in which all terms weigh the same.
  TfidfProjection(uint32_t num_dimensions, uint32_t vocab_size);
  static TfidfProjection Fit(absl::Span<const absl::Span<const TokenId>> texts, uint32_t num_dimensions,
                             uint32_t vocab_size);

  uint32_t num_dimensions() const { return num_dimensions_; }
  // Adds the projected vector to `out`, [num_dimensions].
  void Project(absl::Span<const TokenId> tokens, absl::Span<double> out) const;

  // Fills num_buckets, buckets, inverse_document_frequencies and projection.
  void Save(v1::FeatureModelState* state) const;
  // InvalidArgument names the field of a state that Save cannot have written.
  static absl::StatusOr<TfidfProjection> Load(const v1::FeatureModelState& state, uint32_t num_dimensions);

 private:
  struct Term {
    uint32_t bucket;
    float weight;
  };
  TfidfProjection() = default;
  uint32_t BucketOf(TokenId token) const;
  // The terms of a text, in the order of their first occurrence. The vector of their weights has length 1.
  std::vector<Term> TermsOf(absl::Span<const TokenId> tokens) const;
  void LearnDirections(absl::Span<const absl::Span<const TokenId>> texts);

  uint32_t num_dimensions_ = 0;
  uint32_t num_buckets_ = 0;
  std::vector<float> inverse_document_frequencies_;  // [num_buckets]; 0 for terms that are to be ignored.
  std::vector<float> projection_;                    // [num_buckets, num_dimensions]
};

}  // namespace tandem::router
