// Text-level drafting: a draft model of an entirely different vocabulary.

#include "drafter/drafting/text_translation.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/testing/fake_engine.h"
#include "drafter/drafting/draft_core.h"
#include "drafter/testing/draft_test_peer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using testing_peer::kLink;

constexpr Tokenizer::EncodeOptions kScriptPlain = {.parse_special = false, .add_special_tokens = false};
constexpr uint64_t kTarget = 7;
constexpr uint64_t kDraft = 8;
constexpr char kScript[] =
    "Once upon a time, there was a little girl named Lucy. She had a red ball, and she liked to play with it "
    "in "
    "the garden behind the house. One day the old man who lived next door came slowly down the road, and "
    "asked her "
    "whether she had seen his cat. \"No,\" she said, \"but I will help you to look for it.\" So they went "
    "together.";

std::shared_ptr<const Tokenizer> TokenizerOf(const std::string& kind) {
  return Tokenizer::Load(TANDEM_SOURCE_DIR "/common/tokenizer/testdata/" + kind).value();
}

// Knows one text by heart, in its tokenizer's tokens, and goes on with it from wherever the context stands.
// Like FakeEngine it sees no more than what lies in the slots of the context.
class ScriptedEngine final : public Engine {
 public:
  ScriptedEngine(std::shared_ptr<const Tokenizer> tokenizer, uint32_t blocks)
      : tokenizer_(std::move(tokenizer)),
        own_(tokenizer_, tokenizer_, tokenizer_->vocab_size()),
        slots_(size_t{blocks} * kBlockTokens, -1),
        blocks_(blocks) {
    config_.vocab_size = tokenizer_->vocab_size();
    config_.max_context = 4096;
    config_.hidden_size = 1;
    config_.num_layers = 1;
  }

  const ModelConfig& config() const override { return config_; }
  uint32_t num_blocks() const override { return blocks_; }
  uint32_t max_rows() const override { return 512; }
  absl::Status Step(absl::Span<const StepRow> rows) override {
    for (const StepRow& row : rows) {
      const auto length = row.context.num_committed + static_cast<uint32_t>(row.context.tail.size());
      slots_.at(Slot(row.context, length - 1)) = row.token;
    }
    for (const StepRow& row : rows) {
      if (row.logits == nullptr) continue;
      std::fill_n(row.logits, config_.vocab_size, 0.0f);
      std::string text;
      const auto length = row.context.num_committed + static_cast<uint32_t>(row.context.tail.size());
      for (uint32_t i = 0; i < length; ++i) {
        const TokenId token = slots_.at(Slot(row.context, i));
        if (!tokenizer_->IsSpecial(token)) absl::StrAppend(&text, tokenizer_->TokenBytes(token));
      }
      row.logits[Next(text)] = 12.0f;
    }
    return absl::OkStatus();
  }
  absl::Status CopyKv(absl::Span<const KvCopy> copies) override {
    for (const KvCopy& copy : copies) slots_.at(copy.to) = slots_.at(copy.from);
    return absl::OkStatus();
  }

 private:
  static size_t Slot(const RowContext& context, uint32_t position) {
    if (position >= context.num_committed) return context.tail[position - context.num_committed];
    return context.blocks[position / kBlockTokens] * kBlockTokens + position % kBlockTokens;
  }

  // What follows the end of `text` in the script.
  TokenId Next(absl::string_view text) const {
    const absl::string_view script = kScript;
    const size_t known = std::min<size_t>(text.size(), 12);
    const size_t at = script.find(text.substr(text.size() - known));
    if (at == absl::string_view::npos || at + known >= script.size()) return tokenizer_->eos().value_or(0);
    return own_.ToTarget({}, script.substr(at + known)).at(0).token;
  }

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const TextBridge own_;  // From its tokens to its tokens.
  std::vector<TokenId> slots_;
  const uint32_t blocks_;
  ModelConfig config_;
};

// A drafter that knows the script, beside a target of another vocabulary, which has the verifier's part here.
struct TextPair {
  TextPair(const std::string& draft, const std::string& target, bool knows_script = true)
      : target_tokenizer(TokenizerOf(target)),
        draft_tokenizer(TokenizerOf(draft)),
        scripted(draft_tokenizer, 256),
        fake({.vocab_size = draft_tokenizer->vocab_size()}),
        pool({.num_blocks = 256}),
        bridge(std::make_shared<const TextBridge>(draft_tokenizer, target_tokenizer,
                                                  target_tokenizer->vocab_size())),
        core({}, Models(knows_script), &clock) {}

