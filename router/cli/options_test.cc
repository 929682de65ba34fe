#include "router/cli/options.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "common/config/flags.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class OptionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    unsetenv("TANDEM_ENDPOINT");
    unsetenv("TANDEM_TOKEN");
  }

  // The parsed command, which must be a T.
  template <class T>
  T Parse(const std::vector<std::string>& arguments) {
    const auto parsed = ParseCommandLine(arguments, out_, err_);
    const Command* command = std::get_if<Command>(&parsed);
    EXPECT_NE(command, nullptr) << err_.str();
    const T* wanted = command == nullptr ? nullptr : std::get_if<T>(command);
    EXPECT_NE(wanted, nullptr);
    return wanted == nullptr ? T() : *wanted;
  }

  // What is written to standard error about a wrong command line.
  std::string UsageError(const std::vector<std::string>& arguments) {
    err_.str("");
    const auto parsed = ParseCommandLine(arguments, out_, err_);
    const int* exit_code = std::get_if<int>(&parsed);
    EXPECT_NE(exit_code, nullptr) << "accepted";
    if (exit_code == nullptr) return "";
    EXPECT_EQ(*exit_code, kExitUsage);
    return err_.str();
  }

  std::ostringstream out_;
  std::ostringstream err_;
};

TEST_F(OptionsTest, DefaultsLeaveEverythingToTheServer) {
  const auto command = Parse<GenerateCommand>({"generate", "hello"});
  EXPECT_EQ(command.prompt, "hello");
  EXPECT_EQ(command.connection.endpoint, "127.0.0.1:7001");
  EXPECT_EQ(command.connection.timeout, absl::InfiniteDuration());
  EXPECT_EQ(command.output, GenerateCommand::Output::kText);
  EXPECT_FALSE(command.chat);
  EXPECT_EQ(command.generation.request.ByteSizeLong(),
            command.generation.request.sampling().ByteSizeLong() + 4)  // Two empty messages.
      << command.generation.request.DebugString();
  EXPECT_FALSE(command.generation.request.sampling().has_temperature());
  EXPECT_FALSE(command.generation.request.stopping().has_max_tokens());
}

TEST_F(OptionsTest, SamplingFlags) {
  const auto command = Parse<GenerateCommand>({"generate",
                                               "--temperature",
                                               "0.5",
                                               "--top-k",
                                               "40",
                                               "--top-p",
                                               "0.9",
                                               "--min-p=0.05",
                                               "--seed",
                                               "18446744073709551615",
                                               "--repetition-penalty",
                                               "1.1",
                                               "--presence-penalty",
                                               "-0.5",
                                               "--frequency-penalty",
                                               "0.25",
                                               "--logit-bias",
                                               "5=-100",
                                               "--logit-bias",
                                               "7=1.5",
                                               "--max-tokens",
                                               "64",
                                               "--stop",
                                               "a",
                                               "--stop",
                                               "b c",
                                               "--stop-token-ids",
                                               "1,2",
                                               "--ignore-eos",
                                               "hello"});
  const v1::SamplingParameters& sampling = command.generation.request.sampling();
  EXPECT_EQ(sampling.temperature(), 0.5f);
  EXPECT_EQ(sampling.top_k(), 40u);
  EXPECT_EQ(sampling.top_p(), 0.9f);
  EXPECT_EQ(sampling.min_p(), 0.05f);
  EXPECT_EQ(sampling.seed(), 18446744073709551615u);
  EXPECT_EQ(sampling.repetition_penalty(), 1.1f);
  EXPECT_EQ(sampling.presence_penalty(), -0.5f);
  EXPECT_EQ(sampling.frequency_penalty(), 0.25f);
  EXPECT_EQ(sampling.logit_bias().at(5), -100.0f);
  EXPECT_EQ(sampling.logit_bias().at(7), 1.5f);
  const v1::StopConditions& stopping = command.generation.request.stopping();
  EXPECT_EQ(stopping.max_tokens(), 64u);
  EXPECT_THAT(stopping.stop(), ElementsAre("a", "b c"));
  EXPECT_THAT(stopping.stop_token_ids(), ElementsAre(1, 2));
  EXPECT_TRUE(stopping.ignore_eos());
  EXPECT_EQ(command.prompt, "hello") << "repeatable flags take one value each";
}

