#include "tests/simulation/router_machine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "router/registry/testing/registrations.h"
#include "router/serving/request.h"

namespace tandem::simulation {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kProbePeriod = absl::Milliseconds(500);
constexpr absl::Duration kAskPeriod = absl::Milliseconds(2500);
constexpr absl::Duration kDeadlineTolerance = absl::Milliseconds(20);
constexpr absl::Duration kLatestEnd = absl::Milliseconds(100);
// What an answer about its state takes a router, which is no part of a call's delay.
constexpr absl::Duration kBusiest = absl::Milliseconds(50);

}  // namespace

RouterMachine::RouterMachine(EventQueue* queue, const Options& options, RpcNetwork* network,
                             StoreView* leases, Random random, std::function<bool()> over, Findings* findings)
    : Machine(queue),
      queue_(*queue),
      options_(options),
      network_(*network),
      leases_(*leases),
      random_(random),
      over_(std::move(over)),
      findings_(*findings),
      choice_(options.choice, {}),
      entries_(options.verifiers.size()) {
  clock().SetDrift(options_.clock_drift);
  clock().Jump(options_.clock_ahead);
  budget_.emplace(options_.retries, clock().Now());
  leases_.SetClock(&clock());
  for (size_t i = 0; i < options_.verifiers.size(); ++i) {
    choice_.Replace(i, options_.verifiers[i].address);
    choice_.SetListed(i, false);
  }
  router::Registrar::Options registrar;
  registrar.servers.registration = {.verifiers = true, .drafters = true, .ttl = options_.ttl};
  registrar.servers.models = {
      {.name = options_.model.name, .vocabulary_fingerprint = router::testing::kVocabulary}};
  registrar.leases = &leases_;
  registrar.clock = &clock();
  registrar.is_configured = [](const std::string&) { return false; };
  registrar.set_verifiers = [this](size_t, const std::vector<router::RegisteredEndpoint>& verifiers) {
    SetVerifiers(verifiers);
  };
  registrar.set_drafters = [](const std::vector<router::Drafter>&) {};
  registrar.set_counts = [](size_t, size_t) {};
  registrar_ = std::make_unique<router::Registrar>(std::move(registrar));
  After(absl::ZeroDuration(), [this] { Tick(); });
}

void RouterMachine::After(absl::Duration delay, std::function<void()> what) {
  queue_.At(clock().queue_now() + delay, [this, what = std::move(what)] { Post(what); });
}

void RouterMachine::StopFor(absl::Duration duration) {
  Stop(duration);
  Disturb();
}

void RouterMachine::JumpBy(absl::Duration duration) {
  JumpClock(duration);
  Disturb();
}

void RouterMachine::Disturb() {
  Post([this] { disturbed_ = std::max(disturbed_, clock().queue_now() + kBusiest); });
}

RouterMachine::Call* RouterMachine::Find(uint64_t id) {
  const auto found = calls_.find(id);
  return found == calls_.end() ? nullptr : &found->second;
}

void RouterMachine::Serve(std::shared_ptr<RpcCall> call) {
  Post([this, call = std::move(call)] {
    if (std::holds_alternative<v1::GenerateRequest>(call->request())) {
      Begin(call);
    } else {
      Register(call);
    }
  });
}

void RouterMachine::Register(const std::shared_ptr<RpcCall>& rpc) {
  absl::Status status;
  if (const auto* const request = std::get_if<v1::RegisterRequest>(&rpc->request())) {
    status = registrar_->Register(*request).status();
  } else {
    status = registrar_->Deregister(std::get<v1::DeregisterRequest>(rpc->request()));
  }
  rpc->Finish(clock().queue_now(), status);
}

