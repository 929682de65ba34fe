// Verification by ratio over the whole draft protocol: requests end whatever happens, outputs are samples of
// the target's distribution, and the same seeds give the same output.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/simulation/simulation.h"

namespace tandem::simulation {
namespace {

std::shared_ptr<const Tokenizer> AnyTokenizer() {
  static const auto* const tokenizer = new std::shared_ptr<const Tokenizer>(
      *Tokenizer::Load(absl::StrCat(TANDEM_SOURCE_DIR, "/deploy/demo-models/tandem-target-15m")));
  return *tokenizer;
}

class SampledDraftsTest : public ::testing::TestWithParam<VerificationRuleKind> {
 protected:
  // The scenario with this rule and drafters that are trusted.
  static Scenario UnderRule(Scenario scenario) {
    scenario.verifier.scheduler.verification_rule = GetParam();
    for (ClientRequest& request : scenario.requests) {
      if (request.drafter.has_value()) request.drafter->trusted = true;
      request.accepted_by_ratio = request.sampling.temperature > 0.0f;
    }
    return scenario;
  }

  // So many requests for the same three tokens, which differ in their seeds.
  static Scenario ManyAlike(uint64_t run, int num_requests) {
    Scenario scenario;
    scenario.verifier.model = {.vocab_size = 40, .num_blocks = 2048, .max_rows = 512, .seed = 1};
    scenario.verifier.scheduler.vocabulary_fingerprint = 7;
    scenario.verifier.scheduler.window_policy = "fixed";
    scenario.verifier.scheduler.limits.max_depth = 3;
    DrafterScenario& drafter = scenario.drafters.emplace_back();
    drafter.machine.vocabulary_fingerprint = 7;
    drafter.machine.core.draw_seed = run + 1;
    drafter.machine.model = {.vocab_size = 40,
                             .num_blocks = 2048,
                             .seed = 100,
                             .sharpness = 2.0f,
                             .agreement = 0.8,
                             .agree_with_seed = 1};
    for (int i = 0; i < num_requests; ++i) {
      scenario.requests.push_back(
          {.id = static_cast<SessionId>(i + 1),
           .arrival = absl::UnixEpoch() + absl::Milliseconds(20) + absl::Microseconds(300 * i),
           .prompt = {3, 1, 4, 1, 5},
           .sampling = {.temperature = 1.2f, .top_k = 4, .seed = run * 1000 + static_cast<uint64_t>(i)},
           .rules = {.max_tokens = 4},
           .drafter =
               DrafterBinding{.link = 0, .name = "drafter", .draft_model = DrafterMachine::kModelName}});
    }
    return UnderRule(std::move(scenario));
  }

