#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "router/config/config.h"
#include "tandem/v1/registry.pb.h"

namespace tandem::router {

inline constexpr size_t kInstanceBytes = 16;
inline constexpr size_t kDigestBytes = 32;
inline constexpr int kMaxDraftModels = 16;
inline constexpr int kMaxBridgedVocabularies = 64;
inline constexpr int kMaxRoundSeconds = 64;
inline constexpr size_t kMaxAddressBytes = 256;

// A target model that the router serves, as registrations are compared with it.
struct RegistrableModel {
  std::string name;
  uint64_t vocabulary_fingerprint = 0;
};

// Checks a peer's description of itself: sizes, names, the address, finite numbers. InvalidArgument names the
// field.
absl::Status CheckInstance(const v1::ServerInstance& instance);
absl::Status CheckRegistration(const v1::ServerRegistration& server);

// Checks whether a router that serves `models` can use the server. FailedPrecondition if it accepts no
// servers of this kind, does not serve the model, or has another vocabulary for it. A draft model must have
// the vocabulary of one of `models`, unless it is a source, which has none of its own.
absl::Status CheckUse(const v1::ServerRegistration& server, const Registration& registration,
                      absl::Span<const RegistrableModel> models);

// Bytes from a peer, made printable for messages.
std::string Shown(absl::string_view bytes);

}  // namespace tandem::router