TEST_F(OptionsTest, SpeculationFlags) {
  auto speculation = Parse<GenerateCommand>({"generate", "x", "--drafter", "code", "--window-policy",
                                             "analytic", "--max-window", "4"})
                         .generation.request.speculation();
  EXPECT_EQ(speculation.mode(), v1::SPECULATION_MODE_UNSPECIFIED);
  EXPECT_EQ(speculation.drafter(), "code");
  EXPECT_EQ(speculation.window_policy(), "analytic");
  EXPECT_EQ(speculation.max_window(), 4u);
  speculation =
      Parse<GenerateCommand>({"generate", "x", "--no-speculation"}).generation.request.speculation();
  EXPECT_EQ(speculation.mode(), v1::SPECULATION_MODE_OFF);
  EXPECT_THAT(UsageError({"generate", "x", "--no-speculation", "--drafter", "code"}), HasSubstr("--drafter"));
}

TEST_F(OptionsTest, PromptSources) {
  EXPECT_EQ(Parse<GenerateCommand>({"generate", "-"}).prompt, "-");
  EXPECT_EQ(Parse<GenerateCommand>({"generate", "--file", "p.txt"}).file, "p.txt");
  EXPECT_THAT(*Parse<GenerateCommand>({"generate", "--token-ids", "1,2,3"}).token_ids, ElementsAre(1, 2, 3));
  EXPECT_EQ(Parse<GenerateCommand>({"generate", "--chat", "--", "--not a flag"}).prompt, "--not a flag");
  EXPECT_THAT(UsageError({"generate"}), HasSubstr("no prompt"));
  EXPECT_THAT(UsageError({"generate", "x", "--file", "p.txt"}), HasSubstr("several prompts"));
  EXPECT_THAT(UsageError({"generate", "--chat", "--token-ids", "1"}), HasSubstr("--chat"));
  EXPECT_THAT(UsageError({"generate", "--token-ids", "1,,2"}),
              HasSubstr("--token-ids: \"\" is not a token id"));
  EXPECT_THAT(UsageError({"generate", "--token-ids", "-1"}), HasSubstr("\"-1\" is not a token id"));
}

TEST_F(OptionsTest, OutputFlags) {
  EXPECT_EQ(Parse<GenerateCommand>({"generate", "x", "--json"}).output, GenerateCommand::Output::kJson);
  EXPECT_EQ(Parse<GenerateCommand>({"generate", "x", "--json-stream"}).output,
            GenerateCommand::Output::kJsonStream);
  EXPECT_THAT(UsageError({"generate", "x", "--json", "--json-stream"}), HasSubstr("--json"));
  EXPECT_EQ(Parse<GenerateCommand>({"generate", "x", "--json", "--logprobs", "3"})
                .generation.request.output()
                .logprobs(),
            3u);
  EXPECT_THAT(UsageError({"generate", "x", "--logprobs", "3"}), HasSubstr("--logprobs: expected --json"));
  // The live page shows a request only if its flag asks for it.
  EXPECT_FALSE(Parse<GenerateCommand>({"generate", "x"}).generation.request.output().live_page());
  EXPECT_TRUE(
      Parse<GenerateCommand>({"generate", "x", "--live-page"}).generation.request.output().live_page());
  EXPECT_TRUE(Parse<ChatCommand>({"chat", "--live-page"}).generation.request.output().live_page());
  EXPECT_EQ(Parse<GenerateCommand>({"generate", "x", "--color", "never"}).generation.color,
            GenerationOptions::Color::kNever);
  EXPECT_THAT(UsageError({"generate", "x", "--color", "mauve"}), HasSubstr("mauve"));
}

