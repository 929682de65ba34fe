#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/model/config/model_config.h"
#include "common/model/lora_adapter.h"
#include "common/speculation/sampling_parameters.h"

namespace tandem {

// Where one token's keys and values live, in every layer: slot = block * kBlockTokens + offset. A slot says
// nothing about position: the same pool serves committed prefixes and the nodes of candidate trees.
using SlotId = uint32_t;
using BlockId = uint32_t;
inline constexpr uint32_t kBlockTokens = 16;

// What a row attends to, in position order: first positions 0 .. num_committed-1 in `blocks` (position p
// is in slot blocks[p / kBlockTokens] * kBlockTokens + p % kBlockTokens), then the tokens of `tail`, at
// positions num_committed, num_committed + 1, ... The last entry of the whole context is the row itself.
struct RowContext {
  absl::Span<const BlockId> blocks;
  uint32_t num_committed = 0;
  absl::Span<const SlotId> tail;

  uint32_t length() const { return num_committed + static_cast<uint32_t>(tail.size()); }
};

// Asks for the target's seeded choice after a row (law 2) in place of its logits: the token that
// TargetSampler::Choose returns for the row's logits, after the logits of tokens that are not `allowed`
// have been set to -infinity. `allowed` must already reflect what the parameters themselves allow and ban
// (TargetSampler::AllowedAt): engines look nowhere else. Everything it points to must stay unchanged until
// the step is finished. Rows may share parameters and counts.
struct SeededChoice {
  const SamplingParameters* sampling = nullptr;  // Valid ones.
  // The chosen token's position: the number of tokens before it.
  uint32_t position = 0;
  // The counts for penalties, each token once (TargetSampler::Counts), and counts that replace or extend them
  // for this row: those of a tree's node include its path.
  absl::Span<const TokenCount> counts;
  absl::Span<const TokenCount> own_counts;
  TokenId* token = nullptr;  // Where to put it.
  // Bit t % 32 of word t / 32 tells whether token t is allowed, [(vocab_size + 31) / 32]; empty: all are.
  absl::Span<const uint32_t> allowed = {};
};

// Asks for hidden states of a row, which draft heads (EAGLE, Medusa, multi-token prediction) and stop
// heads read. States are [hidden_size] each, in order: first the residual stream after each of the given
// numbers of `layers` (0: the embedding; config().num_layers: the input of the final norm), then, if asked
// for, the input of the output matrix. Everything it points to must stay unchanged until the step is
// finished. Rows of a step may ask for different states.
struct FeatureRequest {
  absl::Span<const uint32_t> layers;  // Ascending, each once.
  bool final_norm = false;
  float* states = nullptr;  // Where to put them: [num_states(), hidden_size].

  uint32_t num_states() const { return static_cast<uint32_t>(layers.size()) + (final_norm ? 1 : 0); }
};

// The input of a draft head's row besides its token: states of the previous token (HeadConfig).
struct InputState {
  // The target's states, [state_size()]. If `own`: the state of the row before this one in this engine, from
  // FeatureRequest, after its one layer or (HeadConfig::own_state_is_normed) after the norm: [hidden_size].
  // Medusa heads read no own states.
  absl::Span<const float> values;
  bool own = false;
};

// An adapter that an engine holds: a number that it gives to no other, ever.
using AdapterId = uint64_t;
inline constexpr AdapterId kNoAdapter = 0;

// One token to compute. Its position is context.length() - 1. Its keys and values are written to the slot
// of its context's last entry before any row attends.
struct StepRow {
  TokenId token = 0;
  RowContext context;
  // Where to put the logits, [config().logits_size()]; nullptr if not wanted.
  float* logits = nullptr;
  // In place of logits, if the engine chooses; nullptr if not wanted.
  const SeededChoice* choice = nullptr;
  // Beside these, or alone, if the engine has features; nullptr if not wanted.
  const FeatureRequest* features = nullptr;
  // For draft heads only.
  const InputState* state = nullptr;
  // The engine's adapter for this row. All rows of its context must have been computed with the same one.
  AdapterId adapter = kNoAdapter;
};

// Copies the keys and values of one token, in every layer.
struct KvCopy {
  SlotId from = 0;
  SlotId to = 0;
};

// The model's forward pass over a paged KV cache (DESIGN.md section 6).
//
// Law 1, row invariance: what Step writes for a row (logits or choice, features, keys and values) depends,
// bit for bit, only on the tokens of the row's own context and its adapter, and for a draft head on the
// states that came with them. It does not depend on the other rows, their number, order or adapters, on
// how a prompt was split into steps, on whether an ancestor is in a committed block or in a tail, or on
// the number of threads. A row without an adapter has the same bits as in an engine that never held one.
//
// Thread rule: one thread owns an engine and makes all calls.
class Engine {
 public:
  virtual ~Engine() = default;

