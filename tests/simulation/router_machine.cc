#include "tests/simulation/router_machine.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/config/token_digest.h"
#include "router/config/config.h"
#include "router/registry/testing/registrations.h"
#include "router/verifiers/verifier_traits.h"

namespace tandem::simulation {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kProbePeriod = absl::Milliseconds(500);
constexpr absl::Duration kAskPeriod = absl::Milliseconds(2500);
// What an answer about its state takes a router, which is no part of a call's delay.
constexpr absl::Duration kBusiest = absl::Milliseconds(50);
// Clients differ in this priority at most.
constexpr uint32_t kMostClients = 3;
// Fewer than the calls that may come at once, so that some wait for a place.
constexpr uint32_t kMaxConcurrentRequests = 6;

std::string TokenOf(uint64_t client, absl::string_view drafter, absl::string_view partner) {
  return absl::StrCat("client-", client, "-", drafter, "-", partner);
}

// A tenant for each client, and each drafter and partner that it may have, or none. Its other drafters are
// the alternates.
router::RoutingTable TableFor(const std::string& model, uint32_t num_drafters) {
  router::RoutingTable table;
  table.models.push_back({.name = model});
  table.max_concurrent_requests = kMaxConcurrentRequests;
  std::vector<size_t> all;
  for (uint32_t d = 0; d < num_drafters; ++d) {
    all.push_back(d);
    table.drafters.push_back(
        {.name = absl::StrCat("drafter-", d), .endpoint = absl::StrCat("drafter-", d, ":1")});
  }
  std::vector<std::optional<size_t>> choices(all.begin(), all.end());
  choices.push_back(std::nullopt);
  const auto name_of = [&](std::optional<size_t> drafter) {
    return drafter.has_value() ? table.drafters[*drafter].name : std::string();
  };
  for (uint64_t client = 0; client < kMostClients; ++client) {
    for (const std::optional<size_t> drafter : choices) {
      for (const std::optional<size_t> partner : choices) {
        router::Tenant& tenant = table.tenants.emplace_back();
        tenant.name = TokenOf(client, name_of(drafter), name_of(partner));
        tenant.token = DigestToken(tenant.name, /*salt=*/"");
        tenant.models = {0};
        tenant.drafter = drafter;
        tenant.partner = partner;
        tenant.policy = v1::DRAFTER_POLICY_PINNED;
        tenant.allowed_drafters = all;
        tenant.cache_salt = client + 1;
      }
    }
  }
  return table;
}

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
      entries_(options.verifiers.size()),
      models_({options.model}),
      routing_(std::make_shared<const router::RoutingSnapshot>(
          TableFor(options.model.name, options.num_drafters))),
      admission_(&clock()),
      chooser_({},
               {{.name = options.model.name, .vocab_size = static_cast<uint32_t>(options.model.vocab_size)}}),
      services_{.clock = &clock(),
                .models = &models_,
                .admission = &admission_,
                .chooser = &chooser_,
                .policies = &policies_,
                .draw = [this] { return random_.Next(); }} {
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

RouterCall* RouterMachine::Find(uint64_t id) {
  const auto found = calls_.find(id);
  return found == calls_.end() ? nullptr : found->second.get();
}

void RouterMachine::PostTo(uint64_t id, std::function<void(RouterCall&)> what) {
  Post([this, id, what = std::move(what)] {
    if (RouterCall* const call = Find(id)) what(*call);
  });
}

void RouterMachine::Serve(std::shared_ptr<RpcCall> call) {
  Post([this, call = std::move(call)] {
    if (std::holds_alternative<v1::GenerateRequest>(call->request())) {
      const uint64_t id = ++last_call_;
      calls_[id] = std::make_unique<RouterCall>(this, id, call, routing_);
      calls_[id]->Start();
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

std::shared_ptr<const v1::GenerateRequest> RouterMachine::ForTenant(v1::GenerateRequest request,
                                                                    std::string* token) const {
  v1::SpeculationOptions& speculation = *request.mutable_speculation();
  *token = TokenOf(static_cast<uint64_t>(request.priority()), speculation.drafter(), speculation.partner());
  speculation.clear_drafter();
  speculation.clear_partner();
  request.clear_priority();
  return std::make_shared<const v1::GenerateRequest>(std::move(request));
}

absl::Status RouterMachine::WhyNone(const router::VerifierNeeds& needs) const {
  if (choice_.num_listed() == 0) return absl::UnavailableError("no verifier of the model is known");
  std::vector<router::VerifierTraits> listed;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (choice_.listed(i)) listed.push_back(entries_[i].traits);
  }
  absl::Status status = router::CheckAnySuits(listed, needs);
  if (!status.ok()) return status;
  return absl::ResourceExhaustedError("all verifiers of the model are full");
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
      std::any_of(calls_.begin(), calls_.end(), [](const auto& call) { return call.second->waits(); });
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
      if (call->waits()) waiting.push_back(id);
    }
    for (uint64_t id : waiting) {
      if (fit && choice_.listed(index)) Find(id)->OnVerifierServes();
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
    if (call->verifier() == index) lost.emplace_back(id, call->attempt());
  }
  num_stalls_ += lost.size();
  for (const auto& [id, attempt] : lost) {
    Find(id)->OnLost(attempt, absl::UnavailableError("the verifier has stalled"));
  }
}

void RouterMachine::CheckIdle() {
  findings_.Expect(calls_.empty(), absl::StrCat("a router still has ", calls_.size(), " calls"));
  findings_.Expect(admission_.in_flight() == 0 && admission_.queued() == 0,
                   absl::StrCat("a router's ", admission_.in_flight(), " places are taken, and ",
                                admission_.queued(), " requests wait for one"));
  for (size_t i = 0; i < choice_.size(); ++i) {
    findings_.Expect(choice_.in_flight(i) == 0, "a router counts requests on a verifier that it has not");
  }
}

}  // namespace tandem::simulation
