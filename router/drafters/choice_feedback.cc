#include "router/drafters/choice_feedback.h"

#include <algorithm>

namespace tandem::router {
namespace {

// Of a new difference: a memory of about twenty requests.
constexpr double kNewShare = 0.05;

const ChoiceFeatures* FeaturesOf(const FeedbackRequest& request) {
  return dynamic_cast<const ChoiceFeatures*>(request.features.get());
}

}  // namespace

void ChoiceFeatures::SetRealised(double acceptance) {
  absl::MutexLock lock(&mutex_);
  realised_ = acceptance;
}

std::optional<double> ChoiceFeatures::realised() const {
  absl::MutexLock lock(&mutex_);
  return realised_;
}

std::optional<double> ChoiceFeedback::tree_gain() const {
  absl::MutexLock lock(&mutex_);
  return tree_gain_;
}

std::optional<double> ChoiceFeedback::PredictAcceptance(const FeedbackRequest& request,
                                                        absl::string_view drafter) const {
  const ChoiceFeatures* const features = FeaturesOf(request);
  const std::optional<double> gain = tree_gain();
  if (features == nullptr || !gain.has_value()) return std::nullopt;
  const double predicted = chooser_->Predict(features->model(), drafter, features->prompt()).mean;
  return std::clamp(predicted - *gain, 0.0, 1.0);
}

double ChoiceFeedback::Throughput(const FeedbackRequest& request, absl::string_view drafter,
                                  double acceptance) const {
  const ChoiceFeatures* const features = FeaturesOf(request);
  if (features == nullptr) return FeedbackSink::Throughput(request, drafter, acceptance);
  const double accepted = std::clamp(acceptance + tree_gain().value_or(0.0), 0.0, 1.0);
  const std::optional<double> throughput =
      chooser_->Throughput(features->model(), features->prompt().tenant, drafter, accepted);
  return throughput.value_or(FeedbackSink::Throughput(request, drafter, acceptance));
}

std::optional<double> ChoiceFeedback::RealisedThroughput(const FeedbackRequest& request) const {
  const ChoiceFeatures* const features = FeaturesOf(request);
  if (features == nullptr) return std::nullopt;
  const std::optional<double> realised = features->realised();
  if (!realised.has_value()) return std::nullopt;
  return chooser_->Throughput(features->model(), features->prompt().tenant, request.drafter, *realised);
}

void ChoiceFeedback::OnScoreAnswered(const FeedbackRequest& request, absl::string_view drafter,
                                     bool answered) {
  const ChoiceFeatures* const features = FeaturesOf(request);
  if (features != nullptr) chooser_->OnScoreAnswered(features->model(), drafter, answered);
}

void ChoiceFeedback::OnScored(const FeedbackRequest& request, const DrafterScore& score) {
  const ChoiceFeatures* const features = FeaturesOf(request);
  if (features == nullptr || score.output_tokens == 0) return;
  if (!(score.acceptance >= 0.0 && score.acceptance <= 1.0)) return;
  if (score.drafter == request.drafter) {
    const std::optional<double> realised = features->realised();
    if (!realised.has_value()) return;
    const double gain = *realised - score.acceptance;
    absl::MutexLock lock(&mutex_);
    tree_gain_ = tree_gain_.has_value() ? *tree_gain_ + kNewShare * (gain - *tree_gain_) : gain;
    return;
  }
  const std::optional<double> gain = tree_gain();
  if (!gain.has_value()) return;
  chooser_->Observe(features->model(), score.drafter, features->prompt(),
                    std::clamp(score.acceptance + *gain, 0.0, 1.0), SampleWeight(score.output_tokens));
}

}  // namespace tandem::router
