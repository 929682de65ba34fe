// What features cost a verifier: to compute them beside a step, to keep those of committed rows, and to make
// messages of them. For the demo target on its engine, and for the sizes of larger targets without one.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "benchmark/benchmark.h"
#include "common/base/clock.h"
#include "common/base/temporary_folder.h"
#include "common/engine/block_pool.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/sequence_kv.h"
#include "common/model/model.h"
#include "common/rpc/draft_wire.h"
#include "common/rpc/local_sockets.h"
#include "common/rpc/server.h"
#include "common/rpc/server_bidi.h"
#include "tandem/v1/drafter.grpc.pb.h"
#include "verifier/rpc/drafter_links.h"
#include "verifier/session/feature_step.h"
#include "verifier/session/feature_store.h"
#include "verifier/session/feature_stream.h"

namespace tandem {
namespace {

constexpr uint32_t kBlocks = 256;

template <class Value>
Value Check(absl::StatusOr<Value> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
  std::exit(1);
}

// Three layers of a target, as EAGLE-3 reads them.
FeatureNeeds ThreeOf(uint32_t num_layers) {
  return {.layers = {2, num_layers / 2, num_layers - 3}};
}

// A session of committed text.
struct Text {
  explicit Text(uint32_t length) : pool({.num_blocks = kBlocks}), kv(&pool, 0) {
    kv.Append(TokenIds(length + 1, 1));
    if (!kv.Reserve(length + 1).ok()) std::exit(1);
    kv.MarkComputed(length);
  }
  BlockPool pool;
  SequenceKv kv;
};

// Rows of committed text into the store. Arguments: rows, hidden size.
void KeepRows(benchmark::State& state) {
  const auto rows = static_cast<uint32_t>(state.range(0));
  FeatureStore store({.num_blocks = kBlocks,
                      .hidden_size = static_cast<uint32_t>(state.range(1)),
                      .num_layers = 32,
                      .max_bytes = uint64_t{8} << 30});
  Check(store.Keep(ThreeOf(32)));
  Text text(rows);
  std::vector<StepRow> step;
  for (uint32_t i = 0; i < rows; ++i) step.push_back({.token = 1, .context = text.kv.CommittedRow(i)});
  FeatureStep features;
  features.Plan(&store, absl::MakeSpan(step));
  for (auto _ : state) features.KeepCommitted(step, &store);
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * rows * 3 * state.range(1) * 2);
}
BENCHMARK(KeepRows)
    ->ArgNames({"rows", "hidden"})
    ->ArgsProduct({{5, 160}, {4096, 8192}})
    ->Unit(benchmark::kMicrosecond);

// From the store to the bytes that are handed to gRPC. Arguments: rows of one message, hidden size, int8.
void SendRows(benchmark::State& state) {
  const auto rows = static_cast<uint32_t>(state.range(0));
  FeatureStore store({.num_blocks = kBlocks,
                      .hidden_size = static_cast<uint32_t>(state.range(1)),
                      .num_layers = 32,
                      .max_bytes = uint64_t{8} << 30});
  FeatureNeeds needs = ThreeOf(32);
  if (state.range(2) != 0) needs.type = FeatureType::kInt8;
  Check(store.Keep(needs));
  Text text(rows);
  std::vector<float> states(size_t{3} * store.hidden_size(), 0.37f);
  for (uint32_t i = 0; i < rows; ++i) {
    store.Write(text.kv.CommittedSlot(i), {.layers = needs.layers, .states = states.data()});
  }
  const FeatureText computed{.store = &store, .kv = &text.kv, .computed = rows};
  for (auto _ : state) {
    FeatureStream stream;
    stream.Start(needs);
    const uint32_t waiting = stream.NumWaiting(computed);
    DraftRequest request{.session = 1, .event = stream.Take(computed, 1, waiting)};
    std::string wire = DraftRequestToProto(std::move(request)).SerializeAsString();
    benchmark::DoNotOptimize(wire.data());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * static_cast<int64_t>(rows) * 3 *
                          state.range(1) * (state.range(2) != 0 ? 1 : 2));
}
BENCHMARK(SendRows)
    ->ArgNames({"rows", "hidden", "int8"})
    ->ArgsProduct({{5, 10}, {4096, 8192}, {0, 1}})
    ->Unit(benchmark::kMicrosecond);

// A step of the demo target behind 256 tokens, features of every row included. Arguments: rows, whether they
// ask for them.
void DemoStep(benchmark::State& state) {
  static const auto* const model =
      new std::shared_ptr<const Model>(Check(Model::Load("deploy/demo-models/tandem-target-15m")));
  static Engine* const engine =
      Check(CreateCpuEngine(*model, {.num_blocks = kBlocks, .num_threads = 1})).release();
  const auto rows = static_cast<uint32_t>(state.range(0));
  constexpr uint32_t kBefore = 256;
  FeatureStore store(FeatureStore::OptionsFor(*engine, uint64_t{1} << 30));
  if (state.range(1) != 0) Check(store.Keep(ThreeOf(store.num_layers())));
  Text text(kBefore + rows);
  std::vector<StepRow> prompt;
  for (uint32_t i = 0; i < kBefore; ++i) prompt.push_back({.token = 1, .context = text.kv.CommittedRow(i)});
  if (!engine->Step(prompt).ok()) std::exit(1);
  std::vector<StepRow> step;
  for (uint32_t i = 0; i < rows; ++i)
    step.push_back({.token = 1, .context = text.kv.CommittedRow(kBefore + i)});
  FeatureStep features;
  for (auto _ : state) {
    features.Plan(&store, absl::MakeSpan(step));
    if (!engine->Step(step).ok()) std::exit(1);
    features.KeepCommitted(step, &store);
  }
}
BENCHMARK(DemoStep)
    ->ArgNames({"rows", "features"})
    ->ArgsProduct({{1, 17, 128}, {0, 1}})
    ->Unit(benchmark::kMicrosecond);

// Counts, and is waited for without spinning: the threads that carry messages need the cores.
class Count {
 public:
  void Add() {
    absl::MutexLock lock(&mutex_);
    ++count_;
  }
  void Await(int64_t count) {
    const auto reached = [this, count]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return count_ >= count; };
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&reached));
  }

 private:
  absl::Mutex mutex_;
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A drafter that does nothing: it answers each commit with a tree of 16 nodes, and reads features.
class Sink final : public v1::Drafter::CallbackService {
 public:
  Sink() {
    grow_.set_session(1);
    grow_.mutable_grow()->set_epoch(1);
    grow_.mutable_grow()->set_first_id(1);
    for (uint32_t i = 0; i < 16; ++i) {
      grow_.mutable_grow()->add_parents(i);
      grow_.mutable_grow()->add_tokens(1000 + i);
      grow_.mutable_grow()->add_scores(0.5f);
    }
  }
  grpc::ServerBidiReactor<v1::DraftRequest, v1::DraftResponse>* Draft(
      grpc::CallbackServerContext* context) override {
    auto stream = ServerBidi<v1::DraftRequest, v1::DraftResponse>::Create(context);
    return stream->Start({.on_message = [this, stream](const v1::DraftRequest& request) {
      if (request.has_commit()) stream->Write(grow_);
      num_read_.Add();
    }});
  }
  void AwaitRead(int64_t count) { num_read_.Await(count); }

