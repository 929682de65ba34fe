#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "router/config/config.h"
#include "router/registry/check_registration.h"
#include "router/state/lease_store.h"
#include "tandem/v1/registry.pb.h"

namespace tandem::router {

// Where the store keeps what servers say of themselves.
inline constexpr absl::string_view kRegisteredPrefix = "registered/";

// The store's key of a server.
std::string RegistrationKey(const v1::ServerInstance& instance, bool is_verifier);

// What is known of the servers that registered, by the store's list of them and by what this router heard
// itself.
//
//              Stored                              Merge: its lease has ended
//   nobody ------------> in the store ----------------------------------------> gone
//                          |      ^                          |  unless a sign of life is younger than the
//            left: its     |      | Stored                   |  ttl: it called here, or nobody could have
//            record says so|      |                          v  heard of it
//                          v      '------------------- kept ----------> gone
//                        left -- another process, or the lease's end --> nobody
//
// Protocol logic: no clock, no store, not thread-safe.
class ServerList {
 public:
  struct Options {
    Registration registration;
    std::vector<RegistrableModel> models;
    size_t max_servers = 512;
    size_t max_unknown_left = 64;  // That are remembered to have left though nobody knew them.
  };
  explicit ServerList(Options options) : options_(std::move(options)) {}

  struct Known {
    LeasedEntry entry;  // What the store has under the key; its version is 0 for nothing.
    v1::ServerRegistration server;
    bool left = false;
    bool stored = false;  // `entry` is of this server.
    uint64_t order = 0;   // When it came to the store: the version of its entry, or of the last there was.
    absl::Time heard = absl::InfinitePast();  // When it last called here.
  };
  // Null: nobody has the name.
  const Known* Find(const std::string& key) const;

  // What a registration asks for.
  enum class Step {
    kPut,    // Write it to the store, in place of what Find has.
    kRenew,  // It is there as it says; prolong the lease.
  };
  // `server` has passed CheckRegistration. FailedPrecondition: CheckUse, or it has left, was replaced, or its
  // weights are not those of the model's other verifiers. AlreadyExists: another one has the name, or that of
  // one of its draft models, which `is_configured` says of those in the configuration. ResourceExhausted: too
  // many.
  absl::StatusOr<Step> Decide(const v1::ServerRegistration& server,
                              const std::function<bool(const std::string&)>& is_configured) const;

  // Keys of the servers of its kind that are not there any more, since `server` has started after them at
  // their address.
  std::vector<std::string> OutdatedBy(const v1::ServerRegistration& server) const;

  // Whether a process that leaves is to be remembered as one that has: it is there, or nobody is.
  bool IsToLeave(const v1::ServerRegistration& server) const;

  // The store has this entry now.
  void Stored(const LeasedEntry& entry, const v1::ServerRegistration& server, bool left);
  // It called here, and is the process that was registered.
  void Heard(const std::string& key, absl::Time now);

  // Why a server may still be there though its lease has ended.
  struct Signs {
    absl::Time now;
    // Until then a lease that ends says nothing: nobody could have heard of the server.
    absl::Time doubt_until = absl::InfinitePast();
  };
  // Takes the store's list. Returns those that are gone since, whose leases have ended. Records that make no
  // sense are left out; their keys come to `damaged`.
  std::vector<v1::ServerRegistration> Merge(absl::Span<const LeasedEntry> entries, const Signs& signs,
                                            std::vector<std::string>* damaged);
  // Looks again at those whose leases have ended.
  std::vector<v1::ServerRegistration> Expire(const Signs& signs);

  // Those in use, in the order in which they came to the store. Of servers that contradict one another, which
  // may have come by way of different routers at the same moment, the first.
  std::vector<const Known*> InUse() const;
  // By a model's place in the models.
  std::vector<const Known*> Verifiers(size_t model) const;
  // As the table of drafters has them; those that were there once are absent now.
  std::vector<Drafter> Drafters();
  size_t num_verifiers() const;
  size_t num_drafters() const;

 private:
  // What servers in use have for themselves: drafters the names of draft models, verifiers a model's weights.
  class Claims;
  absl::Status CheckName(const v1::ServerRegistration& server, const Known& present) const;
  absl::Status CheckOthers(const std::string& key, const v1::ServerRegistration& server,
                           const std::function<bool(const std::string&)>& is_configured) const;
  bool MayBeThere(const Known& known, const Signs& signs) const;

  const Options options_;
  std::map<std::string, Known> known_;   // By key.
  std::set<std::string> drafter_names_;  // That there ever were; bounded.
};

}  // namespace tandem::router
