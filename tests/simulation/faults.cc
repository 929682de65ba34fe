#include "tests/simulation/faults.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tandem::simulation {

absl::string_view NameOf(FaultKind kind) {
  switch (kind) {
    case FaultKind::kVerifierKilled:
      return "verifier killed";
    case FaultKind::kVerifierLost:
      return "verifier lost with its machine";
    case FaultKind::kVerifierStopped:
      return "verifier stopped";
    case FaultKind::kRouterKilled:
      return "router killed";
    case FaultKind::kRouterStopped:
      return "router stopped";
    case FaultKind::kDrafterRestarted:
      return "drafter restarted";
    case FaultKind::kDrafterStopped:
      return "drafter stopped";
    case FaultKind::kDraftLinkBroken:
      return "draft link broken";
    case FaultKind::kConnectionBroken:
      return "router-verifier connection broken";
    case FaultKind::kClientsCutOff:
      return "client connections broken";
    case FaultKind::kPartition:
      return "router-verifier partition one way";
    case FaultKind::kClientPartition:
      return "client-router partition one way";
    case FaultKind::kStoreAway:
      return "store out of reach";
    case FaultKind::kStoreAnswersLost:
      return "store's answers lost";
    case FaultKind::kWatchLost:
      return "store's watch lost";
    case FaultKind::kVerifierClock:
      return "verifier's clock jumps";
    case FaultKind::kRouterClock:
      return "router's clock jumps";
    case FaultKind::kStoreClock:
      return "store's clock jumps";
    case FaultKind::kVerifierReplaced:
      return "verifier replaced by one with other weights";
  }
  return "?";
}

std::string Fault::ToString() const {
  return absl::StrCat(NameOf(kind), " at ", absl::FormatDuration(when - absl::UnixEpoch()), ", for ",
                      absl::FormatDuration(lasts), " (", a, ", ", b, back ? ", back)" : ")");
}

std::vector<Fault> DrawFaultPlan(Random random, absl::Duration window, absl::Span<const absl::Time> busy) {
  std::vector<Fault> faults;
  const uint32_t count = random.Between(0, 14);
  for (uint32_t i = 0; i < count; ++i) {
    Fault fault{.kind = static_cast<FaultKind>(random.Between(0, static_cast<uint32_t>(kLastFaultKind))),
                .when = absl::UnixEpoch() + random.Between(absl::ZeroDuration(), 0.8 * window),
                .a = random.Between(0, 5),
                .b = random.Between(0, 5),
                .back = random.Chance(0.5)};
    if (!busy.empty() && random.Chance(0.6)) {
      fault.when = busy[random.Between(0, static_cast<uint32_t>(busy.size()) - 1)] +
                   random.Between(absl::ZeroDuration(), absl::Milliseconds(200));
    }
    const absl::Duration most = absl::UnixEpoch() + window - fault.when;
    fault.lasts = std::min(
        most, random.Between(absl::Milliseconds(5), absl::Milliseconds(random.Chance(0.5) ? 300 : 3000)));
    const bool is_clock = fault.kind == FaultKind::kVerifierClock || fault.kind == FaultKind::kRouterClock ||
                          fault.kind == FaultKind::kStoreClock;
    if (is_clock && random.Chance(0.3)) fault.lasts = absl::Hours(24 * 365) * random.Uniform();
    faults.push_back(fault);
  }
  std::stable_sort(faults.begin(), faults.end(),
                   [](const Fault& one, const Fault& other) { return one.when < other.when; });
  return faults;
}

void FaultCoverage::Add(const FaultCoverage& other) {
  for (const auto& [kind, count] : other.counts) {
    counts[kind].made += count.made;
    counts[kind].met += count.met;
  }
}

std::vector<std::string> FaultCoverage::Missing() const {
  std::vector<std::string> missing;
  for (int i = 0; i <= static_cast<int>(kLastFaultKind); ++i) {
    const auto kind = static_cast<FaultKind>(i);
    const auto found = counts.find(kind);
    if (found == counts.end() || found->second.met == 0) missing.emplace_back(NameOf(kind));
  }
  return missing;
}

std::string FaultCoverage::ToString() const {
  std::string text;
  for (const auto& [kind, count] : counts) {
    absl::StrAppend(&text, "  ", NameOf(kind), ": ", count.made, ", of which ", count.met,
                    " met something\n");
  }
  return text;
}

}  // namespace tandem::simulation
