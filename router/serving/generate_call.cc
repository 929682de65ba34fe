#include "router/serving/generate_call.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "common/rpc/release.h"
#include "router/generation/generation_facts.h"
#include "router/serving/live_start.h"
#include "router/serving/verifier_stream.h"

namespace tandem::router {

std::shared_ptr<GenerateCall> GenerateCall::Create(Router& router, const CallHead& head,
                                                   ClientStream& client) {
  return std::shared_ptr<GenerateCall>(new GenerateCall(router, head, client));
}

GenerateCall::GenerateCall(Router& router, const CallHead& head, ClientStream& client)
    : router_(router),
      client_(client),
      lease_(router),
      authorization_(head.authorization),
      observers_(router, head.trace, router.clock().Now()),
      generation_(this,
                  {.deadline = head.deadline,
                   .longest_wait = router.verifiers().longest_wait(),
                   .write_stall_timeout = router.write_stall_timeout()},
                  observers_.list()),
      preparation_(&router.preparation(), &generation_.facts()) {
  generation_.facts().routing = router.snapshot();
  generation_.facts().trace_id = observers_.trace().trace_id();
}

template <class Event>
auto GenerateCall::Later(Event event) {
  return [weak = weak_from_this(), event](auto&&... arguments) {
    std::shared_ptr<GenerateCall> call = weak.lock();
    if (call == nullptr) return;
    event(*call, std::forward<decltype(arguments)>(arguments)...);
    ReleaseElsewhere(std::move(call));
  };
}

// Preparation.

void GenerateCall::Start(absl::FunctionRef<absl::StatusOr<Request>()> read) {
  absl::MutexLock lock(&mutex_);
  if (generation_.ended()) return;  // Its client is gone already.
  self_ = shared_from_this();
  if (const absl::Status begun = Begin(read); !begun.ok()) generation_.Abandon(begun);
}

absl::Status GenerateCall::Begin(absl::FunctionRef<absl::StatusOr<Request>()> read) {
  const GenerationFacts& facts = generation_.facts();
  TANDEM_RETURN_IF_ERROR(preparation_.Receive(authorization_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    authorization_.reset();
    return read();
  }));
  generation_.Reach(Stage::kReceive, Now());
  TANDEM_RETURN_IF_ERROR(preparation_.Route());
  generation_.Reach(Stage::kRoute, Now());
  const auto start = [self = shared_from_this(), tenant = facts.tenant,
                      asked = facts.asked](const absl::Status& placed) {
    self->router_.workers().Post({.tenant = tenant->name,
                                  .weight = tenant->weight,
                                  .bytes = asked->ByteSizeLong(),
                                  .priority = asked->priority()},
                                 [self, placed] { self->Prepare(placed); });
  };
  TANDEM_RETURN_IF_ERROR(preparation_.Admit(start));
  generation_.Reach(Stage::kAdmit, Now());
  if (!facts.queued) start(absl::OkStatus());
  return absl::OkStatus();
}

absl::Status GenerateCall::TakePlace(const absl::Status& placed) {
  TANDEM_RETURN_IF_ERROR(placed);
  generation_.Reach(Stage::kPlace, Now());
  return preparation_.Place(generation_.deadline());
}

void GenerateCall::Prepare(const absl::Status& placed) {
  {
    absl::MutexLock lock(&mutex_);
    if (generation_.ended()) return;
    if (const absl::Status taken = TakePlace(placed); !taken.ok()) return generation_.Abandon(taken);
  }
  Preparation::Found found = preparation_.Encode();
  std::optional<LiveStart> shown;
  if (found.request.ok()) {
    preparation_.Choose(found);
    shown = DescribeIfShown(router_, preparation_.facts(), found);
  }

  absl::MutexLock lock(&mutex_);
  if (generation_.ended() || !found.request.ok()) {
    // A client pays for the work even if the request is refused or cancelled.
    preparation_.Charge(found);
    return generation_.Abandon(found.request.status());
  }
  if (const absl::Status completed = Complete(found); !completed.ok()) return generation_.Abandon(completed);
  if (shown.has_value()) observers_.live().Show(*std::move(shown), router_.model(model()).encoder);
  router_.verifiers().CountRequest();
  router_.running_calls().Add(shared_from_this());
  generation_.OnPrepared(std::move(found.prepared));
}

