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

// Who is calling. Safe to use from any thread.
//
// A presented token is hashed once, and looked up by that: among the digests without a salt, and among the
// tokens of salted digests that were presented before. Only a token that is new here is tried against every
// salt, one hash each. What was found is remembered: a token that somebody has for good, which are no more
// than there are tenants, and the latest of those that nobody has.
class Tenants {
 public:
  // How many tokens that nobody has are remembered at least, and at most twice as many.
  static constexpr size_t kRememberedStrangers = 512;

  // Keeps a reference to `table`. What `before` remembers holds on if the tenants' digests are the same, in
  // the same order: then a change elsewhere in the configuration makes nobody's token new.
  explicit Tenants(const RoutingTable& table, const Tenants* before = nullptr);

  // The tenant of a call whose `authorization` metadata was given; nothing for callers that must be refused,
  // without saying why: an absent, malformed and unknown token look the same from outside. A call without the
  // metadata is the anonymous tenant's, if there is one. A token that several tenants have is nobody's.
  //
  // Salted digests are compared in constant time, and lookups go by a hash of what was presented, which no
  // caller can steer: how long an answer takes tells whether the token was presented before, and no more.
  std::optional<size_t> Authenticate(std::optional<absl::string_view> authorization) const;

  // How many hashes with a salt were computed for calls so far, over all that share what is remembered.
  size_t num_salted_hashes() const;

 private:
  // A tenant and its digest.
  using Entry = std::pair<size_t, TokenDigest>;
  // What was found, shared by all with the same digests.
  struct Memory {
    mutable absl::Mutex mutex;
    absl::flat_hash_map<Sha256Digest, std::vector<size_t>> found ABSL_GUARDED_BY(mutex);
    // Nobody's: when the first is full it becomes the second, which is forgotten.
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
