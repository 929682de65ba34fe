#include "common/rpc/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "grpcpp/impl/client_unary_call.h"
#include "gtest/gtest.h"
#include "tandem/v1/admin.grpc.pb.h"

namespace tandem {
namespace {

constexpr absl::Duration kLongestWait = absl::Seconds(60);

int Connect(int port) {
  const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (made >= 0 && connect(made, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0)
    return made;
  if (made >= 0) close(made);
  return -1;
}

grpc::Status Call(const std::string& address) {
  const auto stub = v1::Admin::NewStub(CreateChannel(address));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(absl::ToChronoTime(absl::Now() + kLongestWait));
  v1::ServerInfo info;
  return stub->GetServerInfo(&context, {}, &info);
}

// The process may have only so many file descriptors while this lives, as `ulimit -n` would have it.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t beyond_those_in_use) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int lowest = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    close(lowest);
    rlimit few = before_;
    few.rlim_cur = static_cast<rlim_t>(lowest) + beyond_those_in_use;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

TEST(ListenerTest, AServerThatRanOutOfDescriptorsServesAgainWhenThereAreSome) {
  MetricsRegistry metrics;
  const auto server =
      ServerRunner::Start({.listen_address = "127.0.0.1:0", .metrics = &metrics}, {}, {}).value();
  ASSERT_TRUE(Call(server->address()).ok());
  {
    // Clients and server are one process: each connection takes two. The server finds none for some of them.
    FewDescriptors few(41);
    std::vector<int> connections;
    for (int made = Connect(server->port()); made >= 0; made = Connect(server->port()))
      connections.push_back(made);
    EXPECT_GE(connections.size(), 10u);
    for (const int connection : connections) close(connection);
  }
  EXPECT_TRUE(Call(server->address()).ok());
}

TEST(ListenerTest, LivenessIsThatOfTheServedPort) {
  const auto listener = Listener::Bind("127.0.0.1:0").value();
  std::vector<int> connections;
  absl::Mutex mutex;
  listener->Start({.max_connections = 1000}, [&](int connection) {
    absl::MutexLock lock(&mutex);
    connections.push_back(connection);
  });
  EXPECT_EQ(listener->deaf(), absl::ZeroDuration());
  std::vector<int> clients;
  const absl::Time end = absl::Now() + kLongestWait;
  {
    FewDescriptors few(21);
    for (int made = Connect(listener->port()); made >= 0; made = Connect(listener->port()))
      clients.push_back(made);
    while (listener->deaf() == absl::ZeroDuration() && absl::Now() < end)
      absl::SleepFor(absl::Milliseconds(1));
    EXPECT_GT(listener->deaf(), absl::ZeroDuration());
  }
  while (listener->deaf() > absl::ZeroDuration() && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(listener->deaf(), absl::ZeroDuration());
  listener->Stop();
  absl::MutexLock lock(&mutex);
  EXPECT_EQ(connections.size(), clients.size());
  for (const int connection : connections) close(connection);
  for (const int client : clients) close(client);
}

// A server that others cannot reach is of no use, though it could say by another way that it lives.
TEST(ListenerTest, AServerThatCanAcceptNothingSaysSoByItsLiveness) {
  MetricsRegistry metrics;
  const auto server =
      ServerRunner::Start(
          {.listen_address = "127.0.0.1:0", .metrics = &metrics, .liveness_timeout = absl::Milliseconds(100)},
          {}, {})
          .value();
  const auto channel = server->InProcessChannel();
  const auto lives = [&channel] {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kLongestWait));
    const grpc::Slice name(absl::StrCat("\x0a\x08", "liveness"));
    const grpc::ByteBuffer request(&name, 1);
    grpc::ByteBuffer answer;
    const grpc::internal::RpcMethod check("/grpc.health.v1.Health/Check",
                                          grpc::internal::RpcMethod::NORMAL_RPC);
    EXPECT_TRUE(grpc::internal::BlockingUnaryCall(channel.get(), check, &context, request, &answer).ok());
    std::vector<grpc::Slice> slices;
    EXPECT_TRUE(answer.Dump(&slices).ok());
    return slices.size() == 1 && slices[0].size() == 2 && slices[0].begin()[1] == 1;  // SERVING.
  };
  const auto becomes = [&lives](bool wanted) {
    const absl::Time end = absl::Now() + kLongestWait;
    while (lives() != wanted && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
    return lives() == wanted;
  };
  EXPECT_TRUE(becomes(true));
  std::vector<int> clients;
  {
    FewDescriptors few(41);
    for (int made = Connect(server->port()); made >= 0; made = Connect(server->port()))
      clients.push_back(made);
    EXPECT_TRUE(becomes(false));
  }
  EXPECT_TRUE(becomes(true));
  for (const int client : clients) close(client);
}

TEST(ListenerTest, TooManyConnectionsAreClosedAtOnceAndCounted) {
  MetricsRegistry metrics;
  const auto server =
      ServerRunner::Start(
          {.listen_address = "127.0.0.1:0", .metrics = &metrics, .limits = {.max_connections = 8}}, {}, {})
          .value();
  // Descriptors of the clients count, too: this is one process.
  std::vector<int> clients;
  for (int i = 0; i < 12; ++i) clients.push_back(Connect(server->port()));
  const absl::Time end = absl::Now() + kLongestWait;
  const auto refused = [&] {
    const std::string text = metrics.Expose();
    const std::string name = "\ntandem_server_refused_connections_total ";
    const size_t at = text.find(name);
    return at == std::string::npos ? -1.0 : std::stod(text.substr(at + name.size()));
  };
  while (refused() < 4 && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_GE(refused(), 4);
  // The client's last descriptors are high, so its connection is refused: it reads the end.
  char byte = 0;
  EXPECT_LE(recv(clients.back(), &byte, 1, 0), 0);
  for (const int client : clients) close(client);
  EXPECT_TRUE(Call(server->address()).ok());
}

TEST(ListenerTest, AddressesOfEveryKindAreUnderstood) {
  for (const char* address : {"127.0.0.1:0", "localhost:0", "0.0.0.0:0", "[::]:0", "*:0"}) {
    const auto listener = Listener::Bind(address);
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_GT((*listener)->port(), 0) << address;
    const int client = Connect((*listener)->port());
    EXPECT_GE(client, 0) << address;
    close(client);
    const absl::Status second = Listener::Bind(absl::StrCat("127.0.0.1:", (*listener)->port())).status();
    EXPECT_EQ(second.code(), absl::StatusCode::kUnavailable) << address;
  }
  for (const char* address : {"127.0.0.1", "no.such.host.invalid:1", "127.0.0.1:http-or-so", "192.0.2.1:0",
                              "127.0.0.1:70000", "localhost:65536", "127.0.0.1:-1", "127.0.0.1:"}) {
    EXPECT_EQ(Listener::Bind(address).status().code(), absl::StatusCode::kUnavailable) << address;
  }
}

}  // namespace
}  // namespace tandem
