// `tandem-router-load`: what a router costs. Runs a `tandem-router` process between clients and a verifier
// that are both in this process and compute nothing: the verifier says a token now and then to as many
// streams as are asked for, or at once for latencies.
//
//   clients (here) --> tandem-router (a process of its own) --> stub verifier (here)
//
// The same load goes through a relay that does nothing but pass messages on, which is what gRPC alone costs;
// and with --http over the HTTP API as server-sent events, with gRPC's figures beside it.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/substitute.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/temporary_folder.h"
#include "common/config/flags.h"
#include "common/rpc/channel.h"
#include "common/rpc/client_stream_reader.h"
#include "common/rpc/server_stream.h"
#include "grpcpp/server_builder.h"
#include "nlohmann/json.hpp"
#include "router/testing/sse_client.h"
#include "router/testing/stub_verifier.h"
#include "tandem/v1/generation.grpc.pb.h"

extern char** environ;

namespace tandem::router::testing {
namespace {

constexpr char kToken[] = "secret";
constexpr absl::Duration kStartUp = absl::Seconds(30);

struct LoadFlags {
  std::string router = "build/dev/bin/tandem-router";
  std::string model = "deploy/demo-models/tandem-target-15m";
  uint32_t streams = 2000;
  uint32_t chunks = 50;  // Of each stream.
  absl::Duration every = absl::Milliseconds(200);
  uint32_t turns = 3;
  uint32_t latency_requests = 2000;
  absl::Duration arrival = absl::Milliseconds(5);
  bool http = false;
  std::string bare_relay_to;
  std::string bare_relay_listen;
};

// Passes the verifier's messages on and does nothing else.
class BareRelay final : public v1::Generation::CallbackService {
 public:
  explicit BareRelay(const std::string& verifier) : stub_(v1::Verifier::NewStub(CreateChannel(verifier))) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext* /*context*/,
                                                           const v1::GenerateRequest* /*request*/) override {
    auto client = ServerStream<v1::GenerateResponse>::Create();
    auto* reactor = client->Start({});
    v1::VerifierGenerateRequest request;
    request.mutable_prompt()->add_ids(1);
    ClientStreamReader<v1::VerifierGenerateRequest, v1::GenerateResponse>::Create()->Start(
        std::move(request),
        [this](grpc::ClientContext* context, const v1::VerifierGenerateRequest* sent,
               grpc::ClientReadReactor<v1::GenerateResponse>* verifier) {
          stub_->async()->Generate(context, sent, verifier);
        },
        {.on_message = [client](v1::GenerateResponse event) { client->Write(std::move(event)); },
         .on_done = [client](absl::Status status) { client->Finish(std::move(status)); }});
    return reactor;
  }

 private:
  const std::unique_ptr<v1::Verifier::Stub> stub_;
};

// Serves a BareRelay until it is killed.
int ServeBareRelay(const LoadFlags& flags) {
  BareRelay relay(flags.bare_relay_to);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(flags.bare_relay_listen, grpc::InsecureServerCredentials());
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, static_cast<int>(2 * flags.streams + 100));
  builder.RegisterService(&relay);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    std::cerr << "cannot listen on " << flags.bare_relay_listen << "\n";
    return kExitFailure;
  }
  // As servers of ours have it.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  server->Wait();
  return kExitOk;
}

