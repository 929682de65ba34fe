#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/release.h"
#include "common/rpc/status.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"

namespace tandem {

// The client of a server-streaming call, usable from any thread.
//
//   using Call = ClientStreamReader<VerifierGenerateRequest, GenerateResponse>;
//   auto call = Call::Create(/*max_unacknowledged=*/8);
//   call->context().set_deadline(...);
//   call->Start(std::move(request),
//               [&](auto* context, auto* request, auto* reactor) {
//                 stub->async()->Generate(context, request, reactor);
//               },
//               {.on_message = [...](GenerateResponse m) { ... }, .on_done = [...](absl::Status s) { ... }});
//
//                  message                    limit reached
//      Start     .---------.              .------------------.
//   --------> READING <----'   READING ---'                  v
//                |                ^---------- Acknowledge -- PAUSED
//                |  status, or TryCancel                     | TryCancel: read to the end without delivering
//                '----------------> DONE (on_done) <---------'
//
// - on_message: every message in order, never two at a time. After TryCancel, only a delivery that had begun
//   still happens. With `max_unacknowledged` above 0, reading pauses while that many delivered messages are
//   not acknowledged; with 1, every read needs an Acknowledge. 0: reading never pauses. A paused call notices
//   its end only when reading resumes.
// - on_done: exactly once, last, with the call's status.
//
// Callbacks run on gRPC's threads without locks, and should only post work elsewhere. They are destroyed
// after on_done, so that they may hold the call. Lifetime: shared; gRPC's side holds a reference from Start
// until on_done. Acknowledge and TryCancel are harmless after that.
template <class Request, class Response>
class ClientStreamReader final : private grpc::ClientReadReactor<Response>,
                                 public std::enable_shared_from_this<ClientStreamReader<Request, Response>> {
 public:
  struct Callbacks {
    std::function<void(Response)> on_message;
    std::function<void(absl::Status)> on_done;
  };
  using StartCallFunction =
      std::function<void(grpc::ClientContext*, const Request*, grpc::ClientReadReactor<Response>*)>;

  static std::shared_ptr<ClientStreamReader> Create(size_t max_unacknowledged = 0) {
    return std::shared_ptr<ClientStreamReader>(new ClientStreamReader(max_unacknowledged));
  }

  // For metadata, deadline and wait_for_ready; before Start only.
  grpc::ClientContext& context() { return context_; }

  // Call it once. `start_call` passes context, request and reactor to the stub's method.
  void Start(Request request, const StartCallFunction& start_call, Callbacks callbacks) {
    request_ = std::move(request);
    start_call(&context_, &request_, this);
    // Reads start on threads outside of reactions. The hold keeps the call alive until no more can start.
    this->AddHold();
    std::shared_ptr<ClientStreamReader> self = this->shared_from_this();
    Perform([&] {
      callbacks_ = std::move(callbacks);
      self_ = self;
    });
    this->StartCall();
  }

  // `count` delivered messages have been processed.
  void Acknowledge(size_t count = 1) {
    Perform([&] { unacknowledged_ -= std::min(count, unacknowledged_); });
  }

  // Cancels the call; on_done follows with CANCELLED, unless the call had ended.
  void TryCancel() {
    context_.TryCancel();
    Perform([&] { cancelled_ = true; });
  }

 private:
  explicit ClientStreamReader(size_t max_unacknowledged) : max_unacknowledged_(max_unacknowledged) {}

  // Applies a change of state, then starts the next read or, when reads have come to their end, releases the
  // hold.
  template <class Change>
  void Perform(Change change) {
    bool read = false;
    bool release = false;
    {
      absl::MutexLock lock(&mutex_);
      change();
      const bool paused = !cancelled_ && max_unacknowledged_ > 0 && unacknowledged_ >= max_unacknowledged_;
      if (self_ == nullptr) return;
      if (ended_) {
        release = !released_;
        released_ = true;
      } else if (!reading_ && !delivering_ && !paused) {
        read = reading_ = true;
      }
    }
    if (read) this->StartRead(&incoming_);
    if (release) this->RemoveHold();
  }

  void OnReadDone(bool ok) override {
    std::function<void(Response)>* on_message = nullptr;
    Perform([&] {
      reading_ = false;
      if (!ok) {
        ended_ = true;
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

  // Everything that is destroyed with the call, in reverse order of destruction.
  struct Remains {
    std::shared_ptr<ClientStreamReader> self;
    Callbacks callbacks;
  };

  void OnDone(const grpc::Status& status) override {
    auto remains = std::make_shared<Remains>();
    {
      absl::MutexLock lock(&mutex_);
      remains->callbacks = std::exchange(callbacks_, {});
      remains->self = std::exchange(self_, nullptr);
    }
    if (remains->callbacks.on_done) remains->callbacks.on_done(FromGrpcStatus(status));
    ReleaseElsewhere(std::move(remains));
  }

  const size_t max_unacknowledged_;
  grpc::ClientContext context_;
  Request request_;
  mutable absl::Mutex mutex_;
  Callbacks callbacks_;
  std::shared_ptr<ClientStreamReader> self_ ABSL_GUARDED_BY(mutex_);
  // Owned by the read in flight.
  Response incoming_;
  size_t unacknowledged_ ABSL_GUARDED_BY(mutex_) = 0;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool delivering_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tandem
