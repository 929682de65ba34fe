#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/outbound_queue.h"
#include "common/rpc/status.h"
#include "grpcpp/support/server_callback.h"

namespace tandem {

// The server's end of a server-streaming call, usable from any thread:
//
//   grpc::ServerWriteReactor<Event>* Generate(grpc::CallbackServerContext* context, const Request* request)
//   override {
//     auto stream = ServerStream<Event>::Create();
//     auto* reactor = stream->Start({.on_cancelled = [this, id](absl::Status) { inbox_.Push(Cancel{id}); }});
//     inbox_.Push(Begin{id, *request, std::move(stream)});
//     return reactor;
//   }
//
//                 Write                             last write done
//        .-----------------.                      .------------------.
//        v                 |       Finish         |                  v
//      OPEN --> one write in flight --------> FLUSHING (queue) --> FINISHED --> DONE
//        |                 |                      |                  ^       on_done
//        |  client gone, write failed, overflow   | queue dropped    |
//        '-----------------+----------------------'------------------'
//                     on_cancelled                 no write in flight
//
// Whatever happens, gRPC's Finish is called exactly once and never while a write is in flight:
// - Finish(status): queued messages are delivered first. Later calls are ignored.
// - The client cancels, its deadline passes, or the connection breaks: the queue is dropped, on_cancelled is
//   called, and the call finishes by itself with CANCELLED. You need not call Finish.
// - Overflow: the queue is dropped, on_cancelled is called with RESOURCE_EXHAUSTED on the thread that called
//   Write, and the call finishes with that status as soon as the write in flight is done. So a client that
//   has stopped reading for good keeps one message and the call itself, until its deadline or disconnection.
//
// Callbacks: on_cancelled at most once, and not after Finish; on_done exactly once, last, with the status of
// the call. They run without locks, and should only post work elsewhere. They are destroyed after on_done, so
// that they may hold the stream.
//
// Lifetime: shared; gRPC's side of the call holds a reference from Start until on_done. Write and Finish are
// harmless after that.
template <class Response>
class ServerStream final : private grpc::ServerWriteReactor<Response>,
                           public std::enable_shared_from_this<ServerStream<Response>> {
 public:
  struct Callbacks {
    std::function<void(absl::Status)> on_cancelled;
    std::function<void(absl::Status)> on_done;
  };

  static std::shared_ptr<ServerStream> Create(const StreamLimits& limits = {}) {
    return std::shared_ptr<ServerStream>(new ServerStream(limits));
  }

  // Call it once, in the service method, before another thread uses the stream. Return the result to gRPC.
  grpc::ServerWriteReactor<Response>* Start(Callbacks callbacks) {
    absl::MutexLock lock(&mutex_);
    callbacks_ = std::move(callbacks);
    self_ = this->shared_from_this();
    return this;
  }

  // Queues a message. False if the stream accepts no more: it is finished or cancelled, or this message
  // overflows the queue.
  bool Write(Response response) {
    Action action;
    {
      absl::MutexLock lock(&mutex_);
      if (terminal_.has_value()) return false;
      if (queue_.Push(std::move(response))) {
        action = NextAction();
      } else {
        action =
            Abandon(absl::ResourceExhaustedError("the client reads too slowly: its outbound queue is full"));
      }
    }
    const bool queued = action != Action::kNotifyCancelled;
    Perform(action);
    return queued;
  }

  // Ends the call once everything queued is delivered. Only the first call counts.
  void Finish(absl::Status status) {
    Action action;
    {
      absl::MutexLock lock(&mutex_);
      if (terminal_.has_value()) return;
      terminal_ = std::move(status);
      action = NextAction();
    }
    Perform(action);
  }

  // Whether Write would be refused.
  bool closed() const {
    absl::MutexLock lock(&mutex_);
    return terminal_.has_value();
  }

 private:
  enum class Action { kNone, kWrite, kFinish, kNotifyCancelled };

  explicit ServerStream(const StreamLimits& limits) : queue_(limits) {}

  // Claims the next operation; the caller performs it after releasing the mutex. While a write or a callback
  // is claimed, nothing else is claimed, so operations cannot overtake one another.
  Action NextAction() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || notifying_ || finished_) return Action::kNone;
    if (!queue_.empty()) {
      in_flight_ = queue_.Pop().message;
      writing_ = true;
      return Action::kWrite;
    }
    if (!terminal_.has_value()) return Action::kNone;
    finished_ = true;
    return Action::kFinish;
  }

  Action Abandon(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    queue_.Clear();
    if (terminal_.has_value()) return NextAction();
    terminal_ = std::move(why);
    notifying_ = true;
    return Action::kNotifyCancelled;
  }

  void Perform(Action action) {
    if (action == Action::kNotifyCancelled) {
      NotifyCancelled();
      absl::MutexLock lock(&mutex_);
      notifying_ = false;
      action = NextAction();
    }
    if (action == Action::kWrite) this->StartWrite(&in_flight_);
    if (action == Action::kFinish) grpc::ServerWriteReactor<Response>::Finish(ToGrpcStatus(final_status()));
  }

  void NotifyCancelled() {
    std::function<void(absl::Status)> on_cancelled;
    absl::Status status;
    {
      absl::MutexLock lock(&mutex_);
      on_cancelled = std::move(callbacks_.on_cancelled);
      status = *terminal_;
    }
    if (on_cancelled) on_cancelled(std::move(status));
  }

  absl::Status final_status() const {
    absl::MutexLock lock(&mutex_);
    return *terminal_;
  }

  void OnWriteDone(bool ok) override {
    Action action;
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      action = ok ? NextAction() : Abandon(absl::CancelledError("the client disconnected"));
    }
    Perform(action);
  }

  void OnCancel() override {
    Action action;
    {
      absl::MutexLock lock(&mutex_);
      action = Abandon(absl::CancelledError("the client cancelled the call, or its deadline passed"));
    }
    Perform(action);
  }

  void OnDone() override {
    Callbacks callbacks;
    std::shared_ptr<ServerStream> self;
    {
      absl::MutexLock lock(&mutex_);
      callbacks = std::move(callbacks_);
      callbacks_ = {};
      self = std::move(self_);
    }
    if (callbacks.on_done) callbacks.on_done(final_status());
  }

  mutable absl::Mutex mutex_;
  Callbacks callbacks_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<ServerStream> self_ ABSL_GUARDED_BY(mutex_);
  OutboundQueue<Response> queue_ ABSL_GUARDED_BY(mutex_);
  // Owned by the write in flight.
  Response in_flight_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool notifying_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> terminal_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
