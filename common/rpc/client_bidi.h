#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/outbound_queue.h"
#include "common/rpc/release.h"
#include "common/rpc/status.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"

namespace tandem {

// The client's end of a bidirectional stream, usable from any thread. One read and one write are in flight at
// most.
//
//   auto stream = ClientBidi<DraftRequest, DraftResponse>::Create();
//   stream->Start([&](auto* context, auto* reactor) { stub->async()->Draft(context, reactor); },
//                 {.on_message = [...](DraftResponse m) { inbox.Push(...); },
//                  .on_closed = [...](absl::Status s) { inbox.Push(...); }});
//
//      Start              Disconnect                        server finishes
//   --------> OPEN ---------------------> HALF-CLOSED ---------------------------> DONE
//              |       (queue flushed)         |                                 on_closed
//              '---------- server finishes, connection lost, Cancel, overflow -----^
//
// - on_message: every message in order, never two at a time. After Cancel or an overflow, only a delivery
//   that had begun still happens. By default the next read starts when the callback returns; with
//   `max_unacknowledged` above 0, reading pauses while that many delivered messages are not acknowledged. A
//   paused stream notices the server's end only when reading resumes.
// - on_closed: exactly once, after every other callback, with the call's status; RESOURCE_EXHAUSTED after an
//   overflow of the outbound queue, which cancels the call.
// - WriteBehind: for large messages that can wait. They keep their order among themselves, and all messages
//   of Write pass them. on_room: called when the bytes queued by WriteBehind fall to low_bytes_behind.
// - Disconnect: half-closes after all queued messages are sent; idempotent. The server then ends the call.
//
// Callbacks run on gRPC's threads without locks, and should only post work elsewhere. They are destroyed
// after on_closed, so that they may hold the stream. Lifetime: shared; the call holds a reference from Start
// until on_closed. Write, Acknowledge, Disconnect and Cancel are harmless after that.
template <class Request, class Response>
class ClientBidi final : private grpc::ClientBidiReactor<Request, Response>,
                         public std::enable_shared_from_this<ClientBidi<Request, Response>> {
 public:
  struct Callbacks {
    std::function<void(Response)> on_message;
    std::function<void(absl::Status)> on_closed;
    std::function<void()> on_room = nullptr;
  };
  using StartCallFunction =
      std::function<void(grpc::ClientContext*, grpc::ClientBidiReactor<Request, Response>*)>;

  // 0 for `max_unacknowledged`: reading never pauses.
  static std::shared_ptr<ClientBidi> Create(const StreamLimits& limits = {}, size_t max_unacknowledged = 0) {
    return std::shared_ptr<ClientBidi>(new ClientBidi(limits, max_unacknowledged));
  }

  // For metadata, deadline and wait_for_ready; before Start only.
  grpc::ClientContext& context() { return context_; }

  // Call it once. `start_call` passes context and reactor to the stub's method. Messages written before are
  // sent first.
  void Start(const StartCallFunction& start_call, Callbacks callbacks) {
    start_call(&context_, this);
    // Reads and writes start on threads outside of reactions. The hold keeps the call alive until no more can
    // start.
    this->AddHold();
    std::shared_ptr<ClientBidi> self = this->shared_from_this();
    Perform([&] {
      callbacks_ = std::move(callbacks);
      self_ = self;
    });
    this->StartCall();
  }

  // Queues a message. False if the stream accepts no more: it is disconnected, cancelled or ended, or this
  // message overflows the queue.
  bool Write(Request request) {
    bool queued = false;
    bool overflow = false;
    Perform([&] {
      if (half_closing_ || cancelled_ || ended_) return;
      queued = queue_.Push(std::move(request));
      if (queued) return;
      overflow = true;
      cancelled_ = true;
      queue_.Clear();
      failure_ = absl::ResourceExhaustedError("the peer reads too slowly: its outbound queue is full");
    });
    if (overflow) context_.TryCancel();
    return queued;
  }

  // Queues a message behind all others. False if it was not accepted; an overflow here does not end the
  // stream.
  bool WriteBehind(Request request) {
    bool queued = false;
    Perform([&] {
      if (half_closing_ || cancelled_ || ended_) return;
      queued = queue_.PushBehind(std::move(request));
    });
    return queued;
  }

  // Queued bytes: of Write, without the message in flight, and of WriteBehind.
  struct Backlog {
    size_t bytes = 0;
    size_t num_behind = 0;
    size_t bytes_behind = 0;
  };
  Backlog backlog() const {
    absl::MutexLock lock(&mutex_);
    return {.bytes = queue_.bytes(),
            .num_behind = queue_.num_behind() + (outgoing_behind_ > 0 ? 1 : 0),
            .bytes_behind = queue_.bytes_behind() + outgoing_behind_};
  }

  // `count` delivered messages have been processed.
  void Acknowledge(size_t count = 1) {
    Perform([&] { unacknowledged_ -= std::min(count, unacknowledged_); });
  }

  void Disconnect() {
    Perform([&] { half_closing_ = true; });
  }

  // Cancels the call: drops queued messages; on_closed follows with CANCELLED, unless the call had ended.
  void Cancel() {
    context_.TryCancel();
    Perform([&] {
      cancelled_ = true;
      queue_.Clear();
    });
  }

  // Whether Write would be refused.
  bool closed() const {
    absl::MutexLock lock(&mutex_);
    return half_closing_ || cancelled_ || ended_;
  }

 private:
  struct Claims {
    bool read = false;
    bool write = false;
    bool writes_done = false;
    bool release = false;
  };

  ClientBidi(const StreamLimits& limits, size_t max_unacknowledged)
      : max_unacknowledged_(max_unacknowledged), low_bytes_behind_(limits.low_bytes_behind), queue_(limits) {}

  // Applies a change of state, then starts the gRPC operations that became possible. Operations are claimed
  // under the mutex and started without it. The hold is released only when no operation is claimed and none
  // can be claimed any more.
  template <class Change>
  void Perform(Change change) {
    Claims claims;
    {
      absl::MutexLock lock(&mutex_);
      change();
      claims = Claim();
    }
    if (claims.read) this->StartRead(&incoming_);
    if (claims.write) this->StartWrite(&outgoing_);
    if (claims.writes_done) this->StartWritesDone();
    if (claims.release) this->RemoveHold();
  }

  Claims Claim() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Claims claims;
    if (self_ == nullptr) return claims;
    // A cancelled call is read to its end, because the reads show the end.
    const bool paused = !cancelled_ && max_unacknowledged_ > 0 && unacknowledged_ >= max_unacknowledged_;
    if (!reading_ && !delivering_ && !paused && !ended_) claims.read = reading_ = true;
    if (!writing_ && !ended_ && !queue_.empty()) {
      auto next = queue_.Pop();
      outgoing_ = std::move(next.message);
      outgoing_behind_ = next.bytes_behind;
      claims.write = writing_ = true;
    } else if (!writing_ && !ended_ && half_closing_ && !half_closed_) {
      claims.writes_done = writing_ = half_closed_ = true;
    }
    if (ended_ && !writing_ && !released_) claims.release = released_ = true;
    return claims;
  }

