#include "bench/plan/cluster.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <queue>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "bench/plan/arrivals.h"
#include "bench/plan/machines.h"
#include "bench/plan/plan_router.h"
#include "bench/plan/progress.h"
#include "bench/plan/tally.h"
#include "common/base/status_macros.h"
#include "verifier/session/output_assembler.h"

namespace tandem::plan {
namespace {

// The number of events between two reports of progress.
constexpr uint64_t kEventsPerReport = 1 << 14;
// After this time a refused client of a closed loop retries.
constexpr double kRetrySeconds = 1.0;
// The most tokens of keys and values of all machines together. Each takes about 25 bytes of memory.
constexpr uint64_t kMostHeldTokens = uint64_t{1} << 28;

absl::Duration DelayOf(double ms) {
  return absl::Seconds(ms / 1000.0);
}

// A request, from when the client sends it to its end.
struct Call {
  PlannedRequest request;
  absl::Time sent;  // By the client.
  absl::Time at_router;
  absl::Time started;                            // At the verifier; before that, the infinite future.
  absl::Time last_token = absl::InfinitePast();  // As the client sees it.
  uint32_t tokens = 0;
  TokenIds prompt;
  router::Admission::Ticket ticket;
  PlanRouter::Choice choice;
  std::vector<size_t> tried;  // Verifiers that were tried; the last one has the request.
  absl::Status status;
  SessionSummary summary;
};

// The simulation of one slice: a router, verifiers and drafters, and the queue of events at the router. Runs
// once, and then only its tally is read. Used by one thread.
class Cluster final : private VerifierEvents {
 public:
  Cluster(const Plan& plan, const Layout& layout, const SimulateOptions& options, const Slice& slice,
          std::shared_ptr<const Tokenizer> tokenizer);
  // Calls `tell` with the share that has been simulated.
  absl::Status Run(const std::function<void(double)>& tell);
  const Tally& tally() const { return tally_; }

 private:
  enum class Step { kArrive, kPrepare, kRefused, kEnded };
  struct Event {
    absl::Time when;
    uint64_t number = 0;
    Step step = Step::kArrive;
    uint64_t call = 0;
    bool operator<(const Event& other) const {
      return when != other.when ? when > other.when : number > other.number;
    }
  };

  void At(absl::Time when, Step step, uint64_t call) { events_.push({when, next_event_++, step, call}); }
  void Begin(const PlannedRequest& request);
  void SendNext();
  void Handle(const Event& event);
  void Arrive(uint64_t number);
  void Prepare(uint64_t number);
  void Attempt(uint64_t number);
  void End(uint64_t number, absl::Status status);
  absl::Status RunEvents(const std::function<void(double)>& tell);
  absl::Status CheckEnd() const;

  void OnStarted(SessionId session, absl::Time now) override;
  void OnTokens(SessionId session, uint32_t tokens, absl::Time now) override;
  void OnFinished(SessionId session, const absl::Status& status, const SessionSummary& summary,
                  absl::Time now) override;
  void OnRefused(SessionId session, const absl::Status& reason, absl::Time now) override;

