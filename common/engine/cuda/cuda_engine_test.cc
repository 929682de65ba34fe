#include "common/engine/cuda/cuda_engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/cpu/testing/random_model.h"
#include "common/engine/cuda/testing/engine_probe.h"
#include "common/engine/cuda/testing/small_engine.h"
#include "common/engine/sequence_kv.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

struct Shape {
  std::string name;
  ModelConfig config;
};

class CudaEngineShapes : public testing::TestWithParam<std::tuple<Shape, WeightType>> {};

// bfloat16 keeps 8 bits of what goes into products and of keys and values: a few parts in a thousand each.
// What weights lose as integers, both engines' lose alike; the CPU engine has no floats of 8 bits, of which
// each is off by up to a sixteenth.
TEST_P(CudaEngineShapes, GivesTheCpuEnginesLogitsButForRoundings) {
  const auto& [shape, weight_type] = GetParam();
  const bool is_of_gpus = IsGpuWeightType(weight_type);
  const auto model = SmallModel(shape.config);
  ASSERT_NE(model, nullptr);
  auto reference = CreateCpuEngine(model, {.num_blocks = 7,
                                           .instruction_set = InstructionSet::kPortable,
                                           .weight_type = is_of_gpus ? WeightType::kAsInFile : weight_type});
  ASSERT_TRUE(reference.ok()) << reference.status();
  const auto engine = Open(*model, {.num_blocks = 7, .max_rows = 70, .weight_type = weight_type});
  ASSERT_NE(engine, nullptr);
  const TokenIds tokens = SomeTokens(45, model->config().vocab_size);
  const auto expected = ComputeAll(reference->get(), tokens, 45);
  EXPECT_LT(RelativeError(ComputeAll(engine.get(), tokens, 20), expected), is_of_gpus ? 0.15 : 0.02);
}

TEST(CudaEngineTest, LoadingStopsAtTheNextTensor) {
  const auto model = SmallModel();
  ASSERT_NE(model, nullptr);
  LoadProgress progress("small", model->weight_bytes(), {.terminal = false, .log = [](absl::string_view) {}});
  int asked = 0;
  progress.StopWhen([&] { return ++asked == 3; });
  const auto engine = CudaEngine::Create(*model, {.num_blocks = 7, .progress = &progress},
                                         std::make_unique<HostOps>(HostOps::Options()));
  EXPECT_TRUE(absl::IsCancelled(engine.status())) << engine.status();
  EXPECT_EQ(asked, 3);
}

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes = {{"qwen3", SmallConfig()}};
  ModelConfig config = SmallConfig();
  config.architecture = "LlamaForCausalLM";
  config.qk_norm = false;
  config.num_heads = 5;
  config.num_kv_heads = 5;
  config.head_dim = 16;
  config.attention_bias = true;
  config.mlp_bias = true;
  config.attention_output_bias = true;
  config.tied_embeddings = true;
  config.rope_scaling = {.kind = RopeScaling::Kind::kLlama3,
                         .factor = 8,
                         .low_frequency_factor = 1,
                         .high_frequency_factor = 4,
                         .original_context = 32};
  shapes.push_back({"llama3_biases_tied", config});
  config = SmallConfig();
  config.architecture = "MistralForCausalLM";
  config.qk_norm = false;
  config.num_heads = 17;
  config.num_kv_heads = 1;
  config.head_dim = 6;
  config.sliding_window = 9;
  shapes.push_back({"mistral_one_kv_head_window", config});
  return shapes;
}

INSTANTIATE_TEST_SUITE_P(All, CudaEngineShapes,
                         testing::Combine(testing::ValuesIn(Shapes()), testing::ValuesIn(kGpuWeightTypes)),
                         [](const auto& param_info) {
                           return absl::StrCat(std::get<0>(param_info.param).name, "_",
                                               TestName(std::get<1>(param_info.param)));
                         });

class CudaEngineWeights : public testing::TestWithParam<WeightType> {};

