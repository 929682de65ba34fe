// Where outputs end and where they are taken up again, with and without speculation.
#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/e2e/generation_fixture.h"

namespace tandem::e2e {
namespace {

constexpr uint32_t kTokens = 40;

class OutputEndTest : public GenerationTest {
 protected:
  // The request on both drafting verifiers, undrafted and with two drafters.
  static void ExpectSameHowever(v1::GenerateRequest request) {
    for (const char* verifier : {kLookahead, kSynchronous}) {
      request.set_model(verifier);
      request.mutable_speculation()->Clear();
      request.mutable_speculation()->set_mode(v1::SPECULATION_MODE_OFF);
      ExpectSame(request, Generate(request));
      for (absl::string_view drafter : {kDrafters[0], kDrafters[3]}) {
        SetDrafter(request, drafter, "fixed");
        ExpectSame(request, Generate(request));
      }
    }
  }
};

// A string whose first occurrence in the output lies across a token border, at or after the token `from`;
// empty when there is none.
std::string StringAcrossBorder(const Output& output, size_t from) {
  for (size_t i = from; i + 1 < output.tokens.size(); ++i) {
    const size_t border = output.CertainTextBytes(i + 1);
    if (output.tokens[i].text_bytes < 2 || output.tokens[i + 1].text_bytes < 2) continue;
    const std::string across = output.text.substr(border - 2, 4);
    if (output.text.find(across) == border - 2) return across;
  }
  return "";
}

TEST_F(OutputEndTest, StopStringsAcrossTokenBorders) {
  for (const size_t index : {size_t{1}, size_t{3}, size_t{4}}) {
    v1::GenerateRequest request = Request(kPlain, golden()[index].prompt, kTokens);
    request.mutable_stopping()->set_ignore_eos(true);
    const Output whole = Expected(request);
    const std::string stop = StringAcrossBorder(whole, 12);
    ASSERT_NE(stop, "") << golden()[index].label;
    // The first one begins like the text does and never matches: text that is held back for it comes after
    // all.
    request.mutable_stopping()->add_stop(whole.text.substr(8, 6) + "\x01");
    request.mutable_stopping()->add_stop(stop);

    const Output& stopped = Expected(request);
    EXPECT_EQ(stopped.reason, v1::FINISH_REASON_STOP_STRING);
    EXPECT_EQ(stopped.matched_stop, stop);
    EXPECT_EQ(stopped.text, whole.text.substr(0, whole.text.find(stop)));
    const size_t end = whole.text.find(stop) + stop.size();
    ASSERT_LT(stopped.tokens.size(), whole.tokens.size());
    EXPECT_GE(whole.CertainTextBytes(stopped.tokens.size()), end);
    EXPECT_LT(whole.CertainTextBytes(stopped.tokens.size() - 1), end);
    ExpectSameHowever(request);
  }
}

TEST_F(OutputEndTest, StopTokensAndTokenLimits) {
  v1::GenerateRequest request = Request(kPlain, golden()[3].prompt, kTokens);
  request.mutable_stopping()->set_ignore_eos(true);
  const Output whole = Expected(request);
  const std::vector<uint32_t> ids = whole.ids();
  const auto length = static_cast<size_t>(std::find(ids.begin(), ids.end(), ids[17]) - ids.begin() + 1);

  v1::GenerateRequest stopped = request;
  stopped.mutable_stopping()->add_stop_token_ids(ids[17]);
  EXPECT_EQ(Expected(stopped).reason, v1::FINISH_REASON_STOP_TOKEN);
  EXPECT_EQ(Expected(stopped).ids(), std::vector<uint32_t>(ids.begin(), ids.begin() + length));
  EXPECT_EQ(Expected(stopped).text, whole.text.substr(0, whole.CertainTextBytes(length - 1)));
  ExpectSameHowever(stopped);

  for (const uint32_t limit : {1u, 2u, 9u}) {
    request.mutable_stopping()->set_max_tokens(limit);
    EXPECT_EQ(Expected(request).reason, v1::FINISH_REASON_MAX_TOKENS);
    EXPECT_EQ(Expected(request).ids(), std::vector<uint32_t>(ids.begin(), ids.begin() + limit));
    ExpectSameHowever(request);
  }

  // The maths prompt is answered and ended by the model itself.
  v1::GenerateRequest answer = Request(kPlain, golden()[2].prompt, kTokens);
  EXPECT_EQ(Expected(answer).reason, v1::FINISH_REASON_STOP_TOKEN);
  ExpectSameHowever(answer);
}

// As a router calls a verifier, with what another verifier has already delivered.
v1::VerifierGenerateRequest Resumed(const v1::GenerateRequest& request, const Output& whole,
                                    size_t num_emitted, absl::string_view verifier) {
  v1::VerifierGenerateRequest resumed;
  resumed.set_model(std::string(verifier));
  *resumed.mutable_prompt() = request.token_ids();
  for (size_t i = 0; i < num_emitted; ++i) resumed.mutable_emitted()->add_ids(whole.tokens[i].token);
  *resumed.mutable_sampling() = request.sampling();
  *resumed.mutable_stopping() = request.stopping();
  *resumed.mutable_output() = request.output();
  return resumed;
}

TEST_F(OutputEndTest, AnotherVerifierGoesOnAsIfNothingHadHappened) {
  v1::GenerateRequest request = Request(kPlain, golden()[1].prompt, kTokens);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(0.8f);
  request.mutable_sampling()->set_repetition_penalty(1.2f);
  request.mutable_sampling()->set_frequency_penalty(0.4f);
  const std::string stop = StringAcrossBorder(Expected(request), 30);
  ASSERT_NE(stop, "");
  request.mutable_stopping()->add_stop(stop);
  const Output whole = Expected(request);
  ASSERT_EQ(whole.reason, v1::FINISH_REASON_STOP_STRING);

  const size_t length = whole.tokens.size();
  for (const size_t num_emitted : {size_t{1}, length / 2, length - 1, length}) {
    for (const char* verifier : {kLookahead, kSynchronous}) {
      for (const bool drafted : {false, true}) {
        v1::VerifierGenerateRequest resumed = Resumed(request, whole, num_emitted, verifier);
        if (drafted) {
          resumed.mutable_drafter()->set_name("general");
          resumed.mutable_drafter()->set_endpoint(stack().drafter_endpoint());
          resumed.mutable_drafter()->set_draft_model(std::string(kDrafters[0]));
          resumed.mutable_speculation()->set_window_policy("fixed");
        }
        Output rest = whole;
        rest.tokens.erase(rest.tokens.begin(), rest.tokens.begin() + static_cast<ptrdiff_t>(num_emitted));
        rest.text = whole.text.substr(whole.CertainTextBytes(num_emitted));
        const absl::StatusOr<RecordedOutput> result = GenerateAtVerifier(verifier, resumed);
        ASSERT_TRUE(result.ok()) << result.status();
        EXPECT_EQ(result->output, rest) << num_emitted << " tokens emitted, on " << verifier;
        EXPECT_EQ(result->finished.usage().completion_tokens(), length);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::e2e
