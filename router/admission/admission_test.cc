#include "router/admission/admission.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;

RoutingTable Limits(uint32_t first_tenant, uint32_t total, uint32_t queued = 0) {
  RoutingTable table;
  table.tenants.push_back(
      {.name = "acme", .max_concurrent_requests = first_tenant, .max_queued_requests = queued});
  table.tenants.push_back({.name = "zeta", .max_queued_requests = queued});
  table.max_concurrent_requests = total;
  return table;
}

class AdmissionTest : public ::testing::Test {
 protected:
  ManualClock clock_;
  Admission admission_{&clock_};
};

TEST_F(AdmissionTest, BoundsATenant) {
  const RoutingTable table = Limits(2, 100);
  auto first = admission_.Admit(table, 0);
  auto second = admission_.Admit(table, 0);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_FALSE(first->waits_at_first());
  const auto third = admission_.Admit(table, 0);
  EXPECT_EQ(third.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(third.status().message(), HasSubstr("tenant \"acme\" has 2 requests in flight"));
  EXPECT_TRUE(RetryAfter(third.status()).has_value());
  EXPECT_TRUE(admission_.Admit(table, 1).ok()) << "other tenants are not held back";

  *first = Admission::Ticket();
  EXPECT_TRUE(admission_.Admit(table, 0).ok());
}

TEST_F(AdmissionTest, BoundsAllTenants) {
  const RoutingTable table = Limits(0, 3);
  {
    const auto a = admission_.Admit(table, 0);
    const auto b = admission_.Admit(table, 0);
    const auto c = admission_.Admit(table, 1);
    ASSERT_TRUE(a.ok() && b.ok() && c.ok());
    EXPECT_EQ(admission_.in_flight(), 3u);
    const auto refused = admission_.Admit(table, 1);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(refused.status().message(), HasSubstr("the router has 3 requests"));
  }
  EXPECT_EQ(admission_.in_flight(), 0u);
}

TEST_F(AdmissionTest, TicketIsGivenBackOnce) {
  const RoutingTable table = Limits(0, 10);
  {
    Admission::Ticket ticket = *admission_.Admit(table, 0);
    Admission::Ticket moved = std::move(ticket);
    Admission::Ticket other = *admission_.Admit(table, 1);
    EXPECT_EQ(admission_.in_flight(), 2u);
    other = std::move(moved);
    EXPECT_EQ(admission_.in_flight(), 1u);
  }
  EXPECT_EQ(admission_.in_flight(), 0u);
}

TEST_F(AdmissionTest, LimitsOfTheLatestTableHold) {
  const auto first = admission_.Admit(Limits(1, 100), 0);
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(admission_.Admit(Limits(1, 100), 0).ok());
  EXPECT_TRUE(admission_.Admit(Limits(2, 100), 0).ok());
}

TEST_F(AdmissionTest, WaitsAndIsGivenAPlace) {
  const RoutingTable table = Limits(1, 100, 2);
  auto first = admission_.Admit(table, 0);
  std::vector<int> placed;
  const auto waiting = [&](int number) {
    return [&placed, number](const absl::Status& status) {
      EXPECT_TRUE(status.ok());
      placed.push_back(number);
    };
  };
  auto second = admission_.Admit(table, 0, waiting(2));
  auto third = admission_.Admit(table, 0, waiting(3));
  ASSERT_TRUE(second.ok() && third.ok());
  EXPECT_TRUE(second->waits_at_first());
  EXPECT_EQ(admission_.queued(), 2u);
  EXPECT_EQ(admission_.in_flight(), 1u);
  const auto fourth = admission_.Admit(table, 0, waiting(4));
  EXPECT_EQ(fourth.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(fourth.status().message(), HasSubstr("2 of the tenant's requests wait, which is the limit"));

  // Leaving the queue frees the place in it at once.
  *second = Admission::Ticket();
  EXPECT_EQ(admission_.queued(), 1u);
  EXPECT_TRUE(placed.empty());
  *first = Admission::Ticket();
  EXPECT_EQ(placed, std::vector<int>{3});
  EXPECT_EQ(admission_.in_flight(), 1u);
  EXPECT_EQ(admission_.queued(), 0u);
}

TEST_F(AdmissionTest, TokensPerMinute) {
  RoutingTable table = Limits(0, 100);
  table.tenants[0].tokens_per_minute = 600;
  EXPECT_EQ(admission_.Reserve(table.tenants[0], 600).value(), 600u);
  const auto refused = admission_.Admit(table, 0);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("tenant \"acme\" has used up its 600 tokens per minute"));
  const absl::Duration delay = RetryAfter(refused.status()).value();
  EXPECT_NEAR(absl::ToDoubleSeconds(delay), 0.1, 1e-6);
  clock_.Advance(delay - absl::Milliseconds(1));
  EXPECT_FALSE(admission_.Admit(table, 0).ok());
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_TRUE(admission_.Admit(table, 0).ok());
  // More was used than could be taken.
  admission_.Settle(table.tenants[0], 0, 1201);
  EXPECT_NEAR(absl::ToDoubleSeconds(RetryAfter(admission_.Admit(table, 0).status()).value()), 120.1, 1e-6);
  // What is left over is kept for a minute and no longer.
  clock_.Advance(absl::Hours(10));
  ASSERT_TRUE(admission_.Admit(table, 0).ok());
  EXPECT_TRUE(admission_.Reserve(table.tenants[0], 600).ok());
  EXPECT_FALSE(admission_.Admit(table, 0).ok());
  EXPECT_TRUE(admission_.Admit(table, 1).ok()) << "others have their own";
}

TEST_F(AdmissionTest, WhatARequestMayUseIsTakenBeforeItRuns) {
  RoutingTable table = Limits(0, 100);
  const Tenant& tenant = table.tenants[0];
  table.tenants[0].tokens_per_minute = 100;
  // However many come at once.
  int let_in = 0;
  for (int i = 0; i < 50; ++i) let_in += admission_.Reserve(tenant, 30).ok() ? 1 : 0;
  EXPECT_EQ(let_in, 3);
  const absl::Status refused = admission_.Reserve(tenant, 30).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(),
              HasSubstr("tenant \"acme\": the prompt and stopping.max_tokens come to 30 tokens, "
                        "and of its 100 tokens per minute 10 are left"));
  EXPECT_NEAR(absl::ToDoubleSeconds(RetryAfter(refused).value()), 12.0, 1e-6);
  // One of them was short: its rest is there at once.
  admission_.Settle(tenant, 30, 10);
  EXPECT_TRUE(admission_.Reserve(tenant, 30).ok());
  EXPECT_FALSE(admission_.Reserve(tenant, 1).ok());

  // What nobody used is not more than a minute's worth, and a request beyond all quotas runs alone.
  clock_.Advance(absl::Hours(1));
  admission_.Settle(tenant, 30, 0);
  EXPECT_EQ(admission_.Reserve(tenant, 1'000'000).value(), 100u);
  EXPECT_FALSE(admission_.Reserve(tenant, 1).ok());
  admission_.Settle(tenant, 100, 400);
  EXPECT_NEAR(absl::ToDoubleSeconds(RetryAfter(admission_.Reserve(tenant, 1).status()).value()), 180.6, 1e-6);
  // Without a quota nothing is taken.
  EXPECT_EQ(admission_.Reserve(table.tenants[1], 1'000'000).value(), 0u);
}

