#include "router/admission/fair_queue.h"

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

bool Everybody(const std::string&) {
  return true;
}

TEST(FairQueueTest, FirstComeFirstServedWithinATenant) {
  FairQueue queue;
  for (FairQueue::Id id : {5, 3, 9}) queue.Push(id, "acme", 1);
  EXPECT_EQ(queue.Pop(Everybody), 5u);
  EXPECT_TRUE(queue.Remove(3));
  EXPECT_FALSE(queue.Remove(3));
  EXPECT_EQ(queue.size("acme"), 1u);
  EXPECT_EQ(queue.Pop(Everybody), 9u);
  EXPECT_EQ(queue.Pop(Everybody), std::nullopt);
  EXPECT_EQ(queue.size(), 0u);
}

TEST(FairQueueTest, AFloodDoesNotDelayOthers) {
  FairQueue queue;
  for (FairQueue::Id id = 0; id < 1000; ++id) queue.Push(id, "flood", 1);
  ASSERT_TRUE(queue.Pop(Everybody).has_value());
  queue.Push(5000, "small", 1);
  // Its tag is the virtual time, at which at most one request of the flood is due.
  const auto first = queue.Pop(Everybody);
  const auto second = queue.Pop(Everybody);
  EXPECT_TRUE(first == 5000u || second == 5000u);
}

TEST(FairQueueTest, IneligibleTenantsKeepTheirTurn) {
  FairQueue queue;
  queue.Push(1, "a", 1);
  queue.Push(2, "b", 1);
  const auto not_a = [](const std::string& tenant) { return tenant != "a"; };
  EXPECT_EQ(queue.Pop(not_a), 2u);
  EXPECT_EQ(queue.Pop(not_a), std::nullopt);
  EXPECT_EQ(queue.Pop(Everybody), 1u);
}

TEST(FairQueueTest, BacklogsAreServedByWeight) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    FairQueue queue;
    std::map<std::string, uint32_t> weights;
    FairQueue::Id id = 0;
    std::map<FairQueue::Id, std::string> owner;
    const auto push = [&](const std::string& tenant) {
      owner[id] = tenant;
      queue.Push(id++, tenant, weights[tenant]);
    };
    uint32_t total = 0;
    const int num_tenants = 2 + static_cast<int>(random() % 5);
    for (int i = 0; i < num_tenants; ++i) {
      const std::string tenant = absl::StrCat("t", i);
      total += weights[tenant] = 1 + static_cast<uint32_t>(random() % 10);
      for (int j = 0; j < 3; ++j) push(tenant);
    }
    std::map<std::string, int> served;
    constexpr int kRounds = 100;
    const int num_served = kRounds * static_cast<int>(total);
    for (int i = 0; i < num_served; ++i) {
      const std::string tenant = owner[queue.Pop(Everybody).value()];
      ++served[tenant];
      push(tenant);
      // Fair at every moment and not just in the long run: the algorithm's bound is one request of each
      // tenant.
      for (const auto& [name, weight] : weights) {
        const double share = static_cast<double>(i + 1) * weight / total;
        ASSERT_LE(std::abs(served[name] - share), num_tenants + 1) << name << " after " << i;
      }
    }
  }
}

// Random comings, goings and limits: nothing is lost, doubled or served out of order, and whoever waits is
// served after a bounded number of others.
TEST(FairQueueTest, RandomUse) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    FairQueue queue;
    std::map<std::string, std::vector<FairQueue::Id>> waiting;
    std::map<std::string, uint32_t> weights = {{"a", 1}, {"b", 2}, {"c", 7}, {"d", 1}};
    std::map<std::string, int> passed_over;
    FairQueue::Id next = 0;
    for (int step = 0; step < 2000; ++step) {
      auto tenant = weights.begin();
      std::advance(tenant, random() % weights.size());
      std::vector<FairQueue::Id>& own = waiting[tenant->first];
      switch (random() % 4) {
        case 0:
        case 1:
          queue.Push(next, tenant->first, tenant->second);
          own.push_back(next++);
          break;
        case 2:
          if (!own.empty()) {
            const size_t at = random() % own.size();
            ASSERT_TRUE(queue.Remove(own[at]));
            own.erase(own.begin() + static_cast<ptrdiff_t>(at));
            if (own.empty()) passed_over[tenant->first] = 0;
          }
          break;
        default: {
          std::set<std::string> barred;
          if (random() % 3 == 0) barred.insert(tenant->first);
          const auto id = queue.Pop([&](const std::string& name) { return barred.count(name) == 0; });
          bool found = false;
          for (auto& [name, ids] : waiting) {
            if (id.has_value() && !ids.empty() && ids.front() == *id) {
              ids.erase(ids.begin());
              found = true;
              passed_over[name] = 0;
              ASSERT_EQ(barred.count(name), 0u);
            } else if (!ids.empty() && barred.count(name) == 0) {
              ASSERT_TRUE(id.has_value());
              // Others' weights bound what they get while one request of weight 1 waits; barred turns of its
              // own make others no faster.
              ASSERT_LE(++passed_over[name], 40) << name;
            }
          }
          ASSERT_EQ(found, id.has_value());
        }
      }
      size_t total = 0;
      for (const auto& [name, ids] : waiting) {
        ASSERT_EQ(queue.size(name), ids.size());
        total += ids.size();
      }
      ASSERT_EQ(queue.size(), total);
    }
  }
}

TEST(FairQueueTest, PrioritiesOrderATenantsOwnRequestsAlone) {
  FairQueue queue;
  queue.Push(1, "a", 1, 1, 0);
  queue.Push(2, "b", 1, 1, 50);
  queue.Push(3, "a", 1, 1, -10);
  queue.Push(4, "a", 1, 1, -10);
  queue.Push(5, "b", 1, 1, -100);
  queue.Push(6, "a", 1, 1, 100);
  EXPECT_TRUE(queue.Remove(4));
  std::vector<FairQueue::Id> order;
  while (const auto id = queue.Pop(Everybody)) order.push_back(*id);
  // Turns are as they would be without priorities.
  EXPECT_EQ(order, (std::vector<FairQueue::Id>{3, 5, 1, 2, 6}));
}

}  // namespace
}  // namespace tandem::router
