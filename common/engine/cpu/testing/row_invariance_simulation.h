#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/base/hash.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/cpu/kernels.h"
#include "common/engine/cpu/product_arithmetic.h"
#include "common/engine/cpu/testing/random_model.h"
#include "common/engine/sequence_kv.h"
#include "gtest/gtest.h"

// For tests of law 1: runs engines on random batches, and compares each row with the plainest run.

namespace tandem {

using Logits = std::vector<float>;

inline bool SameBits(absl::Span<const float> a, absl::Span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline bool SameLogits(const Logits& a, const Logits& b) {
  return SameBits(a, b);
}

// The plainest run's results for a row: its logits and all states, [layers + 2, hidden].
struct RowResult {
  Logits logits;
  std::vector<float> states;
};

// 0, 1, .. the model's layers.
inline std::vector<uint32_t> AllFeatureLayers(const Engine& engine) {
  std::vector<uint32_t> layers(static_cast<size_t>(engine.config().num_layers) + 1);
  std::iota(layers.begin(), layers.end(), 0u);
  return layers;
}

// The states that a draft head's row reads in these tests. They depend only on the tokens of its context, so
// rows with the same context read the same states.
inline bool ReadsOwnState(const TokenIds& tokens) {
  return ExtendPrefixHash(kEmptyPrefixHash, tokens) % 3 == 0;
}

inline std::vector<float> StateFor(const ModelConfig& config, const TokenIds& tokens) {
  const uint64_t seed = ExtendPrefixHash(kEmptyPrefixHash, tokens);
  std::vector<float> state(ReadsOwnState(tokens) ? static_cast<size_t>(config.hidden_size)
                                                 : config.head->state_size());
  for (size_t i = 0; i < state.size(); ++i) {
    state[i] = static_cast<float>(static_cast<int64_t>(Mix64(seed + i) % 2001) - 1000) / 500.0f;
  }
  return state;
}

// The plainest run: one thread, one row in a step, all positions in order in blocks 0, 1, 2, ...
class Reference {
 public:
  Reference(std::shared_ptr<const Model> model, InstructionSet instruction_set, WeightType weight_type,
            KvType kv_type, const LoraAdapter* adapter = nullptr) {
    auto engine = CreateCpuEngine(std::move(model), {.num_blocks = 48,
                                                     .max_rows = 1,
                                                     .instruction_set = instruction_set,
                                                     .weight_type = weight_type,
                                                     .kv_type = kv_type});
    EXPECT_TRUE(engine.ok()) << engine.status();
    Use(*std::move(engine), adapter);
  }
  // Uses an engine that takes one row in a step and has room for the longest context.
  explicit Reference(std::unique_ptr<Engine> engine, const LoraAdapter* adapter = nullptr) {
    Use(std::move(engine), adapter);
  }

  // The results for the last of `tokens`.
  const RowResult& After(const TokenIds& tokens) {
    const auto known = known_.find(tokens);
    if (known != known_.end()) return known->second;
    size_t same = std::mismatch(tokens.begin(), tokens.end(), computed_.begin(), computed_.end()).first -
                  tokens.begin();
    same = std::min(same, tokens.size() - 1);
    computed_.resize(same);
    while (computed_.size() < tokens.size()) {
      const TokenId token = tokens[computed_.size()];
      computed_.push_back(token);
      RowResult result;
      result.logits.resize(static_cast<size_t>(engine_->config().vocab_size));
      FeatureRequest features = {.layers = layers_, .final_norm = true};
      result.states.resize(size_t{features.num_states()} *
                           static_cast<size_t>(engine_->config().hidden_size));
      features.states = result.states.data();
      StepRow row = {.token = token,
                     .context = {.blocks = blocks_, .num_committed = static_cast<uint32_t>(computed_.size())},
                     .logits = result.logits.data(),
                     .features = &features,
                     .adapter = adapter_};
      std::vector<float> values;
      InputState state;
      if (engine_->config().head.has_value()) {
        values = StateFor(engine_->config(), computed_);
        state = {.values = values, .own = ReadsOwnState(computed_)};
        row.state = &state;
      }
      const absl::Status status = engine_->Step(absl::MakeConstSpan(&row, 1));
      EXPECT_TRUE(status.ok()) << status;
      known_[computed_] = std::move(result);
    }
    return known_[tokens];
  }

 private:
  void Use(std::unique_ptr<Engine> engine, const LoraAdapter* adapter) {
    engine_ = std::move(engine);
    for (BlockId block = 0; block < engine_->num_blocks(); ++block) blocks_.push_back(block);
    layers_ = AllFeatureLayers(*engine_);
    if (adapter == nullptr) return;
    const absl::StatusOr<AdapterId> added = engine_->AddAdapter(*adapter);
    EXPECT_TRUE(added.ok()) << added.status();
    if (added.ok()) adapter_ = *added;
  }

  std::unique_ptr<Engine> engine_;
  std::vector<BlockId> blocks_;
  std::vector<uint32_t> layers_;
  AdapterId adapter_ = kNoAdapter;
  TokenIds computed_;
  std::map<TokenIds, RowResult> known_;
};

// Sanitizers make everything some twenty times slower. With them, the test does less, and only for the
// fastest instruction set.
#ifdef TANDEM_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

inline std::vector<InstructionSet> TestedInstructionSets() {
  std::vector<InstructionSet> tested = SupportedInstructionSets();
  if (kSanitized) tested.resize(1);
  return tested;
}

// Whether products with bfloat16 weights differ from the portable ones (kernel_table.h).
inline bool HasItsOwnBits(InstructionSet instruction_set) {
  const KernelTable* kernels = SelectKernels(instruction_set).value();
  return kernels->products[static_cast<size_t>(WeightFormat::kBf16)].input_bits != 24;
}

// Whether its products are products of bfloat16 pairs (product_arithmetic.h), which all give the same bits.
inline bool HasBitsOfPairs(InstructionSet instruction_set) {
  return MultipliesBf16Pairs(*SelectKernels(instruction_set).value());
}

// Products of bfloat16 pairs must give the bits of the fastest instruction set that computes them. Everything
// else, except products with other bits, must give the bits of the fastest other instruction set.
class References {
 public:
  // All rows are computed with `adapter`, which lives on; null: none.
  References(std::shared_ptr<const Model> model, WeightType weight_type, KvType kv_type = KvType::kF32,
             const LoraAdapter* adapter = nullptr)
      : model_(std::move(model)), weight_type_(weight_type), kv_type_(kv_type), adapter_(adapter) {}

  Reference* For(InstructionSet instruction_set) {
    const std::vector<InstructionSet> supported = SupportedInstructionSets();
    if (!HasItsOwnBits(instruction_set) || weight_type_ != WeightType::kAsInFile) {
      instruction_set = *std::find_if(supported.begin(), supported.end(),
                                      [](InstructionSet each) { return !HasItsOwnBits(each); });
    } else if (HasBitsOfPairs(instruction_set)) {
      instruction_set = *std::find_if(supported.begin(), supported.end(), HasBitsOfPairs);
    }
    std::unique_ptr<Reference>& reference = references_[instruction_set];
    if (reference == nullptr) {
      reference = std::make_unique<Reference>(model_, instruction_set, weight_type_, kv_type_, adapter_);
    }
    return reference.get();
  }

 private:
  std::shared_ptr<const Model> model_;
  WeightType weight_type_;
  KvType kv_type_;
  const LoraAdapter* const adapter_;
  std::map<InstructionSet, std::unique_ptr<Reference>> references_;
};

struct SimulationOptions {
  // Every prompt begins with up to this many tokens, the same for all, and continues with up to max_new more.
  size_t num_shared = 0;
  int max_new = 40;
  size_t max_tokens = 90;
  size_t max_sessions = 4;
  int max_chunk = 20;
  // The engine's adapters, and the plainest run of each. A session has one of them or none.
  struct Adapter {
    AdapterId id = kNoAdapter;
    Reference* reference = nullptr;
  };
  std::vector<Adapter> adapters;
};

// Some sessions on one engine that do what drafters and verifiers do, in random order.
class Simulation {
 public:
  Simulation(Engine* engine, Reference* reference, uint64_t seed, const SimulationOptions& options = {})
      : options_(options),
        engine_(engine),
        reference_(reference),
        random_(seed),
        pool_({.num_blocks = engine->num_blocks()}) {
    for (size_t i = 0; i < options.num_shared; ++i) {
      shared_.push_back(static_cast<TokenId>(i * i % static_cast<size_t>(engine->config().vocab_size)));
    }
  }

  void Run(int num_steps) {
    for (int i = 0; i < num_steps && !testing::Test::HasFailure(); ++i) {
      if (sessions_.size() < options_.max_sessions && Chance(0.7)) StartSession();
      StepOnce();
      std::erase_if(sessions_, [&](const Session& session) {
        return session.kv.tokens().size() > options_.max_tokens || Chance(0.1);
      });
    }
  }

  int num_batches() const { return num_batches_; }
  int num_compared() const { return num_compared_; }
  int num_states_compared() const { return num_states_compared_; }
  int num_cache_hits() const { return num_cache_hits_; }
  int num_copied() const { return num_copied_; }
  // Of rows with adapters.
  int num_adapted_compared() const { return num_adapted_compared_; }

 private:
  struct Node {
    int parent = -1;  // Index of a node, or -1: the last committed token.
    TokenId token = 0;
    SlotId slot = 0;
  };
  struct Session {
    SequenceKv kv;
    std::vector<Node> tree;
    SimulationOptions::Adapter adapter;  // Or that of those without.
  };
  // What one row of the current step needs until the step, and for the check after it.
  struct Planned {
    TokenId token = 0;
    RowContext context;
    SimulationOptions::Adapter adapter;
    std::vector<SlotId> tail;
    TokenIds tokens;  // The whole context.
    std::optional<Logits> logits;
    // The row requests some of the states, or none.
    std::vector<uint32_t> layers;
    FeatureRequest features;
    std::vector<float> states;
    // Of a draft head.
    std::vector<float> read;
    InputState state;
  };

  int Below(int bound) { return static_cast<int>(random_() % static_cast<uint64_t>(bound)); }
  bool Chance(double probability) { return static_cast<double>(random_() >> 11) * 0x1.0p-53 < probability; }
  // Few different tokens, so that prompts and trees repeat one another.
  TokenId RandomToken() { return Chance(0.9) ? Below(3) : Below(engine_->config().vocab_size); }

  void StartSession() {
    // The start of an earlier prompt, which the prefix cache may find, and then new tokens.
    TokenIds prompt = shared_;
    if (!prompts_.empty() && Chance(0.7)) {
      prompt = prompts_[static_cast<size_t>(Below(static_cast<int>(prompts_.size())))];
      if (Chance(0.5)) prompt.resize(static_cast<size_t>(Below(static_cast<int>(prompt.size())) + 1));
    }
    for (int count = 1 + Below(options_.max_new); count > 0 && prompt.size() < options_.max_tokens - 20;
         --count) {
      prompt.push_back(RandomToken());
    }
    prompts_.push_back(prompt);
    SimulationOptions::Adapter adapter = {.reference = reference_};
    if (!options_.adapters.empty() && Chance(0.7)) {
      adapter = options_.adapters[static_cast<size_t>(Below(static_cast<int>(options_.adapters.size())))];
    }
    Session session{.kv = SequenceKv(&pool_, PrefixSpace(7, adapter.id)), .adapter = adapter};
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
                      .logits = planned.logits.has_value() ? planned.logits->data() : nullptr,
                      .adapter = planned.adapter.id});
      rows.back().context.tail = planned.tail;
      if (AskForFeatures(planned)) rows.back().features = &planned.features;
      if (!engine_->config().head.has_value()) continue;
      planned.read = StateFor(engine_->config(), planned.tokens);
      planned.state = {.values = planned.read, .own = ReadsOwnState(planned.tokens)};
      rows.back().state = &planned.state;
    }
    const absl::Status status = engine_->Step(rows);
    ASSERT_TRUE(status.ok()) << status;
    num_batches_ += !rows.empty();
    // The reference continues from its last text: neighbours that have much in common save most of the work.
    std::sort(plan.begin(), plan.end(),
              [](const Planned& a, const Planned& b) { return a.tokens < b.tokens; });
    for (const Planned& planned : plan) {
      CompareStates(planned);
      if (!planned.logits.has_value()) continue;
      ++num_compared_;
      num_adapted_compared_ += planned.adapter.id != kNoAdapter;
      ASSERT_TRUE(SameLogits(*planned.logits, planned.adapter.reference->After(planned.tokens).logits))
          << "a context of " << planned.tokens.size() << " tokens, " << planned.tail.size()
          << " of them in the tail, in a step of " << plan.size() << " rows";
    }
    for (Session& session : sessions_) FinishStep(&session);
  }

  // Lets the row ask for features, at random. Returns whether it does.
  bool AskForFeatures(Planned& planned) {
    if (!engine_->has_features() || !Chance(0.4)) return false;
    for (uint32_t layer : AllFeatureLayers(*engine_)) {
      if (Chance(0.4)) planned.layers.push_back(layer);
    }
    planned.features = {.layers = planned.layers, .final_norm = planned.layers.empty() || Chance(0.5)};
    planned.states.resize(size_t{planned.features.num_states()} * hidden_size());
    planned.features.states = planned.states.data();
    return true;
  }

  void CompareStates(const Planned& planned) {
    const uint32_t num_states = planned.features.num_states();
    if (num_states == 0) return;
    const RowResult& expected = planned.adapter.reference->After(planned.tokens);
    for (uint32_t i = 0; i < num_states; ++i) {
      // The state after the last layer's is the normed one.
      const size_t state =
          i < planned.layers.size() ? planned.layers[i] : expected.states.size() / hidden_size() - 1;
      ++num_states_compared_;
      ASSERT_TRUE(
          SameBits(absl::MakeConstSpan(planned.states).subspan(i * hidden_size(), hidden_size()),
                   absl::MakeConstSpan(expected.states).subspan(state * hidden_size(), hidden_size())))
          << "state " << state << " of a context of " << planned.tokens.size() << " tokens, "
          << planned.tail.size() << " of them in the tail";
    }
  }

  size_t hidden_size() const { return static_cast<size_t>(engine_->config().hidden_size); }

  void PlanSession(Session* session, std::vector<Planned>* plan) {
    SequenceKv& kv = session->kv;
    const auto length = static_cast<uint32_t>(kv.tokens().size());
    const size_t room = engine_->max_rows() - plan->size();
    uint32_t end = length;
    if (Chance(0.7))
      end = std::min<uint32_t>(length,
                               kv.num_computed() + 1 + static_cast<uint32_t>(Below(options_.max_chunk)));
    end = std::min<uint32_t>(end, kv.num_computed() + static_cast<uint32_t>(room));
    ASSERT_TRUE(kv.Reserve(end).ok());
    for (uint32_t position = kv.num_computed(); position < end; ++position) {
      Planned row = {
          .token = kv.tokens()[position], .context = kv.CommittedRow(position), .adapter = session->adapter};
      row.tokens.assign(kv.tokens().begin(), kv.tokens().begin() + position + 1);
      if (Chance(0.5)) row.logits.emplace();
      plan->push_back(std::move(row));
    }
    pending_.emplace_back(session, end);
    // If the last token was computed in this step or before, a tree may grow from it at once.
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
      Planned row = {.token = session->tree.back().token, .adapter = session->adapter};
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

  // The path from the root's child down to `node`.
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
    // A token from anywhere: its keys and values are computed in a later step.
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

  const SimulationOptions options_;
  TokenIds shared_;
  Engine* engine_;
  Reference* reference_;
  std::mt19937_64 random_;
  BlockPool pool_;
  std::vector<Session> sessions_;
  std::vector<std::pair<Session*, uint32_t>> pending_;  // What the current step computes of each.
  std::vector<TokenIds> prompts_;
  int num_batches_ = 0;
  int num_compared_ = 0;
  int num_states_compared_ = 0;
  int num_cache_hits_ = 0;
  int num_copied_ = 0;
  int num_adapted_compared_ = 0;
};

