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

// The prefix of registrations in the store.
inline constexpr absl::string_view kRegisteredPrefix = "registered/";

// The key of a server in the store.
std::string RegistrationKey(const v1::ServerInstance& instance, bool is_verifier);

// The registered servers, as known from the store's list and from calls to this router.
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

  // What to do with a registration.
  enum class Step {
    kPut,    // Write it to the store, in place of what Find has.
    kRenew,  // It is there as it says; prolong the lease.
  };
  // `server` must have passed CheckRegistration. FailedPrecondition: as from CheckUse, or the server has left
  // or was replaced, or its weights differ from those of the model's other verifiers. AlreadyExists: another
  // server has its name, or the name of one of its draft models; `is_configured` tells which names the
  // configuration has. ResourceExhausted: too many servers.
  absl::StatusOr<Step> Decide(const v1::ServerRegistration& server,
                              const std::function<bool(const std::string&)>& is_configured) const;

  // Keys of servers of the same kind that must be gone, because `server` started later at their address.
  std::vector<std::string> OutdatedBy(const v1::ServerRegistration& server) const;

  // Whether to record that this process has left: it is the known one, or none is known.
  bool IsToLeave(const v1::ServerRegistration& server) const;

  // The store now holds this entry.
  void Stored(const LeasedEntry& entry, const v1::ServerRegistration& server, bool left);
  // The registered process called this router.
  void Heard(const std::string& key, absl::Time now);

  // Why a server may still be alive although its lease has ended.
  struct Signs {
    absl::Time now;
    // Until then the end of a lease proves nothing, because nobody could hear the server.
    absl::Time doubt_until = absl::InfinitePast();
  };
  // Takes the store's list. Returns the servers that are gone since the last call because their leases have
  // ended. Leaves out invalid records, and adds their keys to `damaged`.
  std::vector<v1::ServerRegistration> Merge(absl::Span<const LeasedEntry> entries, const Signs& signs,
                                            std::vector<std::string>* damaged);
  // Checks the servers with ended leases again.
  std::vector<v1::ServerRegistration> Expire(const Signs& signs);

  // The servers in use, in the order in which they came to the store. If servers conflict, because they
  // registered through different routers at the same moment, only the first of them.
  std::vector<const Known*> InUse() const;
  // The verifiers in use of a model, by its index.
  std::vector<const Known*> Verifiers(size_t model) const;
  // The drafters in use, in the form of the routing table. Drafters that are gone are marked absent.
  std::vector<Drafter> Drafters();
  size_t num_verifiers() const;
  size_t num_drafters() const;

 private:
  // What servers in use claim: drafters the names of their draft models, verifiers the weights of their
  // model.
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