// A port that nobody listens on now.
int FreePort() {
  const int probe = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(probe, reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      getsockname(probe, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::cerr << "no port is free\n";
    std::exit(kExitFailure);
  }
  close(probe);
  return ntohs(address.sin_port);
}

// The process of a router, or of what stands in for one.
class RouterProcess {
 public:
  static std::unique_ptr<RouterProcess> Router(const LoadFlags& flags, const std::string& verifier) {
    auto process = std::make_unique<RouterProcess>();
    const nlohmann::json config = {
        {"models", {{{"name", "target"}, {"folder", flags.model}, {"verifiers", {verifier}}}}},
        {"tenants", {{{"name", "load"}, {"token", kToken}}}},
        {"max_concurrent_requests", 2 * flags.streams + 100}};
    const std::string settings =
        absl::Substitute("verifier-max-requests: $0\nhttp-tenant-connections: $0\nmax-connections: $0\n",
                         2 * flags.streams + 100);
    process->Start({flags.router, "--config", process->folder_.Write("router.yaml", config.dump()),
                    "--listen", process->endpoint_, "--metrics-listen", "127.0.0.1:0", "--http-listen",
                    absl::StrCat("127.0.0.1:", process->http_port_), "--flags-file",
                    process->folder_.Write("settings.yaml", settings)});
    return process;
  }
  static std::unique_ptr<RouterProcess> Bare(const LoadFlags& flags, const std::string& verifier) {
    auto process = std::make_unique<RouterProcess>();
    process->Start({"/proc/self/exe", "--bare-relay-to", verifier, "--bare-relay-listen", process->endpoint_,
                    "--streams", absl::StrCat(flags.streams)});
    return process;
  }
  // Use the above.
  RouterProcess() : endpoint_(absl::StrCat("unix:", folder_.PathOf("router.sock"))) {}
  ~RouterProcess() {
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }

  const std::string& endpoint() const { return endpoint_; }
  int http_port() const { return http_port_; }
  // User and system time so far, in seconds.
  double CpuSeconds() const {
    std::ifstream file(absl::StrCat("/proc/", pid_, "/stat"));
    std::string line;
    std::getline(file, line);
    const std::vector<std::string> fields = absl::StrSplit(line.substr(line.rfind(')') + 2), ' ');
    double user = 0;
    double system = 0;
    if (fields.size() < 13 || !absl::SimpleAtod(fields[11], &user) ||
        !absl::SimpleAtod(fields[12], &system)) {
      return 0;
    }
    return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  // The most memory it has had, in MiB.
  double PeakMiB() const {
    std::ifstream file(absl::StrCat("/proc/", pid_, "/status"));
    for (std::string line; std::getline(file, line);) {
      double kib = 0;
      const std::vector<absl::string_view> words =
          absl::StrSplit(line, absl::ByAnyChar("\t "), absl::SkipEmpty());
      if (words[0] == "VmHWM:" && absl::SimpleAtod(words[1], &kib)) return kib / 1024;
    }
    return 0;
  }

 private:
  void Start(std::vector<std::string> arguments) {
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    // A line for each request would be a measurement of the terminal.
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, folder_.PathOf("log").c_str(),
                                     O_CREAT | O_WRONLY, 0600);
    if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) {
      std::cerr << "cannot start " << arguments[0] << "\n";
      std::exit(kExitFailure);
    }
    posix_spawn_file_actions_destroy(&actions);
  }

  const TemporaryFolder folder_;
  const std::string endpoint_;
  const int http_port_ = FreePort();
  pid_t pid_ = 0;
};

// Gives every stream that has come a chunk in each period, all through the period, and ends it after the
// last.
class Pacer {
 public:
  Pacer(uint32_t chunks, absl::Duration every) : chunks_(chunks), every_(every), thread_([this] { Run(); }) {}
  ~Pacer() {
    stopping_ = true;
    thread_.join();
  }
  void Add(std::shared_ptr<StubVerifier::Call> call) {
    absl::MutexLock lock(&mutex_);
    streams_.push_back({std::move(call), 0});
  }

 private:
  struct Stream {
    std::shared_ptr<StubVerifier::Call> call;
    uint32_t sent = 0;
  };

  void Run() {
    constexpr int kParts = 20;
    for (size_t part = 0; !stopping_; part = (part + 1) % kParts) {
      const absl::Time next = absl::Now() + every_ / kParts;
      {
        absl::MutexLock lock(&mutex_);
        for (size_t i = part; i < streams_.size(); i += kParts) {
          Stream& stream = streams_[i];
          if (stream.call == nullptr) continue;
          stream.call->Send(ChunkEvent(stream.sent, "a"));
          if (++stream.sent < chunks_) continue;
          stream.call->Send(FinishedEvent(stream.call->request(), chunks_));
          stream.call->Finish(absl::OkStatus());
          stream.call = nullptr;
        }
      }
      absl::SleepFor(next - absl::Now());
    }
  }

  const uint32_t chunks_;
  const absl::Duration every_;
  std::atomic<bool> stopping_{false};
  absl::Mutex mutex_;
  std::vector<Stream> streams_;
  std::thread thread_;
};

using Reader = ClientStreamReader<v1::GenerateRequest, v1::GenerateResponse>;

