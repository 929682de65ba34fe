#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/rpc/dns_name.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"
#include "router/config/config.h"
#include "router/registry/registered_endpoint.h"
#include "router/verifiers/retry_budget.h"
#include "router/verifiers/verifier_choice.h"
#include "router/verifiers/verifier_traits.h"
#include "tandem/v1/registry.pb.h"
#include "tandem/v1/verifier.grpc.pb.h"

namespace tandem::router {

// One verifier and the channel to it. Shared by all that use it.
struct Verifier {
  std::string endpoint;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Verifier::Stub> stub;
};

// The verifiers of every model. Chooses the one for the next request, and detects verifiers that are lost.
//
// Health: a thread probes every verifier by grpc.health.v1 once a second. It probes at once if a verifier
// with running requests has sent nothing for a quarter of the stall timeout. A verifier that sends neither an
// answer nor a token for the whole stall timeout is lost, even if it is connected (a stopped process keeps
// its connections). Its requests are told, so that they can retry on another verifier, if there is one. A
// long prompt or a slow step is no stall, because the health service answers meanwhile. The address of a
// verifier that does not answer is resolved again every few seconds. While requests wait for a verifier,
// those that do not serve are probed several times a second.
//
// Names: "dns:///host:port" among a model's verifiers stands for every address of the name. A thread resolves
// it every `resolve_period`. New addresses get requests once their health service says that they serve;
// addresses that are gone get no new requests, and running ones continue. If a name cannot be resolved, it
// keeps its addresses.
//
// Other sources: SetRegistered and SetConfigured add and remove verifiers in the same way. A verifier from
// several sources counts once. A verifier may serve several models: each has its own health
// ("tandem.v1.Verifier/MODEL"), and a verifier that says it holds only other models gets no requests. The
// pool asks a verifier what it holds when it begins to serve, every few seconds after that, and at once when
// a request named an adapter in vain, because adapters come and go.
//
// Thread-safe. Destroy it after the last Attempt.
class VerifierPool {
 public:
  struct Options {
    VerifierChoice::Options choice;
    RetryBudget::Options retries;
    absl::Duration stall_timeout = absl::Seconds(2);
    std::shared_ptr<grpc::ChannelCredentials> credentials;  // Null: without TLS.
    Resolve resolve = ResolveBySystem;
    absl::Duration resolve_period = absl::Seconds(5);
    // How long a request may wait for a verifier that serves. Zero: not at all.
    absl::Duration longest_wait;
    size_t max_waits = 256;  // Of one model at once.
    // Called with what a verifier says about itself when it begins to serve, and the model's index. Runs on
    // gRPC's threads.
    std::function<void(size_t, const v1::ServerInfo&)> on_info;
  };
  VerifierPool(const RoutingTable& table, const Options& options, const Clock* clock);
  ~VerifierPool();
  VerifierPool(const VerifierPool&) = delete;
  VerifierPool& operator=(const VerifierPool&) = delete;

  // Called when the verifier is lost, on the pool's thread or one of gRPC's.
  using OnLost = std::function<void(const absl::Status& reason)>;

  // A request on a verifier, from Begin until it is destroyed. Thread-safe.
  class Attempt {
   public:
    ~Attempt();
    Verifier& verifier() const { return *verifier_; }
    const std::shared_ptr<Verifier>& shared_verifier() const { return verifier_; }
    size_t index() const { return index_; }  // Among the model's.
    // VerifierTraits::ArithmeticWith, as far as it is known.
    uint64_t arithmetic() const;
    // Something came from the verifier.
    void OnEvent();
    // The call has ended: the verifier did what it should (a refusal counts as that), or it failed. Called
    // once.
    void OnSuccess();
    void OnFailure();
    // The verifier is not what it said: forgets what it said about itself and asks again.
    void OnChanged();

   private:
    friend class VerifierPool;
    struct Entry;
    Attempt(VerifierPool& pool, Entry& entry, size_t model, size_t index, std::string adapter);
    VerifierPool& pool_;
    Entry& entry_;
    const std::shared_ptr<Verifier> verifier_;
    const size_t model_;
    const size_t index_;
    const std::string adapter_;
  };

  // Starts an attempt on the verifier that VerifierChoice prefers. `tried`: verifiers, by index, on which the
  // request has failed. ResourceExhausted if all have as many requests as they may, Unavailable if no name
  // has an address, and the error of CheckAnySuits if no verifier has what the request needs.
  absl::StatusOr<std::unique_ptr<Attempt>> Begin(size_t model, absl::Span<const uint32_t> prompt,
                                                 uint64_t salt, absl::Span<const size_t> tried,
                                                 OnLost on_lost, const VerifierNeeds& needs = {});

  // A request that waits for a verifier of a model, until this is destroyed. Thread-safe.
  class Wait {
   public:
    ~Wait();