void RouterMachine::Begin(const std::shared_ptr<RpcCall>& rpc) {
  const auto& request = std::get<v1::GenerateRequest>(rpc->request());
  absl::Status status = router::ValidateRequest(request);
  uint64_t tokenized = 0;
  absl::StatusOr<v1::VerifierGenerateRequest> prepared = router::PrepareRequest(
      request, options_.model, [this] { return random_.Next(); }, tokenized);
  status.Update(prepared.status());
  if (!status.ok()) return rpc->Finish(clock().queue_now(), status);

  const uint64_t id = ++last_call_;
  Call& call = calls_[id];
  call.client = rpc;
  call.began = queue_.now();
  call.deadline = clock().Now() + rpc->timeout();
  call.prepared = *std::move(prepared);
  call.prepared.set_request_id(request.request_id());
  call.prepared.set_cache_salt(static_cast<uint64_t>(request.priority()) + 1);
  call.prepared.clear_priority();
  const std::string& drafter = request.speculation().drafter();
  if (!drafter.empty()) {
    call.prepared.mutable_drafter()->set_name(drafter);
    for (uint32_t other = 0; other < options_.num_drafters; ++other) {
      const std::string name = absl::StrCat("drafter-", other);
      if (name != drafter) call.prepared.add_alternates()->set_name(name);
    }
  }
  if (!request.speculation().partner().empty()) {
    call.prepared.mutable_partner()->set_name(request.speculation().partner());
  }
  call.arithmetic = request.resume().arithmetic();
  const auto& emitted = call.prepared.emitted().ids();
  call.relay.emplace(router::Relay::Names{.model = options_.model.name, .drafter = drafter},
                     std::vector<uint32_t>(emitted.begin(), emitted.end()));
  budget_->OnRequest(clock().Now());
  rpc->SetOnCancel([this, id] {
    Post([this, id] {
      const Call* const gone = Find(id);
      if (gone == nullptr) return;
      const bool late = clock().Now() >= gone->deadline - kDeadlineTolerance;
      End(id, late ? absl::DeadlineExceededError("the call's deadline has passed")
                   : absl::CancelledError("the client cancelled the call or disconnected"));
    });
  });
  StartAttempt(id);
}

router::VerifierNeeds RouterMachine::Needs(const Call& call) const {
  const auto prompt = static_cast<uint64_t>(call.prepared.prompt().ids_size());
  return {.tokens = prompt + call.prepared.stopping().max_tokens(), .arithmetic = call.arithmetic};
}

// As VerifierPool::Begin has it.
absl::Status RouterMachine::WhyNone(const Call& call) const {
  if (choice_.num_listed() == 0) return absl::UnavailableError("no verifier of the model is known");
  std::vector<router::VerifierTraits> listed;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (choice_.listed(i)) listed.push_back(entries_[i].traits);
  }
  absl::Status status = router::CheckAnySuits(listed, Needs(call));
  if (!status.ok()) return status;
  return absl::ResourceExhaustedError("all verifiers of the model are full");
}

void RouterMachine::StartAttempt(uint64_t id) {
  if (!MayServe() && WaitForVerifier(id, absl::UnavailableError("no verifier of the model serves"))) return;
  Call& call = *Find(id);
  ++call.attempts;
  ++call.in_vain;
  findings_.Expect(call.in_vain <= options_.verifiers.size() + router::Failover::kFurtherAttempts + 1,
                   absl::StrCat("a router tries a request in vain for the ", call.in_vain, ". time"));
  const auto& prompt = call.prepared.prompt().ids();
  const std::vector<size_t> order =
      choice_.Order(absl::MakeConstSpan(prompt.data(), static_cast<size_t>(prompt.size())),
                    call.prepared.cache_salt(), call.failover.tried(), clock().Now(),
                    [&](size_t index) { return router::Suits(entries_[index].traits, Needs(call)); });
  if (order.empty()) {
    const absl::Status reason = WhyNone(call);
    std::optional<absl::Duration> pause;
    if (!absl::IsInvalidArgument(reason)) {
      pause = call.failover.NextAsking(choice_.num_listed(), !call.relay->tokens().empty());
    }
    if (!pause.has_value()) return EndWithoutVerifier(id, reason);
    return RetryAfter(id, *pause);
  }
  const size_t verifier = order.front();
  call.verifier = verifier;
  choice_.OnBegin(verifier);
  entries_[verifier].heard = clock().Now();
  call.relay->OnAttempt(options_.verifiers[verifier].address);
  call.prepared.mutable_emitted()->mutable_ids()->Assign(call.relay->tokens().begin(),
                                                         call.relay->tokens().end());
  call.prepared.set_arithmetic(call.arithmetic);
  const int attempt = call.attempts;
  call.stream = network_.Start(
      options_.host, options_.verifiers[verifier].host, call.prepared,
      std::max(call.deadline - clock().Now(), absl::ZeroDuration()),
      {.on_event =
           [this, id, attempt](RpcEvent event) {
             Post([this, id, attempt, event = std::get<v1::GenerateResponse>(std::move(event))] {
               OnVerifierEvent(id, attempt, event);
             });
           },
       .on_done =
           [this, id, attempt](const absl::Status& status) {
             Post([this, id, attempt, status] { OnVerifierDone(id, attempt, status); });
           }});
}

