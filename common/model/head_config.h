#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem {

// What makes a model a draft head: one decoder layer that reads the target's hidden states beside the tokens.
// Row j of a head has the token at position j + 1 and the target's states behind the token at position j, and
// its logits are for position j + 2. Where the target has not computed these states yet, in a candidate tree,
// the row takes the output state of the row before it instead (EAGLE, Li et al., 2024, section 4).
//
//   EAGLE:    hidden = fc [embedding, state]         a layer without an input norm     output = head(hidden)
//   EAGLE-3:  hidden = fc [state, state, state]      attention reads [norm(embedding), norm(hidden)]
//             (or the output state as it is)                                output = head(norm(hidden))
struct HeadConfig {
  enum class Kind { kEagle, kEagle3 };
  Kind kind = Kind::kEagle3;
  // The states that a row reads, as FeatureRequest names them. None, until FinishHeadConfig: those that the
  // authors chose, which follow from the number of the target's layers.
  std::vector<uint32_t> feature_layers;
  bool feature_final_norm = false;
  int32_t target_hidden_size = 0;  // Numbers in each.
  // Rows of the output matrix; below vocab_size when the head drafts only some of the tokens, which its
  // tensor d2t then names.
  int32_t draft_vocab_size = 0;
  // EAGLE-3: the residual stream starts with the normed state (vLLM speculators), not with the state.
  bool norm_before_residual = false;
  // Where the layer's tensors are named like a model's ("layers.0."), not "midlayer.".
  bool numbered_layer = false;
  // What the head was trained for, where its configuration says so: common/model/target_fingerprint.h.
  std::optional<uint64_t> target_fingerprint;

  uint32_t num_states() const {
    return static_cast<uint32_t>(feature_layers.size()) + (feature_final_norm ? 1 : 0);
  }
  // Numbers that a row reads of the target.
  uint32_t state_size() const { return num_states() * static_cast<uint32_t>(target_hidden_size); }
};

// "eagle" or "eagle3".
absl::string_view HeadKindName(HeadConfig::Kind kind);

// The head of a folder whose config.json does not say that it is one, but whose tensors do (`fc.weight`).
HeadConfig EagleByTensors();

// Fills in what follows from the model beside it: `hidden_size` and `vocab_size` are the head's own,
// `target_hidden_size` and `target_layers` the target's, 0 if there is no target at hand. InvalidArgument
// when they do not go together, or when the layers to read follow from a target that is not there.
absl::Status FinishHeadConfig(absl::string_view path, int32_t hidden_size, int32_t vocab_size,
                              int32_t target_hidden_size, int32_t target_layers, HeadConfig* head);

}  // namespace tandem