TEST_F(AdmissionTest, DrainRefusesAndWaits) {
  const RoutingTable table = Limits(0, 1, 5);
  absl::StatusOr<Admission::Ticket> running = admission_.Admit(table, 0);
  absl::Status told;
  absl::StatusOr<Admission::Ticket> waiting =
      admission_.Admit(table, 0, [&](absl::Status status) { told = std::move(status); });
  admission_.Drain(absl::InfinitePast());
  EXPECT_EQ(told.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(admission_.Admit(table, 1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(admission_.in_flight(), 1u);
  EXPECT_EQ(admission_.queued(), 0u);
  std::thread ends([&] { *running = Admission::Ticket(); });
  admission_.Drain(absl::InfiniteFuture());
  EXPECT_EQ(admission_.in_flight(), 0u);
  ends.join();
}

// What only delivers its output keeps nobody out, and a drain waits for it.
TEST_F(AdmissionTest, APlaceIsGivenBackBeforeTheTicket) {
  const RoutingTable table = Limits(1, 1, 5);
  std::optional<Admission::Ticket> delivers = *admission_.Admit(table, 0);
  absl::StatusOr<Admission::Ticket> next = admission_.Admit(table, 0);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(admission_.queued(), 1u);
  delivers->GiveBackPlace();
  delivers->GiveBackPlace();
  EXPECT_EQ(admission_.queued(), 0u);
  EXPECT_EQ(admission_.in_flight(), 1u) << "the next one's";
  // One that never came to its turn.
  absl::StatusOr<Admission::Ticket> waiting = admission_.Admit(table, 0);
  ASSERT_TRUE(waiting.ok());
  waiting->GiveBackPlace();
  EXPECT_EQ(admission_.queued(), 0u);
  *waiting = Admission::Ticket();
  *next = Admission::Ticket();
  EXPECT_EQ(admission_.in_flight(), 0u);

  std::atomic<bool> delivered = false;
  std::thread ends([&] {
    // Long enough for a drain that does not wait to be seen not to.
    absl::SleepFor(absl::Milliseconds(20));
    delivered = true;
    delivers.reset();
  });
  admission_.Drain(absl::InfiniteFuture());
  EXPECT_TRUE(delivered);
  ends.join();
}

// One place, tenants that always want one: each gets its weight's share, and counts are conserved throughout.
TEST_F(AdmissionTest, SharesByWeight) {
  RoutingTable table;
  table.max_concurrent_requests = 4;
  const std::vector<uint32_t> weights = {1, 2, 5};
  for (size_t i = 0; i < weights.size(); ++i) {
    table.tenants.push_back({.name = absl::StrCat("t", i), .max_queued_requests = 8, .weight = weights[i]});
  }
  struct Call {
    size_t tenant;
    Admission::Ticket ticket;
  };
  std::deque<int> running;
  std::vector<int> served(weights.size(), 0);
  // Goes first: tickets that are given back start those that wait, which write to the above.
  std::map<int, Call> calls;
  int next = 0;
  const auto submit = [&](size_t tenant) {
    const int id = next++;
    auto ticket = admission_.Admit(table, tenant, [&, id, tenant](const absl::Status& status) {
      ASSERT_TRUE(status.ok());
      running.push_back(id);
      ++served[tenant];
    });
    ASSERT_TRUE(ticket.ok());
    if (!ticket->waits_at_first()) running.push_back(id);
    calls.emplace(id, Call{tenant, *std::move(ticket)});
  };
  for (int i = 0; i < 8; ++i) {
    for (size_t tenant = 0; tenant < weights.size(); ++tenant) submit(tenant);
  }
  constexpr int kTurns = 8000;
  for (int turn = 0; turn < kTurns; ++turn) {
    ASSERT_EQ(running.size(), 4u);
    ASSERT_EQ(admission_.in_flight(), 4u);
    ASSERT_EQ(admission_.queued() + 4, calls.size());
    const int done = running.front();
    running.pop_front();
    const size_t tenant = calls.at(done).tenant;
    calls.erase(done);
    submit(tenant);
  }
  for (size_t tenant = 0; tenant < weights.size(); ++tenant) {
    EXPECT_NEAR(served[tenant], kTurns * weights[tenant] / 8.0, 10) << tenant;
  }
}

TEST_F(AdmissionTest, AModelHasAsManyPlacesAsItsVerifiers) {
  const RoutingTable table = Limits(0, 100, 10);
  admission_.SetPlaces(0, 2);
  int placed = 0;
  const auto place = [&placed](const absl::Status& status) { placed += status.ok() ? 1 : 0; };
  std::vector<Admission::Ticket> tickets;
  const auto admit = [&](size_t model) {
    tickets.push_back(*admission_.Admit(table, 0, place, model));
    return !tickets.back().waits_at_first();
  };
  EXPECT_TRUE(admit(0));
  EXPECT_TRUE(admit(0));
  EXPECT_FALSE(admit(0));
  EXPECT_FALSE(admit(0));
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(admit(1)) << "another model's verifiers have room";
  EXPECT_TRUE(admit(Admission::kNoModel));
  EXPECT_EQ(admission_.queued(), 2u);

  admission_.SetPlaces(0, 3);
  EXPECT_EQ(placed, 1);
  admission_.SetPlaces(0, 1);
  tickets[0] = Admission::Ticket();
  tickets[1] = Admission::Ticket();
  EXPECT_EQ(placed, 1) << "there is one in flight, as many as may be";
  tickets[2] = Admission::Ticket();
  EXPECT_EQ(placed, 2);
  EXPECT_FALSE(admit(0));
  admission_.SetPlaces(0, std::nullopt);
  EXPECT_EQ(placed, 3);
}

TEST_F(AdmissionTest, ModelsTakeTurnsAtTheRoutersLimit) {
  const RoutingTable table = Limits(0, 1, 100);
  std::vector<size_t> placed;  // Tickets by their index.
  std::vector<Admission::Ticket> tickets;
  tickets.push_back(*admission_.Admit(table, 0, nullptr, 0));
  const std::vector<size_t> models = {0, 0, 0, 0, 1, 1, 1};
  for (size_t i = 1; i < models.size(); ++i) {
    const auto place = [&placed, i](const absl::Status&) { placed.push_back(i); };
    tickets.push_back(*admission_.Admit(table, 0, place, models[i]));
  }
  size_t running = 0;
  for (size_t turn = 0; turn < 4; ++turn) {
    tickets[running] = Admission::Ticket();
    ASSERT_EQ(placed.size(), turn + 1);
    running = placed.back();
  }
  EXPECT_EQ(std::count_if(placed.begin(), placed.end(), [&](size_t i) { return models[i] == 1; }), 2);
}

// The limits that hold by default, and a verifier as it is by default: one tenant sends 500 requests at once
// and keeps sending, others come and find their share.
TEST_F(AdmissionTest, AFloodIsRefusedAndWeightsHold) {
  RoutingTable table;
  table.max_concurrent_requests = kDefaultMaxConcurrentRequests;
  const std::vector<uint32_t> weights = {1, 3, 1000};
  for (const uint32_t weight : weights) {
    table.tenants.push_back({.name = absl::StrCat("t", weight), .weight = weight});
  }
  constexpr uint32_t kPlaces = 72;
  admission_.SetPlaces(0, kPlaces);
  std::deque<int> running;
  std::vector<int> served(weights.size(), 0);
  std::vector<int> refused(weights.size(), 0);
  std::map<int, Admission::Ticket> calls;
  int next = 0;
  const auto submit = [&](size_t tenant) {
    const int id = next++;
    auto ticket = admission_.Admit(
        table, tenant,
        [&, id, tenant](const absl::Status& status) {
          ASSERT_TRUE(status.ok());
          running.push_back(id);
          ++served[tenant];
        },
        0);
    if (!ticket.ok()) {
      ++refused[tenant];
      return;
    }
    if (!ticket->waits_at_first()) running.push_back(id);
    calls.emplace(id, *std::move(ticket));
  };
  const auto end_one = [&] {
    const int done = running.front();
    running.pop_front();
    calls.erase(done);
  };
  for (int i = 0; i < 500; ++i) submit(0);
  EXPECT_EQ(running.size(), kPlaces);
  EXPECT_EQ(refused[0], 500 - 72 - 64) << "but for its places and its queue";
  // Whoever comes now is not refused, and gets the next places, those that are its due.
  submit(2);
  end_one();
  end_one();
  EXPECT_EQ(served[2], 1);
  served = {0, 0, 0};
  constexpr int kTurns = 2000;
  for (int turn = 0; turn < kTurns; ++turn) {
    submit(0);
    if (turn % 2 == 0) submit(1);
    if (turn % 2 == 0) submit(1);
    end_one();
    ASSERT_EQ(running.size(), kPlaces);
  }
  EXPECT_NEAR(served[0], 0.25 * kTurns, 0.2 * 0.25 * kTurns);
  EXPECT_NEAR(served[1], 0.75 * kTurns, 0.2 * 0.75 * kTurns);
  EXPECT_GT(refused[0], kTurns / 2) << "refusals hit the flooder";
}

// Tenants that always have more to ask for, at a model whose requests end one after the other.
class FloodsTest : public AdmissionTest {
 protected:
  FloodsTest(uint32_t places, std::vector<uint32_t> weights) : running_of_(weights.size()) {
    table_.max_concurrent_requests = kDefaultMaxConcurrentRequests;
    for (size_t i = 0; i < weights.size(); ++i) {
      table_.tenants.push_back({.name = absl::StrCat("t", i), .weight = weights[i]});
    }
    spares_.SetPlaces(0, places);
  }
  // False when it is refused.
  bool Submit(size_t tenant) {
    const int id = next_++;
    auto ticket = spares_.Admit(
        table_, tenant, [this, id, tenant](const absl::Status&) { Run(id, tenant); }, 0);
    if (!ticket.ok()) return false;
    const bool runs = !ticket->waits_at_first();
    calls_.emplace(id, *std::move(ticket));
    if (runs) Run(id, tenant);
    return true;
  }
  void EndOne() {
    const auto [id, tenant] = running_.front();
    running_.pop_front();
    --running_of_[tenant];
    calls_.erase(id);
  }

  Admission spares_{&clock_, Admission::kDefaultSparePercent};
  RoutingTable table_;
  std::deque<std::pair<int, size_t>> running_;
  std::vector<size_t> running_of_;

 private:
  void Run(int id, size_t tenant) {
    running_.emplace_back(id, tenant);
    ++running_of_[tenant];
  }

  std::map<int, Admission::Ticket> calls_;
  int next_ = 0;
};

class FloodBesideOneTest : public FloodsTest {
 protected:
  FloodBesideOneTest() : FloodsTest(72, {1, 1000}) {}
};

TEST_F(FloodBesideOneTest, WhoeverComesNextStartsAtOnce) {
  int refused = 0;
  for (int i = 0; i < 500; ++i) refused += Submit(0) ? 0 : 1;
  EXPECT_EQ(running_of_[0], 57u) << "a fifth of 72 are kept";
  EXPECT_EQ(refused, 500 - 57 - 64);
  for (size_t i = 0; i < 15; ++i) {
    EXPECT_TRUE(Submit(1));
    EXPECT_EQ(running_of_[1], i + 1) << "nobody's end is waited for";
  }
  EXPECT_TRUE(Submit(1));
  EXPECT_EQ(running_of_[1], 15u) << "all places are taken";
  // It has as many as are kept. What becomes free is kept again, and what does beyond that is its, by weight.
  for (int i = 0; i < 40; ++i) {
    EXPECT_TRUE(Submit(1));
    EndOne();
  }
  EXPECT_EQ(running_of_[0] + running_of_[1], 57u);
  EXPECT_GE(running_of_[1], 35u);
}

TEST_F(FloodBesideOneTest, AModelWithOnePlaceKeepsNone) {
  spares_.SetPlaces(0, 1);
  EXPECT_TRUE(Submit(0));
  EXPECT_EQ(running_of_[0], 1u);
}

TEST_F(FloodBesideOneTest, ARouterOfOneTenantKeepsNone) {
  table_.tenants.pop_back();
  for (int i = 0; i < 100; ++i) Submit(0);
  EXPECT_EQ(running_of_[0], 72u);
}

class UnequalFloodsTest : public FloodsTest {
 protected:
  UnequalFloodsTest() : FloodsTest(72, {1, 3, 6}) {}
};

TEST_F(UnequalFloodsTest, WeightsHoldWherePlacesAreKept) {
  std::vector<double> sum(3);
  constexpr int kTurns = 4000;
  for (int turn = 0; turn < kTurns; ++turn) {
    for (size_t tenant = 0; tenant < 3; ++tenant) Submit(tenant);
    EndOne();
    for (size_t tenant = 0; tenant < 3; ++tenant) sum[tenant] += static_cast<double>(running_of_[tenant]);
  }
  const double all = sum[0] + sum[1] + sum[2];
  for (size_t tenant = 0; tenant < 3; ++tenant) {
    const double due = table_.tenants[tenant].weight / 10.0;
    EXPECT_NEAR(sum[tenant] / all, due, 0.2 * due) << tenant;
  }
}

class ManyFloodsTest : public FloodsTest {
 protected:
  ManyFloodsTest() : FloodsTest(72, {1, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100}) {}
};

TEST_F(ManyFloodsTest, NobodyWaitsForEver) {
  size_t turns_with_light = 0;
  for (int turn = 0; turn < 2000; ++turn) {
    for (size_t tenant = 0; tenant < table_.tenants.size(); ++tenant) Submit(tenant);
    EndOne();
    turns_with_light += running_of_[0] > 0 ? 1 : 0;
  }
  EXPECT_GT(turns_with_light, 0u);
}

// Threads that come, wait, give up and go at random: no place is lost or given twice.
TEST(AdmissionThreadsTest, CountsAreConserved) {
  const SystemClock clock;
  Admission admission(&clock);
  RoutingTable table = Limits(2, 3, 4);
  std::atomic<int> in_flight{0};
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      for (int i = 0; i < 500; ++i) {
        auto placed = std::make_shared<std::atomic<bool>>(false);
        auto ticket = admission.Admit(table, random() % 2, [placed](const absl::Status& status) {
          EXPECT_TRUE(status.ok());
          *placed = true;
        });
        if (!ticket.ok()) {
          EXPECT_EQ(ticket.status().code(), absl::StatusCode::kResourceExhausted);
          continue;
        }
        bool holds = !ticket->waits_at_first();
        // Some wait for their place, the others give up.
        if (!holds && random() % 2 == 0) {
          while (!*placed) std::this_thread::yield();
          holds = true;
        }
        if (!holds) continue;
        EXPECT_LE(++in_flight, 3);
        std::this_thread::yield();
        --in_flight;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(admission.in_flight(), 0u);
  EXPECT_EQ(admission.queued(), 0u);
}

// What is refused costs what was done for it, so that a tenant cannot have it done without end; whoever comes
// back when it was told to is let in.
TEST_F(AdmissionTest, WhatIsRefusedIsCharged) {
  RoutingTable table = Limits(0, 100);
  Tenant& tenant = table.tenants[0];
  tenant.tokens_per_minute = 600;
  EXPECT_TRUE(admission_.CheckQuota(tenant).ok());
  admission_.Charge(tenant, 100);
  EXPECT_EQ(admission_.Reserve(tenant, 400).value(), 400u);
  // 100 are left: 200 are refused, 50 are charged.
  const absl::Status refused = admission_.Reserve(tenant, 200, /*spent=*/50).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  const absl::Duration wait = RetryAfter(refused).value();
  EXPECT_NEAR(absl::ToDoubleSeconds(wait), 15.0, 1e-6) << "150 more, at ten a second";
  clock_.Advance(wait);
  EXPECT_TRUE(admission_.Reserve(tenant, 200).ok());
  EXPECT_EQ(admission_.CheckQuota(tenant).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(admission_.Admit(table, 0).ok());
  // A minute's worth at most for one request, however much was done.
  admission_.Charge(tenant, 1'000'000);
  EXPECT_NEAR(absl::ToDoubleSeconds(RetryAfter(admission_.CheckQuota(tenant)).value()), 60.1, 1e-6);
  // A tenant without a quota pays nothing.
  admission_.Charge(table.tenants[1], 1'000'000);
  EXPECT_TRUE(admission_.CheckQuota(table.tenants[1]).ok());
}

}  // namespace
}  // namespace tandem::router
