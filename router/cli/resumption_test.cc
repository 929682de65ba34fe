#include "router/cli/resumption.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::cli {
namespace {

using ::testing::ElementsAre;

TEST(ResumptionTest, AsksForWhatIsMissing) {
  v1::GenerateRequest request;
  request.set_text("once");
  Resumption resumption(request);
  EXPECT_FALSE(resumption.request().has_resume());
  v1::GenerateResponse started;
  started.mutable_started()->set_request_id("r1");
  started.mutable_started()->set_model("big");
  started.mutable_started()->set_seed(77);
  started.mutable_started()->set_max_tokens(50);
  EXPECT_TRUE(resumption.OnEvent(started));
  v1::GenerateResponse chunk;
  for (uint32_t token : {4, 5}) chunk.mutable_chunk()->add_tokens(token);
  chunk.mutable_chunk()->set_arithmetic(99);
  EXPECT_TRUE(resumption.OnEvent(chunk));
  chunk.clear_chunk();
  chunk.mutable_chunk()->add_tokens(6);
  EXPECT_TRUE(resumption.OnEvent(chunk));

  const v1::GenerateRequest& again = resumption.request();
  EXPECT_EQ(again.text(), "once");
  EXPECT_EQ(again.request_id(), "r1");
  EXPECT_EQ(again.model(), "big");
  EXPECT_EQ(again.sampling().seed(), 77u);
  EXPECT_EQ(again.stopping().max_tokens(), 50u);
  EXPECT_THAT(again.resume().emitted().ids(), ElementsAre(4, 5, 6));
  EXPECT_EQ(again.resume().arithmetic(), 99u);

  // Another router's, whose word does not count any more.
  started.mutable_started()->set_seed(78);
  EXPECT_FALSE(resumption.OnEvent(started));
  EXPECT_EQ(resumption.request().sampling().seed(), 77u);
  EXPECT_FALSE(resumption.finished());
  v1::GenerateResponse finished;
  finished.mutable_finished();
  EXPECT_TRUE(resumption.OnEvent(finished));
  EXPECT_TRUE(resumption.finished());
}

TEST(ResumptionTest, ThePromptIsTakenOnce) {
  Resumption resumption{v1::GenerateRequest()};
  v1::GenerateResponse part;
  for (uint32_t token : {4, 5}) part.mutable_prompt()->add_tokens(token);
  EXPECT_TRUE(resumption.OnEvent(part));
  EXPECT_FALSE(resumption.OnEvent(part)) << "another router tells it from the beginning";
  part.mutable_prompt()->set_offset(2);
  EXPECT_TRUE(resumption.OnEvent(part));
}

}  // namespace
}  // namespace tandem::cli
