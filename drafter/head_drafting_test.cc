// A draft head in a session: which states its rows read, and what becomes of the tree while they are on their
// way. Scores are compared with those of a head that computes every text anew.

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/base/hash.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/sequence_kv.h"
#include "common/model/model.h"
#include "common/speculation/candidate_tree.h"
#include "common/speculation/target_sampler.h"
#include "drafter/draft_core.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr LinkId kVerifierLink = 3;
constexpr SessionId kSession = 11;
constexpr uint64_t kVocabularyOfHead = 0xbeef;
constexpr uint32_t kHeadContext = 64;
constexpr uint32_t kTargetWidth = 8;

ModelConfig HeadModel() {
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
  return config;
}

std::unique_ptr<Engine> HeadEngine(uint32_t num_blocks) {
  auto model = Model::Random(HeadModel(), /*seed=*/5);
  EXPECT_TRUE(model.ok()) << model.status();
  auto engine = CreateCpuEngine(*model, {.num_blocks = num_blocks, .max_rows = 32});
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

// The target's states behind the last of `text`: numbers that bfloat16 holds and that follow from the text.
std::vector<float> TargetStates(absl::Span<const TokenId> text) {
  const uint64_t seed = ExtendPrefixHash(kEmptyPrefixHash, text);
  std::vector<float> states(2 * kTargetWidth);
  for (size_t i = 0; i < states.size(); ++i) {
    states[i] = static_cast<float>(static_cast<int64_t>(Mix64(seed + i) % 129) - 64) / 32.0f;
  }
  return states;
}

// Those of positions [first, end) as they are sent.
Features MakeFeatures(const TokenIds& text, uint32_t epoch, uint32_t first, uint32_t end) {
  Features features{.epoch = epoch, .first_position = first};
  for (uint32_t position = first; position < end; ++position) {
    for (const float number : TargetStates(absl::MakeConstSpan(text).first(position + 1))) {
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
  PlainHead() : engine_(HeadEngine(64)) {}

  // What it guesses after `text` and then `path`, the target's states being known up to the last token but
  // one of the text, and the window beginning at `window_start`.
  std::vector<TokenProbability> Guesses(const TokenIds& text, const TokenIds& path, uint32_t window_start,
                                        size_t count) {
    std::vector<BlockId> blocks(engine_->num_blocks());
    for (BlockId block = 0; block < blocks.size(); ++block) blocks[block] = block;
    TokenIds all = text;
    all.insert(all.end(), path.begin(), path.end());
    std::vector<float> logits(static_cast<size_t>(engine_->config().vocab_size));
    std::vector<float> output(static_cast<size_t>(engine_->config().hidden_size));
    for (uint32_t position = window_start; position < all.size(); ++position) {
      const bool own = position >= text.size();
      const std::vector<float> states = own ? output : TargetStates(absl::MakeConstSpan(all).first(position));
      const InputState input{.values = states, .own = own};
      std::vector<float> next(output.size());
      const std::vector<uint32_t> layers = {1};
      const FeatureRequest request{.layers = layers, .states = next.data()};
      const StepRow row{.token = all[position],
                        .context = {.blocks = blocks, .num_committed = position - window_start + 1},
                        .logits = logits.data(),
                        .features = &request,
                        .state = &input};
      EXPECT_TRUE(engine_->Step({&row, 1}).ok());
      output = next;
    }
    const TargetSampler sampler({.temperature = 0.0f}, engine_->config().vocab_size, {});
    return sampler.Guess(absl::MakeSpan(logits), static_cast<uint32_t>(all.size()), count);
  }

 private:
  std::unique_ptr<Engine> engine_;
};

// A drafter with one head, and a verifier's side of one session.
class HeadDraftingTest : public testing::Test {
 protected:
  explicit HeadDraftingTest(uint32_t num_blocks = 64)
      : engine_(HeadEngine(num_blocks)),
        pool_({.num_blocks = num_blocks}),
        core_({},
              {{.name = "head",
                .engine = engine_.get(),
                .pool = &pool_,
                .vocabulary_fingerprint = kVocabularyOfHead,
                .context_length = kHeadContext}},
              &clock_) {}

  OpenSession MakeOpen() const {
    return {.epoch = epoch_ + 1,
            .draft_model = "head",
            .vocabulary_fingerprint = kVocabularyOfHead,
            .commit_no = commit_no_,
            .tokens = text_,
            .prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, text_),
            .sampling = {.temperature = 0.0f},
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
      commit.features = MakeFeatures(text_, epoch_, old_length - 1, static_cast<uint32_t>(text_.size()) - 1);
    }
    Send(commit);
    Read();
  }

  void SendFeatures(uint32_t first, uint32_t end) { Send(MakeFeatures(text_, epoch_, first, end)); }

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
      } else if (auto* grow = std::get_if<Grow>(&response.event)) {
        if (grow->epoch != epoch_ || grow->seen_commit != commit_no_) continue;
        for (size_t i = 0; i < grow->tokens.size(); ++i) {
          tree_.Add(grow->first_id + static_cast<NodeId>(i), grow->parents[i], grow->tokens[i],
                    grow->scores[i]);
        }
      }
    }
  }

  // Every node is among the plain head's guesses, with its score; how many there are.
  int CheckTree(uint32_t window_start = 1) {
    int checked = 0;
    for (const TreeNode& node : tree_.nodes()) {
      TokenIds path;
      for (NodeId id : tree_.Path(node.parent)) path.push_back(tree_.Find(id)->token);
      const std::vector<TokenProbability> guesses =
          plain_.Guesses(text_, path, window_start, budget_.branching);
      const auto same = std::ranges::find(guesses, node.token, &TokenProbability::token);
      EXPECT_NE(same, guesses.end()) << "node " << node.id << " below " << node.parent;
      if (same == guesses.end()) continue;
      EXPECT_EQ(same->probability, node.score) << "node " << node.id << " below " << node.parent;
      ++checked;
    }
    return checked;
  }

  // Tokens of the best path, and so many more that are not in the tree below it.
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
  uint32_t epoch_ = 0;
  uint32_t commit_no_ = 0;
  TokenIds text_;
  CandidateTree tree_;
  std::optional<SessionOpened> opened_;
  std::vector<std::string> resyncs_;
  absl::Status refused_;
};