 private:
  v1::DraftResponse grow_;
  Count num_read_;
};

// A verifier's link to it, over TCP's loopback or a socket of the machine.
class Loopback {
 public:
  explicit Loopback(bool over_socket) {
    ServerOptions options{.listen_address = "127.0.0.1:0"};
    v1::ServerInfo info;
    if (over_socket) {
      info.set_local_socket(DrawSocketId());
      options.local_socket = Check(LocalSocketPath(folder_.path(), info.local_socket()));
    }
    server_ = Check(ServerRunner::Start(options, {{v1::Drafter::service_full_name(), &sink_}},
                                        {.server_info = [info] { return info; }}));
    links_.emplace(DrafterLinks::Callbacks{.on_up = [](LinkId) {},
                                           .on_down = [](LinkId, const absl::Status&) {},
                                           .on_response =
                                               [this](LinkId link, const DraftResponse&, size_t) {
                                                 links_->Acknowledge(link);
                                                 num_answers_.Add();
                                               },
                                           .on_malformed = [](LinkId, const absl::Status&) {},
                                           .on_gone = [](LinkId, const std::string&) {}},
                   &clock_,
                   DrafterLinks::Options{.local_sockets = over_socket ? folder_.path() : std::string()});
    link_ = Check(links_->Acquire(server_->address()));
    // The first message waits until the stream has begun.
    Send({.session = 1, .event = CloseSession{}});
    sink_.AwaitRead(1);
    if (links_->IsLocal(link_) != over_socket) std::exit(1);
  }
  void Send(DraftRequest request) { links_->Send(link_, std::move(request)); }
  // Until so many messages that Send was given have been read, or answered.
  void AwaitRead(int64_t count) { sink_.AwaitRead(count + 1); }
  void AwaitAnswers(int64_t count) { num_answers_.Await(count); }

