#include "tests/simulation/cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::simulation {
namespace {

constexpr Host kClients = 1;
constexpr Host kFirstRouter = 10;
constexpr Host kFirstVerifier = 100;
constexpr absl::Duration kFaultWindow = absl::Seconds(4);
// After the last fault: ejections, leases, pauses of clients, and the work itself.
constexpr absl::Duration kLongestRecovery = absl::Seconds(60);
constexpr uint64_t kMostClusterEvents = 4'000'000;

FakeEngine::Options TargetOptions(uint64_t seed) {
  return {.vocab_size = 40, .num_blocks = 1, .seed = seed};
}

}  // namespace

ClusterScenario DrawCluster(uint64_t seed, const Tokenizer& tokenizer) {
  Random random(seed * 0x2545f4914f6cdd1dull);
  ClusterScenario scenario;
  const uint32_t num_verifiers = random.Between(1, 4);
  const uint32_t num_drafters = random.Between(1, 2);
  scenario.num_routers = random.Between(1, 3);
  const bool mixed = random.Chance(0.25);
  for (uint32_t i = 0; i < num_verifiers; ++i) {
    VerifierMachine::Options verifier = DrawAnyVerifier(random.Fork());
    const bool differs = mixed && random.Chance(0.5);
    verifier.model.chooses = random.Chance(0.5);
    scenario.verifiers.push_back(verifier);
    scenario.computes_differently.push_back(differs);
  }
  for (uint32_t i = 0; i < num_drafters; ++i) scenario.drafters.push_back(DrawAnyDrafter(random.Fork()));
  scenario.network.most_latency = random.Between(absl::Microseconds(200), absl::Milliseconds(10));
  scenario.drifting = random.Chance(0.3);
  if (random.Chance(0.15)) scenario.retries = {.share = 0.1, .per_second = 1.0, .reserve = 3.0};
  const uint32_t num_requests = random.Between(2, 16);
  for (uint32_t i = 0; i < num_requests; ++i) {
    ClientRequest request = DrawAnyRequest(random.Fork(), num_drafters, tokenizer);
    // FakeConstraint is none that the wire has.
    request.constrained = false;
    request.num_emitted = 0;
    request.swaps.clear();
    request.id = i + 1;
    request.max_window = std::min(request.max_window, 16u);
    request.arrival = absl::UnixEpoch() + absl::Milliseconds(300) +
                      random.Between(absl::ZeroDuration(), 0.7 * kFaultWindow);
    if (random.Chance(0.2))
      request.deadline = request.arrival + random.Between(absl::Milliseconds(20), absl::Seconds(3));
    if (random.Chance(0.1))
      request.cancel = request.arrival + random.Between(absl::ZeroDuration(), absl::Seconds(1));
    if (request.partner.has_value() && request.partner->link == request.drafter->link)
      request.partner.reset();
    if (i > 0 && random.Chance(0.4)) {
      // A prompt that goes on where another one, perhaps another tenant's, began.
      const TokenIds& earlier = scenario.requests[random.Between(0, i - 1)].prompt;
      request.prompt.insert(request.prompt.begin(), earlier.begin(), earlier.end());
      request.prompt.resize(std::min<size_t>(request.prompt.size(), 70));
    }
    scenario.requests.push_back(std::move(request));
  }
  std::vector<absl::Time> arrivals;
  for (const ClientRequest& request : scenario.requests) arrivals.push_back(request.arrival);
  scenario.faults = DrawFaultPlan(random.Fork(), kFaultWindow, arrivals);
  return scenario;
}

void ClusterOutcome::Add(const ClusterOutcome& other) {
  findings.insert(findings.end(), other.findings.begin(), other.findings.end());
  coverage.Add(other.coverage);
  completed += other.completed;
  expired += other.expired;
  cancelled += other.cancelled;
  tokens += other.tokens;
  resumed += other.resumed;
  failovers += other.failovers;
  stalls += other.stalls;
  waits += other.waits;
  changed += other.changed;
  orphaned += other.orphaned;
  sessions += other.sessions;
  cached += other.cached;
  kept_apart += other.kept_apart;
  held_back += other.held_back;
  events += other.events;
}