  const Plan& plan_;
  const Layout& layout_;
  const SimulateOptions& options_;
  const Slice slice_;
  const double begin_;  // When the slice's warm-up begins, in seconds.
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const DrafterPlaces places_;
  const absl::Duration to_client_;
  const absl::Duration to_verifier_;
  PlanClock clock_;  // The router's.
  PlanRouter router_;
  Arrivals arrivals_;
  Tally tally_;
  std::vector<std::unique_ptr<VerifierMachine>> verifiers_;
  std::vector<std::unique_ptr<DrafterMachine>> drafters_;  // Link i is drafter i - 1.
  std::priority_queue<Event> events_;
  uint64_t next_event_ = 0;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Call>> calls_;
  std::vector<uint64_t> placed_;  // Calls that have just been given a place.
};

Cluster::Cluster(const Plan& plan, const Layout& layout, const SimulateOptions& options, const Slice& slice,
                 std::shared_ptr<const Tokenizer> tokenizer)
    : plan_(plan),
      layout_(layout),
      options_(options),
      slice_(slice),
      begin_(std::max(slice.begin - plan.traffic.warm_up_seconds, 0.0)),
      tokenizer_(std::move(tokenizer)),
      places_(DrafterPlaces::Of(layout)),
      to_client_(DelayOf(layout.client_ms)),
      to_verifier_(DelayOf(layout.verifier_ms)),
      router_(plan, layout, places_, &clock_),
      arrivals_(plan.traffic, options.load),
      tally_(plan.traffic, slice) {
  const absl::Duration to_drafter = DelayOf(layout.drafter_ms);
  for (uint32_t i = 0; i < layout.verifiers.count; ++i) {
    const auto send = [this, i, to_drafter](absl::Time departure, LinkId link, DraftRequest&& request) {
      drafters_[link - 1]->Receive(departure + to_drafter, i, std::move(request));
    };
    verifiers_.push_back(std::make_unique<VerifierMachine>(layout, places_, HashCombine(plan.traffic.seed, i),
                                                           send, static_cast<VerifierEvents*>(this)));
  }
  for (const DrafterGroup& group : layout.drafters) {
    std::vector<const Acceptance*> acceptance;
    for (const std::string& kind : plan.traffic.kinds) {
      acceptance.push_back(plan.acceptance->Find(kind, group.name));
    }
    for (uint32_t i = 0; i < group.count; ++i) {
      const LinkId link = drafters_.size() + 1;
      const auto reply = [this, link, to_drafter](absl::Time departure, LinkId verifier,
                                                  DraftResponse&& response) {
        verifiers_[verifier]->Receive(departure + to_drafter, link, std::move(response));
      };
      drafters_.push_back(std::make_unique<DrafterMachine>(group, acceptance, reply));
    }
  }
}

void Cluster::Begin(const PlannedRequest& request) {
  auto call = std::make_unique<Call>();
  call->request = request;
  call->sent = absl::UnixEpoch() + absl::Seconds(request.at_seconds);
  call->at_router = call->sent + to_client_;
  call->started = absl::InfiniteFuture();
  tally_.OnSent(request, call->sent);
  At(call->at_router, Step::kArrive, request.number);
  calls_.emplace(request.number, std::move(call));
}

// In an open loop, schedules the next request. Skips requests from before the slice.
void Cluster::SendNext() {
  if (plan_.traffic.concurrency > 0) return;
  std::optional<PlannedRequest> next = arrivals_.Next();
  while (next.has_value() && next->at_seconds < begin_) next = arrivals_.Next();
  if (next.has_value() && next->at_seconds < slice_.end) Begin(*next);
}

void Cluster::Handle(const Event& event) {
  clock_.MoveTo(event.when);
  switch (event.step) {
    case Step::kArrive:
      SendNext();
      Arrive(event.call);
      break;
    case Step::kPrepare:
      Prepare(event.call);
      break;
    case Step::kRefused:
      router_.OnEnd(calls_.at(event.call)->tried.back());
      Attempt(event.call);
      break;
    case Step::kEnded: {
      Call& call = *calls_.at(event.call);
      router_.OnEnd(call.tried.back());
      if (call.status.ok()) {
        router_.OnSuccess(call.tried.back());
        call.choice.decision.pending = nullptr;
        router_.Learn(call.choice, call.request.kind, call.summary);
      }
      End(event.call, call.status);
      break;
    }
  }
  for (const uint64_t call : std::exchange(placed_, {})) {
    At(clock_.Now() + DelayOf(layout_.router_ms), Step::kPrepare, call);
  }
}

void Cluster::Arrive(uint64_t number) {
  Call& call = *calls_.at(number);
  absl::StatusOr<router::Admission::Ticket> ticket =
      router_.Admit(call.request.tenant, [this, number](const absl::Status&) { placed_.push_back(number); });
  if (!ticket.ok()) return End(number, ticket.status());
  call.ticket = *std::move(ticket);
  if (!call.ticket.waits_at_first()) placed_.push_back(number);
}

void Cluster::Prepare(uint64_t number) {
  Call& call = *calls_.at(number);
  call.prompt = PromptOf(plan_.traffic, call.request);
  call.choice = router_.ChooseDrafter(call.request.tenant, number, call.prompt);
  tally_.OnChosen(call.request,
                  call.choice.group.has_value() ? places_.groups[*call.choice.group].name : "none",
                  call.sent);
  Attempt(number);
}

void Cluster::Attempt(uint64_t number) {
  Call& call = *calls_.at(number);
  const std::optional<size_t> verifier = router_.ChooseVerifier(call.request.tenant, call.prompt, call.tried);
  if (!verifier.has_value()) {
    return End(number, absl::ResourceExhaustedError("all verifiers are full"));
  }
  call.tried.push_back(*verifier);
  SessionRequest request{.prompt = call.prompt,
                         .max_tokens = call.request.output_tokens,
                         // The recorded acceptance contains the effect of the temperature.
                         .sampling = {.temperature = 0.0f, .seed = number},
                         .output = std::make_unique<OutputAssembler>(
                             tokenizer_, StopRules{.max_tokens = call.request.output_tokens}),
                         .cache_salt = router_.cache_salt(call.request.tenant),
                         .tenant = plan_.traffic.tenants[call.request.tenant].name};
  if (call.choice.group.has_value()) request.drafter = places_.BindingOf(*call.choice.group);
  // Sessions are numbered from 1.
  verifiers_[*verifier]->Submit(clock_.Now() + to_verifier_, number + 1, std::move(request));
}

void Cluster::End(uint64_t number, absl::Status status) {
  const std::unique_ptr<Call> call = std::move(calls_.extract(number).mapped());
  const absl::Time ended = clock_.Now() + to_client_;
  const bool refused = !status.ok();
  tally_.OnEnded(call->request, {.sent = call->sent,
                                 .at_router = call->at_router,
                                 .started = std::min(call->started, ended),
                                 .ended = ended,
                                 .tokens = call->tokens,
                                 .status = std::move(status),
                                 .summary = &call->summary});
  // Here its place goes to a waiting request.
  call->ticket = router::Admission::Ticket();
  if (plan_.traffic.concurrency == 0) return;
  // A refused client retries after a while, as the refusal tells it to.
  const double now = absl::ToDoubleSeconds(ended - absl::UnixEpoch()) + (refused ? kRetrySeconds : 0.0);
  if (now >= plan_.traffic.seconds) return;
  if (const std::optional<PlannedRequest> next = arrivals_.At(now); next.has_value()) Begin(*next);
}

void Cluster::OnStarted(SessionId session, absl::Time now) {
  calls_.at(session - 1)->started = now;
}

void Cluster::OnTokens(SessionId session, uint32_t tokens, absl::Time now) {
  Call& call = *calls_.at(session - 1);
  const absl::Time seen = now + to_verifier_ + to_client_;
  tally_.OnTokens(tokens, now, call.sent, call.tokens == 0 ? call.sent : call.last_token, seen,
                  call.tokens == 0);
  call.tokens += tokens;
  call.last_token = seen;
}

void Cluster::OnFinished(SessionId session, const absl::Status& status, const SessionSummary& summary,
                         absl::Time now) {
  Call& call = *calls_.at(session - 1);
  call.status = status;
  call.summary = summary;
  At(now + to_verifier_, Step::kEnded, session - 1);
}

void Cluster::OnRefused(SessionId session, const absl::Status& reason, absl::Time now) {
  Call& call = *calls_.at(session - 1);
  if (absl::IsResourceExhausted(reason)) {
    At(now + to_verifier_, Step::kRefused, session - 1);
    return;
  }
  call.status = reason;
  At(now + to_verifier_, Step::kEnded, session - 1);
}

absl::Status Cluster::RunEvents(const std::function<void(double)>& tell) {
  const double whole = std::max(slice_.end - begin_, 1e-9);
  for (uint64_t num_events = 0;; ++num_events) {
    VerifierMachine* verifier = nullptr;
    DrafterMachine* drafter = nullptr;
    absl::Time next = events_.empty() ? absl::InfiniteFuture() : events_.top().when;
    for (const auto& machine : verifiers_) {
      if (machine->due() < next) {
        next = machine->due();
        verifier = machine.get();
      }
    }
    for (const auto& machine : drafters_) {
      if (machine->due() < next) {
        next = machine->due();
        drafter = machine.get();
      }
    }
    if (next == absl::InfiniteFuture()) return absl::OkStatus();
    if (num_events % kEventsPerReport == 0) {
      if (options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed)) {
        return absl::CancelledError("the simulation was stopped");
      }
      const double done = (absl::ToDoubleSeconds(next - absl::UnixEpoch()) - begin_) / whole;
      tell(std::clamp(done, 0.0, 1.0));
    }
    tally_.OnTime(next, [this] { return BusyTimes{verifiers_, drafters_}; });
    if (drafter != nullptr) {
      drafter->Step();
    } else if (verifier != nullptr) {
      verifier->Step();
      TANDEM_RETURN_IF_ERROR(verifier->failure());
    } else {
      const Event event = events_.top();
      events_.pop();
      Handle(event);
    }
  }
}

absl::Status Cluster::CheckEnd() const {
  if (!calls_.empty()) {
    return absl::InternalError(absl::StrCat(calls_.size(), " requests have not ended, and nothing is due"));
  }
  for (const auto& verifier : verifiers_) TANDEM_RETURN_IF_ERROR(verifier->CheckEmpty());
  for (const auto& drafter : drafters_) TANDEM_RETURN_IF_ERROR(drafter->CheckEmpty());
  return absl::OkStatus();
}

absl::Status Cluster::Run(const std::function<void(double)>& tell) {
  if (plan_.traffic.concurrency > 0) {
    const double at_a_time = std::max(std::round(plan_.traffic.concurrency * options_.load), 1.0);
    for (double i = 0.0; i < at_a_time; i += 1.0) {
      if (const std::optional<PlannedRequest> first = arrivals_.At(0.0); first.has_value()) Begin(*first);
    }
  } else {
    SendNext();
  }
  TANDEM_RETURN_IF_ERROR(RunEvents(tell));
  tally_.OnTime(absl::InfiniteFuture(), [this] { return BusyTimes{verifiers_, drafters_}; });
  return CheckEnd();
}

// Cuts the measured time into equal parts.
std::vector<Slice> SlicesOf(const Traffic& traffic, uint32_t count) {
  std::vector<Slice> slices;
  const double length = (traffic.seconds - traffic.warm_up_seconds) / count;
  for (uint32_t i = 0; i < count; ++i) {
    const double begin = traffic.warm_up_seconds + i * length;
    slices.push_back(
        {.begin = begin, .end = i + 1 == count ? traffic.seconds : begin + length, .first = i == 0});
  }
  return slices;
}

}  // namespace

