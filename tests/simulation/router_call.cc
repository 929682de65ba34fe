#include "tests/simulation/router_call.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/config/secret.h"
#include "router/verifiers/failover.h"
#include "tests/simulation/router_machine.h"

namespace tandem::simulation {
namespace {

using router::GenerationFacts;
using router::Stage;
using router::Turn;

constexpr absl::Duration kLatestEnd = absl::Milliseconds(100);

}  // namespace

// An attempt on a verifier of the cluster.
class RouterCall::Attempt final : public router::GenerationHost::Attempt {
 public:
  Attempt(RouterCall& call, int number, size_t verifier) : call_(call), number_(number), verifier_(verifier) {
    call_.verifier_ = verifier;
    call_.attempt_ = number;
    call_.stream_ = {};
    machine().choice_.OnBegin(verifier);
    entry().heard = machine().clock().Now();
  }
  ~Attempt() override {
    call_.verifier_.reset();
    machine().choice_.OnEnd(verifier_);
    if (call_.stream_.rpc != nullptr) std::exchange(call_.stream_.rpc, nullptr)->Cancel();
  }

  const std::string& endpoint() const override { return machine().options_.verifiers[verifier_].address; }
  size_t index() const override { return verifier_; }
  uint64_t arithmetic() const override { return entry().traits.arithmetic; }

  void Start(const v1::VerifierGenerateRequest& request) override {
    const auto in_time = [number = number_](RouterCall& call) { return call.attempt_ == number; };
    call_.stream_.rpc = machine().network_.Start(
        machine().options_.host, machine().options_.verifiers[verifier_].host, request,
        std::max(call_.generation_.deadline() - call_.Now(), absl::ZeroDuration()),
        {.on_event =
             [machine = &machine(), id = call_.id_, in_time](RpcEvent event) {
               machine->PostTo(
                   id, [in_time, event = std::get<v1::GenerateResponse>(std::move(event))](RouterCall& call) {
                     if (!in_time(call)) return;
                     call.stream_.held.push_back(event);
                     call.Receive();
                   });
             },
         .on_done =
             [machine = &machine(), id = call_.id_, in_time](const absl::Status& status) {
               machine->PostTo(id, [in_time, status](RouterCall& call) {
                 if (!in_time(call)) return;
                 call.stream_.done = status;
                 call.Receive();
               });
             }});
  }

  void Acknowledge() override {
    call_.Expect(call_.stream_.unacknowledged > 0, "acknowledges an event that it has not been given");
    --call_.stream_.unacknowledged;
    call_.Soon([number = number_](RouterCall& call) {
      if (call.attempt_ == number) call.Receive();
    });
  }
  void OnEvent() override { entry().heard = machine().clock().Now(); }
  void OnSuccess() override { machine().choice_.OnSuccess(verifier_, machine().clock().Now()); }
  void OnFailure() override {
    machine().choice_.OnFailure(verifier_, machine().clock().Now());
    entry().probed = absl::InfinitePast();
  }
  void OnChanged() override {
    ++machine().num_changed_;
    OnSuccess();
    entry().traits = {};
    entry().asked = false;
    entry().probed = absl::InfinitePast();
  }

 private:
  RouterMachine& machine() const { return call_.machine_; }
  RouterMachine::Entry& entry() const { return machine().entries_[verifier_]; }

