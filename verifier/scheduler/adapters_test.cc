// Requests with adapters: whose keys and values they share, and that each output is its adapter's own.

#include <memory>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "verifier/session/held_adapters.h"
#include "verifier/testing/scheduler_test_fixture.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

AdapterHandle TestAdapter(AdapterId id) {
  return std::make_shared<const HeldAdapter>(
      HeldAdapter{.name = "adapter-" + std::to_string(id), .id = id, .fingerprint = 1000 + id});
}

class AdaptersTest : public SchedulerTest {
 protected:
  // Of one tenant and one prompt: sessions 1, 4, .. without an adapter, 2, 5, .. and 3, 6, .. with one each.
  std::map<SessionId, Ask> MixedAsks(bool drafted) {
    std::map<SessionId, Ask> asks;
    for (SessionId id = 1; id <= 9; ++id) {
      Ask ask{.sampling = {.temperature = id > 6 ? 0.9f : 0.0f, .seed = id}, .drafted = drafted};
      ask.prompt.assign(40, 3);
      if (id % 3 != 1) ask.adapter = TestAdapter(id % 3 == 2 ? 1 : 2);
      asks[id] = ask;
    }
    return asks;
  }
};

TEST_F(AdaptersTest, EachRequestOfABatchHasTheOutputOfItsOwn) {
  Make({}, {.num_adapters = 2});
  const std::map<SessionId, Ask> asks = MixedAsks(false);
  for (const auto& [id, ask] : asks) ASSERT_TRUE(Submit(id, ask).ok());
  RunToTheEnd();
  std::set<TokenIds> outputs;
  for (const auto& [id, ask] : asks) {
    ExpectReference(id, ask);
    if (id <= 3) outputs.insert(records_[id].tokens);
  }
  // Or the adapters did nothing.
  EXPECT_EQ(outputs.size(), 3u);
}

TEST_F(AdaptersTest, DraftsChangeNoOutput) {
  Make(FixedWindow(4), {.num_adapters = 2});
  scheduler_->OnLinkUp(kLink);
  const std::map<SessionId, Ask> asks = MixedAsks(true);
  for (const auto& [id, ask] : asks) ASSERT_TRUE(Submit(id, ask).ok());
  RunToTheEnd([&] {
    AnswerOpens();
    for (const auto& [id, ask] : asks) DraftFor(id, ask, 2, 1);
  });
  uint32_t accepted = 0;
  for (const auto& [id, ask] : asks) {
    ExpectReference(id, ask);
    accepted += records_[id].summary.accepted_tokens;
  }
  EXPECT_GT(accepted, 20u);
}

TEST_F(AdaptersTest, ThePrefixCacheKeepsAdaptersApart) {
  Make({}, {.num_adapters = 2});
  Ask plain{.cache_salt = 1};
  plain.prompt.assign(50, 3);
  Ask first = plain, second = plain;
  first.adapter = TestAdapter(1);
  second.adapter = TestAdapter(2);
  SessionId id = 0;
  for (const Ask* ask : {&plain, &first, &second, &plain, &first, &second}) {
    ASSERT_TRUE(Submit(++id, *ask).ok());
    RunToTheEnd();
    ExpectReference(id, *ask);
    EXPECT_EQ(records_[id].summary.cached_prompt_tokens, id <= 3 ? 0u : 48u) << "session " << id;
  }
}

TEST_F(AdaptersTest, PreemptedRequestsGoOnWithTheirs) {
  Make({}, {.num_blocks = 12, .num_adapters = 2});
  std::map<SessionId, Ask> asks = MixedAsks(false);
  for (auto& [id, ask] : asks) {
    ask.rules.max_tokens = 60;
    ASSERT_TRUE(Submit(id, ask).ok());
  }
  RunToTheEnd();
  for (const auto& [id, ask] : asks) ExpectReference(id, ask);
  EXPECT_GT(num_preemptions_, 0u);
}

TEST_F(AdaptersTest, DraftersKeepWhatTheyRememberApart) {
  Make(FixedWindow(4), {.num_adapters = 2});
  scheduler_->OnLinkUp(kLink);
  for (SessionId id = 1; id <= 3; ++id) {
    Ask ask{.cache_salt = 7, .drafted = true};
    if (id > 1) ask.adapter = TestAdapter(id - 1);
    ASSERT_TRUE(Submit(id, ask).ok());
  }
  RunToTheEnd([&] { AnswerOpens(); });
  std::set<uint64_t> salts;
  for (const DraftRequest& request : requests_) {
    if (const auto* open = std::get_if<OpenSession>(&request.event)) salts.insert(open->cache_salt);
  }
  EXPECT_EQ(salts.size(), 3u);
  EXPECT_TRUE(salts.contains(7u));
}

TEST(HeldAdaptersTest, NamesAreUniqueAndBounded) {
  HeldAdapters adapters(2);
  EXPECT_THAT(std::string(adapters.Find("x").status().message()), HasSubstr("\"x\", but this verifier's "
                                                                            "model has none"));
  ASSERT_EQ(adapters.Add(TestAdapter(1)), absl::OkStatus());
  EXPECT_TRUE(absl::IsAlreadyExists(adapters.Add(TestAdapter(1))));
  EXPECT_TRUE(absl::IsAlreadyExists(adapters.CheckRoom("adapter-1")));
  ASSERT_EQ(adapters.Add(TestAdapter(2)), absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(adapters.CheckRoom("adapter-3")));
  EXPECT_EQ(adapters.List().size(), 2u);
  const absl::StatusOr<AdapterHandle> found = adapters.Find("adapter-2");
  ASSERT_TRUE(found.ok());
  EXPECT_EQ((*found)->id, 2u);
  ASSERT_TRUE(adapters.Remove("adapter-2").ok());
  // Whoever has found it keeps it.
  EXPECT_EQ(found->use_count(), 1);
  EXPECT_TRUE(absl::IsNotFound(adapters.Remove("adapter-2").status()));
  EXPECT_THAT(std::string(adapters.Find("adapter-2").status().message()), HasSubstr("has adapter-1"));
  EXPECT_EQ(adapters.CheckRoom("adapter-2"), absl::OkStatus());
}

}  // namespace
}  // namespace tandem