Cluster::Cluster(ClusterScenario scenario, std::shared_ptr<const Tokenizer> tokenizer, uint64_t seed)
    : scenario_(std::move(scenario)),
      tokenizer_(std::move(tokenizer)),
      random_(~seed),
      network_(&queue_, scenario_.network, random_.Fork()),
      store_clock_(&queue_),
      store_(&store_clock_),
      target_(TargetOptions(kWeights)),
      other_target_(TargetOptions(kOtherWeights)),
      routers_(scenario_.num_routers) {
  AddDrafters();
  AddVerifiers();
  for (size_t i = 0; i < routers_.size(); ++i) StartRouter(i);
  AddClients();
  ScheduleFaults();
}

Cluster::~Cluster() = default;

void Cluster::AddDrafters() {
  for (size_t d = 0; d < scenario_.drafters.size(); ++d) {
    drafters_.push_back(std::make_unique<DrafterMachine>(
        &queue_, scenario_.drafters[d].machine, random_.Fork(),
        [this, d](absl::Time departure, uint64_t connection, DraftResponse response) {
          const uint64_t verifier = connection % VerifierHost::kMostHosts;
          // A liar may speak before anybody has spoken to it.
          if (verifier >= verifiers_.size()) return;
          verifiers_[verifier]->link(d).SendResponse(departure, connection / VerifierHost::kMostHosts,
                                                     std::move(response));
        },
        &findings_));
    drafters_.back()->clock().Jump(random_.Between(absl::ZeroDuration(), absl::Hours(24)));
  }
}

void Cluster::AddVerifiers() {
  for (size_t v = 0; v < scenario_.verifiers.size(); ++v) {
    VerifierHost::Options options{.host = kFirstVerifier + static_cast<Host>(v),
                                  .name = absl::StrCat("v", v),
                                  .address = absl::StrCat("verifier-", v, ":1"),
                                  .machine = scenario_.verifiers[v],
                                  .computes_differently = scenario_.computes_differently[v],
                                  .index = v,
                                  .tokenizer = tokenizer_};
    for (size_t d = 0; d < drafters_.size(); ++d) {
      options.drafters.push_back(drafters_[d].get());
      options.links.push_back(scenario_.drafters[d].link);
    }
    for (uint32_t r = 0; r < scenario_.num_routers; ++r) options.routers.push_back(kFirstRouter + r);
    if (scenario_.drifting) options.drift = 0.02 * random_.Uniform() - 0.01;
    verifiers_.push_back(std::make_unique<VerifierHost>(
        &queue_, std::move(options), &network_, random_.Fork(), [this] { return over_; }, &findings_));
  }
}

void Cluster::StartRouter(size_t index) {
  Router& router = routers_[index];
  RouterMachine::Options options{.host = kFirstRouter + static_cast<Host>(index),
                                 .num_drafters = static_cast<uint32_t>(drafters_.size()),
                                 .retries = scenario_.retries,
                                 .clock_ahead = random_.Between(absl::ZeroDuration(), absl::Hours(24))};
  if (scenario_.drifting) options.clock_drift = 0.02 * random_.Uniform() - 0.01;
  for (const auto& verifier : verifiers_) {
    options.verifiers.push_back({verifier->options().host, verifier->options().address});
  }
  options.choice.first_ejection = absl::Milliseconds(500);
  options.choice.longest_ejection = absl::Seconds(5);
  options.model.name = "letters";
  options.model.vocab_size = target_.config().vocab_size;
  options.model.context_length = target_.config().max_context;
  router.leases = std::make_unique<StoreView>(&queue_, &store_, random_.Fork());
  router.machine = std::make_unique<RouterMachine>(
      &queue_, options, &network_, router.leases.get(), random_.Fork(), [this] { return over_; }, &findings_);
  network_.Up(options.host, [machine = router.machine.get()](std::shared_ptr<RpcCall> call) {
    machine->Serve(std::move(call));
  });
}

