#include "common/engine/cpu/expert_chooser.h"

#include <algorithm>

namespace tandem {
namespace {

// The greatest numbers so far of a sequence, sorted. Equal numbers stay in the order in which they came.
class Greatest {
 public:
  explicit Greatest(absl::Span<ExpertChoice> room) : room_(room) {}

  void Add(uint32_t index, float value) {
    if (count_ == room_.size() && !(value > room_[count_ - 1].weight)) return;
    size_t place = count_ < room_.size() ? count_++ : count_ - 1;
    for (; place > 0 && value > room_[place - 1].weight; --place) room_[place] = room_[place - 1];
    room_[place] = {.expert = index, .weight = value};
  }

 private:
  const absl::Span<ExpertChoice> room_;
  size_t count_ = 0;
};

void SortByExpert(absl::Span<ExpertChoice> choices) {
  std::sort(choices.begin(), choices.end(),
            [](const ExpertChoice& a, const ExpertChoice& b) { return a.expert < b.expert; });
}

}  // namespace

ExpertChooser::ExpertChooser(const ExpertsDescription& experts, const KernelTable& kernels)
    : experts_(experts),
      kernels_(kernels),
      scores_(static_cast<size_t>(experts.num_experts)),
      biased_(experts.selection_bias ? scores_.size() : 0),
      places_(static_cast<size_t>(experts.group_places)),
      groups_(static_cast<size_t>(experts.num_chosen_groups)) {}

void ExpertChooser::Choose(const float* logits, absl::Span<const float> selection_bias,
                           absl::Span<ExpertChoice> choices) {
  if (experts_.score == ExpertScore::kSoftmax) {
    // A greater router number gives a greater score.
    TakeGreatest(logits, choices);
    WeighBySoftmax(logits, choices);
  } else {
    const size_t count = scores_.size();
    for (size_t i = 0; i < count; ++i) scores_[i] = -logits[i];
    kernels_.exponential(count, scores_.data());
    for (float& score : scores_) score = 1.0f / (1.0f + score);
    if (selection_bias.empty()) {
      TakeGreatest(scores_.data(), choices);
    } else {
      for (size_t i = 0; i < count; ++i) biased_[i] = scores_[i] + selection_bias[i];
      TakeGreatest(biased_.data(), choices);
    }
    WeighBySigmoid(choices);
  }
  if (experts_.scale == 1.0f) return;
  for (ExpertChoice& choice : choices) choice.weight *= experts_.scale;
}

void ExpertChooser::TakeGreatest(const float* values, absl::Span<ExpertChoice> choices) {
  Greatest greatest(choices);
  const auto num_groups = static_cast<uint32_t>(experts_.num_groups);
  const uint32_t group_size = static_cast<uint32_t>(scores_.size()) / num_groups;
  if (experts_.num_chosen_groups == experts_.num_groups) {
    for (uint32_t expert = 0; expert < scores_.size(); ++expert) greatest.Add(expert, values[expert]);
    return;
  }
  ChooseGroups(values);
  for (const ExpertChoice& group : groups_) {
    const uint32_t begin = group.expert * group_size;
    for (uint32_t expert = begin; expert < begin + group_size; ++expert) {
      greatest.Add(expert, values[expert]);
    }
  }
}

void ExpertChooser::ChooseGroups(const float* values) {
  const auto num_groups = static_cast<uint32_t>(experts_.num_groups);
  const uint32_t group_size = static_cast<uint32_t>(scores_.size()) / num_groups;
  Greatest best(absl::MakeSpan(groups_));
  for (uint32_t group = 0; group < num_groups; ++group) {
    Greatest places(absl::MakeSpan(places_));
    for (uint32_t i = 0; i < group_size; ++i) places.Add(i, values[group * group_size + i]);
    float sum = 0.0f;
    for (const ExpertChoice& place : places_) sum += place.weight;
    best.Add(group, sum);
  }
  SortByExpert(absl::MakeSpan(groups_));
}

void ExpertChooser::WeighBySoftmax(const float* logits, absl::Span<ExpertChoice> choices) {
  const bool over_chosen = experts_.scores_add_up_to_one;
  const size_t size = over_chosen ? choices.size() : scores_.size();
  const float greatest = choices.front().weight;  // Of all experts, after the choice of groups.
  SortByExpert(choices);
  for (size_t i = 0; i < size; ++i) scores_[i] = (over_chosen ? choices[i].weight : logits[i]) - greatest;
  kernels_.exponential(size, scores_.data());
  float total = 0.0f;
  for (size_t i = 0; i < size; ++i) total += scores_[i];
  for (size_t i = 0; i < choices.size(); ++i) {
    choices[i].weight = scores_[over_chosen ? i : choices[i].expert] / total;
  }
}

void ExpertChooser::WeighBySigmoid(absl::Span<ExpertChoice> choices) {
  // Scores of 0 stay 0.
  constexpr float kLeastTotal = 1e-20f;
  SortByExpert(choices);
  float total = 0.0f;
  for (ExpertChoice& choice : choices) {
    choice.weight = scores_[choice.expert];
    total += choice.weight;
  }
  if (!experts_.scores_add_up_to_one) return;
  for (ExpertChoice& choice : choices) choice.weight /= total + kLeastTotal;
}

}  // namespace tandem
