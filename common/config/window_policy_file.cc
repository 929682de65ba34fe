#include "common/config/window_policy_file.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/model/config/json_fields.h"
#include "common/model/config/strict_json.h"
#include "common/speculation/policies/window_policy.h"

namespace tandem {
namespace {

using Json = nlohmann::json;

constexpr int32_t kMostDepth = 128;
constexpr size_t kMostTiers = 16;
constexpr size_t kMostBytes = 64 * 1024;
constexpr int32_t kMostRounds = 1'000'000;
// Bounds of open intervals.
constexpr double kAboveZero = 0.0001;
constexpr double kBelowOne = 0.9999;

// The fields of one policy.
class Section {
 public:
  Section(const Json& object, absl::string_view path, absl::string_view name, std::vector<std::string> known)
      : object_(object),
        path_(path),
        prefix_(name.empty() ? "" : absl::StrCat(name, ".")),
        fields_(object, path, prefix_),
        known_(std::move(known)) {}

  absl::Status CheckKeys() const {
    for (const auto& [key, value] : object_.items()) {
      if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      return absl::InvalidArgumentError(absl::StrCat(path_, ": field ", prefix_, PrintableText(key),
                                                     " is not known, expected one of ",
                                                     absl::StrJoin(known_, ", ")));
    }
    return absl::OkStatus();
  }
  absl::Status Read(absl::string_view name, int32_t least, int32_t most, uint32_t& value) const {
    TANDEM_ASSIGN_OR_RETURN(const auto number, fields_.Int(name, least, most));
    if (number.has_value()) value = static_cast<uint32_t>(*number);
    return absl::OkStatus();
  }
  absl::Status Read(absl::string_view name, double least, double most, double& value) const {
    TANDEM_ASSIGN_OR_RETURN(value, fields_.NumberOr(name, least, most, value));
    return absl::OkStatus();
  }
  // Increasing depths of at least 1.
  absl::Status Read(absl::string_view name, std::vector<uint32_t>& values) const {
    const Json* const list = fields_.Find(name);
    if (list == nullptr) return absl::OkStatus();
    std::vector<uint32_t> read;
    bool valid = list->is_array() && !list->empty() && list->size() <= kMostTiers;
    for (size_t i = 0; valid && i < list->size(); ++i) {
      const Json& item = (*list)[i];
      valid = item.is_number_unsigned() && item.get<uint64_t>() >= 1 && item.get<uint64_t>() <= kMostDepth;
      if (valid) read.push_back(item.get<uint32_t>());
      valid = valid && (i == 0 || read[i - 1] < read[i]);
    }
    if (!valid) {
      return fields_.Unexpected(
          name, absl::StrCat("1 to ", kMostTiers, " increasing whole numbers from 1 to ", kMostDepth));
    }
    values = std::move(read);
    return absl::OkStatus();
  }

