#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/hash.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/sequence_kv.h"
#include "common/model/model.h"
#include "common/speculation/candidate_tree.h"
#include "common/speculation/target_sampler.h"
#include "drafter/drafting/draft_core.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {

inline constexpr LinkId kVerifierLink = 3;
inline constexpr SessionId kSession = 11;
inline constexpr uint64_t kVocabularyOfHead = 0xbeef;
inline constexpr uint32_t kHeadContext = 64;
inline constexpr uint32_t kTargetWidth = 8;

// The configuration of an EAGLE-3 head that reads two states of a narrow target, or of a head of that
// target's width that reads one, or as a DFlash head two.
// `markov_rank`: of a DFlash head, which then is DSpark.
inline ModelConfig HeadModel(HeadConfig::Kind kind, int32_t markov_rank = 0) {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.hidden_size = 24;
  config.num_layers = 1;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 12;
  config.intermediate_size = 40;
  config.vocab_size = 61;
  config.max_context = 256;
  config.head = HeadConfig{.kind = HeadConfig::Kind::kEagle3,
                           .feature_layers = {1, 3},
                           .target_hidden_size = kTargetWidth,
                           .draft_vocab_size = 50,
                           .target_fingerprint = 77};
  if (kind == HeadConfig::Kind::kEagle3) return config;
  config.hidden_size = kTargetWidth;
  config.head_dim = 4;
  const bool is_medusa = kind == HeadConfig::Kind::kMedusa;
  config.head = HeadConfig{.kind = kind,
                           .feature_final_norm = true,
                           .target_hidden_size = kTargetWidth,
                           .draft_vocab_size = config.vocab_size,
                           .own_state_is_normed = kind == HeadConfig::Kind::kMtp,
                           .num_positions = is_medusa ? 3 : 1,
                           .num_blocks = is_medusa ? 1 : 0,
                           .shares_output = is_medusa,
                           .target_fingerprint = 77};
  if (kind != HeadConfig::Kind::kDFlash) return config;
  config.num_layers = 2;
  config.qk_norm = true;
  config.head->feature_final_norm = false;
  config.head->feature_layers = {1, 3};
  config.head->block = {.num_slots = 4, .mask_token = 60, .markov_rank = markov_rank};
  config.head->num_positions = 3;
  return config;
}

