#include "verifier/process/model_plan.h"

#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

constexpr size_t kMostModels = 64;
constexpr double kLargestWeight = 1e6;

// NAME=WEIGHT; a name may hold "=".
absl::Status AddWeight(const std::string& share, std::map<std::string, double>* weights) {
  const size_t equals = share.rfind('=');
  double weight = 0.0;
  const bool is_number = equals != std::string::npos && equals > 0 &&
                         absl::SimpleAtod(absl::string_view(share).substr(equals + 1), &weight);
  // The comparison is false for NaN.
  if (!is_number || !(weight > 0.0 && weight <= kLargestWeight)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--kv-share: \"", share.substr(0, 200),
                     "\", expected NAME=WEIGHT with a weight above 0 and up to ", kLargestWeight));
  }
  if (weights->emplace(share.substr(0, equals), weight).second) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--kv-share: \"", share.substr(0, equals), "\" is given twice"));
}

}  // namespace

absl::StatusOr<std::vector<ModelPlan>> PlanModels(absl::Span<const std::string> models, uint64_t kv_tokens,
                                                  absl::Span<const std::string> shares) {
  if (models.empty() || models.size() > kMostModels) {
    return absl::InvalidArgumentError(
        absl::StrCat("--model: ", models.size(), " models, expected 1 to ", kMostModels));
  }
  std::map<std::string, double> weights;
  for (const std::string& share : shares) TANDEM_RETURN_IF_ERROR(AddWeight(share, &weights));
  std::vector<ModelPlan> plans;
  std::map<std::string, double> weight_of;
  double sum = 0.0;
  for (const std::string& model : models) {
    TANDEM_ASSIGN_OR_RETURN(ModelSpec spec, ParseModelSpec(model));
    const auto given = weights.find(spec.name);
    const double weight = given == weights.end() ? 1.0 : given->second;
    if (!weight_of.emplace(spec.name, weight).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--model: \"", spec.name, "\" is used twice, expected a name for each, as NAME=FOLDER"));
    }
    sum += weight;
    plans.push_back({.spec = std::move(spec)});
  }
  for (const auto& [name, weight] : weights) {
    if (weight_of.count(name) > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--kv-share: \"", name, "\" is not the name of a --model"));
  }
  for (ModelPlan& plan : plans) {
    const double part = weight_of[plan.spec.name] / sum;
    plan.kv_share = part;
    if (kv_tokens == 0) continue;
    plan.kv_tokens =
        plans.size() == 1 ? kv_tokens : static_cast<uint64_t>(static_cast<double>(kv_tokens) * part);
    if (plan.kv_tokens >= kFewestKvTokens) continue;
    return absl::InvalidArgumentError(absl::StrCat("--kv-tokens: ", kv_tokens, " leaves ", plan.kv_tokens,
                                                   " for \"", plan.spec.name, "\", expected at least ",
                                                   kFewestKvTokens, ", or 0 in all"));
  }
  return plans;
}

absl::Status PlanAdapters(absl::Span<const std::string> adapters, std::vector<ModelPlan>* plans) {
  for (const std::string& adapter : adapters) {
    const auto refuse = [&](absl::string_view expected) {
      return absl::InvalidArgumentError(
          absl::StrCat("--adapter: \"", adapter.substr(0, 200), "\", expected ", expected));
    };
    const size_t equals = adapter.find('=');
    if (equals == std::string::npos || equals + 1 == adapter.size()) {
      return refuse("NAME=FOLDER or MODEL:NAME=FOLDER");
    }
    std::string name = adapter.substr(0, equals);
    ModelPlan* of = plans->size() == 1 ? &plans->front() : nullptr;
    for (ModelPlan& plan : *plans) {
      if (!absl::StartsWith(name, absl::StrCat(plan.spec.name, ":"))) continue;
      of = &plan;
      name.erase(0, plan.spec.name.size() + 1);
      break;
    }
    if (of == nullptr)
      return refuse("MODEL:NAME=FOLDER with the name of a --model, because there are several models");
    if (name.empty()) return refuse("a name for it");
    for (const ModelSpec& other : of->adapters) {
      if (other.name == name) return refuse("a unique name");
    }
    of->adapters.push_back({.name = std::move(name), .folder = adapter.substr(equals + 1)});
  }
  return absl::OkStatus();
}

}  // namespace tandem
