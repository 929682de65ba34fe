#include "router/tenants.h"

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

}  // namespace
}  // namespace tandem::router
