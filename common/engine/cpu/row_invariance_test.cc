// Law 1 as a property: whatever is in the batch, and however a token's context came to be where it is, its
// logits are those of the plainest run there is, bit for bit.

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/cpu/random_model.h"
#include "common/engine/sequence_kv.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using Logits = std::vector<float>;

bool SameBits(const Logits& a, const Logits& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The plainest run: one thread, portable arithmetic, one row a step, all positions in order in blocks 0, 1,
// 2, ...
class Reference {
 public:
  explicit Reference(std::shared_ptr<const Model> model) {
    auto engine = CreateCpuEngine(std::move(model), {.num_blocks = 16, .max_rows = 1});
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    for (BlockId block = 0; block < engine_->num_blocks(); ++block) blocks_.push_back(block);
  }

  // Logits after the last of `tokens`.
  const Logits& After(const TokenIds& tokens) {
    const auto known = known_.find(tokens);
    if (known != known_.end()) return known->second;
    size_t same = std::mismatch(tokens.begin(), tokens.end(), computed_.begin(), computed_.end()).first -
                  tokens.begin();
    same = std::min(same, tokens.size() - 1);
    computed_.resize(same);
    while (computed_.size() < tokens.size()) {
      const TokenId token = tokens[computed_.size()];
      computed_.push_back(token);
      Logits logits(static_cast<size_t>(engine_->config().vocab_size));
      const StepRow row = {
          .token = token,
          .context = {.blocks = blocks_, .num_committed = static_cast<uint32_t>(computed_.size())},
          .logits = logits.data()};
      const absl::Status status = engine_->Step(absl::MakeConstSpan(&row, 1));
      EXPECT_TRUE(status.ok()) << status;
      known_[computed_] = std::move(logits);
    }
    return known_[tokens];
  }

 private:
  std::unique_ptr<Engine> engine_;
  std::vector<BlockId> blocks_;
  TokenIds computed_;
  std::map<TokenIds, Logits> known_;
};

// Some sessions on one engine, doing what drafters and verifiers do, in random order and company.
class Simulation {
 public:
  Simulation(Engine* engine, Reference* reference, uint64_t seed)
      : engine_(engine), reference_(reference), random_(seed), pool_({.num_blocks = engine->num_blocks()}) {}

  void Run(int num_steps) {
    for (int i = 0; i < num_steps && !testing::Test::HasFailure(); ++i) {
      if (sessions_.size() < 4 && Chance(0.7)) StartSession();
      StepOnce();
      std::erase_if(sessions_, [&](const Session& session) {
        return session.kv.tokens().size() > kMaxTokens || Chance(0.1);
      });
    }
  }

  int num_compared() const { return num_compared_; }
  int num_cache_hits() const { return num_cache_hits_; }
  int num_copied() const { return num_copied_; }

 private:
  static constexpr size_t kMaxTokens = 90;

  struct Node {
    int parent = -1;  // Index of a node, or -1: the last committed token.
    TokenId token = 0;
    SlotId slot = 0;
  };
  struct Session {
    SequenceKv kv;
    std::vector<Node> tree;
  };
  // What one row of the step under way needs to stay alive until the step, and to be checked after it.
  struct Planned {
    TokenId token = 0;
    RowContext context;
    std::vector<SlotId> tail;
    TokenIds tokens;  // The whole context.
    std::optional<Logits> logits;
  };

  int Below(int bound) { return static_cast<int>(random_() % static_cast<uint64_t>(bound)); }
  bool Chance(double probability) { return static_cast<double>(random_() >> 11) * 0x1.0p-53 < probability; }
  // Few different tokens, so that prompts and trees repeat one another.
  TokenId RandomToken() { return Chance(0.9) ? Below(3) : Below(engine_->config().vocab_size); }

  void StartSession() {
    // The start of an earlier prompt, so that the prefix cache has something to find, then something new.
    TokenIds prompt;
    if (!prompts_.empty() && Chance(0.7)) {
      prompt = prompts_[static_cast<size_t>(Below(static_cast<int>(prompts_.size())))];
      if (Chance(0.5)) prompt.resize(static_cast<size_t>(Below(static_cast<int>(prompt.size())) + 1));
    }
    for (int count = 1 + Below(40); count > 0 && prompt.size() < kMaxTokens - 20; --count) {
      prompt.push_back(RandomToken());
    }
    prompts_.push_back(prompt);
    Session session{.kv = SequenceKv(&pool_, 7)};
    session.kv.Start(prompt);
    num_cache_hits_ += session.kv.num_cached() > 0;
    sessions_.push_back(std::move(session));
  }

  void StepOnce() {
    std::vector<Planned> plan;
    plan.reserve(engine_->max_rows());
    for (Session& session : sessions_) {
      if (Chance(0.2)) continue;
      PlanSession(&session, &plan);
    }
    std::shuffle(plan.begin(), plan.end(), random_);
    std::vector<StepRow> rows;
    for (Planned& planned : plan) {
      if (planned.logits.has_value())
        planned.logits->resize(static_cast<size_t>(engine_->config().vocab_size));
      rows.push_back({.token = planned.token,
                      .context = planned.context,
                      .logits = planned.logits.has_value() ? planned.logits->data() : nullptr});
      rows.back().context.tail = planned.tail;
    }
    const absl::Status status = engine_->Step(rows);
    ASSERT_TRUE(status.ok()) << status;
    for (const Planned& planned : plan) {
      if (!planned.logits.has_value()) continue;
      ++num_compared_;
      ASSERT_TRUE(SameBits(*planned.logits, reference_->After(planned.tokens)))
          << "a context of " << planned.tokens.size() << " tokens, " << planned.tail.size()
          << " of them in the tail, in a step of " << plan.size() << " rows";
    }
    for (Session& session : sessions_) FinishStep(&session);
  }

  void PlanSession(Session* session, std::vector<Planned>* plan) {
    SequenceKv& kv = session->kv;
    const auto length = static_cast<uint32_t>(kv.tokens().size());
    const size_t room = engine_->max_rows() - plan->size();
    uint32_t end = length;
    if (Chance(0.7))
      end = std::min<uint32_t>(length, kv.num_computed() + 1 + static_cast<uint32_t>(Below(20)));
    end = std::min<uint32_t>(end, kv.num_computed() + static_cast<uint32_t>(room));
    ASSERT_TRUE(kv.Reserve(end).ok());
    for (uint32_t position = kv.num_computed(); position < end; ++position) {
      Planned row = {.token = kv.tokens()[position], .context = kv.CommittedRow(position)};
      row.tokens.assign(kv.tokens().begin(), kv.tokens().begin() + position + 1);
      if (Chance(0.5)) row.logits.emplace();
      plan->push_back(std::move(row));
    }
    pending_.emplace_back(session, end);
    // With the last token in this step or before it, a tree may grow from it at once.
    if (end == length && Chance(0.6)) PlanTree(session, plan);
  }

  void PlanTree(Session* session, std::vector<Planned>* plan) {
    SequenceKv& kv = session->kv;
    for (int count = 1 + Below(12); count > 0 && plan->size() < engine_->max_rows(); --count) {
      const absl::StatusOr<SlotId> slot = kv.AllocateScratch();
      ASSERT_TRUE(slot.ok()) << slot.status();
      session->tree.push_back({.parent = Below(static_cast<int>(session->tree.size()) + 1) - 1,
                               .token = RandomToken(),
                               .slot = *slot});
      Planned row = {.token = session->tree.back().token};
      row.context = {.blocks = kv.blocks(), .num_committed = static_cast<uint32_t>(kv.tokens().size())};
      row.tokens.assign(kv.tokens().begin(), kv.tokens().end());
      for (int node : PathTo(*session, static_cast<int>(session->tree.size()) - 1)) {
        row.tail.push_back(session->tree[static_cast<size_t>(node)].slot);
        row.tokens.push_back(session->tree[static_cast<size_t>(node)].token);
      }
      if (Chance(0.8)) row.logits.emplace();
      plan->push_back(std::move(row));
    }
  }

  // From the root's child down to `node`.
  static std::vector<int> PathTo(const Session& session, int node) {
    std::vector<int> path;
    for (; node >= 0; node = session.tree[static_cast<size_t>(node)].parent) path.push_back(node);
    std::reverse(path.begin(), path.end());
    return path;
  }

  void FinishStep(Session* session) {
    SequenceKv& kv = session->kv;
    for (const auto& [planned_session, end] : std::exchange(pending_, {}))
      planned_session->kv.MarkComputed(end);
    if (!session->tree.empty()) {
      CommitPath(session, PathTo(*session, Below(static_cast<int>(session->tree.size()) + 1) - 1));
    }
    // A token of whatever origin: its keys and values are computed in a later step.
    if (kv.num_computed() == kv.tokens().size()) kv.Append({RandomToken()});
    if (Chance(0.05)) kv.Truncate(1 + static_cast<uint32_t>(Below(static_cast<int>(kv.tokens().size()))));
    if (kv.num_computed() == kv.tokens().size()) kv.Append({RandomToken()});
  }

  void CommitPath(Session* session, const std::vector<int>& path) {
    SequenceKv& kv = session->kv;
    std::vector<KvCopy> copies;
    for (int index : path) {
      const Node& node = session->tree[static_cast<size_t>(index)];
      const auto position = static_cast<uint32_t>(kv.tokens().size());
      kv.Append({node.token});
      ASSERT_TRUE(kv.Reserve(position + 1).ok());
      copies.push_back({.from = node.slot, .to = kv.CommittedSlot(position)});
    }
    num_copied_ += static_cast<int>(copies.size());
    const absl::Status status = engine_->CopyKv(copies);
    ASSERT_TRUE(status.ok()) << status;
    kv.MarkComputed(static_cast<uint32_t>(kv.tokens().size()));
    kv.FreeAllScratch();
    session->tree.clear();
  }

  Engine* engine_;
  Reference* reference_;
  std::mt19937_64 random_;
  BlockPool pool_;
  std::vector<Session> sessions_;
  std::vector<std::pair<Session*, uint32_t>> pending_;  // What the step under way computes of each.
  std::vector<TokenIds> prompts_;
  int num_compared_ = 0;
  int num_cache_hits_ = 0;
  int num_copied_ = 0;
};

RandomModelOptions LlamaModel() {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.hidden_size = 40;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 12;
  config.intermediate_size = 70;
  config.vocab_size = 131;
  config.max_context = 256;
  config.tied_embeddings = true;
  return {.config = config, .dtype = TensorView::DType::kBF16};
}

RandomModelOptions QwenModel() {
  RandomModelOptions options = LlamaModel();
  options.config.architecture = "Qwen3ForCausalLM";
  options.config.hidden_size = 48;
  options.config.num_heads = 3;
  options.config.num_kv_heads = 1;
  options.config.head_dim = 20;
  options.config.vocab_size = 257;
  options.config.tied_embeddings = false;
  options.config.qk_norm = true;
  options.dtype = TensorView::DType::kF32;
  return options;
}

RandomModelOptions MistralModel() {
  RandomModelOptions options = LlamaModel();
  options.config.architecture = "MistralForCausalLM";
  options.config.num_kv_heads = 4;
  options.config.head_dim = 16;
  options.config.sliding_window = 21;
  options.config.tied_embeddings = false;
  options.dtype = TensorView::DType::kF16;
  return options;
}

// Biases everywhere, more heads to a KV head than attention takes at a time, head_dim of several vectors.
RandomModelOptions BiasedModel() {
  RandomModelOptions options = LlamaModel();
  options.config.hidden_size = 72;
  options.config.num_heads = 5;
  options.config.num_kv_heads = 1;
  options.config.head_dim = 116;
  options.config.attention_bias = true;
  options.config.attention_output_bias = true;
  options.config.mlp_bias = true;
  return options;
}

struct TestModel {
  const char* name;
  RandomModelOptions (*options)();
};

// In failures.
void PrintTo(const TestModel& model, std::ostream* stream) {
  *stream << model.name;
}

class RowInvariance : public testing::TestWithParam<TestModel> {};

TEST_P(RowInvariance, HoldsForEveryThreadCountAndInstructionSet) {
  const auto model = MakeRandomModel(GetParam().options());
  ASSERT_NE(model, nullptr);
  Reference reference(model);
  int num_compared = 0;
  int num_cache_hits = 0;
  int num_copied = 0;
  // Every number of threads with the best instruction set, every instruction set with some number.
  const std::vector<InstructionSet> supported = SupportedInstructionSets();
  for (InstructionSet instruction_set : supported) {
    for (int num_threads : {1, 2, 3}) {
      if (instruction_set != supported.front() && num_threads != 2) continue;
      auto engine = CreateCpuEngine(
          model,
          {.num_blocks = 60, .max_rows = 61, .num_threads = num_threads, .instruction_set = instruction_set});
      ASSERT_TRUE(engine.ok()) << engine.status();
      const uint64_t num_seeds = instruction_set == supported.front() ? 8 : 3;
      for (uint64_t seed = 1; seed <= num_seeds; ++seed) {
        SCOPED_TRACE(absl::StrCat("instruction set ", static_cast<int>(instruction_set), ", ", num_threads,
                                  " threads, seed ", seed));
        Simulation simulation(engine->get(), &reference, seed);
        simulation.Run(20);
        if (HasFailure()) return;
        num_compared += simulation.num_compared();
        num_cache_hits += simulation.num_cache_hits();
        num_copied += simulation.num_copied();
      }
    }
  }
  // The simulation has to reach what it is there for.
  EXPECT_GT(num_compared, 1000);
  EXPECT_GT(num_cache_hits, 50);
  EXPECT_GT(num_copied, 100);
}

INSTANTIATE_TEST_SUITE_P(All, RowInvariance,
                         testing::Values(TestModel{"Llama", LlamaModel}, TestModel{"Qwen", QwenModel},
                                         TestModel{"Mistral", MistralModel},
                                         TestModel{"Biased", BiasedModel}),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(RowInvarianceOfDemoModel, Holds) {
  auto model = Model::Load(absl::StrCat(TANDEM_SOURCE_DIR, "/deploy/demo-models/tandem-draft-general-1m"));
  ASSERT_TRUE(model.ok()) << model.status();
  Reference reference(*model);
  auto engine = CreateCpuEngine(*model, {.num_blocks = 60, .max_rows = 61, .num_threads = 2});
  ASSERT_TRUE(engine.ok()) << engine.status();
  Simulation simulation(engine->get(), &reference, 1);
  simulation.Run(12);
  EXPECT_GT(simulation.num_compared(), 50);
}

}  // namespace
}  // namespace tandem