  std::vector<DraftModel> Models(bool knows_script) {
    return {{.name = "draft",
             .engine = knows_script ? static_cast<Engine*>(&scripted) : &fake,
             .pool = &pool,
             .vocabulary_fingerprint = kDraft,
             .context_length = 2048,
             .other_vocabularies = {{.fingerprint = kTarget, .difference = "all differs", .text = bridge}}}};
  }

  OpenSession MakeOpen(const TokenIds& text) {
    return {.epoch = ++epoch,
            .draft_model = "draft",
            .vocabulary_fingerprint = kTarget,
            .commit_no = commit_no,
            .tokens = text,
            .prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, text),
            .sampling = {.temperature = 0.8f, .seed = 3},
            .prompt_length = static_cast<uint32_t>(text.size()),
            .budget = budget,
            .text_drafting = true};
  }

  void Open(const TokenIds& text) {
    tokens = text;
    tree.Clear();
    next_id = 1;
    exhausted = false;
    core.OnRequest(kLink, {1, MakeOpen(text)});
  }

  // Checks what comes as a verifier does.
  void Take() {
    while (core.HasWork()) core.Step();
    for (const auto& [link, response] : core.TakeResponses()) {
      if (const auto* refused = std::get_if<SessionRefused>(&response.event)) refusal = refused->status;
      if (std::holds_alternative<ResyncNeeded>(response.event)) ++resyncs;
      const auto* grow = std::get_if<Grow>(&response.event);
      if (grow == nullptr || grow->epoch != epoch) continue;
      ASSERT_EQ(grow->seen_commit, commit_no);
      ASSERT_EQ(grow->prefix_hash, ExtendPrefixHash(kEmptyPrefixHash, tokens));
      ASSERT_LE(grow->tokens.size(), kMaxGrowNodes);
      ASSERT_GE(grow->first_id, next_id);
      ASSERT_FALSE(exhausted) << "growth after the last";
      exhausted = grow->exhausted;
      next_id = grow->first_id + static_cast<NodeId>(grow->tokens.size());
      for (size_t i = 0; i < grow->tokens.size(); ++i) {
        ASSERT_TRUE(tree.IsKnownParent(grow->parents[i]));
        ASSERT_GE(grow->tokens[i], 0);
        ASSERT_LT(grow->tokens[i], target_tokenizer->vocab_size());
        ASSERT_EQ(tree.FindChild(grow->parents[i], grow->tokens[i]), nullptr);
        ASSERT_GT(grow->scores[i], 0.0f);
        ASSERT_LE(grow->scores[i], 1.0f);
        const TreeNode& node = tree.Add(grow->first_id + static_cast<NodeId>(i), grow->parents[i],
                                        grow->tokens[i], grow->scores[i]);
        ASSERT_LE(node.depth, budget.depth + budget.lookahead);
        ASSERT_LE(tree.size(), kMaxTreeNodes);
      }
    }
  }

  void CommitTokens(const TokenIds& round) {
    Commit commit{.epoch = epoch, .commit_no = ++commit_no, .tokens = round, .budget = budget};
    tokens.insert(tokens.end(), round.begin(), round.end());
    commit.committed_len = static_cast<uint32_t>(tokens.size());
    commit.prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, tokens);
    NodeId at = 0;
    const TreeNode* node = nullptr;
    for (const TokenId token : round) {
      node = tree.FindChild(at, token);
      if (node == nullptr) break;
      at = node->id;
    }
    if (node == nullptr) {
      tree.Clear();
    } else {
      commit.new_root = at;
      tree.Reroot(at);
    }
    exhausted = false;
    core.OnRequest(kLink, {1, commit});
  }

  // How many of `right` lie on a path from the root.
  size_t Accepted(absl::Span<const TokenId> right) const {
    NodeId at = 0;
    size_t accepted = 0;
    for (const TokenId token : right) {
      const TreeNode* const node = tree.FindChild(at, token);
      if (node == nullptr) break;
      at = node->id;
      ++accepted;
    }
    return accepted;
  }

  std::shared_ptr<const Tokenizer> target_tokenizer;
  std::shared_ptr<const Tokenizer> draft_tokenizer;
  ManualClock clock;
  ScriptedEngine scripted;
  FakeEngine fake;
  BlockPool pool;
  std::shared_ptr<const TextBridge> bridge;
  DraftCore core;
  DraftBudget budget = {.depth = 6, .nodes = 12, .branching = 2, .lookahead = 4};
  uint32_t epoch = 0;
  uint32_t commit_no = 0;
  TokenIds tokens;
  CandidateTree tree;
  NodeId next_id = 1;
  bool exhausted = false;
  int resyncs = 0;
  absl::Status refusal;
};

