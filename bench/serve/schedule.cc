#include "bench/serve/schedule.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/philox.h"

namespace tandem::bench {
namespace {

constexpr char kOff[] = "off";

template <class T>
std::vector<T> OrDefault(std::vector<T> values) {
  return values.empty() ? std::vector<T>(1) : values;
}

std::string Describe(const Configuration& configuration, bool with_model) {
  std::string label = configuration.drafter.empty() ? kOff : configuration.drafter;
  if (!configuration.policy.empty()) absl::StrAppend(&label, " ", configuration.policy);
  if (configuration.max_window > 0) absl::StrAppend(&label, " w", configuration.max_window);
  if (with_model && !configuration.drafter.empty()) absl::StrAppend(&label, " @", configuration.model);
  return label;
}

}  // namespace

absl::StatusOr<PolicyChoice> ParsePolicyChoice(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  PolicyChoice choice{.policy = std::string(parts[0])};
  if (parts.size() > 1 && (!absl::SimpleAtoi(parts[1], &choice.max_window) || choice.max_window == 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--policy: \"", text, "\", expected a number above 0 after the colon"));
  }
  return choice;
}

std::vector<Configuration> MakeConfigurations(const Matrix& matrix) {
  const std::vector<std::string> models = OrDefault(matrix.models);
  const bool with_model = models.size() > 1;
  std::vector<Configuration> configurations;
  const auto add = [&](Configuration configuration) {
    configuration.label = Describe(configuration, with_model);
    const bool known =
        std::any_of(configurations.begin(), configurations.end(),
                    [&](const Configuration& other) { return other.label == configuration.label; });
    if (!known) configurations.push_back(std::move(configuration));
  };
  for (const std::string& drafter : matrix.drafters) {
    if (drafter == kOff) {
      add({.model = models.front()});
      continue;
    }
    for (const std::string& model : models) {
      for (const std::string& text : OrDefault(matrix.policies)) {
        const PolicyChoice choice = ParsePolicyChoice(text).value();
        const std::vector<uint32_t> windows =
            choice.max_window > 0 ? std::vector<uint32_t>{choice.max_window} : OrDefault(matrix.max_windows);
        for (const uint32_t max_window : windows) {
          add({.model = model, .drafter = drafter, .policy = choice.policy, .max_window = max_window});
        }
      }
    }
  }
  return configurations;
}

std::vector<Sampling> MakeSamplings(const std::vector<double>& temperatures,
                                    const std::vector<uint64_t>& seeds) {
  std::vector<Sampling> samplings;
  for (const double temperature : temperatures) {
    for (const uint64_t seed : seeds) {
      samplings.push_back({.temperature = temperature, .seed = seed});
      if (temperature == 0.0) break;
    }
  }
  return samplings;
}

std::string Load::Label() const {
  return open() ? absl::StrCat(requests_per_second, " requests/s") : absl::StrCat(concurrency, " at a time");
}

std::vector<Turn> MakeSchedule(uint32_t repetitions, uint32_t batches, uint32_t samplings, uint32_t loads,
                               uint32_t configurations) {
  std::vector<Turn> turns;
  for (uint32_t repetition = 0; repetition < repetitions; ++repetition) {
    for (uint32_t batch = 0; batch < batches; ++batch) {
      const uint64_t first = uint64_t{repetition} * batches + batch;
      for (uint32_t sampling = 0; sampling < samplings; ++sampling) {
        for (uint32_t load = 0; load < loads; ++load) {
          for (uint32_t i = 0; i < configurations; ++i) {
            // Every second time round in the opposite direction, so that neighbours change places too.
            const bool backwards = (first / configurations) % 2 == 1;
            const uint64_t step = backwards ? configurations - i : i;
            turns.push_back({.repetition = repetition,
                             .batch = batch,
                             .sampling = sampling,
                             .load = load,
                             .configuration = static_cast<uint32_t>((first + step) % configurations)});
          }
        }
      }
    }
  }
  return turns;
}

std::vector<absl::Duration> PoissonArrivals(double per_second, size_t count, uint64_t seed) {
  std::vector<absl::Duration> arrivals;
  double seconds = 0.0;
  for (size_t i = 0; i < count; ++i) {
    const PhiloxCounter random =
        Philox4x32({static_cast<uint32_t>(i), static_cast<uint32_t>(uint64_t{i} >> 32), 0, 0},
                   {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    // In (0, 1): the logarithm is finite.
    const double uniform = (static_cast<double>(random[0]) + 0.5) / 4294967296.0;
    seconds += -std::log(uniform) / per_second;
    arrivals.push_back(absl::Seconds(seconds));
  }
  return arrivals;
}

}  // namespace tandem::bench