void Cluster::AddClients() {
  const std::vector<const FakeEngine*> all = {&target_, &other_target_};
  std::vector<const FakeEngine*> targets;
  const bool any_replaced = std::any_of(scenario_.faults.begin(), scenario_.faults.end(), [](const Fault& f) {
    return f.kind == FaultKind::kVerifierReplaced;
  });
  for (bool other : {false, true}) {
    const auto& differs = scenario_.computes_differently;
    if (any_replaced || std::find(differs.begin(), differs.end(), other) != differs.end()) {
      targets.push_back(all[other]);
    }
  }
  std::set<uint64_t> arithmetics;
  for (const auto& verifier : verifiers_) arithmetics.insert(verifier->arithmetic());
  std::vector<Host> hosts;
  for (uint32_t r = 0; r < scenario_.num_routers; ++r) hosts.push_back(kFirstRouter + r);
  for (const ClientRequest& request : scenario_.requests) {
    clients_.push_back(
        std::make_unique<ClusterClient>(&queue_,
                                        ClusterClient::Options{.host = kClients,
                                                               .routers = hosts,
                                                               .first_router = random_.Between(0, 10),
                                                               .arithmetics = arithmetics,
                                                               .calm = absl::UnixEpoch() + kFaultWindow},
                                        request, &network_, tokenizer_, targets, &findings_));
    ClusterClient* const client = clients_.back().get();
    queue_.At(request.arrival, [client] { client->Start(); });
    if (request.cancel.has_value()) queue_.At(*request.cancel, [client] { client->Cancel(); });
  }
}

void Cluster::ScheduleFaults() {
  for (const Fault& fault : scenario_.faults) queue_.At(fault.when, [this, fault] { Make(fault); });
}

void Cluster::Make(const Fault& fault) {
  FaultCoverage::Count& count = coverage_.counts[fault.kind];
  ++count.made;
  count.met += MakeAtVerifier(fault) || MakeAtRouter(fault) || MakeOnNetwork(fault);
}

// These say whether it met anything: something that ran, or was on its way.
bool Cluster::MakeAtVerifier(const Fault& fault) {
  VerifierHost& verifier = *verifiers_[fault.a % verifiers_.size()];
  DrafterMachine& drafter = *drafters_[fault.a % drafters_.size()];
  const bool busy = verifier.num_sessions() > 0;
  switch (fault.kind) {
    case FaultKind::kVerifierKilled:
    case FaultKind::kVerifierLost:
      if (!verifier.Kill(fault.kind == FaultKind::kVerifierLost)) return false;
      queue_.After(fault.lasts, [&verifier] { verifier.Start(); });
      return busy;
    case FaultKind::kVerifierReplaced: {
      const absl::Duration pause = random_.Between(absl::Milliseconds(1), absl::Milliseconds(60));
      if (!verifier.Replace(/*others=*/true, pause)) return false;
      queue_.After(fault.lasts, [&verifier, pause] { verifier.Replace(/*others=*/false, pause); });
      return busy;
    }
    case FaultKind::kVerifierStopped:
      verifier.StopFor(fault.lasts);
      return busy;
    case FaultKind::kVerifierClock:
      verifier.JumpBy(fault.lasts);
      for (const auto& client : clients_) client->Excuse();
      return busy;
    case FaultKind::kDrafterRestarted:
      for (const auto& host : verifiers_) host->link(fault.a % drafters_.size()).Break();
      drafter.Restart();
      return drafter.stats().num_sessions > 0;
    case FaultKind::kDrafterStopped:
      drafter.Stop(fault.lasts);
      return drafter.stats().num_sessions > 0;
    case FaultKind::kDraftLinkBroken: {
      Link& link = verifier.link(fault.b % drafters_.size());
      const bool was_up = link.connected();
      link.Break();
      return was_up && busy;
    }
    default:
      return false;
  }
}