 private:
  const Json& object_;
  const absl::string_view path_;
  const std::string prefix_;
  const JsonFields fields_;
  const std::vector<std::string> known_;
};

const std::vector<std::string>& EmaTiersKeys() {
  static const auto* const keys =
      new std::vector<std::string>{"candidate_steps", "ema_alpha",     "update_interval", "warmup_batches",
                                   "down_hysteresis", "up_hysteresis", "initial_steps"};
  return *keys;
}

absl::Status ReadFixed(const Json& object, absl::string_view path, FixedOptions& options) {
  const Section section(object, path, "fixed", {"depth"});
  TANDEM_RETURN_IF_ERROR(section.CheckKeys());
  return section.Read("depth", 0, kMostDepth, options.depth);
}

absl::Status ReadAnalytic(const Json& object, absl::string_view path, AcceptanceEstimate::Options& options) {
  const Section section(object, path, "analytic", {"equation", "history", "maximum", "initial"});
  TANDEM_RETURN_IF_ERROR(section.CheckKeys());
  uint32_t equation = 0;
  TANDEM_RETURN_IF_ERROR(section.Read("equation", 2, 12, equation));
  if (equation == 11) options.equation = AcceptanceEquation::kEquation11;
  if (equation == 12) options.equation = AcceptanceEquation::kEquation12;
  if (equation == 2) options.equation = AcceptanceEquation::kEquation2;
  if (equation > 2 && equation < 11) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": field analytic.equation: found ", equation, ", expected 2, 11 or 12"));
  }
  TANDEM_RETURN_IF_ERROR(section.Read("history", 1, 10'000, options.history));
  TANDEM_RETURN_IF_ERROR(section.Read("maximum", 0.0, kBelowOne, options.maximum));
  return section.Read("initial", 0.0, 1.0, options.initial);
}

absl::Status ReadFsm(const Json& object, absl::string_view path, absl::string_view name,
                     FsmOptions& options) {
  const Section section(object, path, name, {"initial_depth"});
  TANDEM_RETURN_IF_ERROR(section.CheckKeys());
  return section.Read("initial_depth", 0, kMostDepth, options.initial_depth);
}

absl::Status ReadQLearning(const Json& object, absl::string_view path, QLearningOptions& options) {
  const Section section(
      object, path, "qlearning",
      {"learning_rate", "discount", "exploration", "warmup_prompts", "initial_value", "initial_depth"});
  TANDEM_RETURN_IF_ERROR(section.CheckKeys());
  TANDEM_RETURN_IF_ERROR(section.Read("learning_rate", kAboveZero, 1.0, options.learning_rate));
  TANDEM_RETURN_IF_ERROR(section.Read("discount", 0.0, kBelowOne, options.discount));
  TANDEM_RETURN_IF_ERROR(section.Read("exploration", 0.0, 1.0, options.exploration));
  TANDEM_RETURN_IF_ERROR(section.Read("warmup_prompts", 0, kMostRounds, options.warmup_prompts));
  TANDEM_RETURN_IF_ERROR(section.Read("initial_value", 0.0, 1000.0, options.initial_value));
  return section.Read("initial_depth", 0, kMostDepth, options.initial_depth);
}

absl::Status ReadEmaTiers(const Json& object, absl::string_view path, absl::string_view name,
                          EmaTiersOptions& options) {
  const Section section(object, path, name, EmaTiersKeys());
  TANDEM_RETURN_IF_ERROR(section.CheckKeys());
  TANDEM_RETURN_IF_ERROR(section.Read("candidate_steps", options.candidate_steps));
  TANDEM_RETURN_IF_ERROR(section.Read("ema_alpha", kAboveZero, 1.0, options.ema_alpha));
  TANDEM_RETURN_IF_ERROR(section.Read("update_interval", 1, kMostRounds, options.update_interval));
  TANDEM_RETURN_IF_ERROR(section.Read("warmup_batches", 0, kMostRounds, options.warmup_batches));
  TANDEM_RETURN_IF_ERROR(section.Read("down_hysteresis", -kMostDepth, kMostDepth, options.down_hysteresis));
  TANDEM_RETURN_IF_ERROR(section.Read("up_hysteresis", -kMostDepth, kMostDepth, options.up_hysteresis));
  return section.Read("initial_steps", 0, kMostDepth, options.initial_steps);
}

absl::Status ReadGoodput(const Json& object, absl::string_view path, GoodputOptions& options) {
  const Section section(object, path, "goodput", {"history", "prior_trials"});
  TANDEM_RETURN_IF_ERROR(section.CheckKeys());
  TANDEM_RETURN_IF_ERROR(section.Read("history", 1.0, 1e6, options.history));
  return section.Read("prior_trials", kAboveZero, 1e6, options.prior_trials);
}

absl::Status ReadSpecDec(const Json& object, absl::string_view path, SpecDecOptions& options) {
  const Section section(object, path, "specdec++", {"threshold"});
  TANDEM_RETURN_IF_ERROR(section.CheckKeys());
  return section.Read("threshold", kAboveZero, kBelowOne, options.threshold);
}

absl::Status ReadPolicy(const std::string& name, const Json& object, absl::string_view path,
                        WindowPolicyOptions& options) {
  if (name == "fixed") return ReadFixed(object, path, options.fixed);
  if (name == "analytic") return ReadAnalytic(object, path, options.analytic);
  if (name == "fsm") return ReadFsm(object, path, name, options.fsm);
  if (name == "cached-fsm") return ReadFsm(object, path, name, options.cached_fsm);
  if (name == "qlearning") return ReadQLearning(object, path, options.qlearning);
  if (name == "ema-tiers") return ReadEmaTiers(object, path, name, options.ema_tiers);
  if (name == "goodput") return ReadGoodput(object, path, options.goodput);
  if (name == "specdec++") return ReadSpecDec(object, path, options.specdec);
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": window policy ", PrintableText(name),
                   " is not known, expected \"policy\", one of ", absl::StrJoin(WindowPolicyNames(), ", "),
                   ", or the keys of ema-tiers: ", absl::StrJoin(EmaTiersKeys(), ", ")));
}

absl::Status ReadDefault(const Json& object, absl::string_view path, std::string& policy) {
  const JsonFields fields(object, path);
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> name, fields.String("policy"));
  const std::vector<std::string> known = WindowPolicyNames();
  if (!name.has_value() || std::find(known.begin(), known.end(), *name) == known.end()) {
    return fields.Unexpected("policy", absl::StrCat("one of ", absl::StrJoin(known, ", ")));
  }
  policy = *name;
  return absl::OkStatus();
}

bool IsEmaTiersAlone(const Json& object) {
  const std::vector<std::string>& keys = EmaTiersKeys();
  return std::any_of(keys.begin(), keys.end(), [&](const std::string& key) { return object.contains(key); });
}

}  // namespace

absl::StatusOr<WindowPolicyFile> ParseWindowPolicyFile(absl::string_view json, absl::string_view path) {
  if (json.size() > kMostBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", json.size(), " bytes, expected at most ", kMostBytes));
  }
  TANDEM_ASSIGN_OR_RETURN(const Json parsed,
                          ParseStrictJson(json, path, 0, {.max_depth = 4, .max_values = 1000}));
  if (!parsed.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": found ", PrintableValue(parsed), ", expected an object"));
  }
  WindowPolicyFile file;
  if (IsEmaTiersAlone(parsed)) {
    TANDEM_RETURN_IF_ERROR(ReadEmaTiers(parsed, path, "", file.options.ema_tiers));
    return file;
  }
  for (const auto& [name, section] : parsed.items()) {
    if (name == "policy") {
      TANDEM_RETURN_IF_ERROR(ReadDefault(parsed, path, file.policy));
      continue;
    }
    if (!section.is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": field ", PrintableText(name), ": found ",
                                                     PrintableValue(section), ", expected an object"));
    }
    TANDEM_RETURN_IF_ERROR(ReadPolicy(name, section, path, file.options));
  }
  return file;
}

}  // namespace tandem
