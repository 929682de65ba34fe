// Which prompt rows a Scheduler's step computes, and what is told of prompts whose log probabilities are
// wanted.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "verifier/scheduler/scheduler.h"

namespace tandem {
namespace {

// Prompt rows with logits in one step: what the others wait for them is a few milliseconds, and their logits
// are a few MiB (32 of 128k tokens: 16 MiB).
constexpr uint32_t kMostPromptLogitRows = 32;

}  // namespace

// The oldest prompt has half of the chunk for itself, so that it always gets on. The other half goes to the
// other prompts, the shortest first, so that a short one does not wait for a long one to be done; what one
// side leaves the other takes.
void Scheduler::PlanPrefill(absl::Time now) {
  std::vector<Session*> prompts;
  for (const auto& [id, session] : running_) {
    if (!session->prefilled()) prompts.push_back(session.get());
  }
  const auto room = engine_->max_rows() - static_cast<uint32_t>(rows_.size());
  const uint32_t chunk = std::min(room, options_.prefill_chunk);
  if (prompts.empty() || chunk == 0) return;
  std::stable_sort(prompts.begin() + 1, prompts.end(), [](const Session* a, const Session* b) {
    return a->num_unplanned() < b->num_unplanned();
  });
  uint64_t wanted_by_others = 0;
  for (size_t i = 1; i < prompts.size(); ++i) wanted_by_others += prompts[i]->num_unplanned();
  PlanPrefillOf(*prompts[0], chunk - static_cast<uint32_t>(std::min<uint64_t>(chunk / 2, wanted_by_others)),
                now);
  for (size_t i = 1; i < prompts.size() && num_prefill_rows_ < chunk; ++i) {
    PlanPrefillOf(*prompts[i], chunk - num_prefill_rows_, now);
  }
}

void Scheduler::PlanPrefillOf(Session& session, uint32_t max_rows, absl::Time now) {
  const auto room = engine_->max_rows() - static_cast<uint32_t>(rows_.size());
  if (room == 0) return;
  num_prefill_rows_ +=
      session.PlanPrefill(std::min(room, max_rows), kMostPromptLogitRows - num_prompt_logit_rows_, rows_);
  num_prompt_logit_rows_ += session.prompt_rows().count;
  prefills_.push_back(&session);
  // With the prompt's last token but one in this step, the first round fits in as well.
  const auto left = engine_->max_rows() - static_cast<uint32_t>(rows_.size());
  if (session.prefilled() && left > 0) {
    Session* const first_round[] = {&session};
    ChooseTrees(first_round, left - 1, static_cast<uint32_t>(rows_.size()));
    session.PlanRound(now, rows_);
    rounds_.push_back(&session);
  }
}

void Scheduler::TellPrompt(Session& session) {
  for (PromptPart& part : session.DescribePrompt(rows_))
    listener_->OnPromptPart(session.id(), std::move(part));
}

}  // namespace tandem