inline std::unique_ptr<Engine> HeadEngine(HeadConfig::Kind kind, uint32_t num_blocks,
                                          int32_t markov_rank = 0) {
  auto model = Model::Random(HeadModel(kind, markov_rank), /*seed=*/5);
  EXPECT_TRUE(model.ok()) << model.status();
  auto engine = CreateCpuEngine(*model, {.num_blocks = num_blocks, .max_rows = 32});
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

// The target's states behind the last of `text`: numbers that bfloat16 holds and that follow from the text.
inline std::vector<float> TargetStates(absl::Span<const TokenId> text, uint32_t num_states) {
  const uint64_t seed = ExtendPrefixHash(kEmptyPrefixHash, text);
  std::vector<float> states(num_states * kTargetWidth);
  for (size_t i = 0; i < states.size(); ++i) {
    states[i] = static_cast<float>(static_cast<int64_t>(Mix64(seed + i) % 129) - 64) / 32.0f;
  }
  return states;
}

// The features of positions [first, end), as sent.
inline Features MakeFeatures(const TokenIds& text, uint32_t epoch, uint32_t first, uint32_t end,
                             uint32_t num_states) {
  Features features{.epoch = epoch, .first_position = first};
  for (uint32_t position = first; position < end; ++position) {
    for (const float number : TargetStates(absl::MakeConstSpan(text).first(position + 1), num_states)) {
      uint32_t bits;
      std::memcpy(&bits, &number, sizeof(bits));
      features.states.push_back(static_cast<char>(bits >> 16));
      features.states.push_back(static_cast<char>(bits >> 24));
    }
  }
  return features;
}

// A head that computes one row at a time, from the text alone.
class PlainHead {
 public:
  explicit PlainHead(HeadConfig::Kind kind, int32_t markov_rank = 0)
      : engine_(HeadEngine(kind, 64, markov_rank)) {}

  // Its guesses after `text` and `path`. The target's states are known up to the last token but one of the
  // text, and the window begins at `window_start`.
  TokenProbabilities Guesses(const TokenIds& text, const TokenIds& path, uint32_t window_start, size_t count,
                             const SamplingParameters& sampling = {.temperature = 0.0f}) {
    const TargetSampler sampler(sampling, engine_->config().vocab_size, {});
    const auto position = static_cast<uint32_t>(text.size() + path.size());
    const std::optional<TokenId> above = path.empty() ? std::nullopt : std::optional(path.back());
    std::vector<float> logits = head().gives_levels() ? LevelLogits(text, path.size(), window_start, above)
                                                      : LogitsAfter(text, path, window_start);
    return logits.empty() ? TokenProbabilities() : sampler.Guess(absl::MakeSpan(logits), position, count);
  }

  // The logits of Medusa and DFlash heads for the level below nodes of that depth; empty below the last one.
  // `before`: of DSpark heads, the token above; the text's last one if there is none.
  std::vector<float> LevelLogits(const TokenIds& text, size_t depth, uint32_t window_start = 1,
                                 std::optional<TokenId> before = std::nullopt) {
    std::vector<float> logits(engine_->config().logits_size());
    std::vector<SlotId> slots;
    const auto end = static_cast<uint32_t>(text.size());
    // Medusa heads read nothing but the last state.
    for (uint32_t position = head().reads_context() ? window_start : end - 1; position < end; ++position) {
      const std::vector<float> states =
          TargetStates(absl::MakeConstSpan(text).first(position), head().num_states());
      const InputState input{.values = states};
      slots.push_back(static_cast<SlotId>(slots.size()));
      const StepRow row{.token = text[position],
                        .context = {.tail = slots},
                        .logits = position + 1 == end ? logits.data() : nullptr,
                        .state = &input};
      EXPECT_TRUE(engine_->Step({&row, 1}).ok());
    }
    const auto vocab_size = static_cast<ptrdiff_t>(engine_->config().vocab_size);
    if (depth >= static_cast<size_t>(head().num_positions)) return {};
    const auto begin = logits.begin() + static_cast<ptrdiff_t>(depth) * vocab_size;
    std::vector<float> level(begin, begin + vocab_size);
    if (head().block.markov_rank > 0) {
      EXPECT_TRUE(engine_->AddTokenBefore(before.value_or(text.back()), absl::MakeSpan(level)).ok());
    }
    return level;
  }

 private:
  const HeadConfig& head() const { return *engine_->config().head; }

  std::vector<float> LogitsAfter(const TokenIds& text, const TokenIds& path, uint32_t window_start) {
    std::vector<BlockId> blocks(engine_->num_blocks());
    for (BlockId block = 0; block < blocks.size(); ++block) blocks[block] = block;
    TokenIds all = text;
    all.insert(all.end(), path.begin(), path.end());
    std::vector<float> logits(static_cast<size_t>(engine_->config().vocab_size));
    std::vector<float> output(static_cast<size_t>(engine_->config().hidden_size));
    for (uint32_t position = window_start; position < all.size(); ++position) {
      const bool own = position >= text.size();
      const std::vector<float> states =
          own ? output : TargetStates(absl::MakeConstSpan(all).first(position), head().num_states());
      const InputState input{.values = states, .own = own};
      std::vector<float> next(output.size());
      const std::vector<uint32_t> layers = {1};
      FeatureRequest request{.layers = layers, .states = next.data()};
      if (head().own_state_is_normed) request = {.final_norm = true, .states = next.data()};
      const StepRow row{.token = all[position],
                        .context = {.blocks = blocks, .num_committed = position - window_start + 1},
                        .logits = logits.data(),
                        .features = &request,
                        .state = &input};
      EXPECT_TRUE(engine_->Step({&row, 1}).ok());
      output = next;
    }
    return logits;
  }

  std::unique_ptr<Engine> engine_;
};

// A drafter with one head, and a verifier's side of one session.
class HeadDraftingTest : public testing::Test {
 protected:
  explicit HeadDraftingTest(uint32_t num_blocks = 64, uint64_t feature_window_bytes = 32 << 20,
                            HeadConfig::Kind kind = HeadConfig::Kind::kEagle3, int32_t markov_rank = 0)
      : engine_(HeadEngine(kind, num_blocks, markov_rank)),
        pool_({.num_blocks = num_blocks}),
        core_({},
              {{.name = "head",
                .engine = engine_.get(),
                .pool = &pool_,
                .vocabulary_fingerprint = kVocabularyOfHead,
                .context_length = kHeadContext,
                .feature_window_bytes = feature_window_bytes}},
              &clock_),
        plain_(kind, markov_rank) {}

  OpenSession MakeOpen() const {
    return {.epoch = epoch_ + 1,
            .draft_model = "head",
            .vocabulary_fingerprint = kVocabularyOfHead,
            .commit_no = commit_no_,
            .tokens = text_,
            .prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, text_),
            .sampling = sampling_,
            .prompt_length = 1,
            .budget = budget_,
            .target_hidden_size = kTargetWidth,
            .target_layers = 4,
            .target_fingerprint = 77};
  }

  void Open(TokenIds text) {
    text_ = std::move(text);
    Send(MakeOpen());
    ++epoch_;
    tree_.Clear();
    opened_.reset();
    used_ = 0;
    Read();
  }

  // Commits `tokens`; the states of all but the last of the text so far come with it, or later.
  void SendCommit(const TokenIds& tokens, bool with_features) {
    const auto old_length = static_cast<uint32_t>(text_.size());
    const TreeNode* root = nullptr;
    NodeId above = 0;
    for (TokenId token : tokens) {
      root = tree_.FindChild(above, token);
      if (root == nullptr) break;
      above = root->id;
    }
    text_.insert(text_.end(), tokens.begin(), tokens.end());
    Commit commit{.epoch = epoch_,
                  .commit_no = ++commit_no_,
                  .tokens = tokens,
                  .committed_len = static_cast<uint32_t>(text_.size()),
                  .prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, text_),
                  .budget = budget_};
    if (root != nullptr) {
      commit.new_root = above;
      tree_.Reroot(above);
    } else {
      tree_.Clear();
    }
    if (with_features) {
      commit.features = StatesOf(old_length - 1, static_cast<uint32_t>(text_.size()) - 1);
    }
    Send(commit);
    Read();
  }

  void SendFeatures(uint32_t first, uint32_t end) { Send(StatesOf(first, end)); }
  Features StatesOf(uint32_t first, uint32_t end) const {
    return MakeFeatures(text_, epoch_, first, end, engine_->config().head->num_states());
  }

  template <class Event>
  void Send(Event event) {
    core_.OnRequest(kVerifierLink, {.session = kSession, .event = std::move(event)});
  }

  // Runs until there is nothing to do.
  void RunDry() {
    for (int i = 0; i < 1000 && core_.HasWork(); ++i) core_.Step();
    EXPECT_FALSE(core_.HasWork());
    Read();
  }

  void Read() {
    for (auto& [link, response] : core_.TakeResponses()) {
      if (auto* opened = std::get_if<SessionOpened>(&response.event)) {
        opened_ = *opened;
      } else if (auto* resync = std::get_if<ResyncNeeded>(&response.event)) {
        resyncs_.push_back(resync->reason);
      } else if (auto* refused = std::get_if<SessionRefused>(&response.event)) {
        refused_ = refused->status;
      } else if (auto* used = std::get_if<FeaturesUsed>(&response.event)) {
        EXPECT_EQ(used->epoch, epoch_);
        EXPECT_GT(used->position, used_);
        used_ = used->position;
      } else if (auto* grow = std::get_if<Grow>(&response.event)) {
        if (grow->epoch != epoch_ || grow->seen_commit != commit_no_) continue;
        for (size_t i = 0; i < grow->tokens.size(); ++i) {
          tree_.Add(grow->first_id + static_cast<NodeId>(i), grow->parents[i], grow->tokens[i],
                    grow->scores[i]);
        }
      }
    }
  }

  // Checks that every node from `first_id` on is among the plain head's guesses, with its score. Returns
  // their number.
  int CheckTree(uint32_t window_start = 1, NodeId first_id = 0) {
    int checked = 0;
    for (const TreeNode& node : tree_.nodes()) {
      if (node.id < first_id) continue;
      TokenIds path;
      for (NodeId id : tree_.Path(node.parent)) path.push_back(tree_.Find(id)->token);
      const TokenProbabilities guesses =
          plain_.Guesses(text_, path, window_start, budget_.branching, sampling_);
      const auto same = std::ranges::find(guesses, node.token, &TokenProbability::token);
      EXPECT_NE(same, guesses.end()) << "node " << node.id << " below " << node.parent;
      if (same == guesses.end()) continue;
      EXPECT_EQ(same->probability, node.score) << "node " << node.id << " below " << node.parent;
      ++checked;
    }
    return checked;
  }

  // The tokens of the best path, extended to `length` by tokens that are not in the tree.
  TokenIds BestPath(size_t length) const {
    TokenIds path;
    NodeId above = 0;
    while (path.size() < length) {
      const TreeNode* best = nullptr;
      for (const TreeNode& node : tree_.nodes()) {
        if (node.parent == above && (best == nullptr || node.score > best->score)) best = &node;
      }
      if (best == nullptr) break;
      path.push_back(best->token);
      above = best->id;
    }
    return path;
  }

  static TokenIds Text(size_t length, uint64_t seed = 1) {
    TokenIds text;
    for (size_t i = 0; i < length; ++i) text.push_back(static_cast<TokenId>(Mix64(seed * 1000 + i) % 61));
    return text;
  }

  uint32_t Last() const { return static_cast<uint32_t>(text_.size()) - 1; }

  ManualClock clock_;
  std::unique_ptr<Engine> engine_;
  BlockPool pool_;
  DraftCore core_;
  PlainHead plain_;
  DraftBudget budget_{.depth = 4, .nodes = 12, .branching = 3, .lookahead = 1};
  SamplingParameters sampling_{.temperature = 0.0f};
  uint32_t epoch_ = 0;
  uint32_t commit_no_ = 0;
  TokenIds text_;
  CandidateTree tree_;
  std::optional<SessionOpened> opened_;
  std::vector<std::string> resyncs_;
  absl::Status refused_;
  uint32_t used_ = 0;  // Of features, as the head told.
};

}  // namespace tandem