 private:
  const TemporaryFolder folder_;
  const SystemClock clock_;
  Sink sink_;
  std::unique_ptr<ServerRunner> server_;
  Count num_answers_;
  std::optional<DrafterLinks> links_;
  LinkId link_ = 0;
};

// From a commit with the features of its five tokens until the drafter's tree is there, with nothing computed
// in between. Arguments: hidden size, 0 for none, and whether over a socket.
void CommitToGrow(benchmark::State& state) {
  Loopback loopback(state.range(1) != 0);
  Commit commit{.epoch = 1, .commit_no = 1, .tokens = {1, 2, 3, 4, 5}};
  if (state.range(0) != 0) {
    commit.features =
        Features{.epoch = 1, .states = std::string(static_cast<size_t>(5 * 3 * 2 * state.range(0)), 'x')};
  }
  int64_t sent = 0;
  for (auto _ : state) {
    loopback.Send({.session = 1, .event = commit});
    loopback.AwaitAnswers(++sent);
  }
}
BENCHMARK(CommitToGrow)
    ->ArgNames({"hidden", "socket"})
    ->ArgsProduct({{0, 384, 4096}, {0, 1}})
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

// What one round of many sessions adds, from the verifier's link until the drafter has read it. An iteration
// is a round: with 20 ms for a step, what takes less keeps up. Arguments: sessions, rows of each, hidden
// size, int8, and whether over a socket. CPU time is that of both ends.
void CarryRows(benchmark::State& state) {
  const auto sessions = static_cast<uint64_t>(state.range(0));
  const FeatureType type = state.range(3) != 0 ? FeatureType::kInt8 : FeatureType::kBf16;
  const uint64_t bytes = static_cast<uint64_t>(state.range(1)) *
                         FeatureRowBytes(type, /*num_states=*/3, static_cast<uint32_t>(state.range(2)));
  Loopback loopback(state.range(4) != 0);
  int64_t sent = 0;
  for (auto _ : state) {
    for (uint64_t session = 1; session <= sessions; ++session, ++sent) {
      loopback.Send({.session = session,
                     .event = Features{.epoch = 1, .type = type, .states = std::string(bytes, 'x')}});
    }
    loopback.AwaitRead(sent);
  }
  state.SetBytesProcessed(sent * static_cast<int64_t>(bytes));
}
BENCHMARK(CarryRows)
    ->ArgNames({"sessions", "rows", "hidden", "int8", "socket"})
    ->ArgsProduct({{1}, {5}, {4096}, {0}, {0, 1}})
    ->ArgsProduct({{64}, {5}, {4096}, {0, 1}, {0, 1}})
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tandem

BENCHMARK_MAIN();
