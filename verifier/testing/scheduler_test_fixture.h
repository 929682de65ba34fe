#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/drafting/predicted_output.h"
#include "verifier/scheduler/scheduler.h"
#include "verifier/testing/reference_output.h"

namespace tandem {

inline constexpr LinkId kLink = 5;
inline constexpr int32_t kVocabSize = 40;

inline std::shared_ptr<const Tokenizer> TestTokenizer() {
  static const auto* const tokenizer = new std::shared_ptr<const Tokenizer>(
      *Tokenizer::Load(absl::StrCat(TANDEM_SOURCE_DIR, "/deploy/demo-models/tandem-target-15m")));
  return *tokenizer;
}

// Rounds of `depth` levels of one node each, whatever it costs.
inline Scheduler::Options FixedWindow(uint32_t depth) {
  return {.limits = {.max_depth = depth, .nodes_per_level = 1}, .window_policy = "fixed"};
}

// Every step takes two milliseconds, with `overlaps` from its start on.
class SteppingEngine final : public Engine {
 public:
  SteppingEngine(Engine* engine, ManualClock* clock, bool overlaps)
      : engine_(engine), clock_(clock), overlaps_(overlaps) {}
  const ModelConfig& config() const override { return engine_->config(); }
  uint32_t num_blocks() const override { return engine_->num_blocks(); }
  uint32_t max_rows() const override { return engine_->max_rows(); }
  bool chooses() const override { return engine_->chooses(); }
  bool has_features() const override { return engine_->has_features(); }
  absl::Status Step(absl::Span<const StepRow> rows) override {
    TANDEM_RETURN_IF_ERROR(Start(rows));
    return Finish();
  }
  absl::Status Start(absl::Span<const StepRow> rows) override {
    start_ = clock_->Now();
    return engine_->Start(rows);
  }
  absl::Status Finish() override {
    const absl::Time end = (overlaps_ ? start_ : clock_->Now()) + absl::Milliseconds(2);
    clock_->Advance(std::max(end - clock_->Now(), absl::ZeroDuration()));
    return engine_->Finish();
  }
  bool overlaps() const override { return overlaps_; }
  absl::Status CopyKv(absl::Span<const KvCopy> copies) override { return engine_->CopyKv(copies); }

 private:
  Engine* const engine_;
  ManualClock* const clock_;
  const bool overlaps_;
  absl::Time start_;
};

struct Ask {
  TokenIds prompt = {1, 2, 3, 4, 5};
  SamplingParameters sampling = {.temperature = 0.0f};
  StopRules rules = {.max_tokens = 20};
  uint64_t cache_salt = 0;
  AdapterHandle adapter;
  absl::Time deadline = absl::InfiniteFuture();
  bool drafted = false;
  bool trusted = false;
  int num_logprobs = -1;
  int num_prompt_logprobs = -1;
  TokenIds prediction;  // None: none.
  bool speculate = true;
  std::string tenant;
  int32_t priority = 0;
  std::string policy_state;
  std::string window_policy;                                     // Empty: the scheduler's.
  std::function<std::unique_ptr<ConstraintState>()> constraint;  // None: none.
};

// The outcome of one request.
struct Record {
  bool started = false;
  TokenIds tokens;
  std::string text;
  std::vector<absl::Status> ends;
  SessionSummary summary;
  std::vector<RoundReport> rounds;
};

// A scheduler on a fake model, with its listener and the state of a drafter.
class SchedulerTest : public ::testing::Test, public SchedulerListener {
 protected:
  // A drafter's state of a session.
  struct DraftState {
    uint32_t epoch = 0;
    uint32_t commit_no = 0;
    uint64_t prefix_hash = 0;
    TokenIds tokens;
    NodeId next_id = 1;
    DraftBudget budget;
    bool wants_growth = false;
  };

  void Make(Scheduler::Options options = {}, FakeEngine::Options model = {}, bool prefix_cache = true) {
    model.vocab_size = kVocabSize;
    model_ = std::make_unique<FakeEngine>(model);
    engine_ = std::make_unique<SteppingEngine>(model_.get(), &clock_, overlaps_);
    pool_ = std::make_unique<BlockPool>(
        BlockPool::Options{.num_blocks = model.num_blocks, .prefix_cache = prefix_cache});
    scheduler_ = std::make_unique<Scheduler>(options, engine_.get(), pool_.get(),
                                             RoundTimeModel({{1, 0.002}, {64, 0.002}}), &clock_, this);
  }

  void TearDown() override {
    if (scheduler_ == nullptr) return;
    EXPECT_EQ(scheduler_->num_running() + scheduler_->num_waiting(), 0u);
    EXPECT_EQ(pool_->num_held(), 0u);
    for (const auto& [id, record] : records_) EXPECT_EQ(record.ends.size(), 1u) << "session " << id;
  }

