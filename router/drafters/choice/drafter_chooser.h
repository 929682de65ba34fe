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

// Drafters that are remembered for one model. They are configured names: no sane configuration reaches this.
inline constexpr int kMostDrafters = 256;

// A prompt's features, as long as its request lives. Cheap to copy.
struct PromptHandle {
  std::shared_ptr<const FeatureModel> feature_model;
  std::shared_ptr<const FeatureModel::Extracted> extracted;
  // The prompt's end, while features are yet to be fitted; nullptr afterwards.
  std::shared_ptr<const TokenIds> tokens;
  std::string tenant;
};

struct DrafterDecision {
  std::optional<size_t> drafter;  // Index into the drafters that were offered; absent: plain decoding.
  absl::string_view reason;
  // Of the drafter that was chosen.
  std::optional<AcceptanceRegression::Prediction> predicted;
  // Whether a candidate is little known, so that it is worth asking what all of them would have accepted.
  bool learning = false;
  // Counts the request as on its way, for exploration, until the last copy is gone.
  std::shared_ptr<void> pending;
};

// How a drafter's guesses become tokens of a model.
enum class VocabularyFit {
  kIds,   // By their ids, its own or bridged.
  kText,  // By text alone, which tenants have to allow.
  kNone,  // Not at all.
};

// What a drafter says of vocabularies, by their fingerprints.
struct DraftVocabularies {
  uint64_t own = 0;  // 0: that of any model.
  std::vector<uint64_t> bridged;
  std::vector<uint64_t> by_text;
  bool operator==(const DraftVocabularies&) const = default;
};

// A calibration prompt: what each drafter that was tried came to.
struct CalibrationPrompt {
  struct Outcome {
    std::string drafter;
    double acceptance = 0.0;
    uint32_t trials = 0;
  };
  TokenIds tokens;
  std::vector<Outcome> outcomes;
};

// Chooses the drafter of each request of a model, and learns from what became of it:
//
//   Prepare (features) -> Decide -> ... the request runs ... -> Learn
//
// Starts cold with a random projection, and explores. Once `fit_prompts` requests were learned from, their
// prompts are used to fit features, by Fit, and then forgotten. Calibrate does both at once, from prompts
// that each drafter has tried.
//
// What is learned is kept per (model, drafter name), whoever the tenant is, but for corrections, which each
// tenant has its own of. Thread-safe.
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
    // A drafter is little known until it has so many samples, or was a candidate so often: one that does not
    // answer is not asked about every request for ever.
    uint64_t learn_samples = 100;
    uint64_t learn_decisions = 500;
    // A drafter that had no score of so many requests in a row is taken for one that scores nothing.
    uint32_t unscored_requests = 8;
    AcceptanceRegression::Options regression;
    ChoiceOptions choice;
  };

  DrafterChooser(const Options& options, const std::vector<Model>& models);

  // `model` indexes the models throughout.
  PromptHandle Prepare(size_t model, absl::Span<const TokenId> prompt, absl::string_view tenant) const;
  DrafterDecision Decide(size_t model, const PromptHandle& prompt, absl::Span<const std::string> drafters);
  // A request has finished; `drafter` is empty for plain decoding.
  void Learn(size_t model, absl::string_view drafter, const PromptHandle& prompt,
             const RequestOutcome& outcome);
  // What `drafter`'s acceptance would have been: full-information feedback. `weight` is in (0, 1].
  void Observe(size_t model, absl::string_view drafter, const PromptHandle& prompt, double acceptance,
               double weight);
  // A request was to be scored by the drafter: whether there was an answer.
  void OnScoreAnswered(size_t model, absl::string_view drafter, bool answered);
  // What servers say of their own speed, which counts until requests have measured it: seconds that the
  // drafter takes for a level of one session's tree, and those of a round of so many rows of a verifier, by
  // rows, increasing. What is not finite or out of range is ignored.
  void TellLevelSeconds(absl::string_view drafter, double seconds);
  struct RoundPoint {
    uint32_t rows = 0;
    double seconds = 0.0;
  };
  void TellRoundSeconds(size_t model, absl::Span<const RoundPoint> rounds);
  // Likewise what a drafter drafts for, for FitOf. Whether that is news.
  bool TellVocabularies(absl::string_view drafter, DraftVocabularies vocabularies);
  // kIds too for a drafter that has said nothing yet.
  VocabularyFit FitOf(size_t model, absl::string_view drafter) const;
  // What a drafter is predicted to accept, and its throughput, as Decide would have it: for feedback.
  AcceptanceRegression::Prediction Predict(size_t model, absl::string_view drafter,
                                           const PromptHandle& prompt) const;

  // What a request of `tenant` with this drafter (empty: none) and acceptance would be rated at, in tokens
  // per second; nothing before costs were measured.
  std::optional<double> Throughput(size_t model, absl::string_view tenant, absl::string_view drafter,
                                   double acceptance) const;

  // Whether enough prompts have come together; then Fit, which takes milliseconds to seconds, is due once.
  // From any thread but those that serve the network.
  bool FitDue(size_t model) const;
  void Fit(size_t model);

  // Replaces what is known of the model. Returns each drafter's mean absolute error over prompts that were
  // left out of learning, in turns. InvalidArgument, without a change, for fewer than kFewestPrompts prompts.
  static constexpr size_t kFewestPrompts = 10;
  absl::StatusOr<std::map<std::string, double>> Calibrate(size_t model,
                                                          const std::vector<CalibrationPrompt>& prompts);

  // What Decide would do, with all it rests on; nothing changes. `drafters` as there.
  v1::ChoiceExplanation Explain(size_t model, absl::Span<const TokenId> prompt, absl::string_view tenant,
                                absl::Span<const std::string> drafters) const;

  // Of the models served here, by index.
  std::vector<std::string> ModelNames() const;

  v1::LearnedRouting Save() const;
  // Takes over the state of models that are served here; others' is passed over. InvalidArgument or
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
    // Shared with decisions, which may outlive a new calibration.
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
  // The same, but nullptr when so many are remembered that there is no room for it.
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

// What an acceptance from so many trials is worth, in (0, 1): trials are a sample of the prompt's acceptance.
double SampleWeight(uint32_t trials);

}  // namespace tandem::router
