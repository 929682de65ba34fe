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
#include "common/rpc/status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

namespace tandem {

// The server's end of a bidirectional stream, usable from any thread. One read and one write are in flight at
// most.
//
//      Start                 client half-closes, Disconnect
//   --------> OPEN -----------------------------------------> FLUSHING (queue) --> FINISHED --> DONE
//              |                                                   |                  ^      on_closed
//              |  client cancels or is gone, write failed          | queue dropped    |
//              |  overflow: the call is cancelled                  |                  |
//              '---------------------------------------------------'------------------'
//                                                            no write in flight
//
// - on_message: every message in order, never two at a time, none after the stream left OPEN. By default the
//   next read starts when the callback returns; with `max_unacknowledged` above 0, reading pauses while that
//   many delivered messages are not acknowledged. So a consumer can bound its inbox; gRPC's flow control then
//   slows the peer.
// - on_closed: exactly once, after every other callback, with OK after a half-close or Disconnect(OK),
//   CANCELLED if the client cancelled or is gone, RESOURCE_EXHAUSTED after an overflow.
// - Overflow of the outbound queue cancels the call at once, because a peer that does not read must not keep
//   its sessions. The peer gets CANCELLED.
//
// Callbacks run on gRPC's threads without locks, and should only post work elsewhere. They are destroyed
// after on_closed, so that they may hold the stream. Lifetime: shared; the call holds a reference from Start
// until on_closed. Write, Acknowledge and Disconnect are harmless after that.
template <class Request, class Response>
class ServerBidi final : private grpc::ServerBidiReactor<Request, Response>,
                         public std::enable_shared_from_this<ServerBidi<Request, Response>> {
 public:
  struct Callbacks {
    std::function<void(Request)> on_message;
    std::function<void(absl::Status)> on_closed;
  };

  // `context`: of the call. With `max_unacknowledged` 0, reading never pauses.
  static std::shared_ptr<ServerBidi> Create(grpc::CallbackServerContext* context,
                                            const StreamLimits& limits = {}, size_t max_unacknowledged = 0) {
    return std::shared_ptr<ServerBidi>(new ServerBidi(context, limits, max_unacknowledged));
  }

  // Call once, in the service method; return the result to gRPC. Messages may be delivered before this
  // returns.
  grpc::ServerBidiReactor<Request, Response>* Start(Callbacks callbacks) {
    Perform([&] {
      callbacks_ = std::move(callbacks);
      self_ = this->shared_from_this();
    });
    return this;
  }

  // Queues a message. False if the stream accepts no more: it is disconnected or cancelled, or this message
  // overflows the queue.
  bool Write(Response response) {
    bool queued = false;
    Perform([&] {
      if (terminal_.has_value()) return;
      queued = queue_.Push(std::move(response));
      if (queued) return;
      queue_.Clear();
      terminal_ = absl::ResourceExhaustedError("the peer reads too slowly: its outbound queue is full");
      cancel_wanted_ = true;
    });
    return queued;
  }

  // `count` delivered messages have been processed.
  void Acknowledge(size_t count = 1) {
    Perform([&] { unacknowledged_ -= std::min(count, unacknowledged_); });
  }

  // Ends the call once everything queued is delivered. Only the first call counts.
  void Disconnect(absl::Status status = absl::OkStatus()) {
    Perform([&] {
      if (!terminal_.has_value()) terminal_ = std::move(status);
    });
  }

  // Whether Write would be refused.
  bool closed() const {
    absl::MutexLock lock(&mutex_);
    return terminal_.has_value();
  }

 private:
  ServerBidi(grpc::CallbackServerContext* context, const StreamLimits& limits, size_t max_unacknowledged)
      : context_(context), max_unacknowledged_(max_unacknowledged), queue_(limits) {}

  // Applies a change of state, then starts the gRPC operations that became possible. Operations are claimed
  // under the mutex and started without it. After Finish gRPC may drop the call, so `starting_` delays Finish
  // while some thread has claimed an operation and not started it yet.
  template <class Change>
  void Perform(Change change) {
    {
      absl::MutexLock lock(&mutex_);
      change();
    }
    while (true) {
      bool cancel = false;
      bool read = false;
      bool write = false;
      {
        absl::MutexLock lock(&mutex_);
        cancel = self_ != nullptr && std::exchange(cancel_wanted_, false);
        read = ClaimRead();
        write = ClaimWrite();
        if (!cancel && !read && !write) break;
        ++starting_;
      }
      // The context also exists only as long as Finish is delayed.
      if (cancel) context_->TryCancel();
      if (read) this->StartRead(&incoming_);
      if (write) this->StartWrite(&outgoing_);
      absl::MutexLock lock(&mutex_);
      --starting_;
    }
    if (std::optional<absl::Status> status = ClaimFinish()) this->Finish(ToGrpcStatus(*status));
  }

  bool ClaimRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool paused = max_unacknowledged_ > 0 && unacknowledged_ >= max_unacknowledged_;
    if (self_ == nullptr || reading_ || delivering_ || paused || terminal_.has_value()) return false;
    return reading_ = true;
  }