// One stream through the router; `on_done` with its status and the chunks that came.
void Generate(v1::Generation::Stub& stub, std::function<void()> on_first,
              std::function<void(const absl::Status&, uint32_t chunks)> on_done) {
  v1::GenerateRequest request;
  request.set_text("Once upon a time");
  request.mutable_speculation()->set_mode(v1::SPECULATION_MODE_OFF);
  auto reader = Reader::Create();
  reader->context().AddMetadata("authorization", absl::StrCat("Bearer ", kToken));
  auto chunks = std::make_shared<uint32_t>(0);
  reader->Start(std::move(request),
                [&stub](grpc::ClientContext* context, const v1::GenerateRequest* sent,
                        grpc::ClientReadReactor<v1::GenerateResponse>* reactor) {
                  stub.async()->Generate(context, sent, reactor);
                },
                {.on_message =
                     [chunks, on_first](const v1::GenerateResponse& event) {
                       if (event.has_chunk() && (*chunks)++ == 0) on_first();
                     },
                 .on_done = [chunks, on_done](const absl::Status& status) { on_done(status, *chunks); }});
}

// Begins a stream: tells of its first chunk, and of its end with the number of chunks.
using StartStream = std::function<void(std::function<void()> on_first,
                                       std::function<void(const absl::Status&, uint32_t chunks)> on_done)>;

StartStream OverGrpc(v1::Generation::Stub& stub) {
  return [&stub](auto on_first, auto on_done) { Generate(stub, std::move(on_first), std::move(on_done)); };
}

StartStream OverHttp(SseClient& client) {
  return [&client](auto on_first, auto on_done) {
    client.Start({.on_first = std::move(on_first), .on_done = [on_done](bool ok, uint32_t chunks) {
                    on_done(ok ? absl::OkStatus() : absl::UnknownError("an event stream broke"), chunks);
                  }});
  };
}

struct LoadResult {
  uint64_t errors = 0;
  uint64_t chunks = 0;
  double router_cpu_seconds = 0;
};

LoadResult RunStreams(const LoadFlags& flags, const RouterProcess& router, const StartStream& start) {
  std::atomic<uint64_t> errors{0};
  std::atomic<uint64_t> chunks{0};
  const double before = router.CpuSeconds();
  absl::BlockingCounter left(static_cast<int>(flags.streams));
  for (uint32_t i = 0; i < flags.streams; ++i) {
    start([] {},
          [&](const absl::Status& status, uint32_t received) {
            chunks += received;
            if ((!status.ok() || received != flags.chunks) && errors++ == 0) std::cerr << status << "\n";
            left.DecrementCount();
          });
  }
  left.Wait();
  return {errors, chunks, router.CpuSeconds() - before};
}