absl::Status CheckLayout(const Plan& plan, const Layout& layout) {
  if (layout.verifiers.count == 0) return absl::InvalidArgumentError("the layout has no verifiers");
  uint64_t longest = 0;
  for (const TenantTraffic& tenant : plan.traffic.tenants) {
    longest = std::max(longest, uint64_t{tenant.prompt.most} + tenant.output.most);
  }
  for (const RecordedRequest& request : plan.traffic.recorded) {
    longest = std::max(longest, uint64_t{request.prompt_tokens} + request.output_tokens);
  }
  if (longest > layout.verifiers.kv_tokens || longest > PlanEngine::kMaxContext) {
    return absl::InvalidArgumentError(absl::StrCat(
        "requests have up to ", longest, " tokens, and verifiers hold ", layout.verifiers.kv_tokens,
        " (verifiers.kv_tokens), expected as many at least, and at most ", PlanEngine::kMaxContext));
  }
  bool any = false;
  uint64_t kv_tokens = uint64_t{layout.verifiers.count} * layout.verifiers.kv_tokens;
  for (const DrafterGroup& group : layout.drafters) {
    if (group.count == 0) continue;
    kv_tokens += uint64_t{group.count} * group.kv_tokens;
    any = any || group.name == layout.pinned;
    if (longest > group.kv_tokens) {
      return absl::InvalidArgumentError(absl::StrCat("requests have up to ", longest, " tokens, and drafter ",
                                                     group.name, " holds ", group.kv_tokens,
                                                     " (kv_tokens), expected as many at least"));
    }
    for (const std::string& kind : plan.traffic.kinds) {
      if (plan.acceptance->Find(kind, group.name) != nullptr) continue;
      return absl::InvalidArgumentError(absl::StrCat("no acceptance of drafter ", group.name, " on kind ",
                                                     kind, ", expected an entry of acceptance for both"));
    }
  }
  if (kv_tokens > kMostHeldTokens) {
    return absl::InvalidArgumentError(absl::StrCat("the machines of the layout hold ", kv_tokens,
                                                   " tokens (count times kv_tokens), expected at most ",
                                                   kMostHeldTokens, " in all"));
  }
  if (layout.choice == DrafterChoice::kPinned && !any) {
    return absl::InvalidArgumentError(absl::StrCat("requests are pinned to drafter \"", layout.pinned,
                                                   "\", which the layout does not have"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Result> Simulate(const Plan& plan, const Layout& layout, const SimulateOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckLayout(plan, layout));
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer, MakePlanTokenizer());
  const uint32_t count = plan.traffic.concurrency > 0 ? 1 : std::max(options.slices, 1u);
  const std::vector<Slice> slices = SlicesOf(plan.traffic, count);
  Progress progress(slices.size(), options.on_progress);
  std::vector<std::unique_ptr<Cluster>> clusters(slices.size());
  std::vector<absl::Status> statuses(slices.size());
  const auto run = [&](size_t i) {
    clusters[i] = std::make_unique<Cluster>(plan, layout, options, slices[i], tokenizer);
    statuses[i] = clusters[i]->Run([&progress, i](double share) { progress.Set(i, share); });
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < slices.size(); ++i) threads.emplace_back(run, i);
  run(0);
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) TANDEM_RETURN_IF_ERROR(status);
  Tally sum = clusters.front()->tally();
  for (size_t i = 1; i < clusters.size(); ++i) sum.Merge(clusters[i]->tally());
  return sum.Sum(layout);
}

}  // namespace tandem::plan