void RouterMachine::OnVerifierEvent(uint64_t id, int attempt, v1::GenerateResponse event) {
  Call* const call = Find(id);
  if (call == nullptr || attempt != call->attempts || !call->verifier.has_value()) return;
  entries_[*call->verifier].heard = clock().Now();
  if (event.has_finished()) event.mutable_finished()->mutable_speculation()->clear_policy_state();
  const absl::StatusOr<bool> send = call->relay->OnEvent(event);
  if (!send.ok()) return End(id, send.status());
  if (!*send) return;
  if (event.has_chunk()) {
    call->failover.OnProgress();
    call->in_vain = 0;
    // As TellArithmetic.
    const uint64_t told = event.chunk().arithmetic();
    event.mutable_chunk()->clear_arithmetic();
    if (call->arithmetic == 0) {
      call->arithmetic = told != 0 ? told : entries_[*call->verifier].traits.arithmetic;
      event.mutable_chunk()->set_arithmetic(call->arithmetic);
    }
  }
  call->client->Send(clock().queue_now(), std::move(event));
}

void RouterMachine::OnVerifierDone(uint64_t id, int attempt, const absl::Status& status) {
  Call* const call = Find(id);
  if (call == nullptr || attempt != call->attempts || !call->verifier.has_value()) return;
  const router::Relay::End end =
      call->relay->OnEnd(status, clock().Now() < call->deadline - kDeadlineTolerance);
  const size_t verifier = *call->verifier;
  if (absl::IsAborted(status) && end.retry) {
    ++num_changed_;
    choice_.OnSuccess(verifier, clock().Now());
    entries_[verifier].traits = {};
    entries_[verifier].asked = false;
    entries_[verifier].probed = absl::InfinitePast();
  } else if (absl::IsUnavailable(end.status) || absl::IsInternal(end.status)) {
    choice_.OnFailure(verifier, clock().Now());
    entries_[verifier].probed = absl::InfinitePast();
  } else {
    choice_.OnSuccess(verifier, clock().Now());
  }
  if (!end.retry) return End(id, end.status);
  call->failover.OnFailed(verifier, choice_.num_listed());
  choice_.OnEnd(verifier);
  call->verifier.reset();
  if (call->stream != nullptr) std::exchange(call->stream, nullptr)->Cancel();
  Retry(id, end.status);
}

void RouterMachine::Retry(uint64_t id, const absl::Status& reason) {
  Call& call = *Find(id);
  const bool has_output = !call.relay->tokens().empty();
  const std::optional<absl::Duration> pause = call.failover.NextAttempt(choice_.num_listed(), has_output);
  if (!pause.has_value()) {
    if (!absl::IsUnavailable(reason) || !WaitForVerifier(id, reason)) End(id, reason);
    return;
  }
  if (!budget_->Take(clock().Now())) {
    return End(id, absl::UnavailableError(
                       absl::StrCat(reason.message(), "; the router's budget for retries is used up")));
  }
  num_failovers_ += has_output;
  if (*pause == absl::ZeroDuration()) {
    StartAttempt(id);
  } else {
    RetryAfter(id, *pause);
  }
}