TEST_F(HeadDraftingTest, SaysWhatItReadsAndWaitsForIt) {
  Open(Text(20));
  ASSERT_TRUE(opened_.has_value() && opened_->features.has_value());
  EXPECT_THAT(opened_->features->layers, ElementsAre(1, 3));
  EXPECT_FALSE(opened_->features->final_norm);
  EXPECT_EQ(opened_->features->first_position, 0u);
  EXPECT_FALSE(core_.HasWork());

  SendFeatures(0, 12);
  RunDry();
  EXPECT_TRUE(tree_.empty()) << "the root's row has no states yet";
  SendFeatures(12, Last());
  RunDry();
  EXPECT_GE(CheckTree(), 12);
  EXPECT_EQ(core_.stats().counters.feature_bytes, 19u * 2 * kTargetWidth * 2);
}

TEST_F(HeadDraftingTest, OneTokenIsNothingToDraftFrom) {
  Open({5});
  EXPECT_FALSE(core_.HasWork());
  SendCommit({7}, /*with_features=*/true);
  RunDry();
  EXPECT_GE(CheckTree(), 12);
}

TEST_F(HeadDraftingTest, AFreshRootIsComputedFromTheStatesThatComeWithTheCommit) {
  Open(Text(9));
  SendFeatures(0, Last());
  RunDry();
  // Accepted in part, then a token that was not in the tree.
  TokenIds tokens = BestPath(2);
  ASSERT_EQ(tokens.size(), 2u);
  tokens.push_back(
      tree_.FindChild(tree_.FindChild(tree_.FindChild(0, tokens[0])->id, tokens[1])->id, 60) == nullptr ? 60
                                                                                                        : 59);
  SendCommit(tokens, /*with_features=*/true);
  RunDry();
  EXPECT_GE(CheckTree(), 12);
  EXPECT_TRUE(resyncs_.empty());
}

