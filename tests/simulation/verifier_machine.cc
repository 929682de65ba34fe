#include "tests/simulation/verifier_machine.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::simulation {

VerifierMachine::VerifierMachine(EventQueue* queue, const Options& options, Send send, Violation violation,
                                 Findings* findings)
    : Machine(queue),
      options_(options),
      send_(std::move(send)),
      violation_(std::move(violation)),
      findings_(findings),
      model_(options.model),
      engine_(&model_, &clock(), options.per_step, options.per_row),
      pool_({.num_blocks = options.model.num_blocks}),
      chance_(options.chance),
      pools_({}, [this] { return chance_.Uniform(); }) {
  const auto seconds = [&](uint32_t rows) {
    return absl::ToDoubleSeconds(options_.per_step + rows * options_.per_row);
  };
  SchedulerListener* const listener = this;
  scheduler_ =
      std::make_unique<Scheduler>(options_.scheduler, &engine_, &pool_,
                                  RoundTimeModel({{1, seconds(1)}, {64, seconds(64)}}), &clock(), listener);
}

void VerifierMachine::Submit(SessionOwner* owner) {
  Post([this, owner] {
    const SessionId id = owner->session();
    owners_[id] = owner;
    SessionRequest request = owner->MakeSessionRequest(clock());
    pools_.Place(id, &request, clock().Now());
    const absl::Status status = scheduler_->Submit(id, std::move(request));
    if (status.ok()) return;
    pools_.OnFinished(id);
    owner->OnRejected(status);
  });
}

void VerifierMachine::Cancel(SessionId session) {
  Post([this, session] { scheduler_->Cancel(session, absl::CancelledError("the client has gone")); });
}

void VerifierMachine::Swap(SessionId session, const DrafterBinding& to) {
  Post([this, session, to] { StartSwap(session, to); });
}

void VerifierMachine::StartSwap(SessionId session, const DrafterBinding& to) {
  // The outcome may come at once, behind that of a swap that this one puts an end to.
  const int before = swaps_[session]++;
  if (!scheduler_->SwapDrafter(session, "", to).ok()) {
    --swaps_[session];
    findings_->Expect(swaps_[session] == before, "a swap that was not taken ended another");
    return;
  }
  ++num_swaps_;
  findings_->Expect(swaps_[session] <= 1, "two swaps of a session are under way");
}

void VerifierMachine::SetMembers(PoolId pool, std::vector<LinkId> members) {
  Post([this, pool, members = std::move(members)] { pools_.SetMembers(pool, members); });
}

// As the verifier's engine loop does it.
void VerifierMachine::MoveSessions() {
  if (clock().Now() < pools_.NextPlan()) return;
  ++num_happenings_;
  const DrafterPools::Plan plan = pools_.MakePlan(clock().Now(), [this](SessionId session) {
    return scheduler_->IsDrafting(session) && swaps_[session] == 0;
  });
  for (const DrafterPools::Move& move : plan.moves) {
    if (swaps_[move.session] > 0) continue;
    ++num_moves_;
    StartSwap(move.session, move.to);
  }
  for (LinkId link : plan.queries) send_(clock().queue_now(), link, {.session = 0, .event = LoadQuery{}});
}

void VerifierMachine::OnSwapEnded(SessionId session, const absl::Status& status) {
  ++num_happenings_;
  num_refused_swaps_ += !status.ok() && !absl::IsCancelled(status);
  findings_->Expect(--swaps_[session] >= 0, "a swap ended that had not begun");
}

void VerifierMachine::OnLinkUp(LinkId link) {
  Post([this, link] {
    pools_.OnLinkUp(link);
    scheduler_->OnLinkUp(link);
  });
}

void VerifierMachine::OnLinkDown(LinkId link) {
  Post([this, link] {
    pools_.OnLinkDown(link);
    scheduler_->OnLinkDown(link, absl::UnavailableError("the stream broke"));
  });
}

void VerifierMachine::OnResponse(LinkId link, DraftResponse response) {
  Post([this, link, response = std::move(response)] {
    pools_.OnResponse(link, response, clock().Now());
    scheduler_->OnDraftResponse(link, response);
  });
}

// As the verifier's engine loop: what arrives during a forward pass is taken before its conclusion.
void VerifierMachine::Work(bool was_due) {
  const uint64_t before = num_happenings_ + model_.num_steps();
  if (std::exchange(in_flight_, false)) {
    scheduler_->Conclude();
    CheckBlocks();
    was_due = false;
  }
  MoveSessions();
  in_flight_ = scheduler_->Forward();
  CheckBlocks();
  findings_->Expect(!was_due || in_flight_ || num_happenings_ + model_.num_steps() > before,
                    "the verifier woke for nothing");
  if (in_flight_) return;
  const absl::Time wake = scheduler_->NextWake();
  if (scheduler_->num_running() > 0) {
    findings_->Expect(wake <= clock().Now() + options_.scheduler.max_draft_wait,
                      "the verifier sleeps longer than any round waits");
  } else {
    findings_->Expect(scheduler_->num_waiting() == 0, "requests wait and nothing runs");
  }
}

void VerifierMachine::CheckBlocks() {
  const absl::Status blocks = scheduler_->CheckBlocks();
  findings_->Expect(blocks.ok(), absl::StrCat("the verifier: ", blocks.message()));
}

void VerifierMachine::OnStarted(SessionId session) {
  ++num_happenings_;
  owners_.at(session)->OnStarted();
}

void VerifierMachine::OnTokens(SessionId session, CommittedTokens tokens) {
  owners_.at(session)->OnTokens(tokens);
}

void VerifierMachine::OnFinished(SessionId session, const absl::Status& status,
                                 const SessionSummary& summary) {
  ++num_happenings_;
  pools_.OnFinished(session);
  findings_->Expect(swaps_[session] == 0, "a request ended before its swap");
  owners_.at(session)->OnFinished(clock(), status, summary);
}

void VerifierMachine::CheckEmpty() {
  findings_->Expect(scheduler_->num_running() == 0 && scheduler_->num_waiting() == 0,
                    absl::StrCat("the verifier still has ", scheduler_->num_running(), " running and ",
                                 scheduler_->num_waiting(), " waiting requests"));
  const absl::Status nothing_held = pool_.CheckConserved({});
  findings_->Expect(nothing_held.ok(), absl::StrCat("the verifier, at the end: ", nothing_held.message()));
}

}  // namespace tandem::simulation
