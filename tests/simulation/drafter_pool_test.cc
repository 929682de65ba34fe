// Several verifiers on one pool of drafters, in simulated time: how evenly the drafters are used, and what
// becomes of requests when one of them is killed (DESIGN laws 2, 3 and 5: the clients compare every token).

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/simulation/client.h"
#include "tests/simulation/drafter_machine.h"
#include "tests/simulation/network.h"
#include "tests/simulation/random.h"
#include "tests/simulation/verifier_machine.h"

namespace tandem::simulation {
namespace {

constexpr int32_t kPoolVocabSize = 40;
constexpr uint64_t kPoolTargetSeed = 1;
constexpr uint64_t kPoolFingerprint = 7;
constexpr uint32_t kDrafters = 4;
constexpr uint32_t kUsers = 8;  // Of each verifier; each has a request at any time.
constexpr uint64_t kVerifiersAtMost = 16;
constexpr PoolId kPool = 1;

class PoolRun {
 public:
  PoolRun(uint64_t seed, uint32_t num_verifiers, std::shared_ptr<const Tokenizer> tokenizer)
      : random_(seed), tokenizer_(std::move(tokenizer)) {
    for (uint32_t d = 0; d < kDrafters; ++d) AddDrafter();
    for (uint64_t v = 0; v < num_verifiers; ++v) AddVerifier(v);
    users_.resize(size_t{num_verifiers} * kUsers);
    Look();
  }

  // Nodes that each drafter has sent in a stretch of time.
  std::vector<double> NodesDuring(absl::Duration stretch) {
    std::vector<double> before = Nodes();
    RunFor(stretch);
    std::vector<double> nodes = Nodes();
    for (uint32_t d = 0; d < kDrafters; ++d) nodes[d] -= before[d];
    return nodes;
  }
  void RunFor(absl::Duration duration) {
    const absl::Time until = queue_.now() + duration;
    bool reached = false;
    queue_.At(until, [&reached] { reached = true; });
    while (!reached && queue_.RunNext()) {
    }
  }
  void Kill(uint32_t drafter) {
    dead_[drafter] = true;
    killed_nodes_[drafter] += NodesOf(drafter);
    for (auto& links : links_) links[drafter]->Break();
    drafters_[drafter]->Restart();
  }
  void Revive(uint32_t drafter) {
    dead_[drafter] = false;
    for (auto& links : links_) links[drafter]->Break();
  }
  // Whether its addresses still stand behind the pool's name.
  void SetMember(uint32_t drafter, bool is_member) {
    std::vector<LinkId> members;
    is_member_[drafter] = is_member;
    for (LinkId d = 0; d < kDrafters; ++d) {
      if (is_member_[d]) members.push_back(d);
    }
    for (auto& verifier : verifiers_) verifier->SetMembers(kPool, members);
  }
  // No more requests; until the last has ended.
  void Finish() {
    stopping_ = true;
    const absl::Time latest = queue_.now() + absl::Seconds(60);
    while (queue_.now() < latest && !AllFinished() && queue_.RunNext()) {
    }
    for (const auto& client : clients_) {
      findings_.Expect(client->finished() && client->status()->ok(),
                       absl::StrCat("request ", client->request().id, " was lost"));
    }
    for (const auto& verifier : verifiers_) verifier->CheckEmpty();
  }
  std::vector<uint32_t> Sessions() const {
    std::vector<uint32_t> sessions;
    for (const auto& drafter : drafters_) sessions.push_back(drafter->stats().num_sessions);
    return sessions;
  }
  const std::vector<std::string>& findings() const { return findings_.all(); }
  size_t num_requests() const { return clients_.size(); }
  uint64_t num_moves() const {
    uint64_t moves = 0;
    for (const auto& verifier : verifiers_) moves += verifier->num_moves();
    return moves;
  }

