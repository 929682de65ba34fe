// What a head says of the features that it has used, and what becomes of more than it has room for.

#include <algorithm>

#include "drafter/testing/head_drafting_test_fixture.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Room for 8 rows, and for what more a text of 40 tokens has none.
class WindowedHeadTest : public HeadDraftingTest {
 protected:
  WindowedHeadTest()
      : HeadDraftingTest(/*num_blocks=*/64, /*feature_window_bytes=*/8 * 2 * kTargetWidth * 2) {}
};

TEST_F(WindowedHeadTest, SaysWhatItHasUsedSoThatMoreIsSent) {
  Open(Text(40));
  ASSERT_EQ(opened_->features->window, 8u);
  uint32_t sent = 0;
  while (sent < Last()) {
    const uint32_t end = std::min(Last(), used_ + opened_->features->window);
    ASSERT_GT(end, sent) << "nothing may be sent, though all is used";
    SendFeatures(sent, end);
    sent = end;
    RunDry();
  }
  EXPECT_GE(CheckTree(), 12);
  EXPECT_THAT(resyncs_, IsEmpty());
  // Each round moves it on.
  SendCommit(BestPath(3), /*with_features=*/true);
  SendCommit({60}, /*with_features=*/true);
  RunDry();
  EXPECT_GE(used_, Last() - 2);
  EXPECT_GE(CheckTree(), 12);
}

TEST_F(WindowedHeadTest, AVerifierThatSendsMoreHasToBeginAnew) {
  Open(Text(40));
  SendFeatures(0, 9);
  Read();
  ASSERT_EQ(resyncs_.size(), 1u);
  EXPECT_THAT(resyncs_[0], HasSubstr("more than 256 bytes wait"));
  Open(Text(40));
  SendFeatures(0, 8);
  RunDry();
  EXPECT_EQ(used_, 8u);
}

}  // namespace
}  // namespace tandem