bool Cluster::KillRouter(const Fault& fault, size_t index) {
  Router& router = routers_[index];
  if (router.machine == nullptr) return false;
  const bool busy = router.machine->num_calls() > 0;
  router.machine->Kill();
  router.leases->Close();
  network_.Down(kFirstRouter + static_cast<Host>(index), /*silently=*/fault.back);
  ended_.push_back(std::exchange(router, {}));
  queue_.After(fault.lasts, [this, index] { StartRouter(index); });
  return busy;
}

bool Cluster::MakeAtRouter(const Fault& fault) {
  const size_t index = fault.a % routers_.size();
  if (fault.kind == FaultKind::kRouterKilled) return KillRouter(fault, index);
  Router& router = routers_[index];
  if (fault.kind == FaultKind::kStoreClock) {
    store_clock_.Jump(fault.lasts);
    return true;
  }
  if (router.machine == nullptr) return false;
  const bool busy = router.machine->num_calls() > 0;
  switch (fault.kind) {
    case FaultKind::kRouterStopped:
      router.machine->StopFor(fault.lasts);
      return busy;
    case FaultKind::kRouterClock:
      router.machine->JumpBy(fault.lasts);
      for (const auto& client : clients_) client->Excuse();
      return busy;
    // Whether anything was asked or told meanwhile is known at the end.
    case FaultKind::kStoreAway:
      router.leases->LoseFor(fault.lasts);
      return false;
    case FaultKind::kStoreAnswersLost:
      router.leases->LoseAnswersFor(fault.lasts);
      return false;
    case FaultKind::kWatchLost:
      router.leases->LoseWatchFor(fault.lasts);
      return false;
    default:
      return false;
  }
}

bool Cluster::MakeOnNetwork(const Fault& fault) {
  const Host router = kFirstRouter + static_cast<Host>(fault.a % routers_.size());
  const Host verifier = kFirstVerifier + static_cast<Host>(fault.b % verifiers_.size());
  switch (fault.kind) {
    case FaultKind::kConnectionBroken:
      return network_.Break(router, verifier) > 0;
    case FaultKind::kClientsCutOff:
      return network_.Break(kClients, router) > 0;
    case FaultKind::kPartition:
      return (fault.back ? network_.Block(verifier, router, fault.lasts)
                         : network_.Block(router, verifier, fault.lasts)) > 0;
    case FaultKind::kClientPartition:
      return (fault.back ? network_.Block(router, kClients, fault.lasts)
                         : network_.Block(kClients, router, fault.lasts)) > 0;
    default:
      return false;
  }
}

bool Cluster::AllFinished() const {
  return std::all_of(clients_.begin(), clients_.end(), [](const auto& client) { return client->finished(); });
}

void Cluster::RunUntil(const std::function<bool()>& is_done) {
  const absl::Time latest = absl::UnixEpoch() + kFaultWindow + kLongestRecovery;
  while (!is_done() && queue_.RunNext()) {
    const bool goes_on = ++num_events_ < kMostClusterEvents && queue_.now() < latest;
    if (goes_on) continue;
    for (const auto& client : clients_) {
      findings_.Expect(client->finished(),
                       absl::StrCat("request ", client->request().id, " has no end ",
                                    absl::FormatDuration(kLongestRecovery),
                                    " after the last fault, at attempt ", client->num_attempts()));
    }
    findings_.Expect(num_events_ < kMostClusterEvents, "no end of events");
    return;
  }
}

void Cluster::CheckEnd() {
  for (const Router& router : routers_) {
    if (router.machine != nullptr) router.machine->CheckIdle();
  }
  for (const auto& verifier : verifiers_) {
    findings_.Expect(verifier->num_sessions() == 0,
                     absl::StrCat("a verifier still has ", verifier->num_sessions(), " calls"));
    verifier->CheckEmpty();
  }
  for (const auto& drafter : drafters_) drafter->CheckClosed();
}