const std::pair<const char*, const char*> kTokenizerPairs[] = {
    {"gpt2", "demo"}, {"demo", "gpt2"}, {"llama2", "demo"}, {"demo", "llama2"}};

// Rounds as a verifier that is sure of the script makes them: accepted tokens and a bonus token.
TEST(TextTranslationTest, ADrafterThatKnowsTheTextIsRightInTheTargetsTokens) {
  for (const auto& [draft, target] : kTokenizerPairs) {
    SCOPED_TRACE(absl::StrCat(draft, " for ", target));
    TextPair pair(draft, target);
    const TokenIds script = pair.target_tokenizer->Encode(kScript, kScriptPlain).value();
    size_t at = 8;
    pair.Open({script.begin(), script.begin() + static_cast<ptrdiff_t>(at)});
    size_t rounds = 0;
    size_t accepted = 0;
    while (at + 8 < script.size()) {
      ASSERT_NO_FATAL_FAILURE(pair.Take());
      ASSERT_TRUE(pair.refusal.ok()) << pair.refusal;
      const auto rest = absl::MakeConstSpan(script).subspan(at);
      const size_t right = std::min(pair.Accepted(rest), size_t{6});
      const TokenIds round(rest.begin(), rest.begin() + static_cast<ptrdiff_t>(right + 1));
      ++rounds;
      accepted += right;
      at += round.size();
      pair.CommitTokens(round);
    }
    EXPECT_GE(accepted, rounds * 4) << "of at most 6 a round";
    EXPECT_EQ(pair.resyncs, 0);
    pair.core.OnRequest(kLink, {1, CloseSession{}});
    EXPECT_EQ(pair.pool.num_held(), 0u);
    const DraftCounters counters = pair.core.stats().counters;
    EXPECT_EQ(counters.sent_nodes, counters.accepted_nodes + counters.pruned_nodes + counters.stale_nodes);
  }
}

// Wrong guesses, rounds that end anywhere, texts that make no sense, in a verifier that knows the protocol
// alone.
TEST(TextTranslationTest, KeepsToTheProtocolWhateverIsCommitted) {
  for (const auto& [draft, target] : kTokenizerPairs) {
    if (std::string(draft) == "gpt2" || std::string(draft) == "llama2")
      continue;  // FakeEngine is slow for them.
    SCOPED_TRACE(absl::StrCat(draft, " for ", target));
    for (uint64_t seed = 0; seed < 12; ++seed) {
      std::mt19937_64 random(seed);
      TextPair pair(draft, target, /*knows_script=*/seed % 2 == 0);
      const TokenIds script = pair.target_tokenizer->Encode(kScript, kScriptPlain).value();
      const auto any = [&] {
        return static_cast<TokenId>(random() % static_cast<uint64_t>(pair.target_tokenizer->vocab_size()));
      };
      pair.Open({script.begin(), script.begin() + 5 + static_cast<ptrdiff_t>(random() % 20)});
      for (int round = 0; round < 30; ++round) {
        ASSERT_NO_FATAL_FAILURE(pair.Take());
        ASSERT_TRUE(pair.refusal.ok()) << pair.refusal;
        TokenIds tokens;
        NodeId at = 0;
        while (random() % 3 != 0) {
          std::vector<const TreeNode*> children;
          for (const TreeNode& node : pair.tree.nodes()) {
            if (node.parent == at || (at == 0 && node.parent == pair.tree.root_id()))
              children.push_back(&node);
          }
          if (children.empty()) break;
          const TreeNode* const child = children[random() % children.size()];
          tokens.push_back(child->token);
          at = child->id;
        }
        if (tokens.empty() || random() % 2 == 0) tokens.push_back(any());
        if (random() % 8 == 0) pair.budget.depth = static_cast<uint32_t>(random() % 7);
        pair.CommitTokens(tokens);
      }
      EXPECT_EQ(pair.resyncs, 0);
      EXPECT_TRUE(pair.core.CheckBlocks().ok());
    }
  }
}