INSTANTIATE_TEST_SUITE_P(All, CudaEngineWeights, testing::ValuesIn(kGpuProductTypes),
                         [](const auto& param_info) { return TestName(param_info.param); });

// The plainest run: one row a step, all positions in order in blocks 0, 1, 2, ...
class PlainRun {
 public:
  explicit PlainRun(Engine* engine) : engine_(engine), blocks_(engine->num_blocks()) {
    for (BlockId block = 0; block < blocks_.size(); ++block) blocks_[block] = block;
  }

  // Logits after the last of `tokens`.
  const Logits& After(const TokenIds& tokens) {
    const auto known = known_.find(tokens);
    if (known != known_.end()) return known->second;
    const auto differs =
        std::mismatch(tokens.begin(), tokens.end(), computed_.begin(), computed_.end()).first;
    computed_.resize(std::min<size_t>(static_cast<size_t>(differs - tokens.begin()), tokens.size() - 1));
    while (computed_.size() < tokens.size()) {
      computed_.push_back(tokens[computed_.size()]);
      Logits logits(static_cast<size_t>(engine_->config().vocab_size));
      const StepRow row = {
          .token = computed_.back(),
          .context = {.blocks = blocks_, .num_committed = static_cast<uint32_t>(computed_.size())},
          .logits = logits.data()};
      const absl::Status status = engine_->Step({row});
      EXPECT_TRUE(status.ok()) << status;
      known_[computed_] = std::move(logits);
    }
    return known_[tokens];
  }

 private:
  Engine* const engine_;
  std::vector<BlockId> blocks_;
  TokenIds computed_;
  std::map<TokenIds, Logits> known_;
};

// What drafters and verifiers do, in random order and company: prompts in chunks, trees below committed
// tokens, and nodes that are copied to where they belong. Every row's logits are those of the plainest run.
TEST_P(CudaEngineWeights, RowsDoNotDependOnTheirCompany) {
  const auto model = SmallModel();
  const auto plain =
      Open(*model, {.num_blocks = 7, .max_rows = 1, .weight_type = GetParam(), .use_graphs = false});
  const auto engine =
      Open(*model, {.num_blocks = 40, .max_rows = 80, .weight_type = GetParam()}, {.seed = 5});
  ASSERT_NE(engine, nullptr);
  std::mt19937_64 random(20);
  const auto below = [&](size_t limit) { return static_cast<uint32_t>(random() % limit); };
  PlainRun expected(plain.get());
  struct Session {
    TokenIds tokens;
    uint32_t computed = 0;
    std::vector<BlockId> blocks;
  };
  std::vector<Session> sessions(3);
  for (uint32_t s = 0; s < 3; ++s) {
    sessions[s].tokens = SomeTokens(20 + 4 * s, 131);
    for (uint32_t b = 0; b < 7; ++b) sessions[s].blocks.push_back((s * 7 + b) * 5 % 37);
  }
  for (int round = 0; round < 14; ++round) {
    std::vector<StepRow> rows;
    std::vector<std::unique_ptr<std::vector<SlotId>>> tails;
    std::vector<TokenIds> contexts;
    std::vector<std::unique_ptr<Logits>> logits;
    const auto add = [&](TokenId token, const RowContext& context, TokenIds all) {
      logits.push_back(std::make_unique<Logits>(131));
      contexts.push_back(std::move(all));
      const bool is_wanted = below(4) > 0;
      rows.push_back(
          {.token = token, .context = context, .logits = is_wanted ? logits.back()->data() : nullptr});
    };
    std::shuffle(sessions.begin(), sessions.end(), random);
    std::vector<KvCopy> copies;
    for (Session& session : sessions) {
      if (session.computed < session.tokens.size()) {
        const uint32_t end = std::min<uint32_t>(static_cast<uint32_t>(session.tokens.size()),
                                                session.computed + 1 + below(12));
        for (; session.computed < end; ++session.computed) {
          add(session.tokens[session.computed],
              {.blocks = session.blocks, .num_committed = session.computed + 1},
              {session.tokens.begin(), session.tokens.begin() + session.computed + 1});
        }
        continue;
      }
      // A tree of up to 5 nodes in the last block of the session, of which one becomes a token.
      const uint32_t base = static_cast<uint32_t>(session.tokens.size());
      if (base > 60) continue;
      std::vector<TokenIds> paths = {{}};
      std::vector<std::vector<SlotId>> slots = {{}};
      const uint32_t count = 1 + below(5);
      for (uint32_t node = 0; node < count; ++node) {
        const uint32_t parent = below(paths.size());
        TokenIds path = paths[parent];
        path.push_back(static_cast<TokenId>(below(131)));
        std::vector<SlotId> tail = slots[parent];
        tail.push_back(session.blocks.back() * kBlockTokens + node);
        tails.push_back(std::make_unique<std::vector<SlotId>>(tail));
        TokenIds all = session.tokens;
        all.insert(all.end(), path.begin(), path.end());
        add(path.back(), {.blocks = session.blocks, .num_committed = base, .tail = *tails.back()}, all);
        paths.push_back(path);
        slots.push_back(tail);
      }
      const uint32_t accepted = 1 + below(count);
      for (size_t i = 0; i < paths[accepted].size(); ++i) {
        const auto position = static_cast<uint32_t>(base + i);
        copies.push_back(
            {.from = slots[accepted][i],
             .to = session.blocks[position / kBlockTokens] * kBlockTokens + position % kBlockTokens});
      }
      session.tokens.insert(session.tokens.end(), paths[accepted].begin(), paths[accepted].end());
      session.computed = static_cast<uint32_t>(session.tokens.size());
      // What comes next has to be computed.
      session.tokens.push_back(static_cast<TokenId>(below(131)));
    }
    ASSERT_TRUE(engine->Step(rows).ok());
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].logits == nullptr) continue;
      ASSERT_TRUE(SameBits(*logits[i], expected.After(contexts[i]))) << "round " << round << ", row " << i;
    }
    ASSERT_TRUE(engine->CopyKv(copies).ok());
  }
}