TEST_F(HeadDraftingTest, AHitIsGoneOnWithAndThenComputedAgain) {
  Open(Text(9));
  SendFeatures(0, Last());
  RunDry();
  const TokenIds tokens = BestPath(2);
  SendCommit(tokens, /*with_features=*/false);
  const size_t kept = tree_.size();
  EXPECT_GT(kept, 0u);
  RunDry();
  EXPECT_GT(tree_.size(), kept) << "the tree grows while the states are on their way";

  // The states come; from the next fresh root on all is as if they had come at once.
  SendFeatures(Last() - 2, Last());
  RunDry();
  SendCommit({60}, /*with_features=*/true);
  RunDry();
  EXPECT_GE(CheckTree(), 12);
}

TEST_F(HeadDraftingTest, SeveralCommitsMayGoByBeforeStatesCome) {
  Open(Text(9));
  SendFeatures(0, Last());
  RunDry();
  const uint32_t sent = Last();
  for (int i = 0; i < 3; ++i) {
    const TokenIds tokens = BestPath(1);
    ASSERT_EQ(tokens.size(), 1u);
    SendCommit(tokens, /*with_features=*/false);
    RunDry();
  }
  SendCommit({60}, /*with_features=*/false);
  RunDry();
  EXPECT_TRUE(tree_.empty());
  SendFeatures(sent, Last());
  RunDry();
  EXPECT_GE(CheckTree(), 12);
}

TEST_F(HeadDraftingTest, TheWindowBeginsBehindStatesThatTheVerifierHasNot) {
  Open(Text(20));
  SendFeatures(7, Last());
  RunDry();
  EXPECT_GE(CheckTree(/*window_start=*/8), 12);
  // Old ones are of no use any more.
  SendFeatures(0, 7);
  SendCommit({60}, /*with_features=*/true);
  RunDry();
  EXPECT_GE(CheckTree(/*window_start=*/8), 12);
}

TEST_F(HeadDraftingTest, WhatComesTwiceOrOfAnotherEpochIsIgnored) {
  Open(Text(20));
  SendFeatures(0, 10);
  SendFeatures(0, 10);
  SendFeatures(4, Last());
  Features old = MakeFeatures(text_, epoch_ - 1, 0, 3);
  Send(old);
  RunDry();
  EXPECT_GE(CheckTree(), 12);
  EXPECT_EQ(core_.stats().counters.ignored_features, 1u);
}

TEST_F(HeadDraftingTest, AResyncKeepsWhatWasComputedFromTheSameText) {
  Open(Text(20));
  SendFeatures(0, Last());
  RunDry();
  Open(Text(20));
  // The root's own row is computed anew.
  EXPECT_EQ(opened_->features->first_position, Last() - 1);
  SendFeatures(Last() - 1, Last());
  RunDry();
  EXPECT_GE(CheckTree(), 12);

  TokenIds other = Text(20);
  other[0] = (other[0] + 1) % 61;
  Open(other);
  EXPECT_EQ(opened_->features->first_position, 0u) << "every row depends on the first token";
  SendFeatures(0, Last());
  RunDry();
  EXPECT_GE(CheckTree(), 12);
}

TEST_F(HeadDraftingTest, TheNextSessionWithTheTextFindsItInTheCache) {
  Open(Text(40));
  SendFeatures(0, Last());
  RunDry();
  Send(CloseSession{});
  epoch_ += 10;
  Open(Text(40));
  EXPECT_EQ(opened_->features->first_position, 32u) << "two blocks of 16 rows";
  SendFeatures(32, Last());
  RunDry();
  EXPECT_GE(CheckTree(), 12);
}

