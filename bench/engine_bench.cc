#include "bench/engine_bench.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/sequence_kv.h"
#include "common/model/model.h"

namespace tandem {
namespace {

constexpr size_t kReadBytesPerThread = size_t{256} << 20;
constexpr int kReadRounds = 5;

// Sums a buffer in eight independent chains, so that memory and not arithmetic is the limit.
uint64_t Sum(const std::vector<uint64_t>& words) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i + 8 <= words.size(); i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) sums[lane] += words[i + lane];
  }
  return std::accumulate(std::begin(sums), std::end(sums), uint64_t{0});
}

double MeasureReadBandwidth(int threads) {
  std::vector<std::vector<uint64_t>> buffers(static_cast<size_t>(threads));
  for (auto& buffer : buffers) buffer.assign(kReadBytesPerThread / sizeof(uint64_t), 1);
  std::vector<uint64_t> sums(buffers.size());
  double best = 0.0;
  for (int round = 0; round < kReadRounds; ++round) {
    const absl::Time start = absl::Now();
    std::vector<std::thread> team;
    for (size_t i = 0; i < buffers.size(); ++i) team.emplace_back([&, i] { sums[i] = Sum(buffers[i]); });
    for (std::thread& thread : team) thread.join();
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    best = std::max(best, static_cast<double>(kReadBytesPerThread * buffers.size()) / seconds);
  }
  return best;
}

// A context of computed tokens, and one tree row per slot below it.
struct Workload {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<BlockPool> pool;
  std::unique_ptr<SequenceKv> kv;
  std::vector<SlotId> slots;
  std::vector<float> logits;
};

absl::StatusOr<Workload> Prepare(const EngineBenchOptions& options, const std::shared_ptr<const Model>& model,
                                 uint32_t most_rows) {
  Workload work;
  CpuEngineOptions engine_options;
  engine_options.num_threads = options.threads;
  engine_options.instruction_set = options.instruction_set;
  engine_options.max_rows = std::max<uint32_t>(most_rows, 128);
  engine_options.num_blocks = (options.context + most_rows) / kBlockTokens + 4;
  TANDEM_ASSIGN_OR_RETURN(work.engine, CreateCpuEngine(model, engine_options));
  work.pool = std::make_unique<BlockPool>(
      BlockPool::Options{.num_blocks = work.engine->num_blocks(), .prefix_cache = false});
  work.kv = std::make_unique<SequenceKv>(work.pool.get(), /*salt=*/0);
  const int32_t vocab_size = model->config().vocab_size;
  TokenIds tokens(options.context);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<TokenId>(i * 7919 % static_cast<size_t>(vocab_size));
  work.kv->Start(tokens);
  TANDEM_RETURN_IF_ERROR(work.kv->Reserve(options.context));
  for (uint32_t i = 0; i < most_rows; ++i) {
    TANDEM_ASSIGN_OR_RETURN(const SlotId slot, work.kv->AllocateScratch());
    work.slots.push_back(slot);
  }
  work.logits.resize(size_t{most_rows} * static_cast<size_t>(vocab_size));
  std::vector<StepRow> rows;
  for (uint32_t position = 0; position < options.context; ++position) {
    rows.push_back({.token = tokens[position], .context = work.kv->CommittedRow(position)});
    if (rows.size() == work.engine->max_rows() || position + 1 == options.context) {
      TANDEM_RETURN_IF_ERROR(work.engine->Step(rows));
      rows.clear();
    }
  }
  return work;
}

}  // namespace

absl::StatusOr<EngineBenchResult> RunEngineBench(const EngineBenchOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model, Model::Load(options.folder));
  if (options.rows.empty()) return absl::InvalidArgumentError("--rows: expected at least one number");
  const uint32_t most_rows = *std::max_element(options.rows.begin(), options.rows.end());
  if (options.context == 0 || options.context >= static_cast<uint32_t>(model->config().max_context)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--context: ", options.context, ", expected 1 to ", model->config().max_context - 1));
  }
  EngineBenchResult result;
  TANDEM_ASSIGN_OR_RETURN(const KernelTable* kernels, SelectKernels(options.instruction_set));
  result.kernels = kernels->name;
  result.weight_bytes = model->weight_bytes();
  result.read_bytes_per_second = MeasureReadBandwidth(options.threads);
  result.floor_seconds = static_cast<double>(result.weight_bytes) / result.read_bytes_per_second;

  TANDEM_ASSIGN_OR_RETURN(Workload work, Prepare(options, model, most_rows));
  const auto vocab_size = static_cast<size_t>(model->config().vocab_size);
  std::vector<StepRow> rows;
  for (uint32_t i = 0; i < most_rows; ++i) {
    rows.push_back({.token = static_cast<TokenId>(i % vocab_size),
                    .context = {.blocks = work.kv->blocks(),
                                .num_committed = options.context,
                                .tail = absl::MakeConstSpan(work.slots).subspan(i, 1)},
                    .logits = &work.logits[i * vocab_size]});
  }
  std::vector<std::vector<double>> seconds(options.rows.size());
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    for (size_t i = 0; i < options.rows.size(); ++i) {
      const absl::Time start = absl::Now();
      TANDEM_RETURN_IF_ERROR(work.engine->Step(absl::MakeConstSpan(rows).first(options.rows[i])));
      seconds[i].push_back(absl::ToDoubleSeconds(absl::Now() - start));
    }
  }
  for (size_t i = 0; i < options.rows.size(); ++i) {
    std::sort(seconds[i].begin(), seconds[i].end());
    result.steps.push_back({.rows = options.rows[i],
                            .median_seconds = seconds[i][seconds[i].size() / 2],
                            .fastest_seconds = seconds[i].front()});
  }
  return result;
}

}  // namespace tandem