 private:
  void AddDrafter() {
    DrafterMachine::Options options;
    options.vocabulary_fingerprint = kPoolFingerprint;
    options.context_length = 512;
    options.model = {.vocab_size = kPoolVocabSize,
                     .num_blocks = 4096,
                     .seed = 100,
                     .sharpness = 8.0f,
                     .agreement = 0.9,
                     .agree_with_seed = kPoolTargetSeed};
    const auto reply = [this, d = drafters_.size()](absl::Time departure, uint64_t connection,
                                                    DraftResponse response) {
      links_[connection % kVerifiersAtMost][d]->SendResponse(departure, connection / kVerifiersAtMost,
                                                             std::move(response));
    };
    drafters_.push_back(
        std::make_unique<DrafterMachine>(&queue_, options, random_.Fork(), reply, &findings_));
  }

  void AddVerifier(uint64_t v) {
    VerifierMachine::Options options;
    options.model = {
        .vocab_size = kPoolVocabSize, .num_blocks = 512, .max_rows = 256, .seed = kPoolTargetSeed};
    options.scheduler.vocabulary_fingerprint = kPoolFingerprint;
    options.scheduler.window_policy = "fixed";
    options.per_step = absl::Milliseconds(20);
    options.chance = random_.Next();
    verifiers_.push_back(std::make_unique<VerifierMachine>(
        &queue_, options,
        [this, v](absl::Time departure, LinkId link, DraftRequest request) {
          links_[v][link]->SendRequest(departure, std::move(request));
        },
        [this](LinkId, absl::string_view what) {
          findings_.Expect(false, absl::StrCat("a drafter is said to break the protocol: ", what));
        },
        &findings_));
    VerifierMachine* const verifier = verifiers_.back().get();
    verifier->clock().Jump(random_.Between(absl::ZeroDuration(), absl::Hours(24)));
    links_.emplace_back();
    for (uint32_t d = 0; d < kDrafters; ++d) {
      DrafterMachine* const drafter = drafters_[d].get();
      links_[v].push_back(std::make_unique<Link>(
          &queue_, LinkConditions{}, random_.Fork(),
          Link::Ends{
              .on_up =
                  [this, verifier, d] {
                    if (!dead_[d]) verifier->OnLinkUp(d);
                  },
              .on_down = [verifier, d] { verifier->OnLinkDown(d); },
              .on_response = [verifier,
                              d](DraftResponse response) { verifier->OnResponse(d, std::move(response)); },
              .on_request =
                  [drafter, v](uint64_t connection, DraftRequest request) {
                    drafter->OnRequest(connection * kVerifiersAtMost + v, std::move(request));
                  },
              .on_closed =
                  [drafter, v](uint64_t connection) {
                    drafter->OnClosed(connection * kVerifiersAtMost + v);
                  }}));
      queue_.After(random_.Between(absl::ZeroDuration(), absl::Milliseconds(10)),
                   [link = links_[v][d].get()] { link->Connect(); });
    }
    verifier->SetMembers(kPool, {0, 1, 2, 3});
  }

  // Users ask for the next output when they have one.
  void Look() {
    for (size_t user = 0; user < users_.size() && !stopping_; ++user) {
      if (users_[user] != nullptr && !users_[user]->finished()) continue;
      VerifierMachine* const verifier = verifiers_[user / kUsers].get();
      ClientRequest request{.id = clients_.size() + 1, .arrival = queue_.now()};
      const uint32_t length = random_.Between(5, 40);
      for (uint32_t i = 0; i < length; ++i) {
        request.prompt.push_back(static_cast<TokenId>(random_.Between(0, kPoolVocabSize - 1)));
      }
      request.sampling = {.temperature = 0.0f};
      request.rules = {.max_tokens = random_.Between(100, 300)};
      request.drafter = DrafterBinding{
          .link = kNoLink, .name = "pool", .draft_model = DrafterMachine::kModelName, .pool = kPool};
      clients_.push_back(
          std::make_unique<Client>(std::move(request), tokenizer_, verifier->model(), &findings_));
      users_[user] = clients_.back().get();
      verifier->Submit(users_[user]);
    }
    if (!stopping_) queue_.After(absl::Milliseconds(7), [this] { Look(); });
  }

  bool AllFinished() const {
    return std::all_of(clients_.begin(), clients_.end(),
                       [](const auto& client) { return client->finished(); });
  }
  double NodesOf(uint32_t d) const { return static_cast<double>(drafters_[d]->stats().counters.sent_nodes); }
  std::vector<double> Nodes() const {
    std::vector<double> nodes;
    for (uint32_t d = 0; d < kDrafters; ++d) nodes.push_back(killed_nodes_[d] + NodesOf(d));
    return nodes;
  }