TEST_F(HeadDraftingTest, AFullWindowBeginsAnew) {
  Open(Text(kHeadContext - 6));
  SendFeatures(0, Last());
  RunDry();
  while (resyncs_.empty()) {
    ASSERT_LT(text_.size(), 2 * kHeadContext);
    SendCommit({60}, /*with_features=*/true);
    RunDry();
  }
  EXPECT_THAT(resyncs_[0], HasSubstr("begins anew"));
  Open(text_);
  const uint32_t window_start = static_cast<uint32_t>(text_.size()) - kHeadContext * 3 / 4;
  EXPECT_EQ(opened_->features->first_position, window_start - 1);
  SendFeatures(window_start - 1, Last());
  RunDry();
  EXPECT_GE(CheckTree(window_start), 12);
}

TEST_F(HeadDraftingTest, WrongStatesEndTheSessionAndNothingElse) {
  struct Case {
    const char* error;
    void (*damage)(Features*);
  };
  const std::vector<Case> cases = {
      {"expected rows of 32 bytes", [](Features* features) { features->states.pop_back(); }},
      {"of type 1", [](Features* features) { features->type = FeatureType::kInt8; }},
      {"expected positions below 19", [](Features* features) { features->first_position += 1; }},
      {"at position 0 is not finite", [](Features* features) { features->states.replace(2, 2, "\xff\x7f"); }},
  };
  for (const Case& bad : cases) {
    refused_ = absl::OkStatus();
    Open(Text(20));
    Features features = MakeFeatures(text_, epoch_, 0, Last());
    bad.damage(&features);
    Send(features);
    RunDry();
    EXPECT_EQ(refused_.code(), absl::StatusCode::kInvalidArgument) << bad.error;
    EXPECT_THAT(std::string(refused_.message()), HasSubstr(bad.error));
    EXPECT_TRUE(core_.CheckBlocks().ok());
  }
  refused_ = absl::OkStatus();
  Open(Text(20));
  SendFeatures(0, Last());
  RunDry();
  EXPECT_TRUE(refused_.ok()) << refused_;
  EXPECT_GE(CheckTree(), 12);
}

TEST_F(HeadDraftingTest, AnotherTargetIsRefused) {
  struct Case {
    const char* error;
    void (*damage)(OpenSession*);
  };
  const std::vector<Case> cases = {
      {"the verifier says that it has none", [](OpenSession* open) { open->target_hidden_size = 0; }},
      {"for targets of width 8, the target has 16", [](OpenSession* open) { open->target_hidden_size = 16; }},
      {"after 3 layers, the target has 2", [](OpenSession* open) { open->target_layers = 2; }},
      {"fingerprint 000000000000004d, this one has 000000000000004e",
       [](OpenSession* open) { open->target_fingerprint = 78; }},
  };
  text_ = Text(5);
  for (const Case& bad : cases) {
    OpenSession open = MakeOpen();
    bad.damage(&open);
    Send(open);
    Read();
    EXPECT_EQ(refused_.code(), absl::StatusCode::kFailedPrecondition) << bad.error;
    EXPECT_THAT(std::string(refused_.message()), HasSubstr(bad.error));
  }
  OpenSession unknown = MakeOpen();
  unknown.target_fingerprint = 0;
  opened_.reset();
  Send(unknown);
  Read();
  EXPECT_TRUE(opened_.has_value());
}

// Four blocks hold one session's window, not two.
class CrowdedHeadTest : public HeadDraftingTest {
 protected:
  CrowdedHeadTest() : HeadDraftingTest(/*num_blocks=*/4) {}
};