void RouterMachine::EndWithoutVerifier(uint64_t id, const absl::Status& reason) {
  if (absl::IsUnavailable(reason) && WaitForVerifier(id, reason)) return;
  End(id, reason);
}

bool RouterMachine::WaitForVerifier(uint64_t id, const absl::Status& reason) {
  Call& call = *Find(id);
  const absl::Time now = clock().Now();
  const std::optional<absl::Time> end = call.failover.WaitUntil(now, options_.longest_wait);
  if (!end.has_value()) return false;
  ++num_waits_;
  call.waits = true;
  call.wait_reason = reason;
  RetryAfter(id, std::max(std::min(*end, call.deadline) - now, absl::ZeroDuration()));
  return true;
}

void RouterMachine::RetryAfter(uint64_t id, absl::Duration delay) {
  const int timer = ++Find(id)->timers;
  After(delay, [this, id, timer] { OnTimer(id, timer); });
}

void RouterMachine::OnTimer(uint64_t id, int timer) {
  Call* const call = Find(id);
  if (call == nullptr || timer != call->timers) return;
  if (!call->waits) return StartAttempt(id);
  End(id, clock().Now() >= call->deadline
              ? absl::DeadlineExceededError("the call's deadline passed while it waited for a verifier")
              : call->wait_reason);
}

void RouterMachine::OnVerifierServes(uint64_t id) {
  Call& call = *Find(id);
  call.waits = false;
  ++call.timers;
  call.failover.OnVerifierServes();
  call.in_vain = 0;
  if (call.attempts > 0 && !budget_->Take(clock().Now())) {
    return End(id, absl::UnavailableError("the router's budget for retries is used up"));
  }
  StartAttempt(id);
}

void RouterMachine::End(uint64_t id, const absl::Status& status) {
  Call& call = *Find(id);
  const absl::Time now = clock().Now();
  // Of one that stood still, or whose clock jumped, as everybody else counts; clocks may run slow.
  const bool excused = disturbed_ >= call.began;
  const absl::Time latest = std::max(call.began + call.client->timeout(), disturbed_) + 2 * kLatestEnd;
  findings_.Expect(excused ? queue_.now() <= latest : now <= call.deadline + kLatestEnd,
                   absl::StrCat("a router ended a call ", absl::FormatDuration(now - call.deadline),
                                " after its deadline"));
  if (call.verifier.has_value()) choice_.OnEnd(*call.verifier);
  if (call.stream != nullptr) call.stream->Cancel();
  call.client->Finish(clock().queue_now(), status);
  calls_.erase(id);
}

bool RouterMachine::MayServe() const {
  for (size_t i = 0; i < choice_.size(); ++i) {
    if (choice_.listed(i) && choice_.serving(i)) return true;
  }
  return false;
}

// As VerifierPool lists those that registered.
void RouterMachine::SetVerifiers(const std::vector<router::RegisteredEndpoint>& verifiers) {
  for (size_t i = 0; i < options_.verifiers.size(); ++i) {
    const auto found = std::find_if(verifiers.begin(), verifiers.end(), [&](const auto& verifier) {
      return verifier.address == options_.verifiers[i].address;
    });
    if (found == verifiers.end()) {
      choice_.SetListed(i, false);
      continue;
    }
    if (!choice_.listed(i)) {
      if (choice_.in_flight(i) == 0) {
        choice_.Replace(i, options_.verifiers[i].address);
        entries_[i].traits = {};
        entries_[i].told = entries_[i].asked = false;
      }
      choice_.SetListed(i, true);
      entries_[i].probed = absl::InfinitePast();
    }
    choice_.SetMaxInFlight(i, found->max_in_flight);
  }
}

