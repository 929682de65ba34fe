// The log probabilities of a Session's prompt, which come out of its prefill: the row of a token tells of the
// token after it.

#include <algorithm>
#include <utility>
#include <vector>

#include "verifier/session/session.h"

namespace tandem {

uint32_t Session::PlanPromptLogits(uint32_t first_row, uint32_t most, uint32_t end) {
  // The first token is described by nothing. After a preemption rows come again that have told of theirs.
  const uint32_t first = std::max(planned_, std::max(num_described_, 1u) - 1);
  const auto last = static_cast<uint32_t>(request_.prompt.size()) - 1;
  if (first < last) end = std::min(end, first + most);
  const uint32_t stop = std::min(end, last);
  prompt_rows_ = {.first = first_row + (first - planned_), .count = stop > first ? stop - first : 0};
  return end;
}

std::vector<PromptPart> Session::DescribePrompt(absl::Span<const StepRow> rows) {
  std::vector<PromptPart> parts;
  if (!wants_prompt_logits()) return parts;
  const auto add = [&](TokenChoice choice) {
    prompt_part_.tokens.push_back(std::move(choice));
    ++num_described_;
    if (prompt_part_.tokens.size() < kMostPromptPart && num_described_ < request_.prompt.size()) return;
    parts.push_back(std::exchange(prompt_part_, {.offset = num_described_}));
  };
  if (num_described_ == 0) add({.token = request_.prompt[0]});
  // The model's own distribution, whatever the output is sampled from.
  const TargetSampler plain(SamplingParameters{}, vocab_size_, {});
  const RowRange described = std::exchange(prompt_rows_, {});
  for (uint32_t i = 0; i < described.count; ++i) {
    const auto logits = absl::MakeSpan(rows[described.first + i].logits, static_cast<size_t>(vocab_size_));
    add(plain.Describe(logits, request_.prompt[num_described_], num_described_,
                       request_.num_prompt_logprobs));
  }
  return parts;
}

}  // namespace tandem