TEST_P(CudaEngineWeights, GraphsGiveTheBitsOfSingleLaunches) {
  const auto model = SmallModel();
  const TokenIds tokens = SomeTokens(90, 131);
  const auto eager = Open(
      *model, {.num_blocks = 7, .max_rows = 90, .weight_type = GetParam(), .use_graphs = false}, {.seed = 1});
  const auto graphs = Open(*model, {.num_blocks = 7, .max_rows = 90, .weight_type = GetParam()}, {.seed = 2});
  for (uint32_t chunk : {90u, 13u}) {
    const auto expected = ComputeAll(eager.get(), tokens, chunk);
    const auto got = ComputeAll(graphs.get(), tokens, chunk);
    for (size_t i = 0; i < tokens.size(); ++i) ASSERT_TRUE(SameBits(got[i], expected[i])) << i;
  }
  EXPECT_EQ(OpsOf(*eager).num_replays(), 0u);
  EXPECT_EQ(OpsOf(*graphs).num_replays(), 1u + 7u);
}

// The blocks of threads of attention depend on the GPU; their sums do not.
TEST_P(CudaEngineWeights, LogitsDoNotDependOnTheNumberOfMultiprocessors) {
  const auto model = SmallModel();
  const TokenIds tokens = SomeTokens(30, 131);
  std::vector<Logits> expected;
  for (const uint32_t num_multiprocessors : {1u, 3u, 132u}) {
    const auto engine = Open(*model, {.num_blocks = 7, .max_rows = 30, .weight_type = GetParam()},
                             {.num_multiprocessors = num_multiprocessors});
    const std::vector<Logits> got = ComputeAll(engine.get(), tokens, 30);
    if (expected.empty()) expected = got;
    for (size_t i = 0; i < tokens.size(); ++i) ASSERT_TRUE(SameBits(got[i], expected[i])) << i;
  }
}