  Random random_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  Findings findings_;
  EventQueue queue_;
  std::vector<std::unique_ptr<DrafterMachine>> drafters_;
  std::vector<std::unique_ptr<VerifierMachine>> verifiers_;
  std::vector<std::vector<std::unique_ptr<Link>>> links_;  // By verifier and drafter.
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<Client*> users_;
  bool dead_[kDrafters] = {};
  bool is_member_[kDrafters] = {true, true, true, true};
  double killed_nodes_[kDrafters] = {};
  bool stopping_ = false;
};

double BusiestToMean(const std::vector<double>& nodes, uint32_t num_alive) {
  const double sum = std::accumulate(nodes.begin(), nodes.end(), 0.0);
  return sum == 0.0 ? 1e9 : *std::max_element(nodes.begin(), nodes.end()) * num_alive / sum;
}

// With more verifiers the same code runs, and a run takes longer.
#ifdef TANDEM_SANITIZED
constexpr uint32_t kPoolRuns = 1;
constexpr uint32_t kPoolVerifiers[] = {1, 2};
#else
constexpr uint32_t kPoolRuns = 4;
constexpr uint32_t kPoolVerifiers[] = {1, 2, 4, 8};
#endif

class DrafterPoolTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  static void SetUpTestSuite() {
    const auto loaded =
        Tokenizer::Load(absl::StrCat(TANDEM_SOURCE_DIR, "/deploy/demo-models/tandem-target-15m"));
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = new std::shared_ptr<const Tokenizer>(*loaded);
  }
  static void TearDownTestSuite() { delete tokenizer_; }

  inline static const std::shared_ptr<const Tokenizer>* tokenizer_ = nullptr;
};

TEST_P(DrafterPoolTest, DraftersAreUsedEvenlyAndOneThatIsKilledCostsNoRequest) {
  // Of about the same length together, however many verifiers there are.
  const uint64_t seeds = std::max(kPoolRuns / GetParam(), 1u);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    PoolRun run(seed, GetParam(), *tokenizer_);
    run.RunFor(absl::Seconds(3));
    std::vector<double> nodes = run.NodesDuring(absl::Seconds(2));
    EXPECT_LE(BusiestToMean(nodes, kDrafters), 1.3) << absl::StrJoin(nodes, " ");

    run.Kill(1);
    run.RunFor(absl::Seconds(3));
    nodes = run.NodesDuring(absl::Seconds(2));
    EXPECT_EQ(nodes[1], 0.0);
    EXPECT_LE(BusiestToMean(nodes, kDrafters - 1), 1.3) << absl::StrJoin(nodes, " ");

    run.Revive(1);
    run.RunFor(absl::Seconds(3));
    nodes = run.NodesDuring(absl::Seconds(2));
    EXPECT_LE(BusiestToMean(nodes, kDrafters), 1.3) << absl::StrJoin(nodes, " ");

    run.Finish();
    EXPECT_EQ(run.findings(), std::vector<std::string>());
    RecordProperty(absl::StrCat("moves_", seed), absl::StrCat(run.num_moves(), "/", run.num_requests()));
  }
}

TEST_P(DrafterPoolTest, OneThatLeavesTheNameIsEmptiedWithoutALoss) {
  PoolRun run(1, GetParam(), *tokenizer_);
  run.RunFor(absl::Seconds(1));
  EXPECT_GT(run.Sessions()[2], 0u);
  run.SetMember(2, false);
  run.RunFor(absl::Seconds(2));
  EXPECT_EQ(run.Sessions()[2], 0u);
  run.SetMember(2, true);
  run.RunFor(absl::Seconds(2));
  EXPECT_GT(run.Sessions()[2], 0u);
  run.Finish();
  EXPECT_EQ(run.findings(), std::vector<std::string>());
}

INSTANTIATE_TEST_SUITE_P(Verifiers, DrafterPoolTest, ::testing::ValuesIn(kPoolVerifiers));

}  // namespace
}  // namespace tandem::simulation