  // Of a prompt that is only scored they are never asked.
  static StopRules RulesOf(const Ask& ask) {
    StopRules rules = ask.rules;
    rules.max_tokens = std::max(rules.max_tokens, 1u);
    return rules;
  }

  absl::Status Submit(SessionId id, const Ask& ask) {
    SessionRequest request{.prompt = ask.prompt,
                           .max_tokens = ask.rules.max_tokens,
                           .sampling = ask.sampling,
                           .num_logprobs = ask.num_logprobs,
                           .num_prompt_logprobs = ask.num_prompt_logprobs,
                           .output = std::make_unique<OutputAssembler>(TestTokenizer(), RulesOf(ask)),
                           .constraint = ask.constraint == nullptr
                                             ? nullptr
                                             : std::make_unique<SessionConstraint>(
                                                   ask.constraint(), TestTokenizer(), kVocabSize),
                           .cache_salt = ask.cache_salt,
                           .adapter = ask.adapter,
                           .tenant = ask.tenant,
                           .priority = ask.priority,
                           .deadline = ask.deadline,
                           .speculate = ask.speculate,
                           .window_policy = ask.window_policy,
                           .policy_state = ask.policy_state};
    if (!ask.prediction.empty()) request.prediction = std::make_unique<PredictedOutput>(ask.prediction);
    if (ask.drafted)
      request.drafter =
          DrafterBinding{.link = kLink, .name = "drafter", .draft_model = "draft", .trusted = ask.trusted};
    return scheduler_->Submit(id, std::move(request));
  }

  ReferenceOutput Reference(const Ask& ask) const {
    return GenerateReference(*model_, ask.prompt, ask.sampling, OutputAssembler(TestTokenizer(), ask.rules),
                             /*constraint=*/nullptr, ask.adapter == nullptr ? kNoAdapter : ask.adapter->id);
  }

  void ExpectReference(SessionId id, const Ask& ask) {
    const ReferenceOutput reference = Reference(ask);
    const Record& record = records_[id];
    ASSERT_EQ(record.ends.size(), 1u) << "session " << id;
    EXPECT_TRUE(record.ends[0].ok()) << record.ends[0];
    EXPECT_EQ(record.tokens, reference.tokens) << "session " << id;
    EXPECT_EQ(record.text + record.summary.end.text, reference.text);
    EXPECT_EQ(record.summary.end.reason, reference.end.reason);
    EXPECT_EQ(record.summary.output_tokens, reference.tokens.size());
  }

  // Runs the owner's loop until there is nothing left to do. Calls `drafter` after each step, to answer.
  void RunToTheEnd(const std::function<void()>& drafter = [] {}) {
    for (int turn = 0; turn < 2000; ++turn) {
      drafter();
      const absl::Time wake = scheduler_->NextWake();
      if (wake == absl::InfiniteFuture()) return;
      if (wake > clock_.Now()) clock_.Advance(wake - clock_.Now());
      const uint64_t steps = model_->num_steps();
      const size_t ends = num_ends_;
      scheduler_->Step();
      ASSERT_TRUE(model_->num_steps() > steps || num_ends_ > ends) << "woke for nothing";
      ASSERT_TRUE(scheduler_->CheckBlocks().ok()) << scheduler_->CheckBlocks();
    }
    FAIL() << "no end";
  }

  // A chain of `tokens` below the root.
  Grow Chain(SessionId id, const TokenIds& tokens, bool exhausted = true) {
    DraftState& state = drafts_.at(id);
    Grow grow{.epoch = state.epoch,
              .seen_commit = state.commit_no,
              .prefix_hash = state.prefix_hash,
              .first_id = state.next_id,
              .exhausted = exhausted};
    grow.tokens.assign(tokens.begin(), tokens.end());
    grow.scores.assign(tokens.size(), 0.9f);
    for (uint32_t i = 0; i < tokens.size(); ++i) grow.parents.push_back(i == 0 ? 0 : state.next_id + i - 1);
    state.next_id += static_cast<uint32_t>(tokens.size());
    return grow;
  }
  void Send(SessionId id, decltype(DraftResponse::event) event) {
    scheduler_->OnDraftResponse(kLink, {.session = id, .event = std::move(event)});
  }