// Law 2 in steps of many sessions, with graphs and single launches, of more rows than a tile has and of
// vocabularies of any size.
TEST(CudaEngineTest, ChoosesWhatTheTargetSamplerChooses) {
  struct Case {
    int32_t vocab;
    bool use_graphs;
  };
  for (const auto& [vocab, use_graphs] : {Case{131, true}, Case{67, false}, Case{2, true}}) {
    ModelConfig config = SmallConfig();
    config.vocab_size = vocab;
    const auto engine =
        Open(*SmallModel(config), {.num_blocks = 30, .max_rows = 120, .use_graphs = use_graphs},
             {.seed = static_cast<uint64_t>(vocab)});
    ASSERT_NE(engine, nullptr);
    ASSERT_TRUE(engine->chooses());
    ChoiceProbe probe(engine.get(), 5, static_cast<uint64_t>(vocab));
    for (const uint32_t most_nodes : {0u, 6u, 22u, 22u}) probe.ExpectTheSamplersChoices(most_nodes);
    EXPECT_GT(probe.num_choices(), 40u);
    EXPECT_EQ(OpsOf(*engine).num_replays() > 0, use_graphs);
  }
}

// A step in which every row asks for a choice is one upload, one download of a word for each row, and one
// wait, whatever its size; logits come in addition.
TEST(CudaEngineTest, ChoicesAreAWordForEachRow) {
  const auto model = SmallModel();
  const auto engine = Open(*model, {.num_blocks = 6, .max_rows = 90});
  const SamplingParameters sampling = {.temperature = 0.7f, .top_p = 0.9f, .seed = 3};
  const std::vector<BlockId> blocks = {0, 1, 2, 3, 4, 5};
  const auto step = [&](uint32_t num_rows, uint32_t num_logits) {
    std::vector<TokenId> tokens(num_rows, -1);
    std::vector<SeededChoice> choices(num_rows);
    std::vector<Logits> logits(num_rows, Logits(131));
    std::vector<StepRow> rows;
    for (uint32_t i = 0; i < num_rows; ++i) {
      choices[i] = {.sampling = &sampling, .position = i + 1, .token = &tokens[i]};
      rows.push_back({.token = 5, .context = {.blocks = blocks, .num_committed = i + 1}});
      if (i < num_logits) {
        rows.back().logits = logits[i].data();
      } else {
        rows.back().choice = &choices[i];
      }
    }
    const HostOps::Traffic before = OpsOf(*engine).traffic();
    EXPECT_TRUE(engine->Step(rows).ok());
    for (uint32_t i = num_logits; i < num_rows; ++i) EXPECT_GE(tokens[i], 0);
    return OpsOf(*engine).traffic() - before;
  };
  for (const uint32_t num_rows : {1u, 20u, 90u}) {
    const HostOps::Traffic traffic = step(num_rows, 0);
    EXPECT_EQ(traffic.uploads, 1u);
    EXPECT_EQ(traffic.downloads, 1u);
    EXPECT_EQ(traffic.bytes_down, num_rows * 4);
    EXPECT_EQ(traffic.waits, 1u);
  }
  HostOps::Traffic traffic = step(20, 3);
  EXPECT_EQ(traffic.downloads, 2u);
  EXPECT_EQ(traffic.bytes_down, 3 * 131 * 4 + 17 * 4u);
  EXPECT_EQ(traffic.waits, 1u);
  // Two tiles: the first is waited for by itself, because its logits make room for the second's.
  traffic = step(90, 70);
  EXPECT_EQ(traffic.downloads, 3u);
  EXPECT_EQ(traffic.bytes_down, 70 * 131 * 4 + 20 * 4u);
  EXPECT_EQ(traffic.waits, 2u);
  traffic = step(90, 90);
  EXPECT_EQ(traffic.downloads, 2u);
  EXPECT_EQ(traffic.waits, 2u);
}

