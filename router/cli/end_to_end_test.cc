// The command line against a router with a stub verifier, all in one process.
#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/config/flags.h"
#include "common/config/token_digest.h"
#include "common/rpc/channel.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "router/cli/commands.h"
#include "router/registry/testing/registrations.h"
#include "router/testing/letter_encoder.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"
#include "tandem/v1/registry.grpc.pb.h"

namespace tandem::cli {
namespace {

using router::testing::ChunkEvent;
using router::testing::FinishedEvent;
using router::testing::LettersConfig;
using router::testing::Saying;
using router::testing::StartedEvent;
using router::testing::StubVerifier;
using router::testing::TestRouter;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

v1::RouterConfig Config(const std::string& verifier) {
  v1::RouterConfig config = LettersConfig({verifier});
  config.mutable_tenants(1)->set_admin(true);
  return config;
}

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
  TestRouter router_{Config(verifier_.endpoint())};
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

TEST_F(EndToEndTest, RetryGoesOnWhereARouterWasLost) {
  // The first router loses its only verifier for good; the second one's goes on.
  StubVerifier lost;
  lost.SetScript([](StubVerifier::Call& call) {
    if (call.request().emitted().ids().empty()) {
      call.Send(StartedEvent(call.request()));
      call.Send(ChunkEvent(0, "hello "));
    }
    call.Finish(absl::UnavailableError("killed"));
  });
  verifier_.SetScript([](StubVerifier::Call& call) {
    EXPECT_EQ(call.request().emitted().ids_size(), 6);
    call.Send(StartedEvent(call.request()));
    call.Send(ChunkEvent(6, "world"));
    call.Send(FinishedEvent(call.request(), 11));
    call.Finish(absl::OkStatus());
  });
  TestRouter first(LettersConfig({lost.endpoint()}));
  const std::vector<std::string> arguments = {"generate",   "hi",
                                              "--token",    "secret-z",
                                              "--endpoint", "unix:/nonexistent/router",
                                              "--endpoint", first.endpoint(),
                                              "--endpoint", router_.endpoint()};
  std::vector<std::string> retrying = arguments;
  retrying.push_back("--retry");
  EXPECT_EQ(RunRaw(retrying), kExitOk) << err_.str();
  EXPECT_EQ(out_.str(), "hello world\n");
  EXPECT_EQ(RunRaw(arguments), kExitFailure) << "only when asked to";
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

TEST_F(EndToEndTest, CalibratesAndExplains) {
  verifier_.SetScript([](StubVerifier::Call& call) {
    call.Send(StartedEvent(call.request()));
    call.Send(ChunkEvent(0, "0123456789"));
    v1::GenerateResponse finished = FinishedEvent(call.request(), 10);
    v1::SpeculationStats& stats = *finished.mutable_finished()->mutable_speculation();
    stats.set_drafter(call.request().drafter().name());
    stats.set_drafter_accepted_tokens(6);
    stats.set_drafter_rejections(2);
    v1::MeasuredCosts& costs = *stats.mutable_costs();
    costs.set_exposed_level_seconds(0.001);
    costs.set_hidden_level_seconds(0.002);
    for (const double seconds : {0.010, 0.011, 0.012}) costs.add_verify_seconds(seconds);
    call.Send(finished);
    call.Finish(absl::OkStatus());
  });
  const std::string folder = ::testing::TempDir();
  const std::string prompts = folder + "/tandem_prompts.jsonl";
  const std::string state = folder + "/tandem_routing.state";
  {
    std::ofstream file(prompts);
    for (int i = 0; i < 12; ++i) file << "{\"chat\": \"prompt " << i << "\"}\n";
  }
  EXPECT_EQ(RunTandem({"calibrate", "--prompts", prompts, "--drafters", "math", "--output", state}), kExitOk)
      << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("12 prompts, 1 drafters\nmath "));
  EXPECT_THAT(out_.str(), HasSubstr("mean acceptance 0.750"));
  EXPECT_EQ(verifier_.num_calls(), 12);
  const auto read = [&state] {
    v1::LearnedRouting learned;
    std::ifstream file(state, std::ios::binary);
    EXPECT_TRUE(learned.ParseFromIstream(&file));
    return learned;
  };
  v1::LearnedRouting learned = read();
  ASSERT_EQ(learned.models_size(), 1);
  EXPECT_EQ(learned.models(0).verify_seconds_size(), 3);
  ASSERT_EQ(learned.models(0).drafters_size(), 1);
  EXPECT_TRUE(learned.models(0).drafters(0).has_hidden_level_seconds());
  EXPECT_EQ(
      RunTandem({"calibrate", "--prompts", prompts, "--drafters", "math", "--output", state, "--portable"}),
      kExitOk)
      << err_.str();
  learned = read();
  ASSERT_EQ(learned.models_size(), 1);
  EXPECT_EQ(learned.models(0).verify_seconds_size(), 0);
  EXPECT_EQ(learned.models(0).plain_correction(), 0.0);
  EXPECT_FALSE(learned.models(0).drafters(0).has_exposed_level_seconds());
  EXPECT_FALSE(learned.models(0).drafters(0).has_hidden_level_seconds());
  EXPECT_EQ(learned.models(0).drafters(0).correction(), 0.0);
  EXPECT_GT(learned.models(0).drafters(0).regression().samples(), 10u);

  EXPECT_EQ(RunTandem({"explain", "--chat", "prompt 3"}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("letters, 11 prompt tokens"));
  EXPECT_THAT(out_.str(), HasSubstr("\nchoice: none (none)\n"));
  EXPECT_EQ(RunTandem({"explain", "-", "--json"}, "prompt"), kExitOk);
  const nlohmann::json json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["candidates"].size(), 2u);
  EXPECT_NEAR(json["candidates"][1]["acceptance"]["mean"], 0.75, 0.05);

  EXPECT_EQ(RunTandem({"calibrate", "--prompts", "/nonexistent"}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("/nonexistent"));
  EXPECT_EQ(RunTandem({"calibrate", "--prompts", prompts, "--drafters", "nonsense"}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("nonsense"));
  std::remove(prompts.c_str());
  std::remove(state.c_str());
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
    call.Finish(absl::InternalError("out of power"));
  });
  EXPECT_EQ(RunTandem({"generate", "hi"}), kExitFailure);
  EXPECT_EQ(out_.str(), "abc\n");
  EXPECT_THAT(err_.str(), StartsWith("tandem: INTERNAL: verifier "));
  EXPECT_THAT(err_.str(), HasSubstr("after 3 tokens: out of power"));
}

TEST_F(EndToEndTest, HelpfulErrors) {
  EXPECT_EQ(RunRaw({"generate", "hi", "--endpoint", "unix:/nonexistent/router"}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("cannot connect to unix:/nonexistent/router"));
  EXPECT_THAT(err_.str(), HasSubstr("tandem-router --config"));
  EXPECT_EQ(RunRaw({"generate", "hi", "--endpoint", router_.endpoint()}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("Give the tenant's token with --token or TANDEM_TOKEN"));
  EXPECT_EQ(RunRaw({"info", "--endpoint", router_.endpoint(), "--token", "wrong"}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("does not know the token"));
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
  EXPECT_EQ(RunTandem({"generate", "hi", "--timeout", "1s"}), kExitFailure);
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

TEST_F(EndToEndTest, HashedTokensAreWhatARouterTakes) {
  const std::string kField = "token_sha256: ";
  const auto written = [&] {
    const std::string text = out_.str();
    const size_t at = text.find(kField);
    EXPECT_NE(at, std::string::npos) << text;
    return std::string(absl::StripAsciiWhitespace(text.substr(at + kField.size())));
  };
  ASSERT_EQ(RunRaw({"hash-token"}, "secret-h\n"), kExitOk) << err_.str();
  const std::string first = written();
  EXPECT_THAT(out_.str(), ::testing::Not(HasSubstr("secret-h")));
  EXPECT_TRUE(ParseTokenDigest(first).value().Matches(Sha256("secret-h")));
  ASSERT_EQ(RunRaw({"hash-token"}, "secret-h\n"), kExitOk);
  EXPECT_NE(written(), first) << "the same salt";

  ASSERT_EQ(RunRaw({"hash-token", "--generate"}), kExitOk);
  const std::vector<std::string> lines = absl::StrSplit(out_.str(), '\n');
  ASSERT_THAT(lines[0], StartsWith("token: "));
  EXPECT_TRUE(ParseTokenDigest(written()).value().Matches(Sha256(lines[0].substr(7))));

  for (const char* bad : {"", "\n", "two words\n", " secret-h\n"}) {
    EXPECT_EQ(RunRaw({"hash-token"}, bad), kExitFailure) << bad;
    EXPECT_EQ(out_.str(), "");
  }
}

TEST_F(EndToEndTest, WrongTlsFilesAreNamed) {
  EXPECT_EQ(RunTandem({"info", "--tls-ca", "/nonexistent/ca.pem"}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("--tls-ca: /nonexistent/ca.pem"));
  EXPECT_EQ(RunTandem({"tenants", "list", "--tls-ca", "/nonexistent/ca.pem"}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("--tls-ca: /nonexistent/ca.pem"));
  EXPECT_EQ(RunTandem({"generate", "hi", "--tls-certificate", "/nonexistent/a.pem"}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("--tls-ca"));
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

TEST_F(EndToEndTest, InfoSaysWhichModelsNobodyServes) {
  TestRouter router(LettersConfig({"unix:/no/such/socket"}));
  EXPECT_EQ(RunRaw({"info", "--endpoint", router.endpoint(), "--token", "secret-z"}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("\nno verifier serves letters\nnot serving until then\n"));
  EXPECT_EQ(RunRaw({"info", "--json", "--endpoint", router.endpoint(), "--token", "secret-z"}), kExitOk);
  const nlohmann::json json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["serving"], false);
  EXPECT_EQ(json["unserved_models"], nlohmann::json::array({"letters"}));
}

TEST_F(EndToEndTest, TenantsAndDrafters) {
  v1::RouterConfig config = LettersConfig({verifier_.endpoint()});
  config.mutable_tenants(1)->set_admin(true);
  TestRouter router(config);
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--endpoint", router.endpoint(), "--token", "secret-z"});
    return RunRaw(arguments);
  };
  EXPECT_EQ(run({"tenants", "list"}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("acme    pinned  code"));
  EXPECT_EQ(run({"drafters", "list"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("math     draft-math   drafter:7003  ok     -"));

  EXPECT_EQ(run({"tenants", "swap", "acme", "math"}), kExitOk);
  EXPECT_EQ(out_.str(), "tenant acme: code -> math\n");
  EXPECT_EQ(run({"tenants", "set", "acme", "--canary", "code", "--canary-percent", "25"}), kExitOk)
      << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("code 25%"));
  EXPECT_EQ(run({"tenants", "set", "acme", "--canary-percent", "50"}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("code 50%")) << "the rest of the trial is kept";
  EXPECT_EQ(run({"tenants", "set", "acme", "--canary-percent", "0"}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("code 0%"));
  EXPECT_EQ(run({"tenants", "set", "acme", "--policy", "off", "--max-queued", "0"}), kExitOk) << err_.str();
  EXPECT_EQ(run({"tenants", "get", "acme", "--json"}), kExitOk);
  const auto got = nlohmann::json::parse(out_.str());
  EXPECT_EQ(got["config"]["drafter_policy"], "DRAFTER_POLICY_OFF");
  EXPECT_FALSE(got["config"].contains("token") && got["config"]["token"] != "");

  EXPECT_EQ(run({"drafters", "set", "new", "--address", "d:1", "--draft-model", "m", "--trusted", "true"}),
            kExitOk)
      << err_.str();
  EXPECT_THAT(out_.str(), ContainsRegex("trusted +yes"));
  EXPECT_EQ(run({"drafters", "drain", "new"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("draining"));
  EXPECT_EQ(run({"drafters", "delete", "new"}), kExitOk);
  EXPECT_EQ(run({"drafters", "get", "new"}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("NOT_FOUND: there is no drafter \"new\""));

  EXPECT_EQ(run({"tenants", "set", "beta"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("nothing to set"));
  EXPECT_EQ(run({"tenants", "set", "acme", "--policy", "off", "--canary", "code"}), kExitUsage);
  EXPECT_EQ(run({"tenants", "frobnicate"}), kExitUsage);
  EXPECT_EQ(RunRaw({"tenants", "list", "--endpoint", router.endpoint(), "--token", "secret-a"}),
            kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("PERMISSION_DENIED"));
}

TEST_F(EndToEndTest, Servers) {
  v1::RouterConfig config = Config(verifier_.endpoint());
  config.mutable_registration()->set_verifiers(true);
  config.mutable_registration()->set_drafters(true);
  TestRouter router(config);
  const uint64_t vocabulary = router::testing::LetterModel().vocabulary_fingerprint;
  const auto registry = v1::Registry::NewStub(tandem::CreateChannel(router.endpoint()));
  const auto enter = [&registry](const v1::ServerRegistration& server) {
    grpc::ClientContext context;
    v1::RegisterRequest request;
    *request.mutable_server() = server;
    v1::RegisterResponse response;
    const grpc::Status status = registry->Register(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
  };
  v1::ServerRegistration verifier = router::testing::VerifierAt("v", "127.0.0.1:1", 1);
  verifier.mutable_verifier()->mutable_model()->set_vocabulary_fingerprint(vocabulary);
  v1::RoundSeconds& round = *verifier.mutable_verifier()->add_round_seconds();
  round.set_rows(1);
  round.set_seconds(0.0125);
  enter(verifier);
  v1::ServerRegistration drafter = router::testing::DrafterAt("d", "drafter-9:7003", 1, "quick");
  drafter.mutable_drafter()->mutable_models(0)->mutable_model()->set_vocabulary_fingerprint(vocabulary);
  drafter.mutable_drafter()->mutable_models(0)->mutable_model()->set_level_seconds(0.0005);
  drafter.mutable_drafter()->mutable_models(0)->mutable_model()->set_head_kind("eagle3");
  drafter.mutable_drafter()->mutable_models(0)->mutable_model()->set_target_fingerprint(0x123);
  enter(drafter);
  v1::ServerRegistration bridged = router::testing::DrafterAt("e", "drafter-8:7003", 1, "near");
  v1::ModelInfo& near = *bridged.mutable_drafter()->mutable_models(0)->mutable_model();
  near.set_vocabulary_fingerprint(0x77);
  near.add_bridged_vocabularies()->set_fingerprint(vocabulary);
  v1::BridgedVocabulary& by_text = *near.add_bridged_vocabularies();
  by_text.set_fingerprint(0x78);
  by_text.set_by_text(true);
  enter(bridged);

  const auto run = [&](std::vector<std::string> arguments, const std::string& token = "secret-z") {
    arguments.insert(arguments.end(), {"--endpoint", router.endpoint(), "--token", token});
    return RunRaw(arguments);
  };
  EXPECT_EQ(run({"servers"}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), StartsWith("ROLE      NAME     ADDRESS "));
  EXPECT_THAT(out_.str(),
              ContainsRegex("verifier +letters +127.0.0.1:1 +registered +not serving +0 of 12 +1.0 +"
                            "777777777777 +12.50 ms for 1 row +-\n"));
  EXPECT_THAT(out_.str(), ContainsRegex("verifier +letters +" + verifier_.endpoint() +
                                        " +configured +ready +0 of 1024 +- +- +- +-\n"));
  EXPECT_THAT(out_.str(), ContainsRegex("drafter +code +drafter:7003 +configured +ready +- +- +- +- +-\n"));
  EXPECT_THAT(out_.str(), ContainsRegex("drafter +quick +drafter-9:7003 +registered +ready +- +1.0 +"
                                        "646464646464 +0.50 ms a level +eagle3 head of 0000000000000123\n"));
  EXPECT_THAT(out_.str(), ContainsRegex("drafter +near .* draft model, bridged to 1, by text for 1\n"));

  EXPECT_EQ(run({"drafters", "drain", "code"}), kExitOk) << err_.str();
  EXPECT_EQ(run({"servers", "--json"}), kExitOk) << err_.str();
  const auto servers = nlohmann::json::parse(out_.str());
  const auto find = [&servers](const std::string& name, const std::string& source) {
    for (const auto& server : servers) {
      if (server["name"] == name && server["source"] == source) return server;
    }
    return nlohmann::json();
  };
  ASSERT_EQ(servers.size(), 6u);
  EXPECT_EQ(find("code", "configured")["state"], "draining");
  EXPECT_EQ(find("letters", "registered")["registration"]["max_waiting"], 8);
  EXPECT_EQ(find("letters", "registered")["registration"]["weights_sha256"].get<std::string>().size(), 64u);
  EXPECT_EQ(find("quick", "registered")["registration"]["level_seconds"], 0.0005);
  EXPECT_EQ(find("quick", "registered")["registration"]["head_kind"], "eagle3");
  EXPECT_EQ(find("near", "registered")["registration"]["vocabulary_fingerprint"], "0000000000000077");
  EXPECT_EQ(find("near", "registered")["registration"]["bridged_vocabularies"].size(), 1u);
  EXPECT_EQ(find("near", "registered")["registration"]["text_vocabularies"][0], "0000000000000078");
  EXPECT_FALSE(find("letters", "configured").contains("registration"));

  EXPECT_EQ(run({"servers"}, "secret-a"), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("PERMISSION_DENIED"));
}

TEST_F(EndToEndTest, WatchShowsChangesUntilInterrupted) {
  v1::RouterConfig config = LettersConfig({verifier_.endpoint()});
  config.mutable_tenants(1)->set_admin(true);
  TestRouter router(config);
  std::istringstream in;
  std::ostringstream watch_err;
  // Interrupts once the change has been told.
  class Ending final : public std::stringbuf {
   public:
    explicit Ending(std::function<void(const std::string&)> seen) : seen_(std::move(seen)) {}
    int sync() override {
      seen_(str());
      return 0;
    }

   private:
    std::function<void(const std::string&)> seen_;
  };
  std::thread change;
  bool changing = false;
  Ending buffer([&](const std::string& text) {
    if (text.find("tenant zeta") != std::string::npos && !changing) {
      changing = true;
      change = std::thread([&] {
        Interrupts interrupts;
        std::ostringstream out;
        Terminal streams{.in = in, .out = out, .err = out};
        EXPECT_EQ(cli::Run({"tenants", "swap", "acme", "math", "--endpoint", router.endpoint(), "--token",
                            "secret-z"},
                           streams, clock_, interrupts),
                  kExitOk);
      });
    }
    if (text.find("tenant acme policy=pinned drafter=math") != std::string::npos) interrupts_.Trigger();
  });
  std::ostream watch_out(&buffer);
  Terminal streams{.in = in, .out = watch_out, .err = watch_err};
  EXPECT_EQ(cli::Run({"tenants", "watch", "--endpoint", router.endpoint(), "--token", "secret-z"}, streams,
                     clock_, interrupts_),
            kExitOk)
      << watch_err.str();
  change.join();
  EXPECT_THAT(buffer.str(), StartsWith("tenant acme policy=pinned drafter=code"));
}

}  // namespace
}  // namespace tandem::cli
