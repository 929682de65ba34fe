#include "router/drafters/choice/drafter_chooser.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/speculation/policies/window_policy.h"
#include "common/speculation/round_time_model.h"

namespace tandem::router {
namespace {

// So many trials say as much as the prompts' own differences leave open.
constexpr double kTrialsForHalf = 16.0;
// Of a prompt, while prompts are kept.
constexpr size_t kKeptTokens = 512;
constexpr size_t kFolds = 5;

// Of a choice that is not made: beyond all shares.
constexpr double kNoDraw = 1.0;

std::string String(absl::string_view text) {
  return std::string(text.data(), text.size());
}

// Uniform in [0, 1), by the number of the decision alone: which requests are samples depends on nothing that
// clients know, and a period of theirs meets no period of the draws.
double DrawOf(uint64_t decision) {
  return std::ldexp(static_cast<double>(Mix64(decision) >> 11), -53);
}

}  // namespace

double SampleWeight(uint32_t trials) {
  return trials / (trials + kTrialsForHalf);
}

DrafterChooser::DrafterChooser(const Options& options, const std::vector<Model>& models) : options_(options) {
  absl::MutexLock lock(&mutex_);
  for (const Model& model : models) {
    models_.push_back(
        {.model = model,
         .features = std::make_shared<const FeatureModel>(options.dimension, model.vocab_size)});
  }
}

DrafterChooser::DrafterState& DrafterChooser::DrafterOf(ModelState& model, absl::string_view drafter) const {
  const auto found = model.drafters.find(drafter);
  if (found != model.drafters.end()) return found->second;
  DrafterState& state =
      model.drafters
          .try_emplace(String(drafter), options_.regression, static_cast<size_t>(model.features->dimension()))
          .first->second;
  state.last_timed = model.num_decisions;
  return state;
}

DrafterChooser::DrafterState* DrafterChooser::RoomFor(ModelState& model, absl::string_view drafter) const {
  const bool full = model.drafters.size() >= size_t{kMostDrafters};
  return full && !model.drafters.contains(drafter) ? nullptr : &DrafterOf(model, drafter);
}

PromptHandle DrafterChooser::Prepare(size_t model, absl::Span<const TokenId> prompt,
                                     absl::string_view tenant) const {
  PromptHandle handle{.tenant = String(tenant)};
  bool keep = false;
  {
    absl::MutexLock lock(&mutex_);
    handle.feature_model = models_[model].features;
    keep = !handle.feature_model->fitted() && models_[model].cold_prompts.size() < options_.fit_prompts;
  }
  handle.extracted = std::make_shared<const FeatureModel::Extracted>(handle.feature_model->Extract(prompt));
  if (keep) {
    const auto last = prompt.subspan(prompt.size() - std::min(prompt.size(), kKeptTokens));
    handle.tokens = std::make_shared<const TokenIds>(last.begin(), last.end());
  }
  return handle;
}

std::vector<Candidate> DrafterChooser::CandidatesOf(const ModelState& model, const FeatureVector& features,
                                                    absl::string_view tenant,
                                                    absl::Span<const std::string> drafters) const {
  std::vector<Candidate> candidates;
  for (const std::string& name : drafters) {
    Candidate candidate{.drafter = name};
    const auto found = model.drafters.find(name);
    if (found == model.drafters.end()) {
      candidate.acceptance = AcceptanceRegression(options_.regression, features.size()).Predict(features);
    } else {
      const DrafterState& state = found->second;
      candidate.acceptance = state.regression.Predict(features);
      candidate.samples = state.regression.samples();
      candidate.finished = state.finished;
      candidate.idle_finished = state.idle_finished;
      candidate.costs = state.costs.value();
      candidate.correction = state.correction.value(tenant);
      candidate.idle_decisions = model.num_decisions - state.last_timed;
      candidate.pending = state.pending->load(std::memory_order_relaxed);
      candidate.scored = IsScored(state);
    }
    if (const auto told = told_level_seconds_.find(name); told != told_level_seconds_.end()) {
      candidate.told_level_seconds = told->second;
    }
    candidates.push_back(std::move(candidate));
  }
  return candidates;
}

const VerifySeconds& DrafterChooser::VerifyOf(const ModelState& model) {
  return model.verify.value().empty() ? model.told_verify.value() : model.verify.value();
}

void DrafterChooser::TellLevelSeconds(absl::string_view drafter, double seconds) {
  LiveDraftCosts costs;
  costs.Observe({.hidden_level_seconds = seconds});
  if (!costs.value().has_value()) return;
  absl::MutexLock lock(&mutex_);
  if (told_level_seconds_.size() >= kMostDrafters && !told_level_seconds_.contains(drafter)) return;
  told_level_seconds_[String(drafter)] = seconds;
}

bool DrafterChooser::TellVocabularies(absl::string_view drafter, DraftVocabularies vocabularies) {
  absl::MutexLock lock(&mutex_);
  const auto found = told_vocabularies_.find(drafter);
  if (found == told_vocabularies_.end()) {
    if (told_vocabularies_.size() >= kMostDrafters) return false;
    told_vocabularies_.emplace(String(drafter), std::move(vocabularies));
    return true;
  }
  if (found->second == vocabularies) return false;
  found->second = std::move(vocabularies);
  return true;
}

VocabularyFit DrafterChooser::FitOf(size_t model, absl::string_view drafter) const {
  absl::MutexLock lock(&mutex_);
  const auto found = told_vocabularies_.find(drafter);
  if (found == told_vocabularies_.end()) return VocabularyFit::kIds;
  const uint64_t wanted = models_[model].model.vocabulary_fingerprint;
  const auto has = [wanted](const std::vector<uint64_t>& fingerprints) {
    return std::find(fingerprints.begin(), fingerprints.end(), wanted) != fingerprints.end();
  };
  const DraftVocabularies& told = found->second;
  if (told.own == 0 || told.own == wanted || has(told.bridged)) return VocabularyFit::kIds;
  return has(told.by_text) ? VocabularyFit::kText : VocabularyFit::kNone;
}

void DrafterChooser::TellRoundSeconds(size_t model, absl::Span<const RoundPoint> rounds) {
  std::vector<RoundTimeModel::Point> grid;
  uint32_t last_rows = 0;
  for (const RoundPoint& round : rounds) {
    if (round.rows <= std::exchange(last_rows, round.rows) || !(round.seconds >= 0.0) ||
        !std::isfinite(round.seconds))
      return;
    grid.push_back({.rows = round.rows, .seconds = round.seconds});
  }
  if (grid.empty()) return;
  const RoundTimeModel times(grid);
  // As verifiers have them by default.
  const WindowLimits limits;
  VerifySeconds verify;
  for (uint32_t window = 0; window <= limits.max_depth; ++window) {
    verify.push_back(times.Seconds(1 + limits.NodesFor(window)));
  }
  absl::MutexLock lock(&mutex_);
  models_[model].told_verify.Observe(verify);
}

PlainDecoding DrafterChooser::PlainOf(const ModelState& model, absl::string_view tenant) {
  return {.correction = model.plain_correction.value(tenant),
          .idle_decisions = model.num_decisions - model.plain_last_timed};
}

DrafterDecision DrafterChooser::Decide(size_t model_index, const PromptHandle& prompt,
                                       absl::Span<const std::string> drafters) {
  absl::MutexLock lock(&mutex_);
  ModelState& model = models_[model_index];
  ++model.num_decisions;
  bool learning = false;
  for (const std::string& name : drafters) {
    DrafterState* const state = RoomFor(model, name);
    if (state == nullptr) continue;
    ++state->offered;
    learning = learning || (state->regression.samples() < options_.learn_samples &&
                            state->offered <= options_.learn_decisions && IsScored(*state));
  }
  // Features were fitted since the prompt was prepared: the old ones say nothing to the new regressions.
  const FeatureVector neutral(model.features->dimension(), 0.0);
  const bool current = prompt.feature_model == model.features;
  const std::vector<Candidate> candidates =
      CandidatesOf(model, current ? prompt.extracted->features : neutral, prompt.tenant, drafters);
  const CandidateChoice choice = ChooseCandidate(candidates, VerifyOf(model), PlainOf(model, prompt.tenant),
                                                 options_.choice, DrawOf(model.num_decisions));
  DrafterDecision decision{.drafter = choice.candidate, .reason = choice.reason};
  decision.learning = learning;
  // Whatever becomes of the request: those that teach nothing are not tried one after the other.
  const bool refresh = choice.reason == kReasonRefresh;
  if (!choice.candidate.has_value()) {
    if (refresh) {
      model.plain_last_timed = model.num_decisions;
      model.plain_correction.Age();
    }
    return decision;
  }
  decision.predicted = candidates[*choice.candidate].acceptance;
  DrafterState* const state = RoomFor(model, drafters[*choice.candidate]);
  if (state == nullptr) return decision;
  if (refresh) {
    state->last_timed = model.num_decisions;
    state->correction.Age();
  }
  state->pending->fetch_add(1, std::memory_order_relaxed);
  decision.pending = std::shared_ptr<void>(
      nullptr, [pending = state->pending](void*) { pending->fetch_sub(1, std::memory_order_relaxed); });
  return decision;
}

void DrafterChooser::Learn(size_t model_index, absl::string_view drafter, const PromptHandle& prompt,
                           const RequestOutcome& outcome) {
  absl::MutexLock lock(&mutex_);
  ModelState& model = models_[model_index];
  model.verify.Observe(outcome.verify);
  const VerifySeconds& verify = VerifyOf(model);
  if (drafter.empty()) {
    if (!verify.empty() && model.plain_correction.Observe(prompt.tenant, 1.0 / verify[0], outcome)) {
      model.plain_last_timed = model.num_decisions;
    }
    return;
  }
  DrafterState* const known = RoomFor(model, drafter);
  if (known == nullptr) return;
  DrafterState& state = *known;
  ++state.finished;
  // A request that lost the drafter says nothing of it, and has no tokens here.
  state.idle_finished += outcome.trials() == 0 && outcome.decode_tokens > 0 ? 1 : 0;
  if (outcome.draft.has_value()) {
    state.costs.Observe(*outcome.draft);
    state.last_timed = model.num_decisions;
  }
  if (!verify.empty() && state.costs.value().has_value()) {
    // With the acceptance that the request came to, so that its errors are not taken for errors of costs.
    // Where nothing was drafted there is none: the verifier saw no use in it, and what was promised did not
    // come.
    const bool current = prompt.feature_model == model.features;
    const double acceptance =
        outcome.trials() > 0 ? outcome.acceptance()
        : current            ? state.regression.Predict(prompt.extracted->features).mean
                             : state.regression.Predict(FeatureVector(model.features->dimension(), 0.0)).mean;
    const WindowForecast forecast = BestWindow(acceptance, *state.costs.value(), verify);
    // A drafter that is best left unused is plain decoding, whose correction is not its own.
    if (forecast.window > 0 &&
        state.correction.Observe(prompt.tenant, forecast.tokens_per_second(), outcome)) {
      state.last_timed = model.num_decisions;
    }
  }
  if (outcome.trials() == 0) return;
  ObserveLocked(model, state, drafter, prompt, outcome.acceptance(), SampleWeight(outcome.trials()));
}

void DrafterChooser::Observe(size_t model_index, absl::string_view drafter, const PromptHandle& prompt,
                             double acceptance, double weight) {
  absl::MutexLock lock(&mutex_);
  ModelState& model = models_[model_index];
  DrafterState* const state = RoomFor(model, drafter);
  if (state != nullptr) ObserveLocked(model, *state, drafter, prompt, acceptance, weight);
}

void DrafterChooser::OnScoreAnswered(size_t model_index, absl::string_view drafter, bool answered) {
  absl::MutexLock lock(&mutex_);
  DrafterState* const state = RoomFor(models_[model_index], drafter);
  if (state == nullptr) return;
  state->unscored = answered ? 0 : std::min(state->unscored + 1, options_.unscored_requests);
}

void DrafterChooser::ObserveLocked(ModelState& model, DrafterState& state, absl::string_view drafter,
                                   const PromptHandle& prompt, double acceptance, double weight) const {
  if (prompt.feature_model != model.features) return;
  state.regression.Observe(prompt.extracted->features, acceptance, weight);
  if (prompt.tokens == nullptr || model.features->fitted()) return;
  // Feedback brings several samples of one prompt.
  const auto same = [&](const ColdPrompt& cold) { return cold.tokens == prompt.tokens; };
  auto cold = std::find_if(model.cold_prompts.begin(), model.cold_prompts.end(), same);
  if (cold == model.cold_prompts.end()) {
    if (model.cold_prompts.size() >= options_.fit_prompts) return;
    model.cold_prompts.push_back({.tokens = prompt.tokens, .samples = {}});
    cold = std::prev(model.cold_prompts.end());
  }
  cold->samples.push_back({.drafter = String(drafter), .acceptance = acceptance, .weight = weight});
}

AcceptanceRegression::Prediction DrafterChooser::Predict(size_t model_index, absl::string_view drafter,
                                                         const PromptHandle& prompt) const {
  absl::MutexLock lock(&mutex_);
  const ModelState& model = models_[model_index];
  const FeatureVector neutral(model.features->dimension(), 0.0);
  const bool current = prompt.feature_model == model.features;
  const std::string name = String(drafter);
  return CandidatesOf(model, current ? prompt.extracted->features : neutral, prompt.tenant, {name})[0]
      .acceptance;
}

std::optional<double> DrafterChooser::Throughput(size_t model_index, absl::string_view tenant,
                                                 absl::string_view drafter, double acceptance) const {
  absl::MutexLock lock(&mutex_);
  const ModelState& model = models_[model_index];
  const VerifySeconds& verify = VerifyOf(model);
  if (verify.empty()) return std::nullopt;
  if (drafter.empty()) return model.plain_correction.value(tenant) / verify[0];
  std::vector<Candidate> candidates =
      CandidatesOf(model, FeatureVector(model.features->dimension(), 0.0), tenant, {String(drafter)});
  candidates[0].acceptance = {.mean = std::clamp(acceptance, 0.0, options_.regression.highest)};
  return ChooseCandidate(candidates, verify, PlainOf(model, tenant), options_.choice, kNoDraw)
      .forecasts[0]
      .tokens_per_second;
}

bool DrafterChooser::FitDue(size_t model_index) const {
  absl::MutexLock lock(&mutex_);
  const ModelState& model = models_[model_index];
  return !model.fitting && !model.features->fitted() && model.cold_prompts.size() >= options_.fit_prompts;
}

void DrafterChooser::Fit(size_t model_index) {
  std::vector<ColdPrompt> prompts;
  uint32_t vocab_size = 1;
  std::shared_ptr<const FeatureModel> before;
  {
    absl::MutexLock lock(&mutex_);
    ModelState& model = models_[model_index];
    if (model.fitting || model.features->fitted() || model.cold_prompts.size() < options_.fit_prompts) return;
    model.fitting = true;
    prompts = model.cold_prompts;
    vocab_size = model.model.vocab_size;
    before = model.features;
  }
  std::vector<TokenIds> tokens;
  for (const ColdPrompt& prompt : prompts) tokens.push_back(*prompt.tokens);
  FeatureModel::Fitted fitted = FeatureModel::Fit(tokens, options_.dimension, vocab_size);

  absl::MutexLock lock(&mutex_);
  ModelState& model = models_[model_index];
  model.fitting = false;
  model.cold_prompts.clear();
  if (model.features != before) return;  // A calibration came in between.
  model.features = std::make_shared<const FeatureModel>(std::move(fitted.model));
  for (auto& [name, state] : model.drafters) {
    state.regression = AcceptanceRegression(options_.regression, options_.dimension);
    state.idle_finished = 0;
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    for (const ColdSample& sample : prompts[i].samples) {
      DrafterOf(model, sample.drafter)
          .regression.Observe(fitted.features[i], sample.acceptance, sample.weight);
    }
  }
}

absl::StatusOr<std::map<std::string, double>> DrafterChooser::Calibrate(
    size_t model_index, const std::vector<CalibrationPrompt>& prompts) {
  if (prompts.size() < kFewestPrompts) {
    return absl::InvalidArgumentError(
        absl::StrCat("samples: ", prompts.size(), ", expected at least ", kFewestPrompts));
  }
  uint32_t vocab_size = 1;
  {
    absl::MutexLock lock(&mutex_);
    vocab_size = models_[model_index].model.vocab_size;
  }
  std::vector<TokenIds> tokens;
  for (const CalibrationPrompt& prompt : prompts) tokens.push_back(prompt.tokens);
  FeatureModel::Fitted fitted = FeatureModel::Fit(tokens, options_.dimension, vocab_size);

  std::map<std::string, AcceptanceRegression> regressions;
  std::map<std::string, double> errors;
  std::map<std::string, double> weights;
  // The last turn leaves nothing out, and is kept.
  for (size_t fold = 0; fold <= kFolds; ++fold) {
    regressions.clear();
    for (size_t i = 0; i < prompts.size(); ++i) {
      if (i % kFolds == fold) continue;
      for (const CalibrationPrompt::Outcome& outcome : prompts[i].outcomes) {
        if (outcome.trials == 0) continue;
        regressions.try_emplace(outcome.drafter, options_.regression, static_cast<size_t>(options_.dimension))
            .first->second.Observe(fitted.features[i], outcome.acceptance, SampleWeight(outcome.trials),
                                   /*forget=*/false);
      }
    }
    for (size_t i = fold; fold < kFolds && i < prompts.size(); i += kFolds) {
      for (const CalibrationPrompt::Outcome& outcome : prompts[i].outcomes) {
        const auto regression = regressions.find(outcome.drafter);
        if (outcome.trials == 0 || regression == regressions.end()) continue;
        const double weight = SampleWeight(outcome.trials);
        const double predicted = regression->second.Predict(fitted.features[i]).mean;
        errors[outcome.drafter] += weight * std::abs(predicted - outcome.acceptance);
        weights[outcome.drafter] += weight;
      }
    }
  }
  for (auto& [drafter, error] : errors) error /= weights[drafter];

  absl::MutexLock lock(&mutex_);
  ModelState& model = models_[model_index];
  model.features = std::make_shared<const FeatureModel>(std::move(fitted.model));
  model.cold_prompts.clear();
  for (auto& [name, state] : model.drafters) {
    state.regression = AcceptanceRegression(options_.regression, options_.dimension);
    state.idle_finished = 0;
    state.offered = 0;
  }
  for (auto& [drafter, regression] : regressions) {
    DrafterOf(model, drafter).regression = std::move(regression);
  }
  return errors;
}

v1::ChoiceExplanation DrafterChooser::Explain(size_t model_index, absl::Span<const TokenId> prompt,
                                              absl::string_view tenant,
                                              absl::Span<const std::string> drafters) const {
  const PromptHandle handle = Prepare(model_index, prompt, tenant);
  absl::MutexLock lock(&mutex_);
  const ModelState& model = models_[model_index];
  const FeatureVector neutral(model.features->dimension(), 0.0);
  const bool current = handle.feature_model == model.features;
  const std::vector<Candidate> candidates =
      CandidatesOf(model, current ? handle.extracted->features : neutral, tenant, drafters);
  const VerifySeconds& verify = VerifyOf(model);
  const CandidateChoice choice =
      ChooseCandidate(candidates, verify, PlainOf(model, tenant), options_.choice, kNoDraw);

  v1::ChoiceExplanation explanation;
  explanation.set_model(model.model.name);
  explanation.set_prompt_tokens(static_cast<uint32_t>(prompt.size()));
  explanation.set_nats_per_token(handle.extracted->nats_per_token);
  explanation.mutable_features()->Add(handle.extracted->features.begin(), handle.extracted->features.end());
  explanation.set_features_fitted(handle.feature_model->fitted());
  explanation.mutable_verify_seconds()->Add(verify.begin(), verify.end());
  v1::CandidateExplanation& plain = *explanation.add_candidates();
  plain.set_tokens_per_second(choice.plain.tokens_per_second);
  plain.set_correction(model.plain_correction.value(tenant));
  for (size_t i = 0; i < candidates.size(); ++i) {
    const CandidateForecast& forecast = choice.forecasts[i];
    v1::CandidateExplanation& candidate = *explanation.add_candidates();
    candidate.set_drafter(candidates[i].drafter);
    candidate.mutable_acceptance()->set_mean(candidates[i].acceptance.mean);
    candidate.mutable_acceptance()->set_low(candidates[i].acceptance.low);
    candidate.mutable_acceptance()->set_high(candidates[i].acceptance.high);
    candidate.set_samples(candidates[i].samples);
    candidate.set_exposed_level_seconds(forecast.costs.exposed_level_seconds);
    candidate.set_hidden_level_seconds(forecast.costs.hidden_level_seconds);
    candidate.set_costs_measured(candidates[i].costs.has_value());
    candidate.set_window(forecast.window.window);
    candidate.set_tokens_per_second(forecast.tokens_per_second);
    candidate.set_correction(candidates[i].correction);
  }
  if (choice.candidate.has_value()) explanation.set_drafter(drafters[*choice.candidate]);
  explanation.set_reason(String(choice.reason));
  return explanation;
}

}  // namespace tandem::router
