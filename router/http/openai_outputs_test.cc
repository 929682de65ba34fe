// Several outputs of a prompt, predictions, prompts' log probabilities, and what an output may be made of, by
// OpenAI's and vLLM's fields.

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/http/testing/openai_api_fixture.h"

namespace tandem::router {
namespace {

using testing::Answer;
using testing::ChunkEvent;
using ::testing::ElementsAre;
using testing::FinishedEvent;
using ::testing::HasSubstr;
using testing::Saying;
using testing::StartedEvent;
using testing::StubVerifier;

class OpenAiOutputsTest : public testing::OpenAiApiTest {
 protected:
  // Remembers what was asked, and says its seed.
  void SaySeeds() {
    verifier_.SetScript([this](StubVerifier::Call& call) {
      const v1::VerifierGenerateRequest& request = call.request();
      {
        absl::MutexLock lock(&mutex_);
        all_asked_.push_back(request);
      }
      const std::string text = absl::StrCat("seed ", request.sampling().seed());
      call.Send(StartedEvent(request));
      if (request.output().has_prompt_logprobs()) call.Send(PromptOf(request));
      call.Send(ChunkEvent(0, text));
      v1::GenerateResponse finished = FinishedEvent(request, static_cast<uint32_t>(text.size()));
      if (request.has_prediction()) {
        v1::SpeculationStats& stats = *finished.mutable_finished()->mutable_speculation();
        stats.set_draft_tokens(9);
        stats.set_accepted_tokens(6);
        for (const v1::DraftSource source : {v1::DRAFT_SOURCE_LOCAL, v1::DRAFT_SOURCE_PREDICTION}) {
          v1::SourceStats& entry = *stats.add_by_source();
          entry.set_source(source);
          entry.set_draft_tokens(source == v1::DRAFT_SOURCE_LOCAL ? 2 : 7);
          entry.set_accepted_tokens(source == v1::DRAFT_SOURCE_LOCAL ? 1 : 5);
        }
      }
      call.Send(finished);
      call.Finish(absl::OkStatus());
    });
  }
  // Token i has the log probability -i and the alternatives "x" and itself.
  static v1::GenerateResponse PromptOf(const v1::VerifierGenerateRequest& request) {
    v1::GenerateResponse event;
    for (int i = 0; i < request.prompt().ids_size(); ++i) {
      event.mutable_prompt()->add_tokens(request.prompt().ids(i));
      v1::TokenDetail& detail = *event.mutable_prompt()->add_details();
      if (i == 0) continue;
      detail.set_logprob(-static_cast<float>(i));
      for (const uint32_t token : {uint32_t{'x'}, request.prompt().ids(i)}) {
        detail.add_top_logprobs()->set_token(token);
        detail.mutable_top_logprobs()->rbegin()->set_logprob(token == 'x' ? -0.5f : -static_cast<float>(i));
      }
    }
    return event;
  }
  std::vector<v1::VerifierGenerateRequest> AllAsked() {
    absl::MutexLock lock(&mutex_);
    return all_asked_;
  }

