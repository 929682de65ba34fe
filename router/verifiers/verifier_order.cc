#include "router/verifiers/verifier_order.h"

#include <algorithm>
#include <tuple>

#include "common/base/hash.h"

namespace tandem::router {

std::vector<size_t> OrderVerifiers(absl::Span<const VerifierLoad> verifiers,
                                   absl::Span<const uint32_t> prompt, uint64_t salt) {
  uint64_t prefix_hash = HashCombine(kEmptyPrefixHash, salt);
  for (uint32_t token : prompt.subspan(0, kAffinityTokens)) prefix_hash = HashCombine(prefix_hash, token);

  uint64_t total = 1;  // The request to be placed.
  for (const VerifierLoad& verifier : verifiers) total += verifier.in_flight;

  // Rank: overloaded ones last, then by falling rendezvous hash. The endpoint decides equal hashes.
  using Rank = std::tuple<bool, uint64_t, absl::string_view, size_t>;
  std::vector<Rank> ranks;
  for (size_t i = 0; i < verifiers.size(); ++i) {
    const VerifierLoad& verifier = verifiers[i];
    // One more request would lift it above ceil(1.25 * total / verifiers).
    const bool overloaded = uint64_t{verifier.in_flight} * 4 * verifiers.size() >= 5 * total;
    ranks.emplace_back(overloaded, ~HashBytes(verifier.endpoint, prefix_hash), verifier.endpoint, i);
  }
  std::sort(ranks.begin(), ranks.end());
  std::vector<size_t> order;
  for (const Rank& rank : ranks) order.push_back(std::get<3>(rank));
  return order;
}

}  // namespace tandem::router
