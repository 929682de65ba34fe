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

// How many leading prompt tokens decide the verifier. Long enough to tell conversations with a common system
// prompt apart only by load, short enough that a conversation's turns stay together.
inline constexpr size_t kAffinityTokens = 64;

// The order in which to try verifiers, as indices: by rendezvous hash of the prompt's leading tokens, so that
// prompts with the same beginning meet the same prefix cache and a verifier's coming or going moves only its
// own share. `salt` separates tenants, whose caches are separate anyhow. Verifiers loaded beyond 1.25 times
// their fair share come after the others (consistent hashing with bounded loads).
std::vector<size_t> OrderVerifiers(absl::Span<const VerifierLoad> verifiers,
                                   absl::Span<const uint32_t> prompt, uint64_t salt);

}  // namespace tandem::router
