#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tandem/v1/admin.pb.h"

namespace tandem::router {

// What a verifier says of itself that decides which requests it can take, learned from its GetServerInfo. One
// that has said nothing yet has neither.
struct VerifierTraits {
  // Tokens of one request, prompt and output together: the model's context, or what its keys and values hold
  // if that is less.
  std::optional<uint64_t> most_tokens;
  // What decides the bits of its outputs, in words, and its hash: verifiers with the same go on with one
  // another's.
  std::string computes;
  uint64_t arithmetic = 0;
  // The adapters of the model that it holds, by name.
  std::map<std::string, v1::AdapterInfo> adapters;

  // As `arithmetic`, of outputs with this adapter, which it holds; empty: without one. 0 if nothing is known.
  uint64_t ArithmeticWith(const std::string& adapter) const;
};

// What a server says of itself as the verifier of one model: where it serves several, with what it says of
// that one in place of what is of all.
v1::ServerInfo InfoOfModel(v1::ServerInfo info, absl::string_view model);
// Whether it says which models it holds, and this is none of them.
bool LacksModel(const v1::ServerInfo& info, absl::string_view model);

// `info` is of the model (InfoOfModel).
VerifierTraits TraitsOf(const v1::ServerInfo& info, absl::string_view model);

// What a request asks of a verifier.
struct VerifierNeeds {
  uint64_t tokens = 0;  // Prompt and output together: what is asked for, or one of output where nothing is.
  uint64_t arithmetic = 0;  // Of the verifier where the output began; 0 if there is none, or nothing known.
  std::string adapter;      // Empty: none.
};

// Whether a verifier can take the request, as far as is known. One of which nothing is known may be too
// small, which it says itself; but it does not go on with an output that began elsewhere, since nobody would
// notice that it changed, and is given no request with an adapter.
bool Suits(const VerifierTraits& traits, const VerifierNeeds& needs);

// OK if one of these suits. Else why none does: InvalidArgument, if all are known to be too small and no
// output began elsewhere; NotFound, likewise, if none of them holds the adapter; else Unavailable.
absl::Status CheckAnySuits(absl::Span<const VerifierTraits> verifiers, const VerifierNeeds& needs);

// That no verifier has an adapter of the name, or none that the tenant may use: which, is not told.
absl::Status NoAdapter(absl::string_view adapter);

// Whether both are known and compute differently.
bool Differ(const VerifierTraits& a, const VerifierTraits& b);

}  // namespace tandem::router