ClusterOutcome Cluster::Run() {
  RunUntil([this] { return AllFinished() && queue_.now() >= absl::UnixEpoch() + kFaultWindow; });
  over_ = true;
  if (findings_.all().empty()) {
    RunUntil([] { return false; });
    CheckEnd();
    for (const auto& verifier : verifiers_) {
      for (size_t d = 0; d < drafters_.size(); ++d) verifier->link(d).Break();
    }
    RunUntil([] { return false; });
    for (const auto& drafter : drafters_) drafter->CheckEmpty();
  }
  return Summarise();
}

ClusterOutcome Cluster::Summarise() const {
  ClusterOutcome outcome{.findings = findings_.all(),
                         .coverage = coverage_,
                         .held_back = network_.num_held_back(),
                         .events = num_events_};
  for (const auto& client : clients_) {
    const absl::Status status = client->status().value_or(absl::UnknownError("no end"));
    outcome.completed += status.ok();
    outcome.expired += absl::IsDeadlineExceeded(status);
    outcome.cancelled += absl::IsCancelled(status);
    outcome.tokens += client->num_tokens();
    outcome.resumed += client->num_resumed();
    outcome.orphaned += client->orphaned();
  }
  const auto add = [&outcome](const Router& router) {
    if (router.machine == nullptr) return;
    outcome.failovers += router.machine->num_failovers();
    outcome.stalls += router.machine->num_stalls();
    outcome.waits += router.machine->num_waits();
    outcome.changed += router.machine->num_changed();
    outcome.coverage.counts[FaultKind::kStoreAway].met += router.leases->num_failed() > 0;
    outcome.coverage.counts[FaultKind::kStoreAnswersLost].met += router.leases->num_unanswered() > 0;
    outcome.coverage.counts[FaultKind::kWatchLost].met += router.leases->num_untold() > 0;
  };
  for (const Router& router : routers_) add(router);
  for (const Router& router : ended_) add(router);
  for (const auto& verifier : verifiers_) {
    outcome.sessions += verifier->num_calls();
    outcome.cached += verifier->num_cached();
    outcome.kept_apart += verifier->num_kept_apart();
  }
  return outcome;
}

ClusterOutcome RunCluster(uint64_t seed, std::shared_ptr<const Tokenizer> tokenizer,
                          const std::optional<std::vector<size_t>>& keep) {
  ClusterScenario scenario = DrawCluster(seed, *tokenizer);
  if (keep.has_value()) {
    std::vector<Fault> kept;
    for (size_t i : *keep) {
      if (i < scenario.faults.size()) kept.push_back(scenario.faults[i]);
    }
    scenario.faults = std::move(kept);
  }
  return Cluster(std::move(scenario), std::move(tokenizer), seed).Run();
}

std::vector<size_t> MinimiseFaults(uint64_t seed, const std::shared_ptr<const Tokenizer>& tokenizer) {
  std::vector<size_t> kept(DrawCluster(seed, *tokenizer).faults.size());
  for (size_t i = 0; i < kept.size(); ++i) kept[i] = i;
  for (size_t group = std::max<size_t>(kept.size() / 2, 1); group >= 1; group /= 2) {
    for (size_t begin = 0; begin < kept.size();) {
      std::vector<size_t> fewer = kept;
      const auto first = fewer.begin() + static_cast<ptrdiff_t>(begin);
      fewer.erase(first, first + static_cast<ptrdiff_t>(std::min(group, kept.size() - begin)));
      if (RunCluster(seed, tokenizer, fewer).findings.empty()) {
        begin += group;
      } else {
        kept = std::move(fewer);
      }
    }
  }
  return kept;
}

}  // namespace tandem::simulation
