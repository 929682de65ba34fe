#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem::router {

// A verifier that can take a request.
struct VerifierLoad {
  absl::string_view endpoint;
  uint32_t in_flight = 0;  // Requests this router has running there.
};

// How many leading prompt tokens decide the verifier. Short enough that the turns of a conversation, and
// conversations with the same system prompt, go to the same verifier unless it is loaded.
inline constexpr size_t kAffinityTokens = 64;

// The order in which to try verifiers, as indices. Sorted by rendezvous hash of the prompt's leading tokens,
// so that prompts with the same beginning use the same prefix cache, and adding or removing a verifier moves
// only that verifier's share. `salt` separates tenants, whose caches are separate anyhow. Verifiers with more
// than 1.25 times their fair share of requests come last (consistent hashing with bounded loads).
std::vector<size_t> OrderVerifiers(absl::Span<const VerifierLoad> verifiers,
                                   absl::Span<const uint32_t> prompt, uint64_t salt);

}  // namespace tandem::router
