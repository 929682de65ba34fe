#include "bench/serve/serve_options.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "bench/serve/serve_bench.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Parses as the command would; empty when it was understood, else what was wrong.
std::string Parse(std::vector<std::string> arguments, ServeOptions* options) {
  CLI::App app("test");
  AddServeOptions(&app, options);
  std::reverse(arguments.begin(), arguments.end());
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return std::string(CheckServeOptions(*options).message());
}

TEST(ServeOptionsTest, ParsesASweep) {
  ServeOptions options;
  EXPECT_EQ(Parse({"--prompts",    "a=1.jsonl", "--prompts",     "b=2.jsonl",
                   "--drafter",    "off,x",     "--policy",      "fixed,analytic",
                   "--max-window", "4,8",       "--temperature", "0,0.8",
                   "--seed",       "1,2",       "--concurrency", "1,4",
                   "--rate",       "2.5",       "--baseline",    "x fixed w4"},
                  &options),
            "");
  EXPECT_THAT(options.prompt_files, ElementsAre("a=1.jsonl", "b=2.jsonl"));
  EXPECT_EQ(MakeConfigurations(options.matrix).size(), 5u);
  const std::vector<Load> loads = LoadsOf(options);
  ASSERT_EQ(loads.size(), 3u);
  EXPECT_EQ(loads[1].concurrency, 4u);
  EXPECT_TRUE(loads[2].open());
  EXPECT_EQ(LoadsOf({}).size(), 1u);
}

TEST(ServeOptionsTest, TakesTlsFilesAsTheCommandLineDoes) {
  ServeOptions options;
  EXPECT_EQ(Parse({"--prompts", "a=b", "--drafter", "off", "--tls-ca", "ca.pem", "--tls-certificate",
                   "me.pem", "--tls-key", "me.key"},
                  &options),
            "");
  EXPECT_EQ(options.tls.ca, "ca.pem");
  EXPECT_EQ(options.tls.certificate, "me.pem");
  EXPECT_EQ(options.tls.key, "me.key");
}

TEST(ServeOptionsTest, SaysWhatIsWrong) {
  const std::pair<std::vector<std::string>, const char*> kCases[] = {
      {{"--drafter", "off"}, "--prompts"},
      {{"--prompts", "a=b"}, "--drafter"},
      {{"--prompts", "a=b", "--drafter", "off", "--max-prompt-tokens", "8"}, "--tokenizer"},
      {{"--prompts", "a=b", "--drafter", "off", "--trace-rounds"}, "--json"},
      {{"--prompts", "a=b", "--drafter", "off", "--temperature", "-1"}, "--temperature"},
      {{"--prompts", "a=b", "--drafter", "off", "--temperature", "nan"}, "--temperature"},
      {{"--prompts", "a=b", "--drafter", "off", "--rate", "0"}, "--rate"},
      {{"--prompts", "a=b", "--drafter", "off", "--rate", "inf"}, "--rate"},
      {{"--prompts", "a=b", "--drafter", "off", "--concurrency", "0"}, "--concurrency"},
      {{"--prompts", "a=b", "--drafter", "off", "--repetitions", "0"}, "--repetitions"},
      {{"--prompts", "a=b", "--drafter", "off", "--max-window", "-3"}, "--max-window"},
      {{"--prompts", "a=b", "--drafter", "off,x", "--baseline", "y"}, "expected one of \"off\", \"x\""},
  };
  for (const auto& [arguments, message] : kCases) {
    ServeOptions options;
    EXPECT_THAT(Parse(arguments, &options), HasSubstr(message));
  }
}

TEST(ServeOptionsTest, RequestsCarryTheConfiguration) {
  const ServeOptions options{.max_tokens = 7, .ignore_eos = true, .trace_rounds = true};
  Prompt prompt{"d", "l", "text"};
  v1::GenerateRequest request = MakeRequest(options, prompt, {0.5, 9},
                                            {.model = "m", .drafter = "x", .policy = "fsm", .max_window = 3});
  EXPECT_EQ(request.text(), "text");
  EXPECT_EQ(request.model(), "m");
  EXPECT_EQ(request.sampling().seed(), 9u);
  EXPECT_EQ(request.sampling().temperature(), 0.5f);
  EXPECT_EQ(request.stopping().max_tokens(), 7u);
  EXPECT_TRUE(request.stopping().ignore_eos());
  EXPECT_TRUE(request.output().round_trace());
  EXPECT_EQ(request.speculation().mode(), v1::SPECULATION_MODE_ON);
  EXPECT_EQ(request.speculation().drafter(), "x");
  EXPECT_EQ(request.speculation().window_policy(), "fsm");
  EXPECT_EQ(request.speculation().max_window(), 3u);
  prompt.chat = true;
  request = MakeRequest({}, prompt, {}, {});
  EXPECT_EQ(request.chat().messages(0).content(), "text");
  EXPECT_EQ(request.speculation().mode(), v1::SPECULATION_MODE_OFF);
}

}  // namespace
}  // namespace tandem::bench