// The host goes on between the halves of a step, and after copies: only the end of a step is waited for.
TEST(CudaEngineTest, OnlyTheEndOfAStepIsWaitedFor) {
  const auto model = SmallModel();
  const auto engine = Open(*model, {.num_blocks = 6, .max_rows = 40});
  ASSERT_TRUE(engine->overlaps());
  const auto waits = [&] { return OpsOf(*engine).traffic().waits; };
  const TokenIds tokens = SomeTokens(30, 131);
  const std::vector<Logits> expected = ComputeAll(engine.get(), tokens, 30);

  // The same tokens in other blocks, by a step, copies of its slots in many calls, and one more row.
  const std::vector<BlockId> written = {3, 4};
  std::vector<StepRow> rows;
  for (uint32_t i = 0; i < 29; ++i) {
    rows.push_back({.token = tokens[i], .context = {.blocks = written, .num_committed = i + 1}});
  }
  uint64_t before = waits();
  ASSERT_TRUE(engine->Start(rows).ok());
  EXPECT_EQ(waits(), before);
  ASSERT_TRUE(engine->Finish().ok());
  EXPECT_EQ(waits(), before + 1);

  before = waits();
  const auto copy = [&](uint32_t begin, uint32_t end) {
    std::vector<KvCopy> copies;
    for (uint32_t i = begin; i < end; ++i) copies.push_back({.from = 3 * 16 + i, .to = 16 + i});
    EXPECT_TRUE(engine->CopyKv(copies).ok());
  };
  copy(0, 17);
  EXPECT_EQ(waits(), before);
  const std::vector<BlockId> copied = {1, 2};
  Logits logits(131);
  const StepRow last = {
      .token = tokens[29], .context = {.blocks = copied, .num_committed = 30}, .logits = logits.data()};
  copy(17, 29);
  ASSERT_TRUE(engine->Start({&last, 1}).ok());
  ASSERT_TRUE(engine->Finish().ok());
  // Two uploads at a time may not have been read yet; here were three.
  EXPECT_EQ(waits(), before + 2);
  EXPECT_TRUE(SameBits(logits, expected[29]));
}

