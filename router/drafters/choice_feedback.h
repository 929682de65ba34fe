#pragma once

#include <cstddef>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "router/drafters/choice/drafter_chooser.h"
#include "router/drafters/feedback/feedback_sink.h"

namespace tandem::router {

// A prompt's features on their way through feedback, with what the request came to.
class ChoiceFeatures final : public PromptFeatures {
 public:
  ChoiceFeatures(size_t model, PromptHandle prompt) : model_(model), prompt_(std::move(prompt)) {}

  size_t model() const { return model_; }
  const PromptHandle& prompt() const { return prompt_; }
  // What the request's own drafter was accepted at; nothing before the end, and without a drafter.
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
// A score is the share of tokens that were a drafter's first guess; what verification accepts is more, since
// trees hold several guesses. The difference is averaged over requests whose own drafter was scored too, and
// added to every score. Until one is known, scores teach nothing. A request's own drafter has been learned
// from already. Thread-safe.
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
