// The command line against a router with a stub verifier, all in one process.
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/config/flags.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "router/cli/commands.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"

namespace tandem::cli {
namespace {

using router::testing::ChunkEvent;
using router::testing::FinishedEvent;
using router::testing::LettersConfig;
using router::testing::Saying;
using router::testing::StartedEvent;
using router::testing::StubVerifier;
using router::testing::TestRouter;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class EndToEndTest : public ::testing::Test {
 protected:
  // Runs `tandem` with the connection to the router added.
  int RunTandem(std::vector<std::string> arguments, const std::string& input = "", bool terminal = false) {
    arguments.insert(arguments.end(), {"--endpoint", router_.endpoint(), "--token", "secret-z"});
    return RunRaw(arguments, input, terminal);
  }

  int RunRaw(const std::vector<std::string>& arguments, const std::string& input = "",
             bool terminal = false) {
    std::istringstream in(input);
    out_.str("");
    err_.str("");
    Terminal streams{
        .in = in, .out = out_, .err = err_, .in_is_terminal = terminal, .out_is_terminal = terminal};
    return cli::Run(arguments, streams, clock_, interrupts_);
  }

  StubVerifier verifier_;
  TestRouter router_{LettersConfig({verifier_.endpoint()})};
  SystemClock clock_;
  Interrupts interrupts_;
  std::ostringstream out_;
  std::ostringstream err_;
};

TEST_F(EndToEndTest, GenerateStreamsText) {
  verifier_.SetScript(Saying("hello world", 3));
  EXPECT_EQ(RunTandem({"generate", "hi"}), kExitOk);
  EXPECT_EQ(out_.str(), "hello world\n");
  EXPECT_EQ(err_.str(), "");
}

TEST_F(EndToEndTest, TerminalShowsAcceptedTokensInColor) {
  verifier_.SetScript([](StubVerifier::Call& call) {
    call.Send(StartedEvent(call.request()));
    call.Send(ChunkEvent(0, "ab", v1::TOKEN_SOURCE_ACCEPTED));
    call.Send(ChunkEvent(2, "c", v1::TOKEN_SOURCE_TARGET));
    call.Send(FinishedEvent(call.request(), 3));
    call.Finish(absl::OkStatus());
  });
  EXPECT_EQ(RunTandem({"generate", "hi", "--stats"}, "", /*terminal=*/true), kExitOk);
  EXPECT_EQ(out_.str(), "\033[32mab\033[0mc\n");
  EXPECT_THAT(err_.str(), StartsWith("\033[32mgreen"));
  EXPECT_THAT(err_.str(), HasSubstr("tokens       3, after a prompt of 3"));
  EXPECT_EQ(RunTandem({"generate", "hi", "--color", "never"}, "", /*terminal=*/true), kExitOk);
  EXPECT_EQ(out_.str(), "abc\n");
}

TEST_F(EndToEndTest, PromptsFromEverywhere) {
  std::vector<std::vector<uint32_t>> prompts;
  verifier_.SetScript([&](StubVerifier::Call& call) {
    prompts.emplace_back(call.request().prompt().ids().begin(), call.request().prompt().ids().end());
    Saying("x", 1)(call);
  });
  const std::string file = ::testing::TempDir() + "/tandem_prompt.txt";
  std::ofstream(file) << "ab";
  EXPECT_EQ(RunTandem({"generate", "ab"}), kExitOk);
  EXPECT_EQ(RunTandem({"generate", "--file", file}), kExitOk);
  EXPECT_EQ(RunTandem({"generate", "-"}, "ab"), kExitOk);
  EXPECT_EQ(RunTandem({"generate", "--token-ids", "1,97,98"}), kExitOk);
  EXPECT_EQ(RunTandem({"generate", "--chat", "ab"}), kExitOk);
  std::remove(file.c_str());
  const std::vector<uint32_t> text = {1, 'a', 'b'};
  EXPECT_THAT(prompts, ElementsAre(text, text, text, text, std::vector<uint32_t>{1, 2, 'a', 'b', 3}));
  EXPECT_EQ(RunTandem({"generate", "--file", "/nonexistent"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("/nonexistent"));
}

TEST_F(EndToEndTest, Json) {
  verifier_.SetScript(Saying("hello", 2));
  EXPECT_EQ(RunTandem({"generate", "hi", "--json", "--seed", "5"}), kExitOk);
  const nlohmann::json json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["text"], "hello");
  EXPECT_EQ(json["tokens"].size(), 5u);
  EXPECT_EQ(json["seed"], 5);
  EXPECT_EQ(json["model"], "letters");
  EXPECT_GT(json["timings"]["total_seconds"], 0.0);
}

TEST_F(EndToEndTest, JsonStream) {
  verifier_.SetScript(Saying("hello", 2));
  EXPECT_EQ(RunTandem({"generate", "hi", "--json-stream"}), kExitOk);
  std::string text;
  std::vector<std::string> events;
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(out_.str(), '\n', absl::SkipEmpty()))) {
    const nlohmann::json json = nlohmann::json::parse(line);
    events.push_back(json["event"]);
    if (json.contains("text")) text += json["text"].get<std::string>();
  }
  EXPECT_THAT(events, ElementsAre("started", "chunk", "chunk", "chunk", "finished"));
  EXPECT_EQ(text, "hello");
}

TEST_F(EndToEndTest, FailureKeepsTheTextAndSaysWhy) {
  verifier_.SetScript([](StubVerifier::Call& call) {
    call.Send(StartedEvent(call.request()));
    call.Send(ChunkEvent(0, "abc"));
    call.Finish(absl::UnavailableError("out of power"));
  });
  EXPECT_EQ(RunTandem({"generate", "hi"}), kExitFailure);
  EXPECT_EQ(out_.str(), "abc\n");
  EXPECT_THAT(err_.str(), StartsWith("tandem: UNAVAILABLE: verifier "));
  EXPECT_THAT(err_.str(), HasSubstr("lost after 3 tokens: out of power"));
}

TEST_F(EndToEndTest, HelpfulErrors) {
  EXPECT_EQ(RunRaw({"generate", "hi", "--endpoint", "unix:/nonexistent/router"}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("cannot connect to unix:/nonexistent/router"));
  EXPECT_THAT(err_.str(), HasSubstr("tandem-router --config"));
  EXPECT_EQ(RunRaw({"generate", "hi", "--endpoint", router_.endpoint()}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("Give the tenant's token with --token or TANDEM_TOKEN"));
  EXPECT_EQ(RunRaw({"info", "--endpoint", router_.endpoint(), "--token", "wrong"}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("is not one this router knows"));
  EXPECT_EQ(RunTandem({"generate", "hi", "--temperature", "-1"}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("INVALID_ARGUMENT: sampling.temperature"));
  EXPECT_EQ(RunTandem({"generate"}), kExitUsage);
  EXPECT_EQ(RunRaw({"info", "--endpoint", router_.endpoint(), "--token", "secret-z\n"}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("--token: byte 8 is not printable ASCII"));
  EXPECT_EQ(RunTandem({"generate", "caf\xe9"}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("prompt: byte 3 is not UTF-8"));
  EXPECT_EQ(RunTandem({"generate", "ok", "--stop", "\xff"}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("--stop: byte 0 is not UTF-8"));
}

TEST_F(EndToEndTest, TimeoutIsTheDeadline) {
  verifier_.SetScript([](StubVerifier::Call& call) { call.Send(StartedEvent(call.request())); });
  EXPECT_EQ(RunTandem({"generate", "hi", "--timeout", "100ms"}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("DEADLINE_EXCEEDED"));
  EXPECT_THAT(err_.str(), HasSubstr("--timeout"));
}

TEST_F(EndToEndTest, InterruptCancelsAndKeepsTheText) {
  std::thread model([&] {
    const auto call = verifier_.NextCall();
    call->Send(StartedEvent(call->request()));
    call->Send(ChunkEvent(0, "abc"));
    // Once the client has the chunk, the router has counted it; the client may still be about to print it.
    EXPECT_TRUE(interrupts_.Trigger());
    EXPECT_TRUE(call->WaitForCancel());
  });
  EXPECT_EQ(RunTandem({"generate", "hi", "--json"}), kExitFailure);
  model.join();
  EXPECT_THAT(err_.str(), HasSubstr("tandem: interrupted"));
  EXPECT_EQ(nlohmann::json::parse(out_.str())["error"]["code"], "CANCELLED");
  EXPECT_FALSE(interrupts_.Trigger()) << "nothing is left to interrupt";
}

TEST_F(EndToEndTest, ChatKeepsTheConversation) {
  std::vector<std::string> prompts;
  verifier_.SetScript([&](StubVerifier::Call& call) {
    std::string prompt;
    for (uint32_t token : call.request().prompt().ids())
      prompt += static_cast<char>(token < 4 ? '0' + token : token);
    prompts.push_back(prompt);
    Saying("ok", 2)(call);
  });
  EXPECT_EQ(RunTandem({"chat", "--system", "s"}, "a\n\nb\n/reset\nc\n/nonsense\n/stats\n/exit\nd\n"),
            kExitOk);
  EXPECT_THAT(prompts, ElementsAre("12s2a3", "12s2a2ok2b3", "12s2c3"));
  EXPECT_EQ(out_.str(), "ok\nok\nok\n");
  EXPECT_THAT(err_.str(), HasSubstr("Unknown command"));
  EXPECT_THAT(err_.str(), HasSubstr("tokens       2"));
}

TEST_F(EndToEndTest, ChatForgetsWhatFailed) {
  std::vector<int> lengths;
  verifier_.SetScript([&](StubVerifier::Call& call) {
    lengths.push_back(call.request().prompt().ids_size());
    if (lengths.size() == 1) return call.Finish(absl::InternalError("no"));
    Saying("ok", 2)(call);
  });
  EXPECT_EQ(RunTandem({"chat"}, "aaa\nb\n"), kExitFailure) << "a script is told";
  EXPECT_THAT(lengths, ElementsAre(6, 4));
  EXPECT_EQ(RunTandem({"chat"}, "a\n", /*terminal=*/true), kExitOk);
  EXPECT_THAT(err_.str(), HasSubstr("> "));
}

TEST_F(EndToEndTest, Info) {
  EXPECT_EQ(RunTandem({"info"}), kExitOk);
  EXPECT_THAT(out_.str(), StartsWith("tandem-router "));
  EXPECT_THAT(out_.str(), HasSubstr("MODEL    ARCHITECTURE       CONTEXT  VOCABULARY  FINGERPRINT\n"
                                    "letters  LetterForCausalLM  32       256         00000000001e77e2\n"));
  EXPECT_THAT(out_.str(), HasSubstr("DRAFTER  DRAFT MODEL  ENDPOINT\n"
                                    "code     draft-code   drafter:7003\n"
                                    "math     draft-math   drafter:7003\n"));
  EXPECT_EQ(RunTandem({"info", "--json"}), kExitOk);
  const nlohmann::json json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["role"], "router");
  EXPECT_EQ(json["models"][0]["context_length"], 32);
  EXPECT_EQ(json["drafters"][1]["name"], "math");
}

}  // namespace
}  // namespace tandem::cli
