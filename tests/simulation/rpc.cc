#include "tests/simulation/rpc.h"

#include <algorithm>

namespace tandem::simulation {

void RpcCall::Transmit(bool to_server, absl::Time departure, std::function<void()> message) {
  if (broken_) return;
  Way& way = to_server ? to_server_ : to_client_;
  way.messages.push_back(std::move(message));
  way.last = std::max(way.last, std::max(departure, network_.queue_.now()) + network_.Latency());
  network_.queue_.At(way.last, [self = shared_from_this(), to_server] { self->Deliver(to_server); });
}

void RpcCall::Deliver(bool to_server) {
  if (broken_) return;
  const absl::Time until =
      to_server ? network_.BlockedUntil(client_, server_) : network_.BlockedUntil(server_, client_);
  if (until > network_.queue_.now()) {
    ++network_.num_held_back_;
    network_.queue_.At(until + network_.Latency(),
                       [self = shared_from_this(), to_server] { self->Deliver(to_server); });
    return;
  }
  Way& way = to_server ? to_server_ : to_client_;
  const std::function<void()> message = std::move(way.messages.front());
  way.messages.pop_front();
  message();
}

void RpcCall::Arrive() {
  const auto process = network_.serving_.find(server_);
  if (process == network_.serving_.end()) {
    server_over_ = true;
    Transmit(/*to_server=*/false, network_.queue_.now(),
             [this] { EndAtClient(absl::UnavailableError("connection refused")); });
    return;
  }
  if (timeout_ != absl::InfiniteDuration()) {
    network_.queue_.After(timeout_, [self = shared_from_this()] { self->EndAtServer(); });
  }
  process->second(shared_from_this());
}

void RpcCall::EndAtClient(const absl::Status& status) {
  if (std::exchange(client_over_, true)) return;
  side_.on_done(status);
}

void RpcCall::EndAtServer() {
  if (std::exchange(server_over_, true)) return;
  cancelled_ = true;
  if (on_cancel_) on_cancel_();
}

void RpcCall::SetOnCancel(std::function<void()> on_cancel) {
  on_cancel_ = std::move(on_cancel);
  if (cancelled_) on_cancel_();
}

void RpcCall::Send(absl::Time departure, RpcEvent event) {
  if (server_over_) return;
  Transmit(/*to_server=*/false, departure, [this, event = std::move(event)] {
    if (!client_over_) side_.on_event(event);
  });
}

void RpcCall::Finish(absl::Time departure, absl::Status status) {
  if (std::exchange(server_over_, true)) return;
  Transmit(/*to_server=*/false, departure, [this, status = std::move(status)] { EndAtClient(status); });
}

void RpcCall::Cancel() {
  if (std::exchange(client_over_, true)) return;
  Transmit(/*to_server=*/true, network_.queue_.now(), [this] { EndAtServer(); });
}

std::shared_ptr<RpcCall> RpcNetwork::Start(Host client, Host server, RpcRequest request,
                                           absl::Duration timeout, RpcCall::ClientSide side) {
  auto call = std::shared_ptr<RpcCall>(
      new RpcCall(this, client, server, std::move(request), timeout, std::move(side)));
  calls_.push_back(call);
  call->Transmit(/*to_server=*/true, queue_.now(), [at = call.get()] { at->Arrive(); });
  if (timeout != absl::InfiniteDuration()) {
    queue_.After(timeout, [call] {
      if (call->client_over_) return;
      call->EndAtClient(absl::DeadlineExceededError("the call's deadline has passed"));
      call->Transmit(/*to_server=*/true, call->network_.queue_.now(),
                     [at = call.get()] { at->EndAtServer(); });
    });
  }
  return call;
}

void RpcNetwork::BreakCall(const std::shared_ptr<RpcCall>& call, absl::Duration longest_notice) {
  call->broken_ = true;
  queue_.After(random_.Between(absl::ZeroDuration(), longest_notice),
               [call] { call->EndAtClient(absl::UnavailableError("the connection broke")); });
  queue_.After(random_.Between(absl::ZeroDuration(), longest_notice), [call] { call->EndAtServer(); });
}

std::vector<std::shared_ptr<RpcCall>> RpcNetwork::Running(
    const std::function<bool(const RpcCall&)>& is_meant) {
  std::vector<std::shared_ptr<RpcCall>> running;
  std::erase_if(calls_, [](const std::weak_ptr<RpcCall>& call) { return call.expired(); });
  for (const std::weak_ptr<RpcCall>& known : calls_) {
    std::shared_ptr<RpcCall> call = known.lock();
    if (call != nullptr && !call->broken_ && !call->over() && is_meant(*call)) {
      running.push_back(std::move(call));
    }
  }
  return running;
}

void RpcNetwork::Down(Host host, bool silently) {
  serving_.erase(host);
  for (const auto& call :
       Running([&](const RpcCall& call) { return call.client_ == host || call.server_ == host; })) {
    BreakCall(call, silently ? conditions_.longest_keepalive : conditions_.longest_notice);
  }
}

size_t RpcNetwork::Break(Host a, Host b) {
  const auto running = Running([&](const RpcCall& call) {
    return (call.client_ == a && call.server_ == b) || (call.client_ == b && call.server_ == a);
  });
  for (const auto& call : running) BreakCall(call, conditions_.longest_notice);
  return running.size();
}

size_t RpcNetwork::Block(Host from, Host to, absl::Duration duration) {
  absl::Time& until = blocked_.try_emplace({from, to}, absl::InfinitePast()).first->second;
  until = std::max(until, queue_.now() + duration);
  const auto is_between = [from, to](const RpcCall& call) {
    return (call.client_ == from && call.server_ == to) || (call.client_ == to && call.server_ == from);
  };
  if (random_.Chance(0.5)) {
    // Nothing was acknowledged for too long.
    queue_.After(random_.Between(duration / 2, duration), [this, from, to] { Break(from, to); });
  }
  return Running(is_between).size();
}

absl::Time RpcNetwork::BlockedUntil(Host from, Host to) const {
  const auto found = blocked_.find({from, to});
  return found == blocked_.end() ? absl::InfinitePast() : found->second;
}

}  // namespace tandem::simulation
