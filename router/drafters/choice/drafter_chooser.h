#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "router/drafters/choice/acceptance_regression.h"
#include "router/drafters/choice/candidate_choice.h"
#include "router/drafters/choice/live_costs.h"
#include "router/drafters/choice/tenant_corrections.h"
#include "router/drafters/features/feature_model.h"
#include "tandem/v1/routing.pb.h"

namespace tandem::router {

// Most drafters with state for one model. They are configured names: no sane configuration reaches this.
inline constexpr int kMostDrafters = 256;

// A prompt's features, kept as long as its request. Cheap to copy.
struct PromptHandle {
  std::shared_ptr<const FeatureModel> feature_model;
  std::shared_ptr<const FeatureModel::Extracted> extracted;
  // The prompt's end, while features are not fitted yet; then nullptr.
  std::shared_ptr<const TokenIds> tokens;
  std::string tenant;
};

struct DrafterDecision {
  std::optional<size_t> drafter;  // Index into the drafters that were offered; absent: plain decoding.
  absl::string_view reason;
  // The prediction for the chosen drafter.
  std::optional<AcceptanceRegression::Prediction> predicted;
  // Whether little is known about a candidate, so that it is worth scoring the request with all of them.
  bool learning = false;
  // Counts the request as in flight, for exploration, until the last copy is gone.
  std::shared_ptr<void> pending;
};

// How a drafter's guesses become tokens of a model.
enum class VocabularyFit {
  kIds,   // By their ids, its own or bridged.
  kText,  // By text alone, which tenants have to allow.
  kNone,  // Not at all.
};

// The vocabularies of a drafter, by their fingerprints.
struct DraftVocabularies {
  uint64_t own = 0;  // 0: that of any model.
  std::vector<uint64_t> bridged;
  std::vector<uint64_t> by_text;
  bool operator==(const DraftVocabularies&) const = default;
};

// A calibration prompt, with the outcome of each drafter that was tried.
struct CalibrationPrompt {
  struct Outcome {
    std::string drafter;
    double acceptance = 0.0;
    uint32_t trials = 0;
  };
  TokenIds tokens;
  std::vector<Outcome> outcomes;
};

// Chooses the drafter of each request of a model, and learns from the outcome:
//
//   Prepare (features) -> Decide -> ... the request runs ... -> Learn
//
// Starts cold with a random projection, and explores. After `fit_prompts` requests, Fit fits features to
// their prompts, which are then dropped. Calibrate does both at once, from prompts that every drafter has
// tried.
//
// What is learned is kept per (model, drafter name) and shared by all tenants, except corrections, which each
// tenant has of its own. Thread-safe.
class DrafterChooser {
 public:
  struct Model {
    std::string name;
    uint32_t vocab_size = 1;
    uint64_t vocabulary_fingerprint = 0;
  };
  struct Options {
    uint32_t dimension = FeatureModel::kDefaultDimension;
    size_t fit_prompts = 64;
    // A drafter counts as little known until it has this many samples, or was a candidate this often. The
    // second bound is for a drafter that does not answer; otherwise it would be asked about every request for
    // ever.
    uint64_t learn_samples = 100;
    uint64_t learn_decisions = 500;
    // A drafter without a score for this many consecutive requests counts as unscored.
    uint32_t unscored_requests = 8;
    AcceptanceRegression::Options regression;
    ChoiceOptions choice;
  };

  DrafterChooser(const Options& options, const std::vector<Model>& models);

  // In all methods, `model` is an index into the models.
  PromptHandle Prepare(size_t model, absl::Span<const TokenId> prompt, absl::string_view tenant) const;
  DrafterDecision Decide(size_t model, const PromptHandle& prompt, absl::Span<const std::string> drafters);
  // A request has finished; `drafter` is empty for plain decoding.
  void Learn(size_t model, absl::string_view drafter, const PromptHandle& prompt,
             const RequestOutcome& outcome);
  // What `drafter`'s acceptance would have been: full-information feedback. `weight` is in (0, 1].
  void Observe(size_t model, absl::string_view drafter, const PromptHandle& prompt, double acceptance,
               double weight);
  // A drafter was asked to score a request. `answered`: whether it did.
  void OnScoreAnswered(size_t model, absl::string_view drafter, bool answered);
  // Speeds as servers report them, used until requests have measured them: a drafter's seconds for a level of
  // one session's tree, and a verifier's seconds for a round, by increasing number of rows. Values that are
  // not finite or out of range are ignored.
  void TellLevelSeconds(absl::string_view drafter, double seconds);
  struct RoundPoint {
    uint32_t rows = 0;
    double seconds = 0.0;
  };
  void TellRoundSeconds(size_t model, absl::Span<const RoundPoint> rounds);
  // The vocabularies that a drafter reports, for FitOf. Returns whether they are new.
  bool TellVocabularies(absl::string_view drafter, DraftVocabularies vocabularies);
  // Also kIds for a drafter that has not reported yet.
  VocabularyFit FitOf(size_t model, absl::string_view drafter) const;
  // The predicted acceptance of a drafter, as Decide uses it. For feedback.
  AcceptanceRegression::Prediction Predict(size_t model, absl::string_view drafter,
                                           const PromptHandle& prompt) const;

