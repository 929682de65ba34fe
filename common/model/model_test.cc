#include "common/model/model.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

TEST(ModelTest, LoadsTheDemoTarget) {
  const auto model = Model::Load(TANDEM_SOURCE_DIR "/deploy/demo-models/tandem-target-15m");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->layers().size(), 8u);
  EXPECT_EQ((*model)->weight_bytes(), 2u * 14162304);
  EXPECT_EQ((*model)->generation_defaults().eos_tokens, (TokenIds{4091, 4094}));
  EXPECT_EQ((*model)->output().data, (*model)->embedding().data);
}

}  // namespace
}  // namespace tandem