TEST_F(OptionsTest, ConnectionFromFlagsAndEnvironment) {
  setenv("TANDEM_ENDPOINT", "router:1", 1);
  setenv("TANDEM_TOKEN", "secret", 1);
  ConnectionOptions connection = Parse<InfoCommand>({"info"}).connection;
  EXPECT_EQ(connection.endpoint, "router:1");
  EXPECT_EQ(connection.token.Reveal(), "secret");
  connection =
      Parse<InfoCommand>({"info", "--endpoint", "other:2", "--token", "t", "--timeout", "1m30s"}).connection;
  EXPECT_EQ(connection.endpoint, "other:2");
  EXPECT_TRUE(connection.other_endpoints.empty());
  EXPECT_EQ(connection.token.Reveal(), "t");
  EXPECT_EQ(connection.timeout, absl::Seconds(90));
  EXPECT_EQ(Parse<InfoCommand>({"info", "--timeout", "2.5"}).connection.timeout, absl::Seconds(2.5));
  EXPECT_THAT(UsageError({"info", "--timeout", "soon"}), HasSubstr("--timeout: soon"));
  EXPECT_THAT(UsageError({"info", "--timeout", "-3"}), HasSubstr("--timeout: -3"));
}

TEST_F(OptionsTest, ReplicasAndRetry) {
  const auto command =
      Parse<GenerateCommand>({"generate", "x", "--retry", "--endpoint", "a:1", "--endpoint", "b:2"});
  EXPECT_TRUE(command.retry);
  EXPECT_EQ(command.connection.endpoint, "a:1");
  EXPECT_THAT(command.connection.other_endpoints, ElementsAre("b:2"));
  EXPECT_FALSE(Parse<GenerateCommand>({"generate", "x"}).retry);
}

TEST_F(OptionsTest, ChatCommand) {
  const auto command =
      Parse<tandem::cli::ChatCommand>({"chat", "--system", "Be brief.", "--temperature", "0"});
  EXPECT_EQ(command.system, "Be brief.");
  EXPECT_EQ(command.generation.request.sampling().temperature(), 0.0f);
}

TEST_F(OptionsTest, Tools) {
  const std::string file = ::testing::TempDir() + "/tandem_options_test_tools.json";
  const auto write = [&file](const std::string& text) { std::ofstream(file) << text; };
  write(R"([{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}])");
  const auto parse = [&](const std::string& choice) {
    return Parse<GenerateCommand>({"generate", "x", "--chat", "--tools", file, "--tool-choice", choice})
        .generation.request.chat();
  };
  EXPECT_EQ(parse("required").tools(0).parameters(), R"({"b":1,"a":2})");
  EXPECT_EQ(parse("required").tool_choice().mode(), v1::ToolChoice::MODE_REQUIRED);
  EXPECT_EQ(parse("f").tool_choice().name(), "f");
  EXPECT_THAT(UsageError({"generate", "x", "--tools", file}), HasSubstr("--tools: expected --chat as well"));
  EXPECT_THAT(UsageError({"generate", "x", "--chat", "--tool-choice", "auto"}),
              HasSubstr("--tool-choice: expected"));
  EXPECT_THAT(UsageError({"generate", "x", "--chat", "--tools", file + ".none"}), HasSubstr("--tools: "));
  write("{");
  EXPECT_THAT(UsageError({"generate", "x", "--chat", "--tools", file}), HasSubstr("expected JSON"));
  write(R"([{"name": 3}])");
  EXPECT_THAT(UsageError({"generate", "x", "--chat", "--tools", file}), HasSubstr("--tools[0].name"));
}

TEST_F(OptionsTest, BadValues) {
  EXPECT_THAT(UsageError({}), HasSubstr("subcommand"));
  EXPECT_THAT(UsageError({"sing"}), HasSubstr("sing"));
  EXPECT_THAT(UsageError({"generate", "x", "--temprature", "1"}), HasSubstr("--temprature"));
  EXPECT_THAT(UsageError({"generate", "x", "--temperature", "warm"}), HasSubstr("warm"));
  EXPECT_THAT(UsageError({"generate", "x", "--logit-bias", "5"}), HasSubstr("--logit-bias: \"5\""));
  EXPECT_THAT(UsageError({"generate", "x", "y"}), HasSubstr("y"));
}

