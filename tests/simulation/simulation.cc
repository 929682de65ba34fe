#include "tests/simulation/simulation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::simulation {
namespace {

// Far more than any run needs: what goes on for longer does not get anywhere.
constexpr uint64_t kMostEvents = 500'000;
constexpr absl::Duration kLongestRun = absl::Seconds(120);

}  // namespace

void Outcome::Add(const Outcome& other) {
  findings.insert(findings.end(), other.findings.begin(), other.findings.end());
  completed += other.completed;
  expired += other.expired;
  cancelled += other.cancelled;
  rejected += other.rejected;
  rounds += other.rounds;
  drafted_rounds += other.drafted_rounds;
  hits += other.hits;
  draft_tokens += other.draft_tokens;
  accepted_tokens += other.accepted_tokens;
  cached_prompt_tokens += other.cached_prompt_tokens;
  preemptions += other.preemptions;
  parked_sessions += other.parked_sessions;
  violations += other.violations;
  resyncs += other.resyncs;
  duplicates += other.duplicates;
  clock_jumps += other.clock_jumps;
  feature_rows += other.feature_rows;
  feature_commits += other.feature_commits;
  swaps += other.swaps;
  refused_swaps += other.refused_swaps;
  masked_rows += other.masked_rows;
  masked_drafts += other.masked_drafts;
  drafter_changes += other.drafter_changes;
}

Simulation::Simulation(Scenario scenario, std::shared_ptr<const Tokenizer> tokenizer, uint64_t seed)
    : scenario_(std::move(scenario)), tokenizer_(std::move(tokenizer)), random_(~seed) {
  verifier_ = std::make_unique<VerifierMachine>(
      &queue_, scenario_.verifier,
      [this](absl::Time departure, LinkId link, DraftRequest request) {
        links_[link]->SendRequest(departure, std::move(request));
      },
      [this](LinkId link, absl::string_view what) {
        ++violations_;
        findings_.Expect(drafters_[link]->byzantine(),
                         absl::StrCat("an honest drafter is said to break the protocol: ", what));
      },
      &findings_);
  // No two machines agree on the time.
  verifier_->clock().Jump(random_.Between(absl::ZeroDuration(), absl::Hours(24)));
  ScheduleClockJumps(scenario_.between_clock_jumps, verifier_.get());
  for (LinkId link = 0; link < scenario_.drafters.size(); ++link) {
    AddDrafter(scenario_.drafters[link], link);
  }
}

void Simulation::AddDrafter(const DrafterScenario& scenario, LinkId link) {
  drafters_.push_back(std::make_unique<DrafterMachine>(
      &queue_, scenario.machine, random_.Fork(),
      [this, link](absl::Time departure, uint64_t connection, DraftResponse response) {
        links_[link]->SendResponse(departure, connection, std::move(response));
      },
      &findings_));
  DrafterMachine* const drafter = drafters_.back().get();
  drafter->clock().Jump(random_.Between(absl::ZeroDuration(), absl::Hours(24)));
  links_.push_back(std::make_unique<Link>(
      &queue_, scenario.link, random_.Fork(),
      Link::Ends{
          .on_up = [this, link] { verifier_->OnLinkUp(link); },
          .on_down = [this, link] { verifier_->OnLinkDown(link); },
          .on_response = [this,
                          link](DraftResponse response) { verifier_->OnResponse(link, std::move(response)); },
          .on_request = [drafter](
                            uint64_t connection,
                            DraftRequest request) { drafter->OnRequest(connection, std::move(request)); },
          .on_closed = [drafter](uint64_t connection) { drafter->OnClosed(connection); }}));
  queue_.After(random_.Between(absl::ZeroDuration(), absl::Milliseconds(10)),
               [this, link] { links_[link]->Connect(); });
  ScheduleFaults(scenario, link);
}

void Simulation::ScheduleFault(absl::Duration mean, std::function<void()> fault) {
  if (mean == absl::InfiniteDuration()) return;
  queue_.After(random_.Between(absl::ZeroDuration(), 2 * mean), [this, mean, fault = std::move(fault)] {
    if (AllFinished()) return;
    fault();
    ScheduleFault(mean, fault);
  });
}

void Simulation::ScheduleFaults(const DrafterScenario& scenario, LinkId link) {
  ScheduleFault(scenario.between_breaks, [this, link] { links_[link]->Break(); });
  ScheduleFault(scenario.between_restarts, [this, link] {
    links_[link]->Break();
    drafters_[link]->Restart();
  });
  ScheduleFault(scenario.between_stalls, [this, link] {
    drafters_[link]->Stop(random_.Between(absl::Milliseconds(5), absl::Milliseconds(300)));
  });
  ScheduleClockJumps(scenario.between_clock_jumps, drafters_[link].get());
}

