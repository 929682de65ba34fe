#include "verifier/rpc/drafter_agreement.h"

#include <string>
#include <utility>
#include <vector>

namespace tandem {

DrafterAgreement::Change DrafterAgreement::RecordRound(const std::string& drafter, bool agrees) {
  auto found = records_.find(drafter);
  if (found == records_.end()) {
    if (records_.size() >= kMaxDrafters) return Change::kNone;
    found = records_.emplace(drafter, Record()).first;
  }
  Record& record = found->second;
  ++record.rounds;
  if (agrees) ++record.agreeing;
  if (record.rounds < kWindow) return Change::kNone;
  const bool was_random = std::exchange(record.is_random, record.agreeing < kLeastAgreeing);
  record.rounds = record.agreeing = 0;
  if (record.is_random == was_random) return Change::kNone;
  return record.is_random ? Change::kBecameRandom : Change::kRecovered;
}

std::vector<std::string> DrafterAgreement::random_drafters() const {
  std::vector<std::string> names;
  for (const auto& [name, record] : records_) {
    if (record.is_random) names.push_back(name);
  }
  return names;
}

}  // namespace tandem
