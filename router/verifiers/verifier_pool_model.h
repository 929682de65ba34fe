#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/rpc/dns_name.h"
#include "router/verifiers/verifier_pool.h"

// VerifierPool's data about a model and its verifiers. Only for its own sources.
namespace tandem::router {

// Special values of a name's index: configured verifiers, and registered ones.
inline constexpr size_t kNoName = static_cast<size_t>(-1);
inline constexpr size_t kRegistered = static_cast<size_t>(-2);

struct VerifierPool::Attempt::Entry {
  size_t model = 0;
  size_t index = 0;
  std::atomic<int64_t> heard_nanos{0};  // When something last came from it, or a request began there.
  // Guarded by the model's mutex.
  std::shared_ptr<Verifier> verifier;
  size_t name = kNoName;  // Among the model's names.
  bool probing = false;
  bool serving = true;
  bool confirmed = false;                      // `serving` is what it said, and not what is hoped.
  bool asked = false;                          // For its capacity, since it last began to serve,
  absl::Time asked_at = absl::InfinitePast();  // and when.
  bool told = false;                           // It has said what it holds, or does not, since it was added.
  bool lacks_model = false;                    // It has said that it holds others.
  // As the verifier says; 0 if it does not.
  uint32_t max_running = 0;
  uint32_t max_waiting = 0;
  VerifierTraits traits;
  absl::Time probed = absl::InfinitePast();
  absl::Time looked_up = absl::InfinitePast();
  absl::flat_hash_map<const Attempt*, std::shared_ptr<const OnLost>> attempts;
};

struct VerifierPool::Model {
  struct Name {
    DnsName name;
    bool used = true;  // Somebody has configured it.
  };

  size_t index = 0;
  std::string name;
  // Guarded by `mutex`, as are the fields below. Names are never removed, because threads and entries use
  // their indices.
  std::vector<Name> names;
  std::unique_ptr<absl::Mutex> mutex = std::make_unique<absl::Mutex>();
  // Entries are never removed.
  std::unique_ptr<VerifierChoice> choice;
  std::vector<std::unique_ptr<Attempt::Entry>> entries;
  std::set<std::string> configured;                // Addresses, as last told.
  std::map<size_t, std::set<std::string>> wanted;  // Likewise, by name or kRegistered.
  std::map<std::string, uint32_t> room;            // Of those that registered, by address.
  absl::flat_hash_map<const Wait*, std::shared_ptr<const std::function<void()>>> waits;
};

}  // namespace tandem::router