  bool ClaimWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (self_ == nullptr || writing_ || finished_ || queue_.empty()) return false;
    outgoing_ = queue_.Pop().message;
    return writing_ = true;
  }

  std::optional<absl::Status> ClaimFinish() {
    absl::MutexLock lock(&mutex_);
    const bool busy = writing_ || starting_ > 0 || !queue_.empty();
    if (self_ == nullptr || busy || finished_ || !terminal_.has_value()) return std::nullopt;
    finished_ = true;
    return terminal_;
  }

  void OnReadDone(bool ok) override {
    std::function<void(Request)>* on_message = nullptr;
    Perform([&] {
      reading_ = false;
      if (!ok && !terminal_.has_value()) terminal_ = absl::OkStatus();
      if (terminal_.has_value() || !callbacks_.on_message) return;
      // Only OnDone, which gRPC does not call during a reaction, changes callbacks_ from here on.
      on_message = &callbacks_.on_message;
      delivering_ = true;
      ++unacknowledged_;
    });
    if (on_message == nullptr) return;
    (*on_message)(std::move(incoming_));
    Perform([&] { delivering_ = false; });
  }

  void OnWriteDone(bool ok) override {
    Perform([&] {
      writing_ = false;
      if (!ok) Abandon(absl::CancelledError("the peer disconnected"));
    });
  }

  void OnCancel() override {
    Perform([&] {
      Abandon(
          absl::CancelledError("the peer cancelled the call, its deadline passed, or the connection broke"));
    });
  }

  // Also replaces a half-close: when a connection breaks, gRPC reports the failed read first.
  void Abandon(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    queue_.Clear();
    if (!terminal_.has_value() || terminal_->ok()) terminal_ = std::move(why);
  }

  void OnDone() override {
    Callbacks callbacks;
    std::shared_ptr<ServerBidi> self;
    absl::Status status;
    {
      absl::MutexLock lock(&mutex_);
      callbacks = std::move(callbacks_);
      callbacks_ = {};
      self = std::move(self_);
      self_ = nullptr;
      status = *terminal_;
    }
    if (callbacks.on_closed) callbacks.on_closed(std::move(status));
  }

  grpc::CallbackServerContext* const context_;
  const size_t max_unacknowledged_;
  mutable absl::Mutex mutex_;
  Callbacks callbacks_;
  std::shared_ptr<ServerBidi> self_ ABSL_GUARDED_BY(mutex_);
  OutboundQueue<Response> queue_ ABSL_GUARDED_BY(mutex_);
  // Owned by the operations in flight.
  Request incoming_;
  Response outgoing_;
  size_t unacknowledged_ ABSL_GUARDED_BY(mutex_) = 0;
  int starting_ ABSL_GUARDED_BY(mutex_) = 0;
  bool cancel_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool delivering_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> terminal_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
