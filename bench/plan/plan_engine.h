#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "bench/plan/acceptance.h"
#include "bench/plan/step_times.h"
#include "common/base/clock.h"
#include "common/engine/engine.h"

namespace tandem::plan {

// The simulated time of one machine. The machine and its engine move it.
class PlanClock final : public Clock {
 public:
  absl::Time Now() const override { return now_; }
  void MoveTo(absl::Time now) { now_ = now; }

 private:
  absl::Time now_ = absl::UnixEpoch();
};

// An engine without a model. A text is a chain of hashes, and every machine computes the same one.
//
// A slot holds the hash of all tokens up to its own, so a row reads one slot and not its whole context. The
// target's token after a context is a function of that hash. A drafter's guesses come from its acceptance:
// the right guess is the target's token, and the wrong ones are other tokens. Every kStretch positions, the
// text moves to another random place of the recording.
//
// The first token of a prompt is the kind of the text. The rows of a step and their contexts give the
// simulated time that it takes. Thread rule: that of Engine.
class PlanEngine : public Engine {
 public:
  static constexpr int32_t kVocabSize = 64;
  static constexpr size_t kMostKinds = kVocabSize;
  static constexpr int32_t kMaxContext = 1 << 20;
  static constexpr uint32_t kStretch = 32;

  struct Options {
    uint64_t kv_tokens = 0;
    uint32_t max_rows = 512;
    StepTimes step;
  };

  const ModelConfig& config() const override { return config_; }
  uint32_t num_blocks() const override { return static_cast<uint32_t>(slots_.size() / kBlockTokens); }
  uint32_t max_rows() const override { return options_.max_rows; }
  absl::Status Step(absl::Span<const StepRow> rows) override;
  absl::Status Start(absl::Span<const StepRow> rows) override;
  absl::Status Finish() override;
  bool overlaps() const override { return true; }
  absl::Status CopyKv(absl::Span<const KvCopy> copies) override;

  absl::Time end() const { return end_; }        // Of the last step.
  absl::Duration busy() const { return busy_; }  // Over all steps.
  uint64_t num_steps() const { return num_steps_; }
  uint64_t num_rows() const { return num_rows_; }

 protected:
  struct Slot {
    uint64_t hash = 0;
    uint32_t anchor = 0;  // The place of the text's current stretch in the recording.
    uint32_t kind = 0;
  };
  // `clock` outlives the engine.
  PlanEngine(const Options& options, PlanClock* clock);
  // The target's token after the slot's context.
  static TokenId TokenAfter(const Slot& slot);
  // Writes the choice or the logits that the row asks for. `slot` is the row's own.
  virtual absl::Status Answer(const StepRow& row, const Slot& slot) = 0;

 private:
  static SlotId SlotOf(const RowContext& context, uint32_t position);
  absl::Status Compute(absl::Span<const StepRow> rows);

  const Options options_;
  PlanClock* const clock_;
  ModelConfig config_;
  std::vector<Slot> slots_;
  absl::Span<const StepRow> started_;
  absl::Time end_ = absl::UnixEpoch();
  absl::Duration busy_;
  uint64_t num_steps_ = 0;
  uint64_t num_rows_ = 0;
};

// The engine of a verifier: chooses the target's tokens.
class PlanTarget final : public PlanEngine {
 public:
  PlanTarget(const Options& options, PlanClock* clock) : PlanEngine(options, clock) {}
  bool chooses() const override { return true; }

 private:
  absl::Status Answer(const StepRow& row, const Slot& slot) override;
};

// The engine of a drafter: computes logits that guess the target's tokens.
class PlanDraft final : public PlanEngine {
 public:
  // `acceptance`: of each kind, not null; they outlive this.
  PlanDraft(const Options& options, std::vector<const Acceptance*> acceptance, PlanClock* clock)
      : PlanEngine(options, clock), acceptance_(std::move(acceptance)) {}

 private:
  absl::Status Answer(const StepRow& row, const Slot& slot) override;

  const std::vector<const Acceptance*> acceptance_;
};

}  // namespace tandem::plan
