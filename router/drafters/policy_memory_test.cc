#include "router/drafters/policy_memory.h"

#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/speculation/policies/qlearning_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What a request ends with that began with `before` and learned one more prompt, in one visit.
std::string OneMore(const std::string& before, float value) {
  QLearningState state;
  if (!before.empty()) state = *QLearningState::Parse(before);
  if (state.entries.empty()) state.entries.push_back({.state = 1, .action = 1, .visits = 0});
  state.entries[0].value = value;
  state.entries[0].visits += 1;
  state.entries[0].fresh = 1;
  state.prompts += 1;
  state.fresh_prompts = 1;
  return state.Serialize();
}

PolicyKey Key(const std::string& tenant, const std::string& drafter = "code") {
  return {.tenant = tenant, .model = "letters", .drafter = drafter, .window_policy = "qlearning"};
}

TEST(PolicyMemoryTest, EachKeyHasItsOwn) {
  PolicyMemory memory;
  EXPECT_THAT(memory.Find(Key("acme")), IsEmpty());
  ASSERT_TRUE(memory.Learn(Key("acme"), OneMore("", 0.5F)).ok());
  EXPECT_EQ(QLearningState::Parse(memory.Find(Key("acme")))->prompts, 1u);
  EXPECT_THAT(memory.Find(Key("zeta")), IsEmpty()) << "another tenant";
  EXPECT_THAT(memory.Find(Key("acme", "math")), IsEmpty()) << "another drafter";
  PolicyKey other = Key("acme");
  other.window_policy = "";
  EXPECT_THAT(memory.Find(other), IsEmpty()) << "another policy";
}

TEST(PolicyMemoryTest, RequestsAtTheSameTimeBothCount) {
  PolicyMemory memory;
  ASSERT_TRUE(memory.Learn(Key("acme"), OneMore("", 0.0F)).ok());
  const std::string start = memory.Find(Key("acme"));
  ASSERT_TRUE(memory.Learn(Key("acme"), OneMore(start, 1.0F)).ok());
  ASSERT_TRUE(memory.Learn(Key("acme"), OneMore(start, 0.5F)).ok());
  const QLearningState both = *QLearningState::Parse(memory.Find(Key("acme")));
  EXPECT_EQ(both.prompts, 3u);
  EXPECT_EQ(both.entries[0].value, 0.75F);
  EXPECT_EQ(both.entries[0].visits, 3u);
}

TEST(PolicyMemoryTest, ForgetsWhatWasUsedLongestAgo) {
  PolicyMemory memory(/*most_entries=*/3);
  for (const char* tenant : {"a", "b", "c"}) {
    ASSERT_TRUE(memory.Learn(Key(tenant), OneMore("", 0.5F)).ok());
  }
  memory.Find(Key("a"));
  ASSERT_TRUE(memory.Learn(Key("d"), OneMore("", 0.5F)).ok());
  EXPECT_EQ(memory.Save().policies_size(), 3);
  EXPECT_THAT(memory.Find(Key("b")), IsEmpty());
  EXPECT_NE(memory.Find(Key("a")), "");
}

TEST(PolicyMemoryTest, IsTheSameAfterASave) {
  PolicyMemory memory(/*most_entries=*/3);
  for (const char* tenant : {"a", "b", "c"}) {
    ASSERT_TRUE(memory.Learn(Key(tenant), OneMore("", 0.5F)).ok());
  }
  memory.Find(Key("a"));
  PolicyMemory next(/*most_entries=*/3);
  EXPECT_EQ(next.Load(memory.Save()), 0u);
  EXPECT_EQ(next.Save().SerializeAsString(), memory.Save().SerializeAsString());
  // The order of use as well.
  ASSERT_TRUE(next.Learn(Key("d"), OneMore("", 0.5F)).ok());
  EXPECT_THAT(next.Find(Key("b")), IsEmpty());
  EXPECT_NE(next.Find(Key("a")), "");
}

TEST(PolicyMemoryTest, WhatCannotBeReadChangesNothing) {
  PolicyMemory memory;
  ASSERT_TRUE(memory.Learn(Key("acme"), OneMore("", 0.5F)).ok());
  const std::string before = memory.Save().SerializeAsString();
  const uint32_t seed = 20260102;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 1000; ++i) {
    std::string bytes(random() % 6000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    EXPECT_EQ(memory.Learn(Key(absl::StrCat(i)), bytes).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(memory.Save().SerializeAsString(), before);

  v1::WindowPolicyRecord record = memory.Save();
  *record.add_policies() = record.policies(0);
  record.mutable_policies(1)->set_tenant("zeta");
  record.mutable_policies(1)->set_state("nonsense");
  PolicyMemory next;
  EXPECT_EQ(next.Load(record), 1u);
  EXPECT_EQ(next.Save().SerializeAsString(), before);
}

TEST(PolicyMemoryTest, TheLargestRecordFitsAnEtcdValue) {
  PolicyMemory memory;
  QLearningState largest{.prompts = 1, .fresh_prompts = 1};
  for (int i = 0; i < 1000; ++i) {
    largest.entries.push_back(
        {.state = static_cast<uint8_t>(i / 100), .action = static_cast<uint8_t>(i % 100)});
  }
  for (size_t i = 0; i < 2 * PolicyMemory::kMostEntries; ++i) {
    ASSERT_TRUE(memory.Learn(Key(absl::StrCat("tenant-", i)), largest.Serialize()).ok());
  }
  EXPECT_LT(memory.Save().ByteSizeLong(), size_t{3} << 19);
}

}  // namespace
}  // namespace tandem::router
