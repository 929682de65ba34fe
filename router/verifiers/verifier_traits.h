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

// What decides which requests a verifier can take, from its GetServerInfo. Empty until it has answered.
struct VerifierTraits {
  // Most tokens of one request, prompt and output together: the model's context, or the room for keys and
  // values if that is less.
  std::optional<uint64_t> most_tokens;
  // Describes the arithmetic on which the bits of the outputs depend, and its hash. Verifiers with the same
  // hash can continue one another's outputs.
  std::string computes;
  uint64_t arithmetic = 0;
  // The adapters of the model that it holds, by name.
  std::map<std::string, v1::AdapterInfo> adapters;

  // `arithmetic` for outputs with this adapter, which the verifier must hold. Empty: without an adapter. 0 if
  // unknown.
  uint64_t ArithmeticWith(const std::string& adapter) const;
};

// A server's info as the verifier of one model. If the server holds several, the fields of this model replace
// the common ones.
v1::ServerInfo InfoOfModel(v1::ServerInfo info, absl::string_view model);
// Whether the server says which models it holds, and this is not one of them.
bool LacksModel(const v1::ServerInfo& info, absl::string_view model);

// `info`: from InfoOfModel for the same model.
VerifierTraits TraitsOf(const v1::ServerInfo& info, absl::string_view model);

// What a request needs from a verifier.
struct VerifierNeeds {
  uint64_t tokens = 0;  // Prompt and output together: what is asked for, or one of output where nothing is.
  uint64_t arithmetic = 0;  // Of the verifier where the output began; 0 if there is none, or nothing known.
  std::string adapter;      // Empty: none.
};

// Whether a verifier can take the request, as far as is known. A verifier about which nothing is known gets
// requests, and refuses those that are too large. But it does not continue an output that began elsewhere,
// because nobody would notice a change of arithmetic, and it gets no request with an adapter.
bool Suits(const VerifierTraits& traits, const VerifierNeeds& needs);

// OK if one of these suits. Otherwise the reason: InvalidArgument if all are known to be too small and no
// output began elsewhere; NotFound, under the same condition, if none holds the adapter; otherwise
// Unavailable.
absl::Status CheckAnySuits(absl::Span<const VerifierTraits> verifiers, const VerifierNeeds& needs);

// The error for an adapter that no verifier has or that the tenant may not use. It does not say which.
absl::Status NoAdapter(absl::string_view adapter);

// Whether the arithmetic of both is known and differs.
bool Differ(const VerifierTraits& a, const VerifierTraits& b);

}  // namespace tandem::router