void RouterMachine::Tick() {
  if (over_()) return;
  leases_.Tell();
  registrar_->Tick();
  ProbeDue();
  After(kTick, [this] { Tick(); });
}

void RouterMachine::ProbeDue() {
  const absl::Time now = clock().Now();
  const bool hurried =
      std::any_of(calls_.begin(), calls_.end(), [](const auto& call) { return call.second.waits; });
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (!choice_.listed(i) && choice_.in_flight(i) == 0) continue;
    const bool quiet = choice_.in_flight(i) > 0 && now - entry.heard > options_.stall_timeout / 4;
    const absl::Duration period = hurried && !choice_.serving(i) ? kTick : kProbePeriod;
    if (entry.probing || (!quiet && now - entry.probed < period)) continue;
    Probe(i);
  }
}

void RouterMachine::Probe(size_t index) {
  Entry& entry = entries_[index];
  entry.probing = true;
  entry.probed = clock().Now();
  network_.Start(options_.host, options_.verifiers[index].host, HealthCheck{}, options_.stall_timeout / 2,
                 {.on_event = [](const RpcEvent&) {},
                  .on_done =
                      [this, index](const absl::Status& status) {
                        Post([this, index, answered = status.ok()] { OnProbed(index, answered); });
                      }});
}

void RouterMachine::Ask(size_t index) {
  auto info = std::make_shared<std::optional<v1::ServerInfo>>();
  network_.Start(options_.host, options_.verifiers[index].host, InfoQuestion{}, options_.stall_timeout,
                 {.on_event = [info](RpcEvent event) { *info = std::get<v1::ServerInfo>(std::move(event)); },
                  .on_done =
                      [this, index, info](const absl::Status& status) {
                        Post([this, index, info, ok = status.ok()] {
                          Entry& entry = entries_[index];
                          if (ok && info->has_value()) {
                            entry.traits = router::TraitsOf(**info, options_.model.name);
                          }
                          if (!std::exchange(entry.told, true)) entry.probed = absl::InfinitePast();
                        });
                      }});
}

void RouterMachine::OnProbed(size_t index, bool answered) {
  Entry& entry = entries_[index];
  const absl::Time now = clock().Now();
  entry.probing = false;
  const bool fit = answered && entry.told;
  choice_.SetServing(index, fit);
  const bool first = !std::exchange(entry.asked, answered) && answered;
  if (first || (answered && now - entry.asked_at >= kAskPeriod)) {
    entry.asked_at = now;
    Ask(index);
  }
  if (answered) {
    entry.heard = now;
    std::vector<uint64_t> waiting;
    for (const auto& [id, call] : calls_) {
      if (call.waits) waiting.push_back(id);
    }
    for (uint64_t id : waiting) {
      if (fit && choice_.listed(index)) OnVerifierServes(id);
    }
    return;
  }
  bool other_serves = false;
  for (size_t i = 0; i < choice_.size(); ++i) {
    other_serves = other_serves || (i != index && choice_.listed(i) && choice_.serving(i));
  }
  if (!other_serves || now - entry.heard < 0.7 * options_.stall_timeout) return;
  std::vector<std::pair<uint64_t, int>> lost;
  for (const auto& [id, call] : calls_) {
    if (call.verifier == index) lost.emplace_back(id, call.attempts);
  }
  num_stalls_ += lost.size();
  for (const auto& [id, attempt] : lost) {
    OnVerifierDone(id, attempt, absl::UnavailableError("the verifier has stalled"));
  }
}

void RouterMachine::CheckIdle() {
  findings_.Expect(calls_.empty(), absl::StrCat("a router still has ", calls_.size(), " calls"));
  for (size_t i = 0; i < choice_.size(); ++i) {
    findings_.Expect(choice_.in_flight(i) == 0, "a router counts requests on a verifier that it has not");
  }
}

}  // namespace tandem::simulation
