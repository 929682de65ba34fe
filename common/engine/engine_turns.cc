#include "common/engine/engine_turns.h"

#include <utility>

namespace tandem {
namespace {

class TurnEngine final : public Engine {
 public:
  TurnEngine(std::unique_ptr<Engine> engine, std::shared_ptr<EngineTurns> turns)
      : engine_(std::move(engine)), turns_(std::move(turns)) {}

  const ModelConfig& config() const override { return engine_->config(); }
  uint32_t num_blocks() const override { return engine_->num_blocks(); }
  uint32_t max_rows() const override { return engine_->max_rows(); }
  bool chooses() const override { return engine_->chooses(); }
  bool has_features() const override { return engine_->has_features(); }
  bool overlaps() const override { return engine_->overlaps(); }
  absl::Status CopyKv(absl::Span<const KvCopy> copies) override { return engine_->CopyKv(copies); }
  absl::Status AddTokenBefore(TokenId token, absl::Span<float> logits) override {
    return engine_->AddTokenBefore(token, logits);
  }
  bool has_adapters() const override { return engine_->has_adapters(); }
  absl::StatusOr<AdapterId> AddAdapter(const LoraAdapter& adapter) override {
    return engine_->AddAdapter(adapter);
  }
  absl::Status DropAdapter(AdapterId adapter) override { return engine_->DropAdapter(adapter); }

  absl::Status Step(absl::Span<const StepRow> rows) override {
    turns_->Take();
    absl::Status status = engine_->Step(rows);
    turns_->Give();
    return status;
  }

  absl::Status Start(absl::Span<const StepRow> rows) override {
    if (!overlaps()) return engine_->Start(rows);
    turns_->Take();
    absl::Status status = engine_->Start(rows);
    if (!status.ok()) turns_->Give();
    return status;
  }

  absl::Status Finish() override {
    if (!overlaps()) turns_->Take();
    absl::Status status = engine_->Finish();
    turns_->Give();
    return status;
  }

 private:
  const std::unique_ptr<Engine> engine_;
  const std::shared_ptr<EngineTurns> turns_;
};

}  // namespace

void EngineTurns::Take() {
  absl::MutexLock lock(&mutex_);
  const uint64_t turn = next_++;
  const auto is_due = [this, turn]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return served_ == turn; };
  mutex_.Await(absl::Condition(&is_due));
}

void EngineTurns::Give() {
  absl::MutexLock lock(&mutex_);
  ++served_;
}

std::unique_ptr<Engine> TakeTurns(std::unique_ptr<Engine> engine, std::shared_ptr<EngineTurns> turns) {
  return std::make_unique<TurnEngine>(std::move(engine), std::move(turns));
}

}  // namespace tandem