TEST(CudaEngineTest, TheHalvesOfAStepComeInOrder) {
  const auto engine = Open(*SmallModel(), {.num_blocks = 6, .max_rows = 40});
  const std::vector<BlockId> blocks = {0};
  const StepRow row = {.token = 1, .context = {.blocks = blocks, .num_committed = 1}};
  constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;
  EXPECT_EQ(engine->Finish().code(), kRefused);
  ASSERT_TRUE(engine->Start({&row, 1}).ok());
  EXPECT_EQ(engine->Start({&row, 1}).code(), kRefused);
  EXPECT_EQ(engine->Step({&row, 1}).code(), kRefused);
  EXPECT_EQ(engine->CopyKv({}).code(), kRefused);
  EXPECT_TRUE(engine->Finish().ok());
  EXPECT_EQ(engine->Finish().code(), kRefused);
  // Nothing is to be finished after a step that was refused.
  const StepRow wrong = {.token = 131, .context = row.context};
  EXPECT_EQ(engine->Start({&wrong, 1}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(engine->Finish().code(), kRefused);
  ASSERT_TRUE(engine->Start({}).ok());
  EXPECT_TRUE(engine->Finish().ok());
  EXPECT_TRUE(engine->Step({&row, 1}).ok());
}

// Contexts whose blocks and tails need more room than was set aside: graphs know another place for them then.
TEST(CudaEngineTest, MakesRoomForLongTails) {
  const auto model = SmallModel();
  const auto engine = Open(*model, {.num_blocks = 7, .max_rows = 1});
  const auto plain = Open(*model, {.num_blocks = 7, .max_rows = 1, .use_graphs = false});
  const TokenIds tokens = SomeTokens(98, 131);
  const auto expected = ComputeAll(plain.get(), tokens, 1);
  std::vector<SlotId> slots;
  for (size_t i = 0; i < tokens.size(); ++i) {
    slots.push_back(static_cast<SlotId>(111 - i));
    Logits logits(131);
    const StepRow row = {.token = tokens[i], .context = {.tail = slots}, .logits = logits.data()};
    ASSERT_TRUE(engine->Step({row}).ok());
    ASSERT_TRUE(SameBits(logits, expected[i])) << i;
  }
}

TEST(CudaEngineTest, RefusesWhatIsOutOfRange) {
  const auto model = SmallModel();
  const auto engine = Open(*model, {.num_blocks = 2, .max_rows = 3});
  const std::vector<BlockId> blocks = {0, 2};
  const StepRow beyond = {.token = 1, .context = {.blocks = blocks, .num_committed = 17}};
  EXPECT_THAT(engine->Step({beyond}).message(), HasSubstr("names block 2; there are 2"));
  const StepRow fine = {.token = 1, .context = {.blocks = blocks, .num_committed = 1}};
  EXPECT_THAT(engine->Step({fine, fine}).message(), HasSubstr("as does an earlier row"));
  EXPECT_THAT(engine->Step({fine, fine, fine, fine}).message(), HasSubstr("takes 3 at most"));
  EXPECT_EQ(engine->CopyKv({{.from = 0, .to = 32}}).code(), absl::StatusCode::kInvalidArgument);
  const auto refusal = [&](const SeededChoice& choice, float* logits = nullptr) {
    StepRow row = fine;
    row.choice = &choice;
    row.logits = logits;
    const absl::Status status = engine->Step({row});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const SamplingParameters sampling;
  SamplingParameters bad_sampling;
  bad_sampling.logit_bias = {{131, 1.0f}};
  const std::vector<TokenCount> bad_counts = {{130, 1}, {131, 0}};
  TokenId token = -1;
  Logits logits(131);
  EXPECT_THAT(refusal({.sampling = &sampling}), HasSubstr("a place for the token"));
  EXPECT_THAT(refusal({.token = &token}), HasSubstr("expected parameters"));
  EXPECT_THAT(refusal({.sampling = &sampling, .token = &token}, logits.data()), HasSubstr("none for logits"));
  EXPECT_THAT(refusal({.sampling = &bad_sampling, .token = &token}),
              HasSubstr("sampling.logit_bias: token 131"));
  EXPECT_THAT(refusal({.sampling = &sampling, .counts = bad_counts, .token = &token}),
              HasSubstr("counts token 131"));
  EXPECT_THAT(refusal({.sampling = &sampling, .own_counts = bad_counts, .token = &token}),
              HasSubstr("counts token 131"));
  EXPECT_EQ(token, -1);
  EXPECT_EQ(CudaEngine::Create(*model, {.num_blocks = 2},
                               std::make_unique<HostOps>(HostOps::Options{.memory_limit = 100000}))
                .status()
                .code(),
            absl::StatusCode::kResourceExhausted);
  // Nothing is rounded to bfloat16; integers are rounded from anything.
  const auto in_float32 = MakeRandomModel({.config = SmallConfig()});
  const auto refused =
      CudaEngine::Create(*in_float32, {.num_blocks = 2}, std::make_unique<HostOps>(HostOps::Options{}));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(refused.status().message(), HasSubstr("float32"));
  EXPECT_NE(Open(*in_float32, {.num_blocks = 2, .weight_type = WeightType::kInt8}), nullptr);
  const auto refused_tokens =
      CudaEngine::Create(*in_float32, {.num_blocks = 2, .weight_type = WeightType::kFp8},
                         std::make_unique<HostOps>(HostOps::Options{}));
  EXPECT_EQ(refused_tokens.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(refused_tokens.status().message(), HasSubstr("[131, 32] in float32"));
}

TEST(CudaEngineTest, BelongsToOneThreadAtATime) {
  const auto model = SmallModel();
  const std::vector<BlockId> blocks = {0};
  const StepRow row = {.token = 1, .context = {.blocks = blocks, .num_committed = 1}};
  CudaEngine* engine_in_use = nullptr;
  std::vector<absl::Status> during;
  const auto engine = Open(*model, {.num_blocks = 2, .max_rows = 3}, {.before_product = [&] {
    if (engine_in_use == nullptr) return;
    std::thread([&] { during.push_back(engine_in_use->Step({row})); }).join();
  }});
  // Taking turns is fine.
  absl::Status other;
  std::thread([&] { other = engine->Step({row}); }).join();
  EXPECT_TRUE(other.ok()) << other;
  EXPECT_TRUE(engine->Step({row}).ok());
  engine_in_use = engine.get();
  EXPECT_TRUE(engine->Step({row}).ok());
  ASSERT_FALSE(during.empty());
  for (const absl::Status& status : during) EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
}

// What weights take on the device is what their type says.
TEST(CudaEngineTest, WeightTypesTakeTheMemoryTheySay) {
  ModelConfig config = SmallConfig();
  config.hidden_size = 256;
  config.intermediate_size = 512;
  config.num_layers = 4;
  const auto model = SmallModel(config);
  std::map<WeightType, uint64_t> taken;
  for (const WeightType weight_type : kGpuWeightTypes) {
    const auto engine = Open(*model, {.num_blocks = 2, .max_rows = 1, .weight_type = weight_type});
    taken[weight_type] = OpsOf(*engine).memory_used();
  }
  uint64_t weights = 0;
  for (const LayerWeights& layer : model->layers()) {
    for (const TensorView& matrix :
         {layer.query, layer.key, layer.value, layer.attention_out, layer.gate, layer.up, layer.down}) {
      weights += static_cast<uint64_t>(matrix.num_elements());
    }
  }
  // Tokens' matrices, outputs beyond the last and rounded inputs come on top.
  const auto saved = [&](WeightType type) {
    return static_cast<double>(taken.at(WeightType::kAsInFile)) - static_cast<double>(taken.at(type));
  };
  const auto num_weights = static_cast<double>(weights);
  EXPECT_NEAR(saved(WeightType::kInt8) / num_weights, 2 - 8.25 / 8, 0.1);
  EXPECT_NEAR(saved(WeightType::kInt4) / num_weights, 2 - 4.25 / 8, 0.1);
  EXPECT_NEAR(saved(WeightType::kFp8) / num_weights, 1, 0.1);
  EXPECT_EQ(taken.at(WeightType::kFp8), taken.at(WeightType::kFp8Tensor));
}

// The demo models' float32 logits, within bfloat16's roundings.
TEST(CudaEngineTest, GivesTheGoldenLogits) {
  const auto model =
      Model::Load(absl::StrCat(TANDEM_SOURCE_DIR, "/deploy/demo-models/tandem-draft-general-1m"));
  ASSERT_TRUE(model.ok()) << model.status();
  const auto text =
      ReadFile(absl::StrCat(TANDEM_SOURCE_DIR, "/tests/golden/tandem-draft-general-1m.json"), 16 << 20);
  ASSERT_TRUE(text.ok()) << text.status();
  const auto engine = Open(**model, {.num_blocks = 32, .max_rows = 64});
  ASSERT_NE(engine, nullptr);
  const nlohmann::json golden = nlohmann::json::parse(*text);
  ASSERT_FALSE(golden["cases"].empty());
  for (const nlohmann::json& test_case : golden["cases"]) {
    const auto prompt = test_case["prompt_ids"].get<TokenIds>();
    const Logits logits = ComputeAll(engine.get(), prompt, 64).back();
    const auto top_ids = test_case["top8_ids"].get<TokenIds>();
    const auto top_logits = test_case["top8_logits"].get<std::vector<float>>();
    for (size_t i = 0; i < top_ids.size(); ++i) {
      EXPECT_NEAR(logits[static_cast<size_t>(top_ids[i])], top_logits[i], 0.1) << test_case["label"];
    }
  }
}

}  // namespace
}  // namespace tandem
