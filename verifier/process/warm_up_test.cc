#include "verifier/process/warm_up.h"

#include <memory>

#include "common/testing/fake_engine.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

struct Parts {
  FakeEngine engine{{.num_blocks = 128}};
  BlockPool pool{{.num_blocks = 128}};
};

TEST(WarmUpTest, MeasuresAndGivesItsBlocksBack) {
  Parts parts;
  const auto measured = MeasureRoundTimes(&parts.engine, &parts.pool);
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_GT(measured->Seconds(1), 0.0);
  EXPECT_EQ(parts.pool.num_free(), 128u);
}

TEST(WarmUpTest, MeasuresWhatRoundsAskFor) {
  for (const bool chooses : {false, true}) {
    FakeEngine engine({.num_blocks = 128, .chooses = chooses});
    BlockPool pool({.num_blocks = 128});
    ASSERT_TRUE(MeasureRoundTimes(&engine, &pool).ok());
    EXPECT_EQ(engine.num_choices() > 0, chooses);
    EXPECT_EQ(engine.num_logits() > 0, !chooses);
  }
}

TEST(WarmUpTest, StopsBeforeTheNextPass) {
  int asked_in_all = 0;
  {
    Parts parts;
    ASSERT_TRUE(MeasureRoundTimes(&parts.engine, &parts.pool, [&] { return ++asked_in_all < 0; }).ok());
  }
  ASSERT_GT(asked_in_all, 10);
  for (const int last : {1, 2, asked_in_all / 2, asked_in_all}) {
    Parts parts;
    int asked = 0;
    const auto measured = MeasureRoundTimes(&parts.engine, &parts.pool, [&] { return ++asked == last; });
    EXPECT_TRUE(absl::IsCancelled(measured.status())) << measured.status();
    EXPECT_EQ(asked, last);
    EXPECT_EQ(parts.pool.num_free(), 128u);
  }
}

}  // namespace
}  // namespace tandem