// Arrival to first token in seconds, sorted; requests one after the other at a fixed pace.
template <class Start>
std::vector<double> Latencies(uint32_t requests, absl::Duration arrival, Start start) {
  std::vector<double> seconds(requests);
  absl::BlockingCounter left(static_cast<int>(requests));
  absl::Time next = absl::Now();
  for (uint32_t i = 0; i < requests; ++i, next += arrival) {
    absl::SleepFor(next - absl::Now());
    const absl::Time begin = absl::Now();
    start([&seconds, i, begin] { seconds[i] = absl::ToDoubleSeconds(absl::Now() - begin); },
          [&left] { left.DecrementCount(); });
  }
  left.Wait();
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

// To the verifier itself, without the router.
void GenerateDirectly(v1::Verifier::Stub& stub, std::function<void()> on_first,
                      std::function<void()> on_done) {
  using DirectReader = ClientStreamReader<v1::VerifierGenerateRequest, v1::GenerateResponse>;
  auto reader = DirectReader::Create();
  v1::VerifierGenerateRequest request;
  request.mutable_prompt()->add_ids(1);
  reader->Start(std::move(request),
                [&stub](grpc::ClientContext* context, const v1::VerifierGenerateRequest* sent,
                        grpc::ClientReadReactor<v1::GenerateResponse>* reactor) {
                  stub.async()->Generate(context, sent, reactor);
                },
                {.on_message =
                     [on_first](const v1::GenerateResponse& event) {
                       if (event.has_chunk()) on_first();
                     },
                 .on_done = [on_done](const absl::Status&) { on_done(); }});
}

double Quantile(const std::vector<double>& sorted, double q) {
  return sorted[std::min(sorted.size() - 1, static_cast<size_t>(q * static_cast<double>(sorted.size())))];
}

std::shared_ptr<grpc::Channel> ConnectTo(const RouterProcess& router) {
  std::shared_ptr<grpc::Channel> channel =
      CreateChannel(router.endpoint(), nullptr, "", kClientConnectTimeout);
  if (!channel->WaitForConnected(absl::ToChronoTime(absl::Now() + kStartUp))) {
    std::cerr << "the router does not serve\n";
    std::exit(kExitFailure);
  }
  return channel;
}

// Microseconds of the router's CPU time per chunk, and for what else there is of a request: two loads that
// differ in the number of chunks tell one from the other.
struct RouterCost {
  double per_chunk = 0;
  double per_request = 0;
};

RouterCost CostOf(const LoadResult& one_chunk, const LoadResult& load, uint32_t streams) {
  const auto extra = static_cast<double>(load.chunks) - static_cast<double>(one_chunk.chunks);
  const double per_chunk = 1e6 * (load.router_cpu_seconds - one_chunk.router_cpu_seconds) / extra;
  return {per_chunk, 1e6 * one_chunk.router_cpu_seconds / streams - per_chunk};
}

// The load with one chunk for each stream, and with all of them.
RouterCost MeasureStreams(LoadFlags flags, const char* name, const RouterProcess& router,
                          StubVerifier& verifier, const StartStream& start, uint64_t& errors) {
  LoadResult loads[2];
  const uint32_t chunks[2] = {1, flags.chunks};
  for (int i = 0; i < 2; ++i) {
    flags.chunks = chunks[i];
    Pacer pacer(flags.chunks, flags.every);
    verifier.SetScript([&pacer](StubVerifier::Call& call) {
      call.Send(StartedEvent(call.request()));
      pacer.Add(call.shared_from_this());
    });
    loads[i] = RunStreams(flags, router, start);
    errors += loads[i].errors;
  }
  const RouterCost cost = CostOf(loads[0], loads[1], flags.streams);
  std::printf(
      "%s: %u streams at once, %lu chunks: %lu errors, %.1f us of CPU per chunk, %.0f us per request, "
      "%.0f MiB at most\n",
      name, flags.streams, loads[1].chunks, loads[0].errors + loads[1].errors, cost.per_chunk,
      cost.per_request, router.PeakMiB());
  return cost;
}

// gRPC and HTTP in turns, at one router.
int RunHttp(const LoadFlags& flags) {
  StubVerifier verifier;
  const auto router = RouterProcess::Router(flags, verifier.endpoint());
  const auto stub = v1::Generation::NewStub(ConnectTo(*router));
  SseClient client(router->http_port(), kToken,
                   R"({"prompt": "Once upon a time", "stream": true, "max_tokens": 1024, )"
                   R"("tandem": {"speculation": false}})");
  uint64_t errors = 0;
  std::vector<double> ratios;
  for (uint32_t turn = 0; turn < flags.turns; ++turn) {
    const RouterCost grpc = MeasureStreams(flags, "gRPC", *router, verifier, OverGrpc(*stub), errors);
    const RouterCost http = MeasureStreams(flags, "HTTP", *router, verifier, OverHttp(client), errors);
    ratios.push_back(http.per_chunk / grpc.per_chunk);
  }
  std::sort(ratios.begin(), ratios.end());
  std::printf("CPU per chunk, HTTP over gRPC, median: %.2f\n", ratios[ratios.size() / 2]);

  verifier.SetScript(Saying("a", 1));
  const auto first = [](const StartStream& start) {
    return [start](auto on_first, auto on_done) {
      start(on_first, [on_done](const absl::Status&, uint32_t) { on_done(); });
    };
  };
  std::vector<double> over_grpc;
  std::vector<double> over_http;
  constexpr uint32_t kTurns = 5;
  for (uint32_t turn = 0; turn <= kTurns; ++turn) {
    const auto a = Latencies(flags.latency_requests / kTurns, flags.arrival, first(OverGrpc(*stub)));
    const auto b = Latencies(flags.latency_requests / kTurns, flags.arrival, first(OverHttp(client)));
    if (turn == 0) continue;  // Warms up.
    over_grpc.insert(over_grpc.end(), a.begin(), a.end());
    over_http.insert(over_http.end(), b.begin(), b.end());
  }
  for (auto* seconds : {&over_grpc, &over_http}) std::sort(seconds->begin(), seconds->end());
  for (const double q : {0.5, 0.9, 0.99}) {
    std::printf("first token, p%.0f: %.3f ms over gRPC, %.3f ms over HTTP\n", 100 * q,
                1e3 * Quantile(over_grpc, q), 1e3 * Quantile(over_http, q));
  }
  return errors == 0 ? kExitOk : kExitFailure;
}

int Run(const LoadFlags& flags) {
  StubVerifier verifier;
  const auto router = RouterProcess::Router(flags, verifier.endpoint());
  const auto bare = RouterProcess::Bare(flags, verifier.endpoint());
  const auto stub = v1::Generation::NewStub(ConnectTo(*router));
  const auto bare_stub = v1::Generation::NewStub(ConnectTo(*bare));
  uint64_t errors = 0;
  std::vector<double> own;
  for (uint32_t turn = 0; turn < flags.turns; ++turn) {
    const RouterCost floor =
        MeasureStreams(flags, "bare relay", *bare, verifier, OverGrpc(*bare_stub), errors);
    const RouterCost cost = MeasureStreams(flags, "router", *router, verifier, OverGrpc(*stub), errors);
    own.push_back(cost.per_chunk - floor.per_chunk);
  }
  std::sort(own.begin(), own.end());
  std::printf("router beyond the bare relay, median: %.1f us of CPU per chunk\n", own[own.size() / 2]);

  verifier.SetScript(Saying("a", 1));
  const std::shared_ptr<grpc::Channel> direct_channel = CreateChannel(verifier.endpoint());
  const auto direct_stub = v1::Verifier::NewStub(direct_channel);
  const auto through = [&](auto on_first, auto on_done) {
    Generate(*stub, on_first, [on_done](const absl::Status&, uint32_t) { on_done(); });
  };
  const auto directly = [&](auto on_first, auto on_done) {
    GenerateDirectly(*direct_stub, on_first, on_done);
  };
  const auto through_bare = [&](auto on_first, auto on_done) {
    Generate(*bare_stub, on_first, [on_done](const absl::Status&, uint32_t) { on_done(); });
  };
  // In turns, so that all see the same machine; the first turn warms up.
  std::vector<double> with;
  std::vector<double> with_bare;
  std::vector<double> without;
  constexpr uint32_t kTurns = 5;
  for (uint32_t turn = 0; turn <= kTurns; ++turn) {
    const uint32_t requests = flags.latency_requests / kTurns;
    const auto a = Latencies(requests, flags.arrival, through);
    const auto b = Latencies(requests, flags.arrival, through_bare);
    const auto c = Latencies(requests, flags.arrival, directly);
    if (turn == 0) continue;
    with.insert(with.end(), a.begin(), a.end());
    with_bare.insert(with_bare.end(), b.begin(), b.end());
    without.insert(without.end(), c.begin(), c.end());
  }
  for (auto* seconds : {&with, &with_bare, &without}) std::sort(seconds->begin(), seconds->end());
  for (const double q : {0.5, 0.9, 0.99}) {
    std::printf(
        "first token, p%.0f: %.3f ms from the verifier, %.3f ms added by the bare relay, %.3f ms added by "
        "the router\n",
        100 * q, 1e3 * Quantile(without, q), 1e3 * (Quantile(with_bare, q) - Quantile(without, q)),
        1e3 * (Quantile(with, q) - Quantile(without, q)));
  }
  return errors == 0 ? kExitOk : kExitFailure;
}

int Main(int argc, char** argv) {
  LoadFlags options;
  Flags flags("tandem-router-load", "router-load",
              "Measures what a router costs, over a verifier that computes nothing.");
  flags.Group("Load")
      .Add("router", &options.router, "The tandem-router to measure.")
      .Add("model", &options.model, "Folder of the model whose tokenizer it loads.")
      .Add("streams", &options.streams, "Streams at once.")
      .InRange(1, 100000)
      .Add("chunks", &options.chunks, "Chunks of each stream.")
      .InRange(2, 1e6)
      .Add("every", &options.every, "Between two chunks of a stream.")
      .Add("turns", &options.turns,
           "How often the streams run, through the bare relay and the router in turns.")
      .InRange(1, 1000)
      .Add("latency-requests", &options.latency_requests, "Requests to measure latencies with.")
      .InRange(5, 1e6)
      .Add("arrival", &options.arrival, "Between two of these.")
      .Add("http", &options.http,
           "Compare the HTTP API with gRPC, in place of the router with a bare relay.");
  flags.Group("Bare relay")
      .Add("bare-relay-to", &options.bare_relay_to, "Serve as the bare relay to this verifier.")
      .Add("bare-relay-listen", &options.bare_relay_listen, "Where it listens.");
  if (const std::optional<int> exit_code = flags.Parse(argc, argv)) return *exit_code;
  if (!options.bare_relay_to.empty()) return ServeBareRelay(options);
  return options.http ? RunHttp(options) : Run(options);
}

}  // namespace
}  // namespace tandem::router::testing

int main(int argc, char** argv) {
  return tandem::router::testing::Main(argc, argv);
}
