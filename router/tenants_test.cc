#include "router/tenants.h"

#include "gtest/gtest.h"

namespace tandem::router {
namespace {

RoutingTable TwoTenants() {
  RoutingTable table;
  table.tenants.push_back({.name = "acme", .token_digest = Sha256("secret-a")});
  table.tenants.push_back({.name = "zeta", .token_digest = Sha256("secret-z")});
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

TEST(TenantsTest, AnonymousServesCallsWithoutTokenOnly) {
  RoutingTable table = TwoTenants();
  table.anonymous = 2;
  table.tenants.push_back({.name = "anonymous"});
  const Tenants tenants(table);
  EXPECT_EQ(tenants.Authenticate(std::nullopt), 2u);
  EXPECT_EQ(tenants.Authenticate("Bearer secret-a"), 0u);
  EXPECT_EQ(tenants.Authenticate("Bearer wrong"), std::nullopt);
}

}  // namespace
}  // namespace tandem::router