  void OnReadDone(bool ok) override {
    std::function<void(Response)>* on_message = nullptr;
    Perform([&] {
      reading_ = false;
      if (!ok) {
        ended_ = true;
        queue_.Clear();
      } else if (!cancelled_ && callbacks_.on_message) {
        // Only OnDone, which gRPC does not call during a reaction, changes callbacks_ from here on.
        on_message = &callbacks_.on_message;
        delivering_ = true;
        ++unacknowledged_;
      }
    });
    if (on_message == nullptr) return;
    (*on_message)(std::move(incoming_));
    Perform([&] { delivering_ = false; });
  }

  void OnWriteDone(bool ok) override {
    const std::function<void()>* on_room = nullptr;
    Perform([&] {
      writing_ = false;
      const size_t written = std::exchange(outgoing_behind_, 0);
      if (!ok) {
        // The call is over; its status arrives when the reads have come to their end.
        queue_.Clear();
        half_closing_ = half_closed_ = true;
        return;
      }
      const size_t left = queue_.bytes_behind();
      // As with on_message, nobody else changes callbacks_ meanwhile.
      if (written > 0 && left <= low_bytes_behind_ && left + written > low_bytes_behind_ && !cancelled_) {
        on_room = &callbacks_.on_room;
      }
    });
    if (on_room != nullptr && *on_room) (*on_room)();
  }

  void OnWritesDoneDone(bool) override {
    Perform([&] { writing_ = false; });
  }

  // Everything that is destroyed with the call, in reverse order of destruction.
  struct Remains {
    std::shared_ptr<ClientBidi> self;
    Callbacks callbacks;
  };

  void OnDone(const grpc::Status& grpc_status) override {
    auto remains = std::make_shared<Remains>();
    absl::Status status = FromGrpcStatus(grpc_status);
    {
      absl::MutexLock lock(&mutex_);
      remains->callbacks = std::exchange(callbacks_, {});
      remains->self = std::exchange(self_, nullptr);
      if (failure_.has_value()) status = *failure_;
    }
    if (remains->callbacks.on_closed) remains->callbacks.on_closed(std::move(status));
    ReleaseElsewhere(std::move(remains));
  }

  const size_t max_unacknowledged_;
  const size_t low_bytes_behind_;
  grpc::ClientContext context_;
  mutable absl::Mutex mutex_;
  Callbacks callbacks_;
  std::shared_ptr<ClientBidi> self_ ABSL_GUARDED_BY(mutex_);
  OutboundQueue<Request> queue_ ABSL_GUARDED_BY(mutex_);
  // Owned by the operations in flight.
  Response incoming_;
  Request outgoing_;
  size_t outgoing_behind_ ABSL_GUARDED_BY(mutex_) =
      0;  // Bytes of the message in flight, if all others pass such.
  size_t unacknowledged_ ABSL_GUARDED_BY(mutex_) = 0;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool delivering_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  // A write, or the half-close.
  bool half_closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