   private:
    friend class VerifierPool;
    Wait(VerifierPool& pool, size_t model) : pool_(pool), model_(model) {}
    VerifierPool& pool_;
    const size_t model_;
  };
  // Calls `on_serving`, on gRPC's threads, whenever a verifier of the model says that it serves. Null if
  // `max_waits` requests of the model wait already.
  std::unique_ptr<Wait> BeginWait(size_t model, std::function<void()> on_serving);
  // How many requests wait for a verifier of the model.
  size_t num_waiting(size_t model) const;
  // The error while no verifier of the model serves. It says so if none is known at all.
  absl::Status NoneServes(size_t model) const;
  absl::Duration longest_wait() const { return options_.longest_wait; }

  // Whether a verifier of the model serves, or is configured and has not been probed yet.
  bool MayServe(size_t model) const;
  // How many verifiers of a model said at the last probe that they serve.
  size_t num_serving(size_t model) const;

  // How many requests the serving verifiers of a model can hold at once without long waits there: as many as
  // they run, and some on their way. A verifier that does not say how many it runs counts with its limit.
  // nullopt while none serves.
  std::optional<uint32_t> places(size_t model) const;

  // The source of an address. An address from several sources has the first of them.
  enum class Source { kConfigured, kName, kRegistered };
  struct Status {
    std::string endpoint;
    Source source = Source::kConfigured;
    bool listed = true;  // Otherwise it is gone, and requests still run there.
    bool serving = true;
    bool ejected = false;
    uint32_t in_flight = 0;
    uint32_t max_in_flight = 0;
  };
  // The verifiers of a model, by endpoint.
  std::vector<Status> List(size_t model) const;

  // Adapters that listed verifiers of the model hold, by name. If adapters of one name differ, one of them.
  std::vector<v1::AdapterInfo> Adapters(size_t model) const;
  // Most tokens, prompt and output together, that every verifier of the model takes that serves now, or, if
  // none does, every one that is listed. nullopt if nothing is known of any.
  std::optional<uint64_t> MostTokens(size_t model) const;
  // The fingerprint of the adapter that Adapters returns under this name; 0 if there is none.
  uint64_t FingerprintOf(size_t model, const std::string& adapter) const;

  // How many verifiers a model has now.
  size_t size(size_t model) const;

  // Replaces a model's configured verifiers: addresses and names. New ones get requests once they say that
  // they serve. Requests on removed ones continue.
  void SetConfigured(size_t model, const std::vector<std::string>& endpoints);
  // Replaces the verifiers of a model that have registered.
  void SetRegistered(size_t model, const std::vector<RegisteredEndpoint>& verifiers);

  // RetryBudget: counts a request; asks whether one more retry is allowed.
  void CountRequest();
  bool TakeRetry();

 private:
  struct Model;
  class Probe;
  class Question;

  // The thread that resolves names.
  void ResolveNames();
  // The names in use, with their indices among the model's.
  static std::vector<std::pair<size_t, DnsName>> UsedNames(const Model& model);
  void SetAddresses(Model& model, size_t name, const std::vector<std::string>& addresses);
  // The following run under the model's lock. Lists the addresses from the configuration, names and
  // registrations, each once.
  void ListWanted(Model& model);
  // Makes these the only listed addresses of a name, of registrations or of the configuration.
  void ListOnly(Model& model, size_t name, std::set<std::string> wanted);
  void SetRoom(Model& model, size_t index);
  // Adds a verifier to the model, at the index of one that is gone or at a new one. `name`: the index of its
  // name, or one of the special values. Returns the index.
  size_t AddEntry(Model& model, const std::string& endpoint, size_t name);
  void Monitor();
  void ProbeDue(absl::Time now);
  void OnProbed(Attempt::Entry& entry, const absl::Status& status, bool serving);
  void OnInfo(Attempt::Entry& entry, const Verifier& verifier, const v1::ServerInfo& told, bool first);
  void OnTold(Attempt::Entry& entry, const Verifier& verifier);
  static bool OtherServes(const Model& model, size_t index);
  // How often to probe a verifier, and to resolve its address while it does not answer.
  static absl::Duration ProbePeriod(const Model& model, const Attempt::Entry& entry);
  static absl::Duration LookUpPeriod(const Model& model);
  absl::Duration Quiet(const Attempt::Entry& entry, absl::Time now) const;

  const Options options_;
  const Clock* const clock_;
  std::vector<Model> models_;
  absl::Mutex budget_mutex_;
  RetryBudget budget_ ABSL_GUARDED_BY(budget_mutex_);
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool names_changed_ ABSL_GUARDED_BY(mutex_) = false;  // Some must be resolved at once.
  int probes_ ABSL_GUARDED_BY(mutex_) = 0;              // Under way.
  std::thread monitor_;
  std::thread resolver_;
};

}  // namespace tandem::router
