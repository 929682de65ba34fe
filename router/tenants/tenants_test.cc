#include "router/tenants/tenants.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

RoutingTable TwoTenants() {
  RoutingTable table;
  table.tenants.push_back({.name = "acme", .token = DigestToken("secret-a", "")});
  table.tenants.push_back({.name = "zeta", .token = DigestToken("secret-z", "0123456789abcdef")});
  return table;
}

TEST(TenantsTest, KnowsTokens) {
  const RoutingTable table = TwoTenants();
  const Tenants tenants(table);
  EXPECT_EQ(tenants.Authenticate("Bearer secret-a"), 0u);
  EXPECT_EQ(tenants.Authenticate("bearer secret-z"), 1u);
  EXPECT_EQ(tenants.Authenticate("Bearer  secret-z "), 1u);
}

TEST(TenantsTest, RefusesEverythingElse) {
  const RoutingTable table = TwoTenants();
  const Tenants tenants(table);
  for (absl::string_view authorization : {"", "Bearer", "Bearer ", "secret-a", "Basic secret-a",
                                          "Bearer secret", "Bearer secret-aa", "Bearersecret-a"}) {
    EXPECT_EQ(tenants.Authenticate(authorization), std::nullopt) << authorization;
  }
  EXPECT_EQ(tenants.Authenticate(std::nullopt), std::nullopt);
}

TEST(TenantsTest, ATokenOfTwoTenantsIsNobodys) {
  RoutingTable table = TwoTenants();
  table.tenants.push_back({.name = "omega", .token = DigestToken("secret-z", "another-salt-16b")});
  const Tenants tenants(table);
  EXPECT_EQ(tenants.Authenticate("Bearer secret-z"), std::nullopt);
  EXPECT_EQ(tenants.Authenticate("Bearer secret-a"), 0u);
}

TEST(TenantsTest, AnonymousServesCallsWithoutTokenOnly) {
  RoutingTable table = TwoTenants();
  table.anonymous = 2;
  table.tenants.push_back({.name = "anonymous"});
  const Tenants tenants(table);
  EXPECT_EQ(tenants.Authenticate(std::nullopt), 2u);
  EXPECT_EQ(tenants.Authenticate("Bearer secret-a"), 0u);
  EXPECT_EQ(tenants.Authenticate("Bearer wrong"), std::nullopt);
}

// What a call costs does not grow with the number of tenants once its token was seen.
TEST(TenantsTest, AKnownTokenIsHashedOnce) {
  constexpr size_t kTenants = 1000;
  RoutingTable table;
  for (size_t i = 0; i < kTenants; ++i) {
    table.tenants.push_back({.name = absl::StrCat("tenant", i),
                             .token = DigestToken(absl::StrCat("secret-", i), absl::StrFormat("%016d", i))});
  }
  const Tenants tenants(table);
  for (int round = 0; round < 10; ++round) {
    for (size_t i = 0; i < 20; ++i) {
      EXPECT_EQ(tenants.Authenticate(absl::StrCat("Bearer secret-", i)), i);
    }
    EXPECT_EQ(tenants.Authenticate("Bearer nobody's"), std::nullopt);
  }
  EXPECT_EQ(tenants.num_salted_hashes(), 21 * kTenants) << "one search for each token";

  // A new snapshot with the same tokens knows them; one with another tenant's has to look again.
  const Tenants after(table, &tenants);
  EXPECT_EQ(after.Authenticate("Bearer secret-7"), 7u);
  EXPECT_EQ(after.num_salted_hashes(), 21 * kTenants);
  RoutingTable more = table;
  more.tenants.push_back({.name = "omega", .token = DigestToken("secret-7", "another-salt-16b")});
  const Tenants changed(more, &after);
  EXPECT_EQ(changed.Authenticate("Bearer secret-7"), std::nullopt) << "two tenants have it";
  EXPECT_EQ(changed.Authenticate("Bearer secret-8"), 8u);
  EXPECT_EQ(changed.num_salted_hashes(), 2 * (kTenants + 1));
}

// Those that are looked up directly need no hash with a salt, and count for a token that two tenants have.
TEST(TenantsTest, DigestsWithoutASaltAreLookedUp) {
  RoutingTable table = TwoTenants();
  table.tenants.push_back({.name = "beta", .token = DigestToken("secret-b", "")});
  table.tenants.push_back({.name = "twin", .token = DigestToken("secret-z", "")});
  const Tenants tenants(table);
  EXPECT_EQ(tenants.Authenticate("Bearer secret-b"), 2u);
  EXPECT_EQ(tenants.Authenticate("Bearer secret-z"), std::nullopt) << "with and without a salt";
  table.tenants.erase(table.tenants.begin() + 1);
  const Tenants without(table, &tenants);
  const size_t before = without.num_salted_hashes();
  EXPECT_EQ(without.Authenticate("Bearer secret-z"), 2u);
  EXPECT_EQ(without.num_salted_hashes(), before);
}

// Whoever tries tokens fills no memory, and makes no known token a new one.
TEST(TenantsTest, StrangersAreForgotten) {
  const RoutingTable table = TwoTenants();
  const Tenants tenants(table);
  EXPECT_EQ(tenants.Authenticate("Bearer secret-z"), 1u);
  const size_t kTried = 3 * Tenants::kRememberedStrangers;
  for (size_t i = 0; i < kTried; ++i) {
    EXPECT_EQ(tenants.Authenticate(absl::StrCat("Bearer guess-", i)), std::nullopt);
  }
  EXPECT_EQ(tenants.num_salted_hashes(), 1 + kTried);
  EXPECT_EQ(tenants.Authenticate("Bearer secret-z"), 1u);
  EXPECT_EQ(tenants.num_salted_hashes(), 1 + kTried);
  EXPECT_EQ(tenants.Authenticate("Bearer guess-0"), std::nullopt);
  EXPECT_EQ(tenants.num_salted_hashes(), 2 + kTried) << "forgotten, and looked for again";
}

}  // namespace
}  // namespace tandem::router
