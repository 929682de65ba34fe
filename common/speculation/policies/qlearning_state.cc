#include "common/speculation/policies/qlearning_state.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/speculation/policies/window_policy.h"

namespace tandem {
namespace {

constexpr absl::string_view kMagic = "TQ";
constexpr uint8_t kVersion = 1;
constexpr size_t kHeaderBytes = 16;
constexpr size_t kEntryBytes = 14;
static_assert(kHeaderBytes + QLearningState::kMostEntries * kEntryBytes <= kMaxPolicyStateBytes);
static_assert(kHeaderBytes + (QLearningState::kMostEntries + 1) * kEntryBytes > kMaxPolicyStateBytes);

using Pair = std::pair<uint8_t, uint8_t>;

Pair PairOf(const QLearningState::Entry& entry) {
  return {entry.state, entry.action};
}

void Append32(uint32_t value, std::string& bytes) {
  for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(value >> shift & 0xff));
}

uint32_t Read32(absl::string_view bytes, size_t offset) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= uint32_t{static_cast<uint8_t>(bytes[offset + i])} << (8 * i);
  return value;
}

absl::Status Unreadable(size_t offset, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("window policy state, byte ", offset, ": ", what));
}

uint32_t SumOf(uint32_t left, uint32_t right) {
  return std::min(left + right, QLearningState::kMostVisits);
}

absl::StatusOr<QLearningState::Entry> ParseEntry(absl::string_view bytes, size_t offset) {
  const QLearningState::Entry entry{.state = static_cast<uint8_t>(bytes[offset]),
                                    .action = static_cast<uint8_t>(bytes[offset + 1]),
                                    .value = std::bit_cast<float>(Read32(bytes, offset + 2)),
                                    .visits = Read32(bytes, offset + 6),
                                    .fresh = Read32(bytes, offset + 10)};
  // Not a number fails this too.
  if (!(std::abs(entry.value) <= QLearningState::kLargestValue)) {
    return Unreadable(offset + 2, absl::StrCat("a value of ", entry.value, ", expected at most ",
                                               QLearningState::kLargestValue, " in size"));
  }
  if (entry.visits == 0 || entry.visits > QLearningState::kMostVisits) {
    return Unreadable(offset + 6,
                      absl::StrCat(entry.visits, " visits, expected 1 to ", QLearningState::kMostVisits));
  }
  if (entry.fresh > entry.visits) {
    return Unreadable(offset + 10, absl::StrCat(entry.fresh, " fresh visits of ", entry.visits));
  }
  return entry;
}

// `newer` is what a session ended with that began from visits - fresh.
QLearningState::Entry MergeEntries(const QLearningState::Entry& stored, const QLearningState::Entry& newer) {
  const uint32_t at_start = newer.visits - newer.fresh;
  const uint32_t others = stored.visits > at_start ? stored.visits - at_start : 0;
  QLearningState::Entry merged = newer;
  // The session's own is kept as it is where it stands alone, and the others' where it adds nothing: rounding
  // is not to wear away what nobody has touched.
  if (newer.fresh == 0 && others > 0) merged.value = stored.value;
  if (newer.fresh > 0 && others > 0) {
    const double share = static_cast<double>(newer.fresh) / (static_cast<double>(newer.fresh) + others);
    merged.value = static_cast<float>(stored.value + share * (double{newer.value} - stored.value));
  }
  merged.visits = SumOf(std::max(stored.visits, at_start), newer.fresh);
  merged.fresh = 0;
  return merged;
}

}  // namespace

std::string QLearningState::Serialize() const {
  std::vector<Entry> kept = entries;
  const auto order = [](const Entry& left, const Entry& right) { return PairOf(left) < PairOf(right); };
  std::sort(kept.begin(), kept.end(), order);
  if (kept.size() > kMostEntries) {
    std::stable_sort(kept.begin(), kept.end(),
                     [](const Entry& left, const Entry& right) { return left.visits > right.visits; });
    kept.resize(kMostEntries);
    std::sort(kept.begin(), kept.end(), order);
  }
  std::string bytes(kMagic.data(), kMagic.size());
  bytes.push_back(static_cast<char>(kVersion));
  bytes.push_back('\0');
  Append32(prompts, bytes);
  Append32(fresh_prompts, bytes);
  Append32(static_cast<uint32_t>(kept.size()), bytes);
  for (const Entry& entry : kept) {
    bytes.push_back(static_cast<char>(entry.state));
    bytes.push_back(static_cast<char>(entry.action));
    Append32(std::bit_cast<uint32_t>(entry.value), bytes);
    Append32(entry.visits, bytes);
    Append32(entry.fresh, bytes);
  }
  return bytes;
}

absl::StatusOr<QLearningState> QLearningState::Parse(absl::string_view bytes) {
  if (bytes.size() < kHeaderBytes || bytes.size() > kMaxPolicyStateBytes) {
    return Unreadable(
        0, absl::StrCat(bytes.size(), " bytes, expected ", kHeaderBytes, " to ", kMaxPolicyStateBytes));
  }
  if (bytes.substr(0, kMagic.size()) != kMagic || static_cast<uint8_t>(bytes[2]) != kVersion ||
      bytes[3] != '\0') {
    return Unreadable(0, absl::StrCat("expected \"", kMagic, "\" and version ", kVersion));
  }
  QLearningState state{.prompts = Read32(bytes, 4), .fresh_prompts = Read32(bytes, 8)};
  if (state.prompts > kMostVisits || state.fresh_prompts > state.prompts) {
    return Unreadable(4, absl::StrCat(state.fresh_prompts, " fresh ones of ", state.prompts,
                                      " prompts, expected at most all of ", kMostVisits));
  }
  const uint32_t count = Read32(bytes, 12);
  if (count > kMostEntries || bytes.size() != kHeaderBytes + count * kEntryBytes) {
    return Unreadable(12, absl::StrCat(count, " entries in ", bytes.size() - kHeaderBytes,
                                       " bytes, expected ", kEntryBytes, " bytes each"));
  }
  for (size_t i = 0; i < count; ++i) {
    const size_t offset = kHeaderBytes + i * kEntryBytes;
    TANDEM_ASSIGN_OR_RETURN(Entry entry, ParseEntry(bytes, offset));
    if (i > 0 && PairOf(entry) <= PairOf(state.entries.back())) {
      return Unreadable(offset, "expected states and actions in increasing order");
    }
    state.entries.push_back(entry);
  }
  return state;
}

absl::StatusOr<std::string> MergePolicyStates(absl::string_view stored, absl::string_view newer) {
  TANDEM_ASSIGN_OR_RETURN(const QLearningState learned, QLearningState::Parse(newer));
  const absl::StatusOr<QLearningState> before = QLearningState::Parse(stored);
  std::map<Pair, QLearningState::Entry> entries;
  QLearningState merged;
  if (before.ok()) {
    merged.prompts = before->prompts;
    for (const QLearningState::Entry& entry : before->entries) entries[PairOf(entry)] = entry;
  }
  const uint32_t prompts_at_start = learned.prompts - learned.fresh_prompts;
  merged.prompts = SumOf(std::max(merged.prompts, prompts_at_start), learned.fresh_prompts);
  for (const QLearningState::Entry& entry : learned.entries) {
    const auto found = entries.find(PairOf(entry));
    entries[PairOf(entry)] = found == entries.end() ? entry : MergeEntries(found->second, entry);
  }
  for (auto& [pair, entry] : entries) {
    entry.fresh = 0;
    merged.entries.push_back(entry);
  }
  return merged.Serialize();
}

}  // namespace tandem
