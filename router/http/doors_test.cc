// The ways in besides OpenAI's own: paths, heads and pages that other servers' callers use.
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "router/http/openai_api.h"
#include "router/http/openai_json.h"
#include "router/http/testing/openai_api_fixture.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"

namespace tandem::router {
namespace {

using testing::Answer;
using ::testing::HasSubstr;
using testing::LettersConfig;
using ::testing::Not;
using testing::Saying;
using testing::StartedEvent;
using testing::StubVerifier;
using testing::TestRouter;

using DoorsTest = testing::OpenAiApiTest;

v1::ServerInfo InfoOf(uint32_t context_length, uint64_t kv_tokens) {
  v1::ServerInfo info;
  v1::ModelInfo& model = *info.add_models();
  model.set_name("letters");
  model.set_context_length(context_length);
  info.mutable_capacity()->set_kv_tokens(kv_tokens);
  return info;
}

TEST_F(DoorsTest, AKeyIsATokenAsOtherClientsSendIt) {
  const std::string body = R"({"prompt": "x"})";
  for (const char* fields : {"x-api-key: secret-z\r\n", "api-key: secret-z\r\n", "X-Api-Key: secret-z\r\n",
                             "Authorization: Bearer secret-z\r\nx-api-key: wrong\r\n"}) {
    EXPECT_EQ(Ask("POST", "/v1/completions", body, fields).status, 200) << fields;
    EXPECT_EQ(Ask("GET", "/v1/models", "", fields).status, 200) << fields;
    EXPECT_EQ(Ask("POST", "/tokenize", body, fields).status, 200) << fields;
  }
  for (const char* fields :
       {"x-api-key: wrong\r\n", "api-key: \r\n", "x-api-key: secret-z\r\nx-api-key: secret-z\r\n",
        "Authorization: Bearer wrong\r\nx-api-key: secret-z\r\n", "x-api-key: Bearer secret-z\r\n"}) {
    EXPECT_EQ(Ask("POST", "/v1/completions", body, fields).status, 401) << fields;
  }
}

TEST_F(DoorsTest, SlashesInARowAreOne) {
  EXPECT_EQ(Ask("POST", "//v1/completions", R"({"prompt": "x"})").status, 200);
  EXPECT_EQ(Ask("GET", "//v1//models///letters").json()["id"], "letters");
  EXPECT_EQ(Ask("GET", "//health", "", "").status, 200);
  EXPECT_EQ(Ask("GET", "//v1/unknown").status, 404);
}

TEST_F(DoorsTest, ProbesMayPost) {
  bool ready = false;
  Start({.ready = [&ready] { return ready; }});
  EXPECT_EQ(Ask("POST", "/ping", "", "").status, 503);
  ready = true;
  EXPECT_EQ(Ask("POST", "/ping", "", "").status, 200);
  const Answer refused = Ask("DELETE", "/ping", "", "");
  EXPECT_EQ(refused.status, 405);
  EXPECT_THAT(refused.head, HasSubstr("Allow: GET, POST\r\n"));
}

TEST_F(DoorsTest, LoadCountsWhatRuns) {
  verifier_.SetScript(nullptr);
  Start();
  EXPECT_EQ(Ask("GET", "/load", "", "").json(), Json({{"server_load", 0}}));
  testing::HttpConnection running(
      server_->port(),
      RequestText("POST", "/v1/completions", R"({"prompt": "x"})", "Authorization: Bearer secret-z\r\n"));
  const std::shared_ptr<StubVerifier::Call> call = verifier_.NextCall();
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(Ask("GET", "/load", "", "").json(), Json({{"server_load", 1}}));
  Saying("x", 1)(*call);
  EXPECT_EQ(Answer(running.ReadAll()).status, 200);
}

TEST_F(DoorsTest, TheApiDescribesItself) {
  Start();
  const Answer page = Ask("GET", "/docs", "", "");
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.head, HasSubstr("Content-Type: text/html"));
  const Answer answer = Ask("GET", "/openapi.json", "", "");
  ASSERT_EQ(answer.status, 200);
  const Json json = answer.json();
  EXPECT_EQ(json["openapi"], "3.1.0");
  // What it names there is, with this method; what needs no token says so.
  for (const auto& [path, operations] : json["paths"].items()) {
    EXPECT_THAT(page.body, HasSubstr("<code>" + path + "</code>"));
    for (const auto& [method, operation] : operations.items()) {
      std::string asked = path;
      if (const size_t at = asked.find("{model}"); at != std::string::npos) asked.replace(at, 7, "letters");
      const int status = Ask(method == "get" ? "GET" : "POST", asked, "{}", "").status;
      EXPECT_EQ(status, operation.contains("security") ? 401 : 200) << method << " " << path;
      EXPECT_FALSE(operation["responses"].empty());
    }
  }
  EXPECT_EQ(json["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]
                ["schema"]["required"],
            Json({"messages"}));
  EXPECT_EQ(json["paths"]["/v1/models/{model}"]["get"]["parameters"][0]["name"], "model");
  EXPECT_FALSE(json["paths"].contains("/metrics"));
}

TEST_F(DoorsTest, MetricsStandHereWhereThatIsWished) {
  MetricsRegistry registry;
  registry.AddCounter({"tandem_test_total", "A test.", {}}).With().Increment(3);
  Start({.metrics = [&registry] { return registry.Expose(); }});
  const Answer answer = Ask("GET", "/metrics", "", "");
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.head, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(answer.body, HasSubstr("tandem_test_total 3\n"));
  EXPECT_TRUE(Ask("GET", "/openapi.json", "", "").json()["paths"].contains("/metrics"));
}

TEST_F(DoorsTest, MetricsAreNotShownUnasked) {
  EXPECT_EQ(Ask("GET", "/metrics").status, 404);
  EXPECT_EQ(Ask("GET", "/metrics", "", "").status, 401);
}

TEST_F(DoorsTest, APageMaySendTheFieldsThatItAsksFor) {
  Start({.allowed_origins = {"*"}});
  const std::string origin = "Origin: https://chat.example\r\n";
  EXPECT_THAT(Ask("OPTIONS", "/v1/models", "", origin).head, HasSubstr("x-api-key"));
  EXPECT_THAT(Ask("OPTIONS", "/v1/models", "",
                  origin + "Access-Control-Request-Headers: authorization, x-stainless-lang\r\n")
                  .head,
              HasSubstr("Access-Control-Allow-Headers: authorization, x-stainless-lang\r\n"));
  EXPECT_THAT(Ask("OPTIONS", "/v1/models", "", origin + "Access-Control-Request-Headers: a\tb\"\r\n").head,
              Not(HasSubstr("a\tb")));
}

TEST_F(DoorsTest, AModelIsAsLongAsItsSmallestVerifierTakes) {
  StubVerifier small;
  verifier_.SetInfo(InfoOf(32, 400));
  small.SetInfo(InfoOf(32, 20));
  for (StubVerifier* verifier : {&verifier_, &small}) verifier->SetServing(true);
  router_ = std::make_unique<TestRouter>(LettersConfig({verifier_.endpoint(), small.endpoint()}));
  api_ = std::make_unique<OpenAiApi>(OpenAiApi::Options{}, &router_->router(), nullptr);
  server_ = HttpServer::Start({.address = "127.0.0.1:0"}, api_.get()).value();
  const auto told = [this] { return Ask("GET", "/v1/models/letters").json()["max_model_len"].get<int>(); };
  const auto becomes = [&told](int length) {
    const absl::Time end = absl::Now() + absl::Seconds(30);
    while (told() != length && absl::Now() < end) std::this_thread::yield();
    return told() == length;
  };
  EXPECT_TRUE(becomes(20)) << told();
  EXPECT_EQ(Ask("GET", "/v1/models").json()["data"][0]["max_model_len"], 20);
  EXPECT_EQ(Ask("POST", "/tokenize", R"({"prompt": "ab"})").json()["max_model_len"], 20);
  // Once that one serves no more, the other counts, which has more room than the model's context.
  small.SetServing(false);
  EXPECT_TRUE(becomes(32)) << told();
}

// A verifier of several models tells the share of each.
TEST_F(DoorsTest, AShareOfTheKeysAndValuesIsWhatAModelHas) {
  v1::ServerInfo info = InfoOf(32, 400);
  v1::HeldModel& held = *info.add_held_models();
  held.set_name("letters");
  held.set_serving(true);
  held.mutable_capacity()->set_kv_tokens(16);
  verifier_.SetInfo(info);
  verifier_.SetServing(true);
  Start();
  const absl::Time end = absl::Now() + absl::Seconds(30);
  const auto told = [this] { return Ask("GET", "/v1/models/letters").json()["max_model_len"].get<int>(); };
  while (told() != 16 && absl::Now() < end) std::this_thread::yield();
  EXPECT_EQ(told(), 16);
}

}  // namespace
}  // namespace tandem::router