absl::Status GenerateCall::Complete(Preparation::Found& found) {
  generation_.Reach(Stage::kEncode, found.encoded);
  generation_.Reach(Stage::kChoose, found.chosen);
  TANDEM_RETURN_IF_ERROR(preparation_.Complete(found));
  generation_.Reach(Stage::kComplete, Now());
  return absl::OkStatus();
}

// Verifiers.

absl::StatusOr<std::unique_ptr<GenerationHost::Attempt>> GenerateCall::BeginAttempt(
    int number, const v1::VerifierGenerateRequest& request, absl::Span<const size_t> tried,
    const VerifierNeeds& needs) {
  TANDEM_ASSIGN_OR_RETURN(
      std::unique_ptr<VerifierPool::Attempt> place,
      router_.verifiers().Begin(
          model(), absl::MakeConstSpan(request.prompt().ids().data(), request.prompt().ids_size()),
          request.cache_salt(), tried, Later([number](GenerateCall& call, const absl::Status& reason) {
            absl::MutexLock lock(&call.mutex_);
            call.generation_.OnVerifierDone(number, reason);
          }),
          needs));
  std::shared_ptr<GenerateCall> self = shared_from_this();
  return std::make_unique<VerifierStream>(
      std::move(place), VerifierStream::Options{.deadline = generation_.deadline(),
                                                .trace = &observers_.trace(),
                                                .on_event =
                                                    [self, number](v1::GenerateResponse event) {
                                                      absl::MutexLock lock(&self->mutex_);
                                                      self->generation_.OnVerifierEvent(number,
                                                                                        std::move(event));
                                                    },
                                                .on_done =
                                                    [self, number](const absl::Status& status) {
                                                      absl::MutexLock lock(&self->mutex_);
                                                      self->generation_.OnVerifierDone(number, status);
                                                    }});
}

bool GenerateCall::StartWaiting() {
  wait_ = router_.verifiers().BeginWait(model(), Later([](GenerateCall& call) {
                                          absl::MutexLock lock(&call.mutex_);
                                          call.generation_.OnVerifierServes();
                                        }));
  return wait_ != nullptr;
}

void GenerateCall::StopWaiting() {
  wait_.reset();
}

std::shared_ptr<Verifier> GenerateCall::Rebind(const std::string& from, const v1::DrafterTarget& to) {
  absl::MutexLock lock(&mutex_);
  const GenerationHost::Attempt* const attempt = generation_.Rebind(from, to);
  return attempt == nullptr ? nullptr : static_cast<const VerifierStream*>(attempt)->verifier();
}

void GenerateCall::Abandon(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  generation_.Abandon(status);
}

// Time.

absl::Duration GenerateCall::Uptime() {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

void GenerateCall::SetTimer(absl::Time when, int number) {
  timer_ = std::make_unique<grpc::Alarm>();
  timer_->Set(absl::ToChronoTime(when), Later([number](GenerateCall& call, bool in_time) {
                if (!in_time) return;
                absl::MutexLock lock(&call.mutex_);
                call.generation_.OnTimer(number);
              }));
}

void GenerateCall::CancelTimer() {
  if (timer_ != nullptr) timer_->Cancel();
}

void GenerateCall::SetWriteTimer(absl::Duration after) {
  write_timer_ = std::make_unique<grpc::Alarm>();
  write_timer_->Set(absl::ToChronoTime(absl::Now() + after), Later([](GenerateCall& call, bool in_time) {
                      if (in_time) call.OnWriteTimer();
                    }));
}

void GenerateCall::OnWriteTimer() {
  {
    absl::MutexLock lock(&mutex_);
    if (!generation_.OnWriteTimer()) return;
  }
  // Without the mutex, as reactions may run meanwhile; the stream stays until Finish.
  client_.Cancel();
  absl::MutexLock lock(&mutex_);
  generation_.OnClientBroken();
}

// The client.

void GenerateCall::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  generation_.OnWriteDone(ok);
}

void GenerateCall::OnCancel() {
  absl::MutexLock lock(&mutex_);
  generation_.OnClientGone();
}

void GenerateCall::GiveUpPlace(uint32_t num_sent) {
  router_.running_calls().Remove(this);
  preparation_.GiveUpPlace(num_sent);
}

void GenerateCall::Finish(const absl::Status& status) {
  if (write_timer_ != nullptr) write_timer_->Cancel();
  preparation_.Release();
  client_.Finish(status);
}

void GenerateCall::OnDone() {
  std::shared_ptr<GenerateCall> self;
  absl::MutexLock lock(&mutex_);
  self = std::move(self_);
}

}  // namespace tandem::router
