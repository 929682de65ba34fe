#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tandem/v1/admin.pb.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/registry.pb.h"
#include "tandem/v1/verifier.pb.h"
#include "tests/simulation/event_queue.h"
#include "tests/simulation/random.h"

namespace tandem::simulation {

using Host = uint32_t;

struct HealthCheck {};
struct InfoQuestion {};  // GetServerInfo.
using RpcRequest = std::variant<v1::GenerateRequest, v1::VerifierGenerateRequest, v1::RegisterRequest,
                                v1::DeregisterRequest, HealthCheck, InfoQuestion>;
using RpcEvent = std::variant<v1::GenerateResponse, v1::ServerInfo>;

class RpcNetwork;

// One call over a connection of two hosts, like gRPC's. Its messages arrive in order and once, whatever
// happens to other calls, or the call breaks. Each side notices in its own time. Client and server are each
// told of one end.
class RpcCall : public std::enable_shared_from_this<RpcCall> {
 public:
  struct ClientSide {
    std::function<void(RpcEvent)> on_event;
    std::function<void(const absl::Status&)> on_done;
  };

  const RpcRequest& request() const { return request_; }
  // What is left for the call where it arrives; infinite without a deadline.
  absl::Duration timeout() const { return timeout_; }

  // At the server, `departure` being its time. Nothing happens once the call is over there.
  void Send(absl::Time departure, RpcEvent event);
  void Finish(absl::Time departure, absl::Status status);
  // Called when the call is over and the server has not finished it: cancelled, broken or too late.
  void SetOnCancel(std::function<void()> on_cancel);

  // At the client, which is told nothing more.
  void Cancel();

 private:
  friend class RpcNetwork;
  // Messages under way from one side to the other, delivered one after the other.
  struct Way {
    std::deque<std::function<void()>> messages;
    absl::Time last = absl::InfinitePast();
  };

  RpcCall(RpcNetwork* network, Host client, Host server, RpcRequest request, absl::Duration timeout,
          ClientSide side)
      : network_(*network),
        client_(client),
        server_(server),
        request_(std::move(request)),
        timeout_(timeout),
        side_(std::move(side)) {}
  void Transmit(bool to_server, absl::Time departure, std::function<void()> message);
  void Deliver(bool to_server);
  void Arrive();
  void EndAtClient(const absl::Status& status);
  void EndAtServer();
  bool over() const { return client_over_ && server_over_; }

  RpcNetwork& network_;
  const Host client_;
  const Host server_;
  const RpcRequest request_;
  const absl::Duration timeout_;
  const ClientSide side_;
  std::function<void()> on_cancel_;
  Way to_server_;
  Way to_client_;
  bool broken_ = false;  // Nothing is delivered any more.
  bool client_over_ = false;
  bool server_over_ = false;
  bool cancelled_ = false;  // It is over at the server, which has not finished it.
};

// The network between hosts: latency, connections that break, one-way partitions, hosts without a process.
class RpcNetwork {
 public:
  struct Conditions {
    absl::Duration least_latency = absl::Microseconds(100);
    absl::Duration most_latency = absl::Milliseconds(2);
    absl::Duration longest_notice = absl::Milliseconds(30);       // Of a connection that was closed or reset,
    absl::Duration longest_keepalive = absl::Milliseconds(2500);  // and of one that is silent.
  };
  RpcNetwork(EventQueue* queue, const Conditions& conditions, Random random)
      : queue_(*queue), conditions_(conditions), random_(random) {}

  using Serve = std::function<void(std::shared_ptr<RpcCall>)>;
  // A process runs on the host from now on; calls that arrive there go to it.
  void Up(Host host, Serve serve) { serving_[host] = std::move(serve); }
  // It has ended. Its peers notice: soon if it was the process alone, and late if the machine went with it.
  void Down(Host host, bool silently);

  std::shared_ptr<RpcCall> Start(Host client, Host server, RpcRequest request, absl::Duration timeout,
                                 RpcCall::ClientSide side);

  // Breaks what runs between two hosts. Returns how many calls.
  size_t Break(Host a, Host b);
  // Holds back everything from one to the other for so long; the connection may not survive that. Returns how
  // many calls it holds back.
  size_t Block(Host from, Host to, absl::Duration duration);

  uint64_t num_held_back() const { return num_held_back_; }

 private:
  friend class RpcCall;
  absl::Duration Latency() { return random_.Between(conditions_.least_latency, conditions_.most_latency); }
  absl::Time BlockedUntil(Host from, Host to) const;
  void BreakCall(const std::shared_ptr<RpcCall>& call, absl::Duration longest_notice);
  // Those that run between two hosts, or on one of them and any other.
  std::vector<std::shared_ptr<RpcCall>> Running(const std::function<bool(const RpcCall&)>& is_meant);

  EventQueue& queue_;
  const Conditions conditions_;
  Random random_;
  std::map<Host, Serve> serving_;
  std::map<std::pair<Host, Host>, absl::Time> blocked_;
  std::vector<std::weak_ptr<RpcCall>> calls_;
  uint64_t num_held_back_ = 0;  // Messages, by partitions.
};

}  // namespace tandem::simulation