  // The predicted tokens per second of a request of `tenant` with this drafter (empty: none) and acceptance;
  // nullopt before costs were measured.
  std::optional<double> Throughput(size_t model, absl::string_view tenant, absl::string_view drafter,
                                   double acceptance) const;

  // Whether there are enough prompts to call Fit, which is due once. Fit takes milliseconds to seconds: do
  // not call it on network threads.
  bool FitDue(size_t model) const;
  void Fit(size_t model);

  // Replaces what is known about the model. Returns each drafter's mean absolute error by cross-validation.
  // InvalidArgument, without a change, for fewer than kFewestPrompts prompts.
  static constexpr size_t kFewestPrompts = 10;
  absl::StatusOr<std::map<std::string, double>> Calibrate(size_t model,
                                                          const std::vector<CalibrationPrompt>& prompts);

  // What Decide would do, and why. Changes nothing. `drafters` as in Decide.
  v1::ChoiceExplanation Explain(size_t model, absl::Span<const TokenId> prompt, absl::string_view tenant,
                                absl::Span<const std::string> drafters) const;

  // The names of the models served here, by index.
  std::vector<std::string> ModelNames() const;

  v1::LearnedRouting Save() const;
  // Loads the state of models that are served here; ignores that of others. InvalidArgument or
  // FailedPrecondition (another vocabulary), naming the model and field, without a change.
  absl::Status Load(const v1::LearnedRouting& state);

 private:
  struct DrafterState {
    DrafterState(const AcceptanceRegression::Options& options, size_t dimension)
        : regression(options, dimension) {}
    AcceptanceRegression regression;
    LiveDraftCosts costs;
    TenantCorrections correction;
    uint64_t offered = 0;     // Decisions it was a candidate of, since the last calibration.
    uint64_t last_timed = 0;  // The model's number of decisions then, when it was to be timed, or first seen.
    uint64_t finished = 0;    // As in Candidate.
    uint64_t idle_finished = 0;  // As in Candidate.
    uint32_t unscored = 0;       // Requests in a row that it was to score and did not.
    // Shared with decisions, which may outlive a calibration.
    std::shared_ptr<std::atomic<uint32_t>> pending = std::make_shared<std::atomic<uint32_t>>(0);
  };
  struct ColdSample {
    std::string drafter;
    double acceptance;
    double weight;
  };
  struct ColdPrompt {
    std::shared_ptr<const TokenIds> tokens;
    std::vector<ColdSample> samples;
  };
  struct ModelState {
    Model model;
    std::shared_ptr<const FeatureModel> features;
    std::map<std::string, DrafterState, std::less<>> drafters;
    LiveVerifySeconds verify;
    LiveVerifySeconds told_verify;  // Until there is the former.
    TenantCorrections plain_correction;
    uint64_t plain_last_timed = 0;  // As a drafter's.
    uint64_t num_decisions = 0;
    std::vector<ColdPrompt> cold_prompts;  // While features are not fitted.
    bool fitting = false;
  };

  bool IsScored(const DrafterState& state) const { return state.unscored < options_.unscored_requests; }
  static PlainDecoding PlainOf(const ModelState& model, absl::string_view tenant);
  static const VerifySeconds& VerifyOf(const ModelState& model);
  DrafterState& DrafterOf(ModelState& model, absl::string_view drafter) const;
  // The same, but nullptr if kMostDrafters drafters have state already.
  DrafterState* RoomFor(ModelState& model, absl::string_view drafter) const;
  std::vector<Candidate> CandidatesOf(const ModelState& model, const FeatureVector& features,
                                      absl::string_view tenant, absl::Span<const std::string> drafters) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void ObserveLocked(ModelState& model, DrafterState& state, absl::string_view drafter,
                     const PromptHandle& prompt, double acceptance, double weight) const;
  absl::StatusOr<ModelState> LoadModel(const Model& model, const v1::LearnedModel& state) const;

  const Options options_;
  mutable absl::Mutex mutex_;
  std::vector<ModelState> models_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, double, std::less<>> told_level_seconds_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, DraftVocabularies, std::less<>> told_vocabularies_ ABSL_GUARDED_BY(mutex_);
};

// The weight, in (0, 1), of an acceptance measured with this many trials, which are a sample of the prompt's
// acceptance.
double SampleWeight(uint32_t trials);

}  // namespace tandem::router
