#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/engine/engine.h"

namespace tandem {

// The least time that a forward pass takes.
struct Pace {
  absl::Duration first_row;
  absl::Duration further_row;  // Each row beyond the first.

  absl::Duration StepTime(size_t rows) const;
};

// "12" or "12+0.5": milliseconds for one row, and for each further one. Each in [0, 60000]; InvalidArgument
// says what was expected.
absl::StatusOr<Pace> ParsePace(absl::string_view text);
// "at least 12 ms, and 0.5 ms for each further row".
std::string DescribePace(const Pace& pace);

// An engine for measurements whose steps last as long as those of a slower model or machine. It computes
// what the engine inside computes. It waits without using its core, like a verifier whose accelerator is
// busy, so that drafter and verifier overlap on few cores as they do in a deployment. A step that already
// takes longer than its pace is not slowed down.
//
// Thread rule: that of Engine.
class PacedEngine final : public Engine {
 public:
  // Blocks until the clock reaches the time.
  using WaitUntil = std::function<void(absl::Time)>;

  // `clock` outlives the engine.
  PacedEngine(std::unique_ptr<Engine> engine, const Pace& pace, const Clock* clock, WaitUntil wait_until);

  const ModelConfig& config() const override { return engine_->config(); }
  uint32_t num_blocks() const override { return engine_->num_blocks(); }
  uint32_t max_rows() const override { return engine_->max_rows(); }
  bool chooses() const override { return engine_->chooses(); }
  bool has_features() const override { return engine_->has_features(); }
  // A failed step does not wait.
  absl::Status Step(absl::Span<const StepRow> rows) override;
  // The pace counts from Start on, as on a device, although Finish does the computing here.
  absl::Status Start(absl::Span<const StepRow> rows) override;
  absl::Status Finish() override;
  bool overlaps() const override { return true; }
  absl::Status AddTokenBefore(TokenId token, absl::Span<float> logits) override {
    return engine_->AddTokenBefore(token, logits);
  }
  absl::Status CopyKv(absl::Span<const KvCopy> copies) override { return engine_->CopyKv(copies); }
  bool has_adapters() const override { return engine_->has_adapters(); }
  absl::StatusOr<AdapterId> AddAdapter(const LoraAdapter& adapter) override {
    return engine_->AddAdapter(adapter);
  }
  absl::Status DropAdapter(AdapterId adapter) override { return engine_->DropAdapter(adapter); }

 private:
  const std::unique_ptr<Engine> engine_;
  const Pace pace_;
  const Clock* const clock_;
  const WaitUntil wait_until_;
  absl::Time end_;  // Of the step that was started.
};

// On the system's clock. Sleeps end some 0.05 ms late.
std::unique_ptr<Engine> PaceEngine(std::unique_ptr<Engine> engine, const Pace& pace);

}  // namespace tandem
