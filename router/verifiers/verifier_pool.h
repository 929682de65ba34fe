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

// One verifier and the channel to it, which is kept as long as somebody uses it.
struct Verifier {
  std::string endpoint;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Verifier::Stub> stub;
};

// The verifiers of every model: who takes the next request, and whether those that have some are still there.
//
// A thread asks grpc.health.v1 of every verifier once a second, and of one that runs requests and has sent
// nothing for a quarter of the stall timeout at once. One that has said nothing at all for the stall timeout,
// no answer and no token, is lost, connected or not (a process that was stopped keeps its connections): its
// requests are told, so that they can go on elsewhere, if there is another one. A long prompt or a slow step
// is not a stall, since the health service answers meanwhile. The address of one that does not answer is
// asked for anew every few seconds. Where requests wait for a verifier, those that do not serve are asked
// several times a second.
//
// "dns:///host:port" among a model's verifiers stands for every address of the name. A thread asks for them
// every `resolve_period`: new ones get requests once their health service says that they serve, and those
// that are gone get no more; what runs there goes on. A name that cannot be resolved keeps what it had.
//
// Those that registered come and go likewise, by SetRegistered, and those that are configured by
// SetConfigured. One that is several of these counts once. A verifier may serve several models: it is asked
// for the health of each ("tandem.v1.Verifier/MODEL"), and one that says that it holds other models only gets
// no requests. What it holds it is asked when it begins to serve and every few seconds after that, and at
// once when a request has named an adapter in vain: adapters come and go.
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
    // How long a request may wait for a verifier that serves; zero: not at all.
    absl::Duration longest_wait;
    size_t max_waits = 256;  // Of one model at once.
    // What a verifier that begins to serve says of itself, by the model's index; from gRPC's threads.
    std::function<void(size_t, const v1::ServerInfo&)> on_info;
  };
  VerifierPool(const RoutingTable& table, const Options& options, const Clock* clock);
  ~VerifierPool();
  VerifierPool(const VerifierPool&) = delete;
  VerifierPool& operator=(const VerifierPool&) = delete;

  // What a call is told when its verifier is lost. From the pool's thread or gRPC's.
  using OnLost = std::function<void(const absl::Status& reason)>;

  // A request on a verifier, from Begin until it is destroyed. Thread-safe.
  class Attempt {
   public:
    ~Attempt();
    Verifier& verifier() const { return *verifier_; }
    const std::shared_ptr<Verifier>& shared_verifier() const { return verifier_; }
    size_t index() const { return index_; }  // Among the model's.
    // VerifierTraits::ArithmeticWith, as far as is known by now.
    uint64_t arithmetic() const;
    // Something came from the verifier.
    void OnEvent();
    // The call has ended: the verifier did what it should (a refusal included), or it did not. Once.
    void OnSuccess();
    void OnFailure();
    // It is not what it was taken for: nothing that it said of itself counts any more, and it is asked anew.
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

  // Where to run a request, `tried` being the verifiers (by index) that failed it already: VerifierChoice.
  // ResourceExhausted if all have as many requests as they may, Unavailable if no name has an address; what
  // CheckAnySuits says if no verifier has what the request needs.
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
  // Calls `on_serving`, from gRPC's threads, whenever a verifier of the model says that it serves. Null if as
  // many wait as may.
  std::unique_ptr<Wait> BeginWait(size_t model, std::function<void()> on_serving);
  // How many requests wait.
  size_t num_waiting(size_t model) const;
  // Why there is no verifier for a request while none serves: none may be known at all.
  absl::Status NoneServes(size_t model) const;
  absl::Duration longest_wait() const { return options_.longest_wait; }

  // Whether a verifier of the model serves or, being configured, has not been asked yet.
  bool MayServe(size_t model) const;
  // How many of a model's verifiers said when they were last asked that they serve.
  size_t num_serving(size_t model) const;

  // How many requests of a model its verifiers that serve can have at once so that none of them waits there
  // for long: as many as run, and some that are on the way. Nothing while none serves. Of a verifier that
  // does not tell, as many as it may have.
  std::optional<uint32_t> places(size_t model) const;

  // Where an address is from. One that several have counts for the first.
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
  // Those of a model, by endpoint.
  std::vector<Status> List(size_t model) const;

  // Adapters that a verifier of the model holds that is listed, by name. Of adapters of one name that differ,
  // one.
  std::vector<v1::AdapterInfo> Adapters(size_t model) const;
  // Of the one of that name, as Adapters has it; 0 if there is none.
  uint64_t FingerprintOf(size_t model, const std::string& adapter) const;

  // How many verifiers a model has now.
  size_t size(size_t model) const;

  // Those of a model that are configured, addresses and names, in place of those before. They get requests
  // once they say that they serve; what runs on those that are gone goes on.
  void SetConfigured(size_t model, const std::vector<std::string>& endpoints);
  // The verifiers of a model that have registered, in place of those before.
  void SetRegistered(size_t model, const std::vector<RegisteredEndpoint>& verifiers);

  // Counts a request, and asks for the right to run one once more.
  void CountRequest();
  bool TakeRetry();

 private:
  struct Model;
  class Probe;
  class Question;

  // The thread that asks for names.
  void ResolveNames();
  // With their places among the model's.
  static std::vector<std::pair<size_t, DnsName>> UsedNames(const Model& model);
  void SetAddresses(Model& model, size_t name, const std::vector<std::string>& addresses);
  // What follows is under the model's lock. Lists what the configuration, names and registrations say, each
  // address once.
  void ListWanted(Model& model);
  // Lists these addresses of a name, of those that registered or of those that are configured, and no others
  // of it.
  void ListOnly(Model& model, size_t name, std::set<std::string> wanted);
  void SetRoom(Model& model, size_t index);
  // A verifier of the model, in the place of one that is gone or in a new one. `name`: which of its names, or
  // none of them. Returns its index.
  size_t AddEntry(Model& model, const std::string& endpoint, size_t name);
  void Monitor();
  void ProbeDue(absl::Time now);
  void OnProbed(Attempt::Entry& entry, const absl::Status& status, bool serving);
  void OnInfo(Attempt::Entry& entry, const Verifier& verifier, const v1::ServerInfo& told, bool first);
  void OnTold(Attempt::Entry& entry, const Verifier& verifier);
  static bool OtherServes(const Model& model, size_t index);
  // How often to ask a verifier for its health and, while it does not answer, for its address.
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
  bool names_changed_ ABSL_GUARDED_BY(mutex_) = false;  // Some are to be asked for at once.
  int probes_ ABSL_GUARDED_BY(mutex_) = 0;              // Under way.
  std::thread monitor_;
  std::thread resolver_;
};

}  // namespace tandem::router