TEST_F(OptionsTest, HelpHasExamplesAndGoesToStandardOutput) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"generate", "--help"}, {"chat", "--help"}}) {
    out_.str("");
    const auto parsed = ParseCommandLine(arguments, out_, err_);
    ASSERT_TRUE(std::holds_alternative<int>(parsed));
    EXPECT_EQ(std::get<int>(parsed), kExitOk);
    EXPECT_THAT(out_.str(), HasSubstr("tandem "));
  }
  const auto parsed = ParseCommandLine({"--help"}, out_, err_);
  EXPECT_THAT(out_.str(), HasSubstr("Examples:"));
  EXPECT_THAT(out_.str(), HasSubstr("TANDEM_TOKEN"));
  EXPECT_EQ(err_.str(), "");
}

TEST_F(OptionsTest, Explain) {
  const auto command = Parse<ExplainCommand>({"explain", "--prompt", "def f():", "--model", "m", "--json"});
  EXPECT_EQ(command.prompt, "def f():");
  EXPECT_EQ(command.request.model(), "m");
  EXPECT_TRUE(command.json);
  EXPECT_EQ(Parse<ExplainCommand>({"explain", "text"}).prompt, "text");
  EXPECT_THAT(UsageError({"explain"}), HasSubstr("explain: expected one prompt"));
  EXPECT_THAT(UsageError({"explain", "a", "--file", "b"}), HasSubstr("explain: expected one prompt"));
}

TEST_F(OptionsTest, Calibrate) {
  const auto command = Parse<CalibrateCommand>(
      {"calibrate", "--prompts", "p.jsonl", "--drafters", "a,b", "--max-tokens", "9", "--output", "o"});
  EXPECT_EQ(command.prompts, "p.jsonl");
  EXPECT_THAT(command.drafters, ElementsAre("a", "b"));
  EXPECT_EQ(command.request.stopping().max_tokens(), 9u);
  EXPECT_EQ(command.output, "o");
  EXPECT_FALSE(command.portable);
  EXPECT_TRUE(Parse<CalibrateCommand>({"calibrate", "--prompts", "p", "--portable"}).portable);
  EXPECT_EQ(Parse<CalibrateCommand>({"calibrate", "--prompts", "p"}).request.stopping().max_tokens(), 64u);
  EXPECT_THAT(UsageError({"calibrate"}), HasSubstr("--prompts"));
}

TEST_F(OptionsTest, WhatOutputsAreMadeOf) {
  const auto command =
      Parse<GenerateCommand>({"generate", "hello", "--min-tokens", "4", "--num-outputs", "3", "--priority",
                              "-7", "--prediction", "main.py", "--prompt-logprobs", "2", "--json",
                              "--allowed-token-ids", "5,7", "--banned-token-ids", "9"});
  const v1::GenerateRequest& request = command.generation.request;
  EXPECT_EQ(request.stopping().min_tokens(), 4u);
  EXPECT_EQ(request.num_outputs(), 3u);
  EXPECT_EQ(request.priority(), -7);
  EXPECT_EQ(command.prediction, "main.py");
  EXPECT_EQ(request.output().prompt_logprobs(), 2u);
  EXPECT_THAT(request.sampling().allowed_tokens(), ElementsAre(5, 7));
  EXPECT_THAT(request.sampling().banned_tokens(), ElementsAre(9));
  EXPECT_THAT(UsageError({"generate", "x", "--prompt-logprobs", "2"}),
              HasSubstr("--prompt-logprobs: expected --json"));
  EXPECT_THAT(UsageError({"generate", "x", "--num-outputs", "2", "--retry"}), HasSubstr("--num-outputs"));
  EXPECT_THAT(UsageError({"generate", "x", "--allowed-token-ids", "5,b"}), HasSubstr("--allowed-token-ids"));
}

}  // namespace
}  // namespace tandem::cli