  // The first three tokens after that prompt, by the target's distribution.
  static std::map<TokenIds, double> TargetProbs(const Scenario& scenario) {
    const FakeEngine target(scenario.verifier.model);
    const ClientRequest& request = scenario.requests[0];
    const TargetSampler sampler(request.sampling, 40, request.prompt);
    std::map<TokenIds, double> probs = {{request.prompt, 1.0}};
    for (int level = 0; level < 3; ++level) {
      std::map<TokenIds, double> longer;
      for (const auto& [text, prob] : probs) {
        std::vector<float> logits = target.ReferenceLogits(text);
        const std::vector<double> weights = sampler.Weights(absl::MakeSpan(logits), 0);
        const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
        for (size_t token = 0; token < weights.size(); ++token) {
          if (weights[token] == 0.0) continue;
          TokenIds next = text;
          next.push_back(static_cast<TokenId>(token));
          longer[next] = prob * weights[token] / total;
        }
      }
      probs = std::move(longer);
    }
    return probs;
  }
};

TEST_P(SampledDraftsTest, RequestsEndInAnyWeather) {
#ifdef TANDEM_SANITIZED
  constexpr uint64_t kSeeds = 60;
#else
  constexpr uint64_t kSeeds = 400;
#endif
  Outcome total;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Weather weather = seed % 4 == 0 ? Weather::kDrought : Weather::kStorm;
    Scenario scenario = UnderRule(DrawScenario(seed, weather, *AnyTokenizer()));
    const Outcome outcome = Simulation(std::move(scenario), AnyTokenizer(), seed).Run();
    total.Add(outcome);
    ASSERT_TRUE(outcome.findings.empty())
        << "seed " << seed << ":\n  " << absl::StrJoin(outcome.findings, "\n  ");
  }
  EXPECT_GT(total.accepted_tokens, 0u);
  EXPECT_GT(total.resyncs, 0u);
  EXPECT_GT(total.parked_sessions, 0u);
  EXPECT_GT(total.violations, 0u);
}

TEST_P(SampledDraftsTest, OutputsHaveTheTargetsDistribution) {
#ifdef TANDEM_SANITIZED
  constexpr uint64_t kRuns = 12;
#else
  constexpr uint64_t kRuns = 150;
#endif
  constexpr int kRequests = 100;
  std::map<TokenIds, uint64_t> counts;
  Outcome total;
  for (uint64_t run = 0; run < kRuns; ++run) {
    const Outcome outcome = Simulation(ManyAlike(run, kRequests), AnyTokenizer(), run).Run();
    ASSERT_TRUE(outcome.findings.empty()) << absl::StrJoin(outcome.findings, "\n  ");
    for (TokenIds text : outcome.conversations) {
      text.pop_back();
      ++counts[text];
    }
    total.Add(outcome);
  }
  const double num_samples = static_cast<double>(kRuns) * kRequests;
  double chi_square = 0.0;
  double degrees = -1.0;
  double rare_expected = 0.0;
  double rare_count = 0.0;
  uint64_t num_counted = 0;
  const auto add = [&](double count, double expected) {
    chi_square += (count - expected) * (count - expected) / expected;
    degrees += 1.0;
  };
  for (const auto& [text, prob] : TargetProbs(ManyAlike(0, 1))) {
    const uint64_t count = counts[text];
    num_counted += count;
    if (const double expected = prob * num_samples; expected >= 10.0) {
      add(static_cast<double>(count), expected);
    } else {
      rare_expected += expected;
      rare_count += static_cast<double>(count);
    }
  }
  if (rare_expected >= 10.0) add(rare_count, rare_expected);
  EXPECT_EQ(num_counted, static_cast<uint64_t>(num_samples)) << "some outputs were impossible";
  EXPECT_LT(chi_square, degrees + 6.0 * std::sqrt(2.0 * degrees)) << degrees << " degrees";
  EXPECT_GT(degrees, 8.0);
  RecordProperty("chi_square", absl::StrCat(chi_square));
  // Drafts were verified, and accepted, and refused.
  const auto drafted = static_cast<double>(total.draft_tokens);
  EXPECT_GT(drafted, 0.5 * num_samples);
  EXPECT_GT(static_cast<double>(total.accepted_tokens), 0.1 * drafted);
  EXPECT_LT(static_cast<double>(total.accepted_tokens), 0.95 * drafted);
}

TEST_P(SampledDraftsTest, TheSameSeedsGiveTheSameOutput) {
  for (uint64_t run = 0; run < 3; ++run) {
    const Outcome once = Simulation(ManyAlike(run, 20), AnyTokenizer(), run).Run();
    const Outcome again = Simulation(ManyAlike(run, 20), AnyTokenizer(), run).Run();
    EXPECT_EQ(once.conversations, again.conversations);
    EXPECT_GT(once.accepted_tokens, 0u);
  }
}

// Without trust, and at temperature 0, it is the seeded rule that decides: outputs are the reference's, which
// the clients check.
TEST_P(SampledDraftsTest, UntrustedDraftersDoNotDraft) {
  Scenario scenario = ManyAlike(1, 20);
  for (ClientRequest& request : scenario.requests) {
    request.drafter->trusted = false;
    request.accepted_by_ratio = false;
    if (request.id > 10) request.sampling.temperature = 0.0f;
  }
  const Outcome outcome = Simulation(std::move(scenario), AnyTokenizer(), 1).Run();
  EXPECT_TRUE(outcome.findings.empty()) << absl::StrJoin(outcome.findings, "\n  ");
  EXPECT_EQ(outcome.completed, 20u);
  EXPECT_GT(outcome.accepted_tokens, 0u);  // At temperature 0.
}

INSTANTIATE_TEST_SUITE_P(Rules, SampledDraftsTest,
                         ::testing::Values(VerificationRuleKind::kRejection, VerificationRuleKind::kBlock),
                         [](const auto& suite) { return std::string(VerificationRuleName(suite.param)); });

}  // namespace
}  // namespace tandem::simulation