// By less than any wait, more than any deadline, or anything in between.
void Simulation::ScheduleClockJumps(absl::Duration mean, Machine* machine) {
  ScheduleFault(mean, [this, machine] {
    ++clock_jumps_;
    constexpr absl::Duration kLengths[] = {absl::Milliseconds(1), absl::Milliseconds(50), absl::Seconds(2),
                                           absl::Hours(24 * 365)};
    machine->JumpClock(kLengths[random_.Between(0, 3)] * random_.Uniform());
  });
}

void Simulation::ScheduleRequests() {
  for (const ClientRequest& request : scenario_.requests) {
    clients_.push_back(std::make_unique<Client>(request, tokenizer_, verifier_->model(), &findings_));
    Client* const client = clients_.back().get();
    queue_.At(request.arrival, [this, client] { verifier_->Submit(client); });
    if (request.cancel.has_value()) {
      queue_.At(*request.cancel, [this, id = request.id] { verifier_->Cancel(id); });
    }
    for (const auto& [when, to] : request.swaps) {
      queue_.At(when, [this, id = request.id, to = to] { verifier_->Swap(id, to); });
    }
  }
}

bool Simulation::AllFinished() const {
  return std::all_of(clients_.begin(), clients_.end(),
                     [](const std::unique_ptr<Client>& client) { return client->finished(); });
}

void Simulation::RunToTheEnd() {
  uint64_t num_events = 0;
  while (queue_.RunNext()) {
    const bool goes_on = ++num_events < kMostEvents && queue_.now() < absl::UnixEpoch() + kLongestRun;
    findings_.Expect(goes_on, absl::StrCat("no end after ", num_events, " events and ",
                                           absl::FormatDuration(queue_.now() - absl::UnixEpoch())));
    if (!goes_on) return;
  }
}

Outcome Simulation::Run() {
  ScheduleRequests();
  RunToTheEnd();
  for (const auto& client : clients_) {
    findings_.Expect(client->finished(),
                     absl::StrCat("request ", client->request().id, " has no terminal status"));
  }
  verifier_->CheckEmpty();
  for (const auto& drafter : drafters_) drafter->CheckClosed();
  for (const auto& link : links_) link->Break();
  RunToTheEnd();
  for (const auto& drafter : drafters_) drafter->CheckEmpty();
  return Summarise();
}

Outcome Simulation::Summarise() const {
  Outcome outcome{.findings = findings_.all(), .violations = violations_, .clock_jumps = clock_jumps_};
  for (const auto& client : clients_) {
    const absl::Status status = client->status().value_or(absl::UnknownError("no terminal status"));
    outcome.completed += status.ok();
    outcome.expired += absl::IsDeadlineExceeded(status);
    outcome.cancelled += absl::IsCancelled(status);
    outcome.rejected += absl::IsResourceExhausted(status);
    const SessionSummary& summary = client->summary();
    outcome.rounds += summary.rounds;
    outcome.drafted_rounds += summary.drafted_rounds;
    outcome.hits += summary.hits;
    outcome.draft_tokens += summary.draft_tokens;
    outcome.accepted_tokens += summary.accepted_tokens;
    outcome.cached_prompt_tokens += summary.cached_prompt_tokens;
    outcome.preemptions += summary.preemptions;
    outcome.masked_drafts += summary.masked_draft_tokens;
    outcome.conversations.push_back(client->conversation());
  }
  for (const auto& drafter : drafters_) {
    outcome.resyncs += drafter->stats().resyncs;
    outcome.feature_rows += drafter->num_feature_rows();
    outcome.masked_rows += drafter->stats().counters.masked_rows;
    outcome.feature_commits += drafter->num_feature_commits();
    outcome.parked_sessions += drafter->stats().counters.parked_sessions;
  }
  for (const auto& link : links_) outcome.duplicates += link->num_duplicates();
  outcome.swaps = verifier_->num_swaps();
  outcome.refused_swaps = verifier_->num_refused_swaps();
  outcome.drafter_changes = verifier_->num_drafter_changes();
  return outcome;
}

Outcome RunSeed(uint64_t seed, Weather weather, std::shared_ptr<const Tokenizer> tokenizer) {
  Scenario scenario = DrawScenario(seed, weather, *tokenizer);
  return Simulation(std::move(scenario), std::move(tokenizer), seed).Run();
}

}  // namespace tandem::simulation
