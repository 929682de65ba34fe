// The load generator against a router, a verifier and drafters in this process.

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "bench/serve/serve_bench.h"
#include "common/base/file.h"
#include "common/config/flags.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/in_process_stack.h"

namespace tandem::bench {
namespace {

class ServeEndToEndTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    stack_ =
        new e2e::InProcessStack({{.name = "tree"}, {.name = "chain", .prefill_chunk = 7, .lookahead = 0}});
  }
  static void TearDownTestSuite() {
    delete stack_;
    stack_ = nullptr;
  }

  // Two prompts of each of two kinds.
  ServeOptions Options() {
    const std::string folder = ::testing::TempDir();
    std::ofstream(folder + "/code.jsonl") << "{\"task_id\": \"t/0\", \"prompt\": \"def add(a, b):\\n\"}\n"
                                          << "{\"task_id\": \"t/1\", \"prompt\": \"import os\\n\"}\n";
    std::ofstream(folder + "/story.txt") << "Once upon a time\nThe old man\n";
    ServeOptions options;
    options.endpoint = stack_->router_endpoint();
    options.servers = {absl::StrCat("tree=", stack_->verifier("tree").endpoint()),
                       absl::StrCat("drafter=", stack_->drafter_endpoint())};
    options.prompt_files = {absl::StrCat("code=", folder, "/code.jsonl"),
                            absl::StrCat("story=", folder, "/story.txt")};
    options.chat = {"story"};
    options.max_tokens = 12;
    options.temperatures = {0.0, 0.8};
    options.matrix = {
        .models = {"tree", "chain"}, .drafters = {"off", "general-1m"}, .policies = {"analytic", "fixed"}};
    options.concurrency = {1, 2};
    options.repetitions = 1;
    options.warm_up = 1;
    options.trace_rounds = true;
    options.json = folder + "/sweep.json";
    options.quiet = true;
    return options;
  }

  static e2e::InProcessStack* stack_;
};

e2e::InProcessStack* ServeEndToEndTest::stack_ = nullptr;

TEST_F(ServeEndToEndTest, SweepsAndReports) {
  const ServeOptions options = Options();
  ASSERT_EQ(RunServe(options), kExitOk);
  const auto json = nlohmann::json::parse(ReadFile(options.json, size_t{64} << 20).value());
  EXPECT_EQ(json["simulated"], false);
  EXPECT_EQ(json["identical_outputs"], true);
  EXPECT_EQ(json["configurations"].size(), 5u);
  EXPECT_EQ(json["baseline"], "off");
  EXPECT_EQ(json["summaries"].size(), 2u * 2 * 2 * 5);
  EXPECT_EQ(json["requests"].size(), 4u * 2 * 2 * 5);
  int drafted_rounds = 0;
  for (const auto& summary : json["summaries"]) {
    EXPECT_EQ(summary["errors"], 0);
    EXPECT_EQ(summary["speed_up"]["count"], 1);
    EXPECT_GT(summary["tokens_per_second"].get<double>(), 0.0);
    const int rounds = summary["drafted_rounds"].get<int>();
    if (summary["configuration"] == "off") {
      EXPECT_EQ(rounds, 0);
    }
    drafted_rounds += rounds;
  }
  // Not of every pair of requests: drafts may come late on a busy machine.
  EXPECT_GT(drafted_rounds, 0);
  for (const auto& request : json["requests"]) {
    ASSERT_EQ(request["rounds"].size(), request["chunks"].size());
    double before = 0.0;
    for (const auto& round : request["rounds"]) {
      EXPECT_GT(round["verify_start"].get<double>(), before);
      before = round["verify_start"].get<double>();
      EXPECT_GT(round["verify_seconds"].get<double>(), 0.0);
      EXPECT_EQ(round["nodes"] == 0, round["kind"] == "undrafted");
    }
  }
}

TEST_F(ServeEndToEndTest, SaysWhenRequestsFail) {
  ServeOptions options = Options();
  options.matrix.drafters = {"off", std::string(e2e::kUnknownDraftModel), "no-such-drafter"};
  options.warm_up = 0;
  EXPECT_EQ(RunServe(options), kExitFailure);
  options.warm_up = 1;
  EXPECT_EQ(RunServe(options), kExitFailure);
  options.chat = {"prose"};
  EXPECT_EQ(RunServe(options), kExitUsage);
  options.chat.clear();
  options.prompt_files = {"x=no-such-file"};
  EXPECT_EQ(RunServe(options), kExitFailure);
  options.matrix.drafters.clear();
  EXPECT_EQ(RunServe(options), kExitUsage);
}

}  // namespace
}  // namespace tandem::bench