  RouterCall& call_;
  const int number_;
  const size_t verifier_;
};

RouterCall::RouterCall(RouterMachine* machine, uint64_t id, std::shared_ptr<RpcCall> client,
                       std::shared_ptr<const router::RoutingSnapshot> routing)
    : machine_(*machine),
      id_(id),
      client_(std::move(client)),
      began_(machine->queue_.now()),
      generation_(this,
                  {.deadline = machine->clock().Now() + client_->timeout(),
                   .longest_wait = machine->options_.longest_wait},
                  {this}),
      preparation_(&machine->services_, &generation_.facts()) {
  generation_.facts().routing = std::move(routing);
}

RouterCall::~RouterCall() = default;

void RouterCall::Expect(bool holds, const std::string& otherwise) const {
  if (!holds) machine_.findings_.Expect(false, absl::StrCat("a router's call ", otherwise));
}

void RouterCall::Soon(std::function<void(RouterCall&)> what) {
  machine_.PostTo(id_, std::move(what));
}

// Preparation, as GenerateCall has it.

void RouterCall::Start() {
  client_->SetOnCancel([machine = &machine_, id = id_] {
    machine->PostTo(id, [](RouterCall& call) {
      call.gone_ = true;
      call.generation_.OnClientGone();
    });
  });
  const GenerationFacts& facts = generation_.facts();
  std::string token;
  auto request = machine_.ForTenant(std::get<v1::GenerateRequest>(client_->request()), &token);
  absl::Status status =
      preparation_.Receive(Secret(absl::StrCat("Bearer ", token)),
                           [&]() -> absl::StatusOr<router::Preparation::Request> { return request; });
  if (status.ok()) generation_.Reach(Stage::kReceive, Now());
  if (status.ok()) status = preparation_.Route();
  if (status.ok()) generation_.Reach(Stage::kRoute, Now());
  const auto start = [machine = &machine_, id = id_](const absl::Status& placed) {
    machine->PostTo(id, [placed](RouterCall& call) { call.Prepare(placed); });
  };
  if (status.ok()) status = preparation_.Admit(start);
  if (!status.ok()) return generation_.Abandon(status);
  generation_.Reach(Stage::kAdmit, Now());
  if (!facts.queued) start(absl::OkStatus());
}

void RouterCall::Prepare(const absl::Status& placed) {
  if (generation_.ended()) return;
  absl::Status status = placed;
  if (status.ok()) {
    generation_.Reach(Stage::kPlace, Now());
    status = preparation_.Place(generation_.deadline());
  }
  if (!status.ok()) return generation_.Abandon(status);
  // What a worker does meanwhile, others may overtake.
  auto found = std::make_shared<router::Preparation::Found>(preparation_.Encode());
  if (found->request.ok()) preparation_.Choose(*found);
  Soon([found](RouterCall& call) { call.Complete(*found); });
}

void RouterCall::Complete(router::Preparation::Found& found) {
  if (generation_.ended() || !found.request.ok()) {
    preparation_.Charge(found);
    return generation_.Abandon(found.request.status());
  }
  generation_.Reach(Stage::kEncode, found.encoded);
  generation_.Reach(Stage::kChoose, found.chosen);
  const absl::Status status = preparation_.Complete(found);
  if (!status.ok()) return generation_.Abandon(status);
  generation_.Reach(Stage::kComplete, Now());
  machine_.budget_->OnRequest(Now());
  generation_.OnPrepared(std::move(found.prepared));
}

// Verifiers.

void RouterCall::Receive() {
  const int number = attempt_;
  while (!stream_.held.empty() && stream_.unacknowledged < router::Generation::kReceiveWindow) {
    v1::GenerateResponse event = std::move(stream_.held.front());
    stream_.held.pop_front();
    ++stream_.unacknowledged;
    generation_.OnVerifierEvent(number, std::move(event));
    if (attempt_ != number) return;
  }
  if (stream_.held.empty() && stream_.done.has_value()) {
    const absl::Status done = *std::exchange(stream_.done, std::nullopt);
    generation_.OnVerifierDone(number, done);
  }
}

absl::Time RouterCall::Now() {
  return machine_.clock().Now();
}

absl::Duration RouterCall::Uptime() {
  return machine_.clock().queue_now() - absl::UnixEpoch();
}

size_t RouterCall::num_verifiers() {
  return machine_.choice_.num_listed();
}

bool RouterCall::MayServe() {
  return machine_.MayServe();
}

absl::Status RouterCall::NoneServes() {
  return absl::UnavailableError("no verifier of the model serves");
}

bool RouterCall::TakeRetry() {
  return machine_.budget_->Take(Now());
}

// As VerifierPool::Begin.
absl::StatusOr<std::unique_ptr<router::GenerationHost::Attempt>> RouterCall::BeginAttempt(
    int number, const v1::VerifierGenerateRequest& request, absl::Span<const size_t> tried,
    const router::VerifierNeeds& needs) {
  ++in_vain_;
  Expect(in_vain_ <= machine_.options_.verifiers.size() + router::Failover::kFurtherAttempts + 1,
         absl::StrCat("tries in vain for the ", in_vain_, ". time"));
  Expect(!verifier_.has_value(), "begins an attempt while another one runs");
  const auto& prompt = request.prompt().ids();
  const std::vector<size_t> order = machine_.choice_.Order(
      absl::MakeConstSpan(prompt.data(), static_cast<size_t>(prompt.size())), request.cache_salt(), tried,
      Now(), [&](size_t index) { return router::Suits(machine_.entries_[index].traits, needs); });
  if (order.empty()) return machine_.WhyNone(needs);
  return std::make_unique<Attempt>(*this, number, order.front());
}

bool RouterCall::StartWaiting() {
  waits_ = true;
  return true;
}

void RouterCall::StopWaiting() {
  waits_ = false;
}

void RouterCall::SetTimer(absl::Time when, int number) {
  timer_ = number;
  machine_.After(std::max(when - Now(), absl::ZeroDuration()), [machine = &machine_, id = id_, number] {
    if (RouterCall* const call = machine->Find(id)) call->generation_.OnTimer(number);
  });
}

// The client.

void RouterCall::Write(const v1::GenerateResponse& event) {
  Expect(!writing_ && !finished_, "writes while it writes, or when it has finished");
  Expect(!gone_, "begins to write to a client that is gone");
  Expect(event.finished().speculation().policy_state().empty(),
         "tells a client what its verifier has learned");
  writing_ = true;
  client_->Send(machine_.clock().queue_now(), event);
  Soon([](RouterCall& call) {
    call.writing_ = false;
    call.generation_.OnWriteDone(/*ok=*/true);
  });
}

void RouterCall::GiveUpPlace(uint32_t num_sent) {
  Expect(!std::exchange(gave_up_place_, true), "gives up its place twice");
  preparation_.GiveUpPlace(num_sent);
}

void RouterCall::Finish(const absl::Status& status) {
  Expect(!writing_ && !std::exchange(finished_, true), "finishes twice, or while it writes");
  Expect(gave_up_place_ && ended_, "finishes before its place is given up and its observers know");
  Expect(!verifier_.has_value() && !waits_ && timer_ == 0, "finishes, and a verifier or a timer is left");
  const absl::Time now = Now();
  const absl::Time deadline = generation_.deadline();
  // Of one that stood still, or whose clock jumped, as everybody else counts; clocks may run slow.
  const bool excused = machine_.disturbed_ >= began_;
  const absl::Time latest = std::max(began_ + client_->timeout(), machine_.disturbed_) + 2 * kLatestEnd;
  Expect(excused ? machine_.queue_.now() <= latest : now <= deadline + kLatestEnd,
         absl::StrCat("ended ", absl::FormatDuration(now - deadline), " after its deadline"));
  preparation_.Release();
  client_->Finish(machine_.clock().queue_now(), status);
  machine_.Post([machine = &machine_, id = id_] { machine->calls_.erase(id); });
}

// What observers are promised.

void RouterCall::OnStage(Stage stage, const GenerationFacts&, absl::Time) {
  Expect(static_cast<size_t>(stage) == num_stages_++ && !ended_, "tells of its stages in a wrong order");
}

void RouterCall::OnPrepared(const GenerationFacts&, v1::VerifierGenerateRequest&, absl::Time) {
  Expect(num_stages_ == router::kNumStages && !std::exchange(prepared_, true) && !ended_,
         "is prepared before all its stages are over, or twice");
}

void RouterCall::OnAttempt(const GenerationFacts&, int, absl::string_view, absl::Time) {
  Expect(prepared_ && !std::exchange(attempting_, true) && !ended_,
         "begins an attempt before the last one has ended");
}

void RouterCall::OnEvent(const GenerationFacts& facts, v1::GenerateResponse& event, absl::Time) {
  Expect(attempting_ && !ended_, "tells of an event that no attempt has brought");
  if (event.has_chunk()) in_vain_ = 0;
  num_tokens_ += static_cast<uint32_t>(event.chunk().tokens_size());
  Expect(facts.num_sent == num_tokens_,
         absl::StrCat("says that it sends ", facts.num_sent, " tokens, and sends ", num_tokens_));
}

void RouterCall::OnAttemptEnded(const GenerationFacts&, const absl::Status&, absl::Time) {
  Expect(std::exchange(attempting_, false) && !ended_, "ends an attempt that has not begun");
}

void RouterCall::OnTurn(Turn turn, const absl::Status&, const GenerationFacts& facts, absl::Time) {
  Expect(!attempting_ && !ended_, "takes a turn while an attempt runs");
  if (turn == Turn::kRetry && facts.num_output > 0) ++machine_.num_failovers_;
  if (turn == Turn::kWait) ++machine_.num_waits_;
  if (turn == Turn::kServed) in_vain_ = 0;
}

void RouterCall::OnEnded(const GenerationFacts&, const absl::Status&, absl::Time) {
  Expect(!attempting_ && !std::exchange(ended_, true), "ends twice, or before its attempt has");
}

}  // namespace tandem::simulation