  virtual const ModelConfig& config() const = 0;
  virtual uint32_t num_blocks() const = 0;
  // The most rows one Step takes.
  virtual uint32_t max_rows() const = 0;
  // Whether rows may ask for a choice. Rows that need more than the chosen token (log probabilities, the
  // distribution itself) ask for logits, in the same step if necessary.
  virtual bool chooses() const { return false; }
  // Whether rows may ask for features.
  virtual bool has_features() const { return false; }

  // Runs one forward pass. Rows may depend on one another (a chunk of a prompt, a tree): whatever a row's
  // context names must have been written by an earlier step or be written by a row of this one.
  // InvalidArgument, before anything was written, when a token, slot, block or length is out of range,
  // when a row names an adapter that the engine does not hold, asks for a choice of an engine that makes
  // none, or for logits as well, or for features of an engine that has none or of layers that there are not,
  // or when it comes without the state that a draft head reads, or with one of another size, or with one that
  // no other model reads.
  virtual absl::Status Step(absl::Span<const StepRow> rows) = 0;

  // Step in two halves, for callers with other work while a device computes. The results are there when
  // Finish returns. Until then, `rows` and everything that they point to must not change, and no other call
  // is allowed. Either half returns the errors of Step; after an error of Start, do not call Finish. If the
  // engine does not overlap, Finish computes.
  virtual absl::Status Start(absl::Span<const StepRow> rows) {
    started_ = rows;
    return absl::OkStatus();
  }
  virtual absl::Status Finish() { return Step(started_); }
  // Whether a step computes in the background between Start and Finish.
  virtual bool overlaps() const { return false; }

  // Makes the copies in order; checks ranges first. Later steps and copies see them done. If a device makes
  // them in the background, a later call may return its error.
  virtual absl::Status CopyKv(absl::Span<const KvCopy> copies) = 0;

  // Of a DSpark head (HeadConfig::Block::markov_rank): adds to the logits of a position, [vocab_size], what
  // `token`, the one before it, adds. Call it between steps. Unimplemented for other models, InvalidArgument
  // for a token that there is not or logits of another size.
  virtual absl::Status AddTokenBefore(TokenId /*token*/, absl::Span<float> /*logits*/) {
    return absl::UnimplementedError("only guesses of a DSpark head depend on the token before them");
  }

  // Whether adapters can be added.
  virtual bool has_adapters() const { return false; }
  // Loads an adapter, so that rows may name it; the object may be destroyed afterwards. Call it between
  // steps. Unimplemented if the engine has no adapters, InvalidArgument for an adapter of another model,
  // ResourceExhausted without memory.
  virtual absl::StatusOr<AdapterId> AddAdapter(const LoraAdapter& /*adapter*/) {
    return absl::UnimplementedError(
        "this engine does not support adapters, expected a target's engine on a CPU or on one GPU");
  }
  // Frees an adapter. Call it between steps; no later row may name the adapter. NotFound if the engine does
  // not hold it.
  virtual absl::Status DropAdapter(AdapterId adapter) {
    return absl::NotFoundError(absl::StrCat("adapter ", adapter, ": this engine holds none"));
  }

 private:
  absl::Span<const StepRow> started_;
};

}  // namespace tandem