  // A drafter that knows the output and drafts `num_right` tokens of it, then `num_wrong` wrong ones.
  void Draft(const Ask& ask, uint32_t num_right, uint32_t num_wrong) {
    for (auto& [id, state] : drafts_) DraftFor(id, ask, num_right, num_wrong);
  }
  void DraftFor(SessionId id, const Ask& ask, uint32_t num_right, uint32_t num_wrong) {
    const auto found = drafts_.find(id);
    if (found == drafts_.end() || !found->second.wants_growth) return;
    DraftOutput(id, ask.prompt, Reference(ask).tokens, num_right, num_wrong);
  }
  void DraftOutput(SessionId id, const TokenIds& prompt, const TokenIds& output, uint32_t num_right,
                   uint32_t num_wrong) {
    const auto found = drafts_.find(id);
    if (found == drafts_.end()) return;
    DraftState& state = found->second;
    if (!std::exchange(state.wants_growth, false) || state.budget.depth == 0) return;
    TokenIds all = prompt;
    all.insert(all.end(), output.begin(), output.end());
    TokenIds tokens;
    for (size_t at = state.tokens.size(); at < all.size() && tokens.size() < num_right + num_wrong; ++at) {
      tokens.push_back(tokens.size() < num_right ? all[at] : (all[at] + 1) % kVocabSize);
    }
    if (!tokens.empty()) Send(id, Chain(id, tokens));
  }

  void OnStarted(SessionId id) override {
    EXPECT_FALSE(records_[id].started);
    records_[id].started = true;
  }
  void OnStep(const StepReport& report) override {
    num_preemptions_ += report.preemptions;
    num_plain_ += report.plain ? 1 : 0;
  }
  void OnSpeedup(const ControlGroup::Estimate& gain) override { speedups_.push_back(gain); }
  void OnTokens(SessionId id, CommittedTokens tokens) override {
    Record& record = records_[id];
    EXPECT_TRUE(record.started && record.ends.empty());
    EXPECT_EQ(tokens.offset, record.tokens.size());
    for (const CommittedToken& token : tokens.tokens) record.tokens.push_back(token.token);
    record.text += tokens.text;
  }
  void OnFinished(SessionId id, const absl::Status& status, const SessionSummary& summary) override {
    records_[id].ends.push_back(status);
    records_[id].summary = summary;
    ++num_ends_;
  }
  void OnDraftRequest(LinkId link, DraftRequest request) override {
    EXPECT_EQ(link, kLink);
    requests_.push_back(request);
    DraftState& state = drafts_[request.session];
    if (const auto* open = std::get_if<OpenSession>(&request.event)) {
      EXPECT_EQ(open->prefix_hash, ExtendPrefixHash(kEmptyPrefixHash, open->tokens));
      state = {.epoch = open->epoch,
               .commit_no = open->commit_no,
               .prefix_hash = open->prefix_hash,
               .tokens = open->tokens,
               .budget = open->budget,
               .wants_growth = true};
      opened_.push_back(request.session);
    } else if (const auto* commit = std::get_if<Commit>(&request.event)) {
      EXPECT_EQ(commit->commit_no, state.commit_no + 1);
      state.tokens.insert(state.tokens.end(), commit->tokens.begin(), commit->tokens.end());
      EXPECT_EQ(commit->committed_len, state.tokens.size());
      EXPECT_EQ(commit->prefix_hash, ExtendPrefixHash(kEmptyPrefixHash, state.tokens));
      state.commit_no = commit->commit_no;
      state.prefix_hash = commit->prefix_hash;
      state.budget = commit->budget;
      state.wants_growth = !commit->new_root.has_value();
    } else if (std::holds_alternative<CloseSession>(request.event)) {
      drafts_.erase(request.session);
    }
  }
  void OnProtocolViolation(LinkId link, absl::string_view, bool quarantined) override {
    EXPECT_TRUE(link == kLink || link == kLink + 1) << link;
    violations_.push_back(quarantined);
  }
  void OnRound(SessionId id, const RoundReport& report) override { records_[id].rounds.push_back(report); }

  // Answers the Opens that were sent.
  void AnswerOpens() {
    for (SessionId id : std::exchange(opened_, {})) {
      if (drafts_.contains(id)) Send(id, SessionOpened{.epoch = drafts_.at(id).epoch, .context_length = 100});
    }
  }
  template <typename Event>
  uint32_t NumSent() const {
    return static_cast<uint32_t>(std::count_if(requests_.begin(), requests_.end(), [](const auto& request) {
      return std::holds_alternative<Event>(request.event);
    }));
  }

  ManualClock clock_;
  bool overlaps_ = false;  // Of the engine that Make makes.
  std::unique_ptr<FakeEngine> model_;
  std::unique_ptr<SteppingEngine> engine_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<SessionId, Record> records_;
  size_t num_ends_ = 0;
  uint32_t num_preemptions_ = 0;
  uint32_t num_plain_ = 0;  // Steps of the control group.
  std::vector<ControlGroup::Estimate> speedups_;
  std::vector<DraftRequest> requests_;
  std::map<SessionId, DraftState> drafts_;
  std::vector<SessionId> opened_;
  std::vector<bool> violations_;
};

}  // namespace tandem