TEST(TextTranslationTest, OnlyForThoseWhoAllowIt) {
  TextPair pair("gpt2", "demo");
  const auto refusal = [&pair](const std::function<void(OpenSession&)>& change) {
    OpenSession open = pair.MakeOpen({1, 2, 3});
    change(open);
    pair.core.OnRequest(kLink, {1, open});
    absl::Status status;
    for (const auto& [link, response] : pair.core.TakeResponses()) {
      if (const auto* refused = std::get_if<SessionRefused>(&response.event)) status = refused->status;
    }
    return status;
  };
  EXPECT_TRUE(refusal([](OpenSession&) {}).ok());
  absl::Status status = refusal([](OpenSession& open) { open.text_drafting = false; });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("all differs; the tenant does not allow drafting by text"));
  status = refusal([](OpenSession& open) { open.vocabulary_fingerprint = 9; });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  status = refusal([](OpenSession& open) { open.sampled_drafts = true; });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("drafts by text"));
  status = refusal([&pair](OpenSession& open) { open.tokens[1] = pair.target_tokenizer->vocab_size(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(TextTranslationTest, CommitsThatDoNotFitAskForAnOpen) {
  const auto outcome = [](const std::function<void(Commit&)>& damage) {
    TextPair pair("gpt2", "demo");
    const TokenIds script = pair.target_tokenizer->Encode(kScript, kScriptPlain).value();
    const TokenIds prompt(script.begin(), script.begin() + 9);
    pair.Open(prompt);
    pair.Take();
    TokenIds all = prompt;
    all.push_back(script[9]);
    Commit commit{.epoch = 1,
                  .commit_no = 1,
                  .tokens = {script[9]},
                  .committed_len = 10,
                  .prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, all),
                  .budget = pair.budget};
    damage(commit);
    pair.core.OnRequest(kLink, {1, commit});
    std::string said;
    while (pair.core.HasWork()) pair.core.Step();
    for (const auto& [link, response] : pair.core.TakeResponses()) {
      if (const auto* resync = std::get_if<ResyncNeeded>(&response.event)) said = "resync: " + resync->reason;
      if (const auto* refused = std::get_if<SessionRefused>(&response.event))
        said = refused->status.ToString();
    }
    if (!absl::StartsWith(said, "resync")) return said;
    // It waits for the Open, and goes on then.
    ++pair.commit_no;
    pair.Open(all);
    pair.Take();
    EXPECT_FALSE(pair.tree.empty());
    return said;
  };
  EXPECT_EQ(outcome([](Commit&) {}), "");
  EXPECT_EQ(outcome([](Commit& commit) { commit.commit_no = 0; }), "") << "an old one";
  EXPECT_THAT(outcome([](Commit& commit) { ++commit.commit_no; }), HasSubstr("resync: commit 2"));
  EXPECT_THAT(outcome([](Commit& commit) { ++commit.epoch; }), HasSubstr("resync: commit 1 of epoch 2"));
  EXPECT_THAT(outcome([](Commit& commit) { ++commit.prefix_hash; }), HasSubstr("resync"));
  EXPECT_THAT(outcome([](Commit& commit) { ++commit.committed_len; }), HasSubstr("resync"));
  EXPECT_THAT(outcome([](Commit& commit) { commit.new_root = 77; }), HasSubstr("node 77"));
  EXPECT_THAT(outcome([](Commit& commit) { commit.tokens = {-1}; }), HasSubstr("INVALID_ARGUMENT"));
  EXPECT_THAT(outcome([](Commit& commit) { commit.tokens = {}; }), HasSubstr("INVALID_ARGUMENT"));
}

}  // namespace
}  // namespace tandem
