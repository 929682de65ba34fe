// What features cost a verifier: to compute them beside a step, to keep those of committed rows, and to make
// messages of them. For the demo target on its engine, and for the sizes of larger targets without one.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "common/engine/block_pool.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/sequence_kv.h"
#include "common/model/model.h"
#include "common/rpc/draft_wire.h"
#include "verifier/feature_step.h"
#include "verifier/feature_store.h"
#include "verifier/feature_stream.h"

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

}  // namespace
}  // namespace tandem

BENCHMARK_MAIN();
