#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/model/model_config.h"

namespace tandem {

// Where one token's keys and values live, in every layer: slot = block * kBlockTokens + offset. A slot says
// nothing about position: the same pool serves committed prefixes and the nodes of candidate trees.
using SlotId = uint32_t;
using BlockId = uint32_t;
inline constexpr uint32_t kBlockTokens = 16;

// What a row attends to, in position order: positions 0 .. num_committed-1 in `blocks` (position p lies in
// slot blocks[p / kBlockTokens] * kBlockTokens + p % kBlockTokens), then the tokens of `tail`, at positions
// num_committed, num_committed + 1, ... The last entry of the whole context is the row itself.
struct RowContext {
  absl::Span<const BlockId> blocks;
  uint32_t num_committed = 0;
  absl::Span<const SlotId> tail;

  uint32_t length() const { return num_committed + static_cast<uint32_t>(tail.size()); }
};

// One token to compute. Its position is context.length() - 1 and its keys and values are written to the slot
// of the last entry of its context before any row attends.
struct StepRow {
  TokenId token = 0;
  RowContext context;
  // Where to put the logits, [vocab_size]; nullptr when nobody wants them.
  float* logits = nullptr;
};

// Copies the keys and values of one token, in every layer.
struct KvCopy {
  SlotId from = 0;
  SlotId to = 0;
};

// The model's forward pass over paged keys and values (DESIGN.md section 6).
//
// Law 1, row invariance: what Step writes for a row (logits, keys and values) depends bit for bit only on the
// tokens of the row's own context: not on the other rows, their number or order, on how a prompt was cut into
// steps, on whether an ancestor sits in a committed block or in a tail, or on the number of threads.
//
// Thread rule: one thread owns an engine and makes all calls.
class Engine {
 public:
  virtual ~Engine() = default;

  virtual const ModelConfig& config() const = 0;
  virtual uint32_t num_blocks() const = 0;
  // The most rows one Step takes.
  virtual uint32_t max_rows() const = 0;

  // Runs one forward pass. Rows may depend on one another (a chunk of a prompt, a tree): whatever a row's
  // context names must have been written by an earlier step or be written by a row of this one.
  // InvalidArgument, before anything was written, when a token, slot, block or length is out of range.
  virtual absl::Status Step(absl::Span<const StepRow> rows) = 0;

  // Copies in order; ranges are checked first.
  virtual absl::Status CopyKv(absl::Span<const KvCopy> copies) = 0;
};

}  // namespace tandem
