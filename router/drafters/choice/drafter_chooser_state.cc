// What a DrafterChooser knows, as a message.
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "router/drafters/choice/drafter_chooser.h"

namespace tandem::router {
namespace {

constexpr uint32_t kFormatVersion = 1;

absl::Status Named(const absl::Status& status, absl::string_view where) {
  return absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
}

// 0 is one that was never measured.
absl::Status CheckCorrection(double correction) {
  if (correction == 0.0) return absl::OkStatus();
  if (correction >= 1.0 / ThroughputCorrection::kLargest * 0.99 &&
      correction <= ThroughputCorrection::kLargest * 1.01) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("correction: ", correction, ", expected 0.25 to 4"));
}

}  // namespace

std::vector<std::string> DrafterChooser::ModelNames() const {
  std::vector<std::string> names;
  absl::MutexLock lock(&mutex_);
  for (const ModelState& model : models_) names.push_back(model.model.name);
  return names;
}

v1::LearnedRouting DrafterChooser::Save() const {
  v1::LearnedRouting state;
  state.set_format_version(kFormatVersion);
  // Large and immutable, so they are written out without holding up those who choose.
  std::vector<std::shared_ptr<const FeatureModel>> features;
  mutex_.Lock();
  for (const ModelState& model : models_) {
    // A random projection is made anew, and what was learned on it is little.
    if (!model.features->fitted()) continue;
    v1::LearnedModel& saved = *state.add_models();
    saved.set_model(model.model.name);
    saved.set_vocabulary_fingerprint(model.model.vocabulary_fingerprint);
    features.push_back(model.features);
    saved.mutable_verify_seconds()->Add(model.verify.value().begin(), model.verify.value().end());
    if (model.plain_correction.known()) saved.set_plain_correction(model.plain_correction.mean());
    for (const auto& [name, drafter] : model.drafters) {
      v1::LearnedDrafter& saved_drafter = *saved.add_drafters();
      saved_drafter.set_drafter(name);
      drafter.regression.Save(saved_drafter.mutable_regression());
      if (drafter.correction.known()) saved_drafter.set_correction(drafter.correction.mean());
      if (!drafter.costs.value().has_value()) continue;
      saved_drafter.set_exposed_level_seconds(drafter.costs.value()->exposed_level_seconds);
      saved_drafter.set_hidden_level_seconds(drafter.costs.value()->hidden_level_seconds);
    }
  }
  mutex_.Unlock();
  for (size_t i = 0; i < features.size(); ++i) {
    features[i]->Save(state.mutable_models(static_cast<int>(i))->mutable_features());
  }
  return state;
}

absl::StatusOr<DrafterChooser::ModelState> DrafterChooser::LoadModel(const Model& model,
                                                                     const v1::LearnedModel& state) const {
  if (state.vocabulary_fingerprint() != model.vocabulary_fingerprint) {
    return absl::FailedPreconditionError("was learned with a vocabulary that is not the model's");
  }
  TANDEM_ASSIGN_OR_RETURN(FeatureModel features, FeatureModel::Load(state.features()));
  if (features.dimension() != options_.dimension) {
    return absl::FailedPreconditionError(
        absl::StrCat("was learned with ", features.dimension(), " features, expected ", options_.dimension));
  }
  ModelState loaded{.model = model, .features = std::make_shared<const FeatureModel>(std::move(features))};
  if (state.verify_seconds_size() > static_cast<int>(LiveVerifySeconds::kMaxWindows)) {
    return absl::InvalidArgumentError(
        absl::StrCat("verify_seconds: ", state.verify_seconds_size(), " windows, too many"));
  }
  const VerifySeconds verify(state.verify_seconds().begin(), state.verify_seconds().end());
  loaded.verify.Observe(verify);
  if (loaded.verify.value().size() != verify.size()) {
    return absl::InvalidArgumentError("verify_seconds: expected positive numbers of seconds");
  }
  TANDEM_RETURN_IF_ERROR(CheckCorrection(state.plain_correction()));
  if (state.plain_correction() != 0.0) loaded.plain_correction.Set(state.plain_correction());
  if (state.drafters_size() > kMostDrafters) {
    return absl::InvalidArgumentError(absl::StrCat("drafters: ", state.drafters_size(), ", too many"));
  }
  for (const v1::LearnedDrafter& drafter : state.drafters()) {
    const std::string where = absl::StrCat("drafter \"", drafter.drafter(), "\"");
    if (drafter.drafter().empty() || loaded.drafters.contains(drafter.drafter())) {
      return absl::InvalidArgumentError(absl::StrCat(where, " has no name, or occurs twice"));
    }
    absl::StatusOr<AcceptanceRegression> regression =
        AcceptanceRegression::Load(options_.regression, options_.dimension, drafter.regression());
    if (!regression.ok()) return Named(regression.status(), where);
    if (const absl::Status status = CheckCorrection(drafter.correction()); !status.ok()) {
      return Named(status, where);
    }
    DrafterState& loaded_drafter = DrafterOf(loaded, drafter.drafter());
    loaded_drafter.regression = *std::move(regression);
    if (drafter.correction() != 0.0) loaded_drafter.correction.Set(drafter.correction());
    if (!drafter.has_exposed_level_seconds()) continue;
    loaded_drafter.costs.Observe({drafter.exposed_level_seconds(), drafter.hidden_level_seconds()});
    if (!loaded_drafter.costs.value().has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": its costs are not numbers of seconds"));
    }
  }
  return loaded;
}

absl::Status DrafterChooser::Load(const v1::LearnedRouting& state) {
  if (state.format_version() != kFormatVersion) {
    return absl::InvalidArgumentError(absl::StrCat("format_version: ", state.format_version(), ", expected ",
                                                   kFormatVersion, "; not a routing state of this version"));
  }
  absl::MutexLock lock(&mutex_);
  std::vector<std::pair<size_t, ModelState>> loaded;
  for (const v1::LearnedModel& model : state.models()) {
    for (size_t i = 0; i < models_.size(); ++i) {
      if (models_[i].model.name != model.model()) continue;
      absl::StatusOr<ModelState> state_of_model = LoadModel(models_[i].model, model);
      if (!state_of_model.ok()) {
        return Named(state_of_model.status(), absl::StrCat("model \"", model.model(), "\""));
      }
      loaded.emplace_back(i, *std::move(state_of_model));
    }
  }
  for (auto& [index, model] : loaded) models_[index] = std::move(model);
  return absl::OkStatus();
}

}  // namespace tandem::router
