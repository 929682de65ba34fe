#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/token.h"

namespace tandem {

// The settings of a draft head: a model that reads the target's hidden states. Row j of a head has the token
// at position j + 1 and the target's states behind the token at position j. Its logits are for position j +
// 2.
//
// Heads with a decoder layer also read the tokens. If the target has not computed the states yet, in a
// candidate tree, the row takes the output state of the row before it instead (EAGLE, Li et al., 2024,
// section 4).
//
//   EAGLE:    hidden = fc [embedding, state]         a layer without an input norm     output = head(hidden)
//   EAGLE-3:  hidden = fc [state, state, state]      attention reads [norm(embedding), norm(hidden)]
//             (or the output state as it is)                                output = head(norm(hidden))
//             Further layers are a model's. EAGLE-3.1 (Eldenk et al., 2026) also norms what fc reads, and
//             the output state that the next row reads.
//   MTP:      hidden = fc [norm(state), norm(embedding)]         a layer      output = head(norm(hidden))
//
// MTP is multi-token prediction: the next-token module in the files of MiMo's models (Xiaomi, 2025, section
// 2.2), chained for more than one step. Medusa heads (Cai et al., 2024, section 2.1.1) read one state and
// nothing else, neither the token nor earlier rows. A row has logits for positions j + 2, j + 3, ..., from
// one head each, and trees have no rows.
//
//   Medusa:   x = state; for every residual block: x = x + silu(W x + b)                output = head_k(x)
//
// DFlash heads (Chen et al., 2026) guess a whole block in one pass. A row keeps keys and values only: in
// every layer those of c = norm(fc [state, ..., state]), for position j. A row that wants logits is an
// anchor, the newest token, and gets those for positions j + 2, j + 3, ... from a block of slots behind
// itself. The first slot reads the token at j + 1, the others a mask's, each has its own position from j + 1
// on, and all see the rows' keys and values and one another's. Layers and the norm behind them are a model's.
// Slot k guesses the token of its own position or, `guesses_from_anchor`, of the next. DSpark heads
// (DeepSeek-AI, 2026) add to the logits of each position W2 W1[t], where t is the token before it
// (Engine::AddTokenBefore).
struct HeadConfig {
  enum class Kind { kEagle, kEagle3, kMedusa, kMtp, kDFlash };
  // EAGLE-3: norms over the target's states in front of the projection.
  enum class StateNorms {
    kNone,
    kTogether,  // One over all states of a row side by side (norm_before_fc).
    kEach,      // One for each state (fc_norm).
  };
  // A DFlash head's block.
  struct Block {
    int32_t num_slots = 0;  // With the anchor's.
    TokenId mask_token = 0;
    // Every slot guesses the next token; else each but the anchor's guesses its own.
    bool guesses_from_anchor = false;
    // Whether slots see those behind them in their block, in layers that see everything and in those with a
    // window.
    bool full_layers_look_ahead = true;
    bool windowed_layers_look_ahead = false;
    // All slots see as many positions before the anchor as the window has; else a slot counts its window from
    // itself.
    bool window_ends_at_anchor = false;
    int32_t markov_rank = 0;  // DSpark: the width of W1; 0: the token before adds nothing.
    // DSpark: the file has a head that predicts acceptance, which is not used: acceptance is measured.
    bool has_confidence = false;
    bool confidence_reads_token = false;  // It also reads W1 of the token before.
  };
  Kind kind = Kind::kEagle3;
  // The states that a row reads, as in FeatureRequest. Empty before FinishHeadConfig means the authors'
  // choice, which follows from the number of the target's layers.
  std::vector<uint32_t> feature_layers;
  // They come from an eagle_config, whose numbers are those of layers, counted from 0, of which the head
  // reads the outputs. In some files they are numbers of states already, one less than is here.
  bool layers_may_be_states = false;
  bool feature_final_norm = false;
  int32_t target_hidden_size = 0;  // Numbers in each.
  // Rows of the output matrix; below vocab_size when the head drafts only some of the tokens, which its
  // tensor d2t then names.
  int32_t draft_vocab_size = 0;
  // EAGLE-3: the residual stream starts with the normed state (vLLM speculators), not with the state.
  bool norm_before_residual = false;
  // A row passes its own state after the final norm to the next one (MTP, and EAGLE-3.1, which says
  // norm_output), not the state before it. Logits are always made from the normed one.
  bool own_state_is_normed = false;
  // `own_state_is_normed` follows from a `norm_output: true` that also heads have which are plain EAGLE-3:
  // SpecForge wrote it with that meaning from May to September 2026. See HeadOptions::plain_eagle3.
  bool norm_output_may_be_plain = false;
  StateNorms state_norms = StateNorms::kNone;
  // EAGLE-3: the one state that a row reads is where the layer begins, without a projection (ModelOpt's
  // `use_aux_hidden_state: false`).
  bool projects = true;
  // Whether the trainer names the first layer's tensors like a model's ("layers.0."), not "midlayer.".
  bool numbered_layer = false;
  Block block;
  // Medusa and DFlash: the number of positions for which a row has logits.
  int32_t num_positions = 1;
  // Medusa: the residual blocks of each position, and whether all use one output matrix, which is the
  // target's.
  int32_t num_blocks = 0;
  bool shares_output = false;
  // The target for which the head was trained, if its configuration says so
  // (common/model/target_fingerprint.h).
  std::optional<uint64_t> target_fingerprint;
  // The field that names the states which a row reads, and DFlash: how many layers the target has, 0 if the
  // file does not say.
  std::string layers_field = "eagle_aux_hidden_state_layer_ids";
  int32_t num_target_layers = 0;

  uint32_t num_states() const {
    return static_cast<uint32_t>(feature_layers.size()) + (feature_final_norm ? 1 : 0);
  }
  // Whether a row reads earlier rows, so that their keys and values are kept.
  bool reads_context() const { return kind != Kind::kMedusa; }
  // Whether one row has the logits of all levels of a tree. Then there are no rows in trees.
  bool gives_levels() const { return kind == Kind::kMedusa || kind == Kind::kDFlash; }
  // How many numbers of the target a row reads.
  uint32_t state_size() const { return num_states() * static_cast<uint32_t>(target_hidden_size); }
};

// "eagle", "eagle3", "medusa", "mtp" or "dflash".
absl::string_view HeadKindName(HeadConfig::Kind kind);

// The head of a folder whose config.json does not say that it is a head, but whose tensors do (`fc.weight`).
HeadConfig EagleByTensors();

// The next-token module of a target's own folder.
HeadConfig NextTokenModule();

struct ModelConfig;

// Sets the fields that follow from the target, which may be null. InvalidArgument if the two do not fit, or
// if a field needs a target and there is none. `config` must have a head.
absl::Status FinishHeadConfig(absl::string_view path, const ModelConfig* target, ModelConfig* config);

}  // namespace tandem