inline RandomModelOptions LlamaModel() {
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

inline RandomModelOptions QwenModel() {
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

inline RandomModelOptions MistralModel() {
  RandomModelOptions options = LlamaModel();
  options.config.architecture = "MistralForCausalLM";
  options.config.num_kv_heads = 4;
  options.config.head_dim = 16;
  options.config.sliding_window = 21;
  options.config.tied_embeddings = false;
  options.dtype = TensorView::DType::kF16;
  return options;
}

// Drafts some of the tokens, from three states of a wider target.
inline RandomModelOptions Eagle3Model() {
  RandomModelOptions options = LlamaModel();
  options.config.num_layers = 1;
  options.config.tied_embeddings = false;
  options.config.head = HeadConfig{.kind = HeadConfig::Kind::kEagle3,
                                   .feature_layers = {2, 4, 5},
                                   .target_hidden_size = 56,
                                   .draft_vocab_size = 77};
  return options;
}

// EAGLE-3.1 with a norm for each state; two layers, the second one with a window.
inline RandomModelOptions DeepEagle3Model() {
  RandomModelOptions options = Eagle3Model();
  options.config.num_layers = 2;
  options.config.sliding_window = 21;
  options.config.block.layers.resize(2);
  options.config.block.layers[0].has_window = false;
  options.config.head->state_norms = HeadConfig::StateNorms::kEach;
  options.config.head->own_state_is_normed = true;
  return options;
}

// Begins with the target's final state, without a projection.
inline RandomModelOptions UnprojectedEagle3Model() {
  RandomModelOptions options = Eagle3Model();
  options.config.head->feature_layers = {};
  options.config.head->feature_final_norm = true;
  options.config.head->target_hidden_size = options.config.hidden_size;
  options.config.head->projects = false;
  return options;
}

inline RandomModelOptions EagleModel() {
  RandomModelOptions options = Eagle3Model();
  options.config.head = HeadConfig{.kind = HeadConfig::Kind::kEagle,
                                   .feature_final_norm = true,
                                   .target_hidden_size = options.config.hidden_size,
                                   .draft_vocab_size = options.config.vocab_size,
                                   .numbered_layer = true};
  return options;
}

// A next-token module of a Qwen2.
inline RandomModelOptions MtpModel() {
  RandomModelOptions options = EagleModel();
  options.config.attention_bias = true;
  options.config.head = HeadConfig{.kind = HeadConfig::Kind::kMtp,
                                   .feature_final_norm = true,
                                   .target_hidden_size = options.config.hidden_size,
                                   .draft_vocab_size = options.config.vocab_size,
                                   .own_state_is_normed = true};
  return options;
}

// Biases everywhere, more heads per KV head than attention processes at a time, and a head_dim of several
// vectors.
inline RandomModelOptions BiasedModel() {
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

}  // namespace tandem