TEST_F(CrowdedHeadTest, AParkedSessionAsksForItsStatesAgain) {
  Open(Text(30));
  SendFeatures(0, Last());
  RunDry();
  EXPECT_GT(tree_.size(), 0u);
  // Another session takes what there is while this one pauses.
  budget_.nodes = 0;
  SendCommit({60}, /*with_features=*/true);
  OpenSession other = MakeOpen();
  other.tokens = Text(50, /*seed=*/2);
  other.prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, other.tokens);
  other.budget = {.depth = 4, .nodes = 12, .branching = 3};
  core_.OnRequest(kVerifierLink, {.session = kSession + 1, .event = other});
  for (int i = 0; i < 100 && core_.HasWork(); ++i) core_.Step();
  // Itself for a moment, then this one.
  EXPECT_EQ(core_.stats().counters.parked_sessions, 2u);
  budget_.nodes = 12;
  SendCommit({59}, /*with_features=*/true);
  core_.OnRequest(kVerifierLink, {.session = kSession + 1, .event = CloseSession{}});
  RunDry();
  ASSERT_EQ(resyncs_.size(), 1u);
  EXPECT_THAT(resyncs_[0], HasSubstr("parked"));
  Open(text_);
  SendFeatures(opened_->features->first_position, Last());
  RunDry();
  EXPECT_GE(CheckTree(), 1);
  EXPECT_TRUE(core_.CheckBlocks().ok());
}

class RandomHeadTest : public HeadDraftingTest, public testing::WithParamInterface<int> {};

// Commits of all kinds, states at once, later or not at all, and opens in between: a fresh root that has all
// its states is always drafted from as a plain head does.
TEST_P(RandomHeadTest, DraftsAsAPlainHeadDoes) {
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  const auto below = [&](size_t bound) { return random() % bound; };
  Open(Text(2 + below(30), static_cast<uint64_t>(GetParam())));
  uint32_t sent = opened_->features->first_position;
  int checked = 0;
  const auto catch_up = [&] {
    while (sent < Last()) {
      const auto end = std::min<uint32_t>(Last(), sent + 1 + static_cast<uint32_t>(below(9)));
      SendFeatures(sent, end);
      sent = end;
      if (below(2) == 0 && core_.HasWork()) core_.Step();
    }
  };
  for (int i = 0; i < 40; ++i) {
    if (below(3) > 0) catch_up();
    if (below(4) > 0) RunDry();
    Read();
    budget_.nodes = 1 + static_cast<uint32_t>(below(14));
    budget_.depth = 1 + static_cast<uint32_t>(below(4));
    TokenIds tokens = BestPath(below(4));
    if (tokens.empty() || below(2) == 0) tokens.push_back(static_cast<TokenId>(below(61)));
    const bool with_features = sent == Last() && below(2) == 0;
    SendCommit(tokens, with_features);
    if (with_features) sent = Last();
    ASSERT_TRUE(refused_.ok()) << refused_;
    if (!resyncs_.empty() || below(12) == 0) {
      resyncs_.clear();
      Open(text_);
      sent = opened_->features->first_position;
    }
    ASSERT_TRUE(core_.CheckBlocks().ok()) << core_.CheckBlocks();
    if (text_.size() > kHeadContext - 12) break;
    if (below(3) == 0) {
      catch_up();
      RunDry();
      budget_ = {.depth = 3, .nodes = 8, .branching = 3};
      const bool known = sent == Last();
      TokenId fresh = 60;
      while (tree_.FindChild(0, fresh) != nullptr) --fresh;
      SendCommit({fresh}, known);
      if (known) sent = Last();
      if (!resyncs_.empty()) continue;
      RunDry();
      checked += CheckTree();
    }
  }
  EXPECT_GT(checked, 0);
  Send(CloseSession{});
  const DraftCounters counters = core_.stats().counters;
  EXPECT_EQ(counters.sent_nodes, counters.accepted_nodes + counters.pruned_nodes + counters.stale_nodes);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomHeadTest, testing::Range(1, 41));

}  // namespace
}  // namespace tandem
