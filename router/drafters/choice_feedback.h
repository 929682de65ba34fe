#pragma once

#include <cstddef>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "router/drafters/choice/drafter_chooser.h"
#include "router/drafters/feedback/feedback_sink.h"

namespace tandem::router {

// A prompt's features on their way through feedback, with the outcome of the request.
class ChoiceFeatures final : public PromptFeatures {
 public:
  ChoiceFeatures(size_t model, PromptHandle prompt) : model_(model), prompt_(std::move(prompt)) {}

  size_t model() const { return model_; }
  const PromptHandle& prompt() const { return prompt_; }
  // The acceptance of the request's own drafter; unset before the end, and without a drafter.
  void SetRealised(double acceptance);
  std::optional<double> realised() const;

 private:
  const size_t model_;
  const PromptHandle prompt_;
  mutable absl::Mutex mutex_;
  std::optional<double> realised_ ABSL_GUARDED_BY(mutex_);
};

// Teaches the choice of drafters from scores (full-information feedback, DESIGN section 5).
//
// A score is the share of tokens that were a drafter's first guess. Verification accepts more, because trees
// hold several guesses. So the mean difference, over requests whose own drafter was scored too, is added to
// every score; until it is known, scores are not used. The score of a request's own drafter is not used
// either, because the choice has already learned from its verification. Thread-safe.
class ChoiceFeedback final : public FeedbackSink {
 public:
  // `chooser` outlives this.
  explicit ChoiceFeedback(DrafterChooser* chooser) : chooser_(chooser) {}

  std::optional<double> PredictAcceptance(const FeedbackRequest& request,
                                          absl::string_view drafter) const override;
  double Throughput(const FeedbackRequest& request, absl::string_view drafter,
                    double acceptance) const override;
  std::optional<double> RealisedThroughput(const FeedbackRequest& request) const override;
  void OnScoreAnswered(const FeedbackRequest& request, absl::string_view drafter, bool answered) override;
  void OnScored(const FeedbackRequest& request, const DrafterScore& score) override;

 private:
  std::optional<double> tree_gain() const;

  DrafterChooser* const chooser_;
  mutable absl::Mutex mutex_;
  std::optional<double> tree_gain_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::router
