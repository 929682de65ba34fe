#include "bench/plan/plan_engine.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace tandem::plan {
namespace {

// The probability of a guess that has no chance.
constexpr float kLeastProbability = 1e-6f;

// The token of a wrong guess. It differs from the right token and from other wrong guesses: 5 and the size of
// the vocabulary have no common factor, and `first_wrong` is in [1, 16].
TokenId WrongToken(TokenId right, TokenId first_wrong, size_t index) {
  return (right + first_wrong + 5 * static_cast<TokenId>(index)) % PlanEngine::kVocabSize;
}

double UniformOf(uint64_t hash) {
  return static_cast<double>(hash >> 11) * 0x1p-53;
}

}  // namespace

PlanEngine::PlanEngine(const Options& options, PlanClock* clock)
    : options_(options), clock_(clock), slots_(options.kv_tokens / kBlockTokens * kBlockTokens) {
  config_.architecture = "Plan";
  config_.vocab_size = kVocabSize;
  config_.max_context = kMaxContext;
  config_.hidden_size = 1;
  config_.num_layers = 1;
}

SlotId PlanEngine::SlotOf(const RowContext& context, uint32_t position) {
  if (position >= context.num_committed) return context.tail[position - context.num_committed];
  return context.blocks[position / kBlockTokens] * kBlockTokens + position % kBlockTokens;
}

TokenId PlanEngine::TokenAfter(const Slot& slot) {
  return static_cast<TokenId>(Mix64(slot.hash) % kVocabSize);
}

absl::Status PlanEngine::Compute(absl::Span<const StepRow> rows) {
  // Slots are spread over memory: the processor fetches those of all rows at once.
  for (const StepRow& row : rows) {
    if (row.context.length() > 1) __builtin_prefetch(&slots_[SlotOf(row.context, row.context.length() - 2)]);
  }
  for (const StepRow& row : rows) {
    const uint32_t position = row.context.length() - 1;
    Slot& slot = slots_[SlotOf(row.context, position)];
    if (position == 0) {
      const auto kind = static_cast<uint32_t>(row.token);
      slot = {.hash = Mix64(kind), .anchor = 0, .kind = kind};
    } else {
      const Slot& before = slots_[SlotOf(row.context, position - 1)];
      slot = {.hash = HashCombine(before.hash, static_cast<uint32_t>(row.token)),
              .anchor = before.anchor,
              .kind = before.kind};
      if (position % kStretch == 0) slot.anchor = static_cast<uint32_t>(slot.hash >> 32);
    }
    TANDEM_RETURN_IF_ERROR(Answer(row, slot));
  }
  return absl::OkStatus();
}

absl::Status PlanEngine::Step(absl::Span<const StepRow> rows) {
  TANDEM_RETURN_IF_ERROR(Start(rows));
  return Finish();
}

absl::Status PlanEngine::Start(absl::Span<const StepRow> rows) {
  if (rows.empty() || rows.size() > options_.max_rows) {
    return absl::InternalError(
        absl::StrCat("a step of ", rows.size(), " rows, expected 1 to ", options_.max_rows));
  }
  uint64_t context = 0;
  for (const StepRow& row : rows) context += row.context.length();
  const auto num_rows = static_cast<uint32_t>(rows.size());
  const absl::Duration takes = options_.step.Of(num_rows, static_cast<uint32_t>(context / num_rows));
  started_ = rows;
  end_ = clock_->Now() + takes;
  busy_ += takes;
  num_rows_ += num_rows;
  ++num_steps_;
  return absl::OkStatus();
}

absl::Status PlanEngine::Finish() {
  clock_->MoveTo(std::max(clock_->Now(), end_));
  return Compute(started_);
}

absl::Status PlanEngine::CopyKv(absl::Span<const KvCopy> copies) {
  for (const KvCopy& copy : copies) slots_[copy.to] = slots_[copy.from];
  return absl::OkStatus();
}

absl::Status PlanTarget::Answer(const StepRow& row, const Slot& slot) {
  if (row.logits != nullptr || row.features != nullptr) {
    return absl::InternalError("a row asks for logits or features of a target that only chooses");
  }
  if (row.choice != nullptr) *row.choice->token = TokenAfter(slot);
  return absl::OkStatus();
}

absl::Status PlanDraft::Answer(const StepRow& row, const Slot& slot) {
  if (row.logits == nullptr) return absl::OkStatus();
  if (slot.kind >= acceptance_.size()) {
    return absl::InternalError(absl::StrCat("a text of kind ", slot.kind, " of ", acceptance_.size()));
  }
  const Acceptance& acceptance = *acceptance_[slot.kind];
  const GuessRecord record = acceptance.is_recorded()
                                 ? acceptance.RecordAt(uint64_t{slot.anchor} + row.context.length())
                                 : acceptance.Draw(UniformOf(Mix64(slot.hash ^ 0x677565737365)));
  double sum = 0.0;
  size_t guesses = 0;
  for (; guesses < kMostGuesses && record.probabilities[guesses] > 0.0f; ++guesses) {
    sum += static_cast<double>(record.probabilities[guesses]);
  }
  // The rest of the probability goes to further guesses, each at most as likely as the last one above. As few
  // tokens as possible get it: most tokens have no chance.
  const double rest = std::max(1.0 - sum, 0.0);
  const double least = guesses == 0 ? 1.0 : static_cast<double>(record.probabilities[guesses - 1]);
  const bool none_right = record.right == GuessRecord::kNone;
  const auto most_others = static_cast<double>(kVocabSize - guesses - (none_right ? 1 : 0));
  const double others = std::clamp(std::ceil(rest / least * (1.0 + 1e-6)), 1.0, most_others);
  std::fill(row.logits, row.logits + kVocabSize, -std::numeric_limits<float>::infinity());
  const TokenId right = TokenAfter(slot);
  const auto first_wrong = static_cast<TokenId>(1 + slot.hash % 16);
  for (size_t i = 0; i < guesses; ++i) {
    const TokenId wrong = WrongToken(right, first_wrong, i);
    row.logits[i == record.right ? right : wrong] =
        std::log(std::max(record.probabilities[i], kLeastProbability));
  }
  const float logit = std::log(std::max(static_cast<float>(rest / others), kLeastProbability));
  for (size_t i = 0, given = 0; given < static_cast<size_t>(others); ++i) {
    // If no guess is right, the right token stays without a chance.
    const bool free = row.logits[i] == -std::numeric_limits<float>::infinity();
    if (!free || static_cast<TokenId>(i) == right) continue;
    row.logits[i] = logit;
    ++given;
  }
  return absl::OkStatus();
}

}  // namespace tandem::plan
