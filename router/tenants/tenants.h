#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "router/config/config.h"

namespace tandem::router {

// Finds the tenant of a call by its token. Thread-safe.
//
// A token is hashed once, and the hash is looked up among the digests without a salt and among earlier tokens
// of salted digests. Only a token that is new here is tried against every salt, one hash each. Results are
// cached: valid tokens for good, of which there are at most as many as tenants, and the latest invalid ones.
class Tenants {
 public:
  // How many invalid tokens are cached: at least this many, at most twice as many.
  static constexpr size_t kRememberedStrangers = 512;

  // Keeps a reference to `table`. Shares the cache of `before` if the tenants' digests are the same, in the
  // same order, so that other changes of the configuration keep the cache.
  explicit Tenants(const RoutingTable& table, const Tenants* before = nullptr);

  // The tenant of a call with this `authorization` metadata. nullopt if the call must be refused, without a
  // reason, so that a caller cannot tell an absent, a malformed and an unknown token apart. A call without
  // the metadata belongs to the anonymous tenant, if there is one. A token that several tenants have is
  // invalid.
  //
  // Salted digests are compared in constant time, and lookups use a hash of the token, which no caller can
  // control. So the time of an answer reveals only whether the token was presented before.
  std::optional<size_t> Authenticate(std::optional<absl::string_view> authorization) const;

  // How many salted hashes were computed for calls so far, over all objects that share the cache.
  size_t num_salted_hashes() const;

 private:
  // A tenant and its digest.
  using Entry = std::pair<size_t, TokenDigest>;
  // The cache, shared by all objects with the same digests.
  struct Memory {
    mutable absl::Mutex mutex;
    absl::flat_hash_map<Sha256Digest, std::vector<size_t>> found ABSL_GUARDED_BY(mutex);
    // Invalid tokens. When the first set is full, it replaces the second.
    absl::flat_hash_map<Sha256Digest, bool> strangers[2] ABSL_GUARDED_BY(mutex);
    size_t num_salted_hashes ABSL_GUARDED_BY(mutex) = 0;
  };

  // The tenants with a salted digest of the token.
  std::vector<size_t> FindSalted(const Sha256Digest& token) const;

  const RoutingTable& table_;
  absl::flat_hash_map<Sha256Digest, std::vector<size_t>> unsalted_;
  std::vector<Entry> salted_;
  std::shared_ptr<Memory> memory_;
};

}  // namespace tandem::router
