// Clients, routers, verifiers, drafters and their store under seeded faults: whatever happens, an output is
// the target's alone (P1), a request ends once and in time (P3), no token is lost or doubled (P4), blocks are
// conserved (P5), no tenant's prompt is cached for another (P6), and when the faults are over everything that
// was not given up comes to its end.
//
//   TANDEM_CLUSTER_SEEDS   how many seeds to run (default 300; with a sanitizer 60)
//   TANDEM_CLUSTER_FIRST   the first of them (default 1)
//   TANDEM_CLUSTER_SEED    run only this one
//   TANDEM_CLUSTER_KEEP    with these of its faults only, by number, such as 0,3; "none" for none

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/environment_number.h"
#include "common/base/log.h"
#include "tests/simulation/cluster.h"
#include "tests/simulation/seeds.h"

namespace tandem::simulation {
namespace {

#ifdef TANDEM_SANITIZED
constexpr uint64_t kClusterSeeds = 60;
#else
constexpr uint64_t kClusterSeeds = 300;
#endif

std::optional<std::vector<size_t>> FaultsToKeep() {
  const char* const value = std::getenv("TANDEM_CLUSTER_KEEP");
  if (value == nullptr) return std::nullopt;
  std::vector<size_t> kept;
  for (absl::string_view number : absl::StrSplit(value, ',')) {
    size_t index = 0;
    if (absl::SimpleAtoi(number, &index)) kept.push_back(index);
  }
  return kept;
}

class ClusterTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    // Of what goes wrong here there is no end.
    SetLogLevel(LogLevel::kError);
    const auto loaded =
        Tokenizer::Load(absl::StrCat(TANDEM_SOURCE_DIR, "/deploy/demo-models/tandem-target-15m"));
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = new std::shared_ptr<const Tokenizer>(*loaded);
  }
  static void TearDownTestSuite() { delete tokenizer_; }

  // The fewest faults with which it fails, and how to see it again.
  static std::string Replay(uint64_t seed) {
    const std::vector<size_t> kept = MinimiseFaults(seed, *tokenizer_);
    const std::vector<Fault> faults = DrawCluster(seed, **tokenizer_).faults;
    std::string text = absl::StrCat("Needs ", kept.size(), " of ", faults.size(), " faults:\n");
    for (size_t i : kept) absl::StrAppend(&text, "  ", i, ": ", faults[i].ToString(), "\n");
    absl::StrAppend(&text, "To see it again: TANDEM_CLUSTER_SEED=", seed,
                    " TANDEM_CLUSTER_KEEP=", kept.empty() ? "none" : absl::StrJoin(kept, ","),
                    " build/dev/bin/tandem_cluster_test\n");
    return text;
  }

  static std::shared_ptr<const Tokenizer>* tokenizer_;
};

std::shared_ptr<const Tokenizer>* ClusterTest::tokenizer_ = nullptr;

TEST_F(ClusterTest, PromisesHoldUnderFaults) {
  const uint64_t count = NumberFromEnvironment("TANDEM_CLUSTER_SEEDS", kClusterSeeds);
  const Seeds seeds("TANDEM_CLUSTER", count);
  const std::optional<std::vector<size_t>> keep = FaultsToKeep();
  ClusterOutcome total;
  for (uint64_t seed = seeds.begin; seed < seeds.end; ++seed) {
    const ClusterOutcome outcome = RunCluster(seed, *tokenizer_, keep);
    total.Add(outcome);
    if (outcome.findings.empty()) continue;
    ADD_FAILURE() << "seed " << seed << ":\n  " << absl::StrJoin(outcome.findings, "\n  ") << "\n"
                  << (keep.has_value() ? std::string() : Replay(seed));
    break;
  }
  std::cout << total.completed << " completed, " << total.expired << " expired, " << total.cancelled
            << " cancelled; " << total.tokens << " tokens; " << total.sessions << " sessions, "
            << total.failovers << " failovers and " << total.resumed << " resumptions with output, "
            << total.stalls << " stalls, " << total.waits << " waits for a verifier, " << total.changed
            << " refusals by one that computes otherwise, " << total.orphaned
            << " outputs that nobody could go on with; " << total.cached
            << " sessions with cached prompts and " << total.kept_apart
            << " that another tenant's prompt was kept from; " << total.held_back << " messages held back; "
            << total.events << " events\n"
            << total.coverage.ToString();
  if (seeds.is_single || HasFailure()) return;
  // A world in which nothing breaks proves nothing.
  EXPECT_GT(total.failovers, count / 4);
  EXPECT_GT(total.resumed, count / 4);
  EXPECT_GT(total.stalls, 0u);
  EXPECT_GT(total.waits, 0u);
  EXPECT_GT(total.changed, 0u);
  EXPECT_LT(total.orphaned, count / 4);
  EXPECT_GT(total.held_back, 0u);
  EXPECT_GT(total.cached, 0u);
  EXPECT_GT(total.kept_apart, 0u);
  EXPECT_GT(total.expired, 0u);
  EXPECT_GT(total.cancelled, 0u);
  EXPECT_GT(total.completed, 4 * count);
  EXPECT_TRUE(total.coverage.Missing().empty())
      << "kinds of faults that met nothing: " << absl::StrJoin(total.coverage.Missing(), ", ");
}

TEST_F(ClusterTest, ASeedIsARun) {
  const ClusterOutcome once = RunCluster(7, *tokenizer_);
  const ClusterOutcome again = RunCluster(7, *tokenizer_);
  EXPECT_EQ(once.events, again.events);
  EXPECT_EQ(once.tokens, again.tokens);
  EXPECT_EQ(once.sessions, again.sessions);
}

}  // namespace
}  // namespace tandem::simulation