  absl::Mutex mutex_;
  std::vector<v1::VerifierGenerateRequest> all_asked_;
};

TEST_F(OpenAiOutputsTest, EveryPromptHasAsManyChoicesAsAreAskedFor) {
  SaySeeds();
  const Answer answer = Complete(R"("prompt": ["ab", "cde"], "n": 3, "seed": 7)");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json json = answer.json();
  ASSERT_EQ(json["choices"].size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(json["choices"][i]["index"], i);
    EXPECT_EQ(json["choices"][i]["text"], absl::StrCat("seed ", 7 + i % 3));
    EXPECT_EQ(json["choices"][i]["tandem"]["seed"], 7 + i % 3);
  }
  EXPECT_EQ(json["usage"]["completion_tokens"], 6 * 6);
  EXPECT_EQ(json["usage"]["prompt_tokens"], 3 + 4) << "each prompt counts once";
  EXPECT_EQ(AllAsked().size(), 6u);
}

TEST_F(OpenAiOutputsTest, AStreamMixesTheChoices) {
  SaySeeds();
  const Answer answer = Chat(R"(, "n": 4, "seed": 1, "stream": true)");
  ASSERT_EQ(answer.status, 200) << answer.body;
  std::vector<std::string> events = answer.events();
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back(), "[DONE]");
  events.pop_back();
  std::map<int, std::string> texts;
  std::set<int> finished;
  for (const std::string& event : events) {
    const Json choice = Json::parse(event)["choices"][0];
    const int index = choice["index"];
    EXPECT_FALSE(finished.contains(index)) << "an event after the last one";
    texts[index] += choice["delta"].value("content", "");
    if (choice["finish_reason"] == "stop") finished.insert(index);
  }
  EXPECT_EQ(texts, (std::map<int, std::string>{{0, "seed 1"}, {1, "seed 2"}, {2, "seed 3"}, {3, "seed 4"}}));
  EXPECT_EQ(finished.size(), 4u);
}

TEST_F(OpenAiOutputsTest, WhatOutputsAreMadeOfReachesTheVerifier) {
  SaySeeds();
  const Answer answer =
      Chat(R"(, "min_tokens": 3, "max_tokens": 9, "allowed_token_ids": [70, 65], "priority": -4,
              "prediction": {"type": "content", "content": [{"type": "text", "text": "ab"},
                                                             {"type": "text", "text": "c"}]},
              "tandem": {"banned_token_ids": [66]})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  ASSERT_EQ(AllAsked().size(), 1u);
  const v1::VerifierGenerateRequest asked = AllAsked()[0];
  EXPECT_EQ(asked.stopping().min_tokens(), 3u);
  EXPECT_THAT(asked.sampling().allowed_tokens(), ElementsAre(65, 70));
  EXPECT_THAT(asked.sampling().banned_tokens(), ElementsAre(66));
  EXPECT_EQ(asked.priority(), -4);
  EXPECT_THAT(asked.prediction().ids(), ElementsAre('a', 'b', 'c'));
  const Json details = answer.json()["usage"]["completion_tokens_details"];
  EXPECT_EQ(details["accepted_prediction_tokens"], 5) << "the prediction's, and nobody else's";
  EXPECT_EQ(details["rejected_prediction_tokens"], 2);
}

TEST_F(OpenAiOutputsTest, APromptsLogProbabilitiesAsVllmHasThem) {
  SaySeeds();
  const Json text = Complete(R"("prompt": "ab", "prompt_logprobs": 2)").json();
  const Json& list = text["choices"][0]["prompt_logprobs"];
  ASSERT_EQ(list.size(), 3u) << text.dump();
  EXPECT_TRUE(list[0].is_null());
  EXPECT_EQ(list[1]["97"]["logprob"], -1.0);
  EXPECT_EQ(list[1]["97"]["decoded_token"], "a");
  EXPECT_EQ(list[1]["97"]["rank"], 2);
  EXPECT_EQ(list[2]["120"]["logprob"], -0.5);
  EXPECT_EQ(list[2]["120"]["rank"], 1);
  const Json chat = Chat(R"(, "prompt_logprobs": 0)").json();
  EXPECT_GT(chat["prompt_logprobs"].size(), 2u) << chat.dump();
  EXPECT_FALSE(chat["choices"][0].contains("prompt_logprobs"));
}

TEST_F(OpenAiOutputsTest, AnEchoComesWithItsLogProbabilities) {
  SaySeeds();
  const Json choice =
      Complete(R"("prompt": "ab", "echo": true, "logprobs": 2, "seed": 5)").json()["choices"][0];
  EXPECT_EQ(choice["text"], "abseed 5");
  const Json& logprobs = choice["logprobs"];
  ASSERT_EQ(logprobs["tokens"].size(), 3u + 6u);
  EXPECT_EQ(logprobs["tokens"][1], "a");
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  EXPECT_EQ(logprobs["token_logprobs"][2], -2.0);
  EXPECT_EQ(logprobs["top_logprobs"][2]["x"], -0.5);
  EXPECT_EQ(logprobs["tokens"][3], "s");
  const Answer stream = Complete(R"("prompt": "ab", "echo": true, "logprobs": 2, "seed": 5, "stream": true)");
  std::vector<std::string> tokens;
  for (const std::string& event : stream.events()) {
    if (event == "[DONE]") continue;
    const Json told = Json::parse(event)["choices"][0]["logprobs"];
    if (told.is_null()) continue;
    for (const Json& token : told["tokens"]) tokens.push_back(token);
  }
  ASSERT_EQ(tokens.size(), 9u);
  EXPECT_EQ(tokens[2], "b");
}

TEST_F(OpenAiOutputsTest, WhatIsWrongIsRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> refused = {
      {R"("n": 0)", "n: "},
      {R"("n": 17)", "n: found 17"},
      {R"("best_of": 2)", "best_of: "},
      {R"("min_tokens": -1)", "min_tokens: "},
      {R"("min_tokens": 20, "max_tokens": 10)", "min_tokens: 20, expected at most max_tokens, 10"},
      {R"("allowed_token_ids": [])", "allowed_token_ids: empty"},
      {R"("allowed_token_ids": ["a"])", "allowed_token_ids[0]: found \"a\", expected a token id"},
      {R"("allowed_token_ids": [65, 65])", "allowed_token_ids: token 65 twice"},
      {R"("bad_words": "no")", "bad_words: found \"no\", expected a list of strings"},
      {R"("bad_words": ["a", ""])", "bad_words[1]: 0 bytes"},
      {R"("priority": 101)", "priority: found 101"},
      {R"("prompt_logprobs": 21)", "prompt_logprobs: found 21"},
      {R"("prompt_logprobs": 2, "stream": true)", "prompt_logprobs: not together with stream"},
      {R"("prediction": "text")", "prediction: expected an object"},
      {R"("prediction": {"type": "file", "content": "a"})", "prediction.type: "},
      {R"("prediction": {"type": "content"})", "prediction.content: missing"},
      {R"("prediction": {"type": "content", "content": 3})", "prediction.content: "},
      {R"("prediction": {"type": "content", "content": "a"}, "tandem": {"speculation": false})",
       "prediction: set, but tandem.speculation is OFF"},
  };
  for (const auto& [field, message] : refused) {
    const Answer answer = Complete(R"("prompt": "a", )" + field);
    EXPECT_EQ(answer.status, 400) << field;
    EXPECT_THAT(answer.error(), HasSubstr(message)) << field;
  }
  EXPECT_EQ(Complete(R"("prompt": "a", "allowed_token_ids": [65, 65])").json()["error"]["param"],
            "allowed_token_ids");
  EXPECT_THAT(Complete(R"("prompt": "a", "echo": true, "logprobs": 1, "n": 2)").error(),
              HasSubstr("echo: with logprobs, expected n to be 1"));
  std::string prompts = "\"p\"";
  for (int i = 1; i < 10; ++i) prompts += ", \"p\"";
  EXPECT_THAT(Complete(absl::StrCat(R"("prompt": [)", prompts, R"(], "n": 13)")).error(),
              HasSubstr("n: 13 outputs of 10 prompts, expected at most 128 choices in all"));
}

}  // namespace
}  // namespace tandem::router
