#include "router/admission.h"

#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;

RoutingTable Limits(uint32_t first_tenant, uint32_t total) {
  RoutingTable table;
  table.tenants.push_back({.name = "acme", .max_concurrent_requests = first_tenant});
  table.tenants.push_back({.name = "zeta"});
  table.max_concurrent_requests = total;
  return table;
}

TEST(AdmissionTest, BoundsATenant) {
  const RoutingTable table = Limits(2, 100);
  Admission admission(table);
  auto first = admission.Admit(0);
  auto second = admission.Admit(0);
  ASSERT_TRUE(first.ok() && second.ok());
  const auto third = admission.Admit(0);
  EXPECT_EQ(third.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(third.status().message(), HasSubstr("tenant \"acme\" has 2 requests in flight"));
  EXPECT_TRUE(admission.Admit(1).ok()) << "other tenants are not held back";

  *first = Admission::Ticket();
  EXPECT_TRUE(admission.Admit(0).ok());
}

TEST(AdmissionTest, BoundsAllTenants) {
  const RoutingTable table = Limits(0, 3);
  Admission admission(table);
  {
    const auto a = admission.Admit(0);
    const auto b = admission.Admit(0);
    const auto c = admission.Admit(1);
    ASSERT_TRUE(a.ok() && b.ok() && c.ok());
    EXPECT_EQ(admission.in_flight(), 3u);
    const auto refused = admission.Admit(1);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(refused.status().message(), HasSubstr("the router has 3 requests"));
  }
  EXPECT_EQ(admission.in_flight(), 0u);
}

TEST(AdmissionTest, TicketIsGivenBackOnce) {
  const RoutingTable table = Limits(0, 10);
  Admission admission(table);
  {
    Admission::Ticket ticket = *admission.Admit(0);
    Admission::Ticket moved = std::move(ticket);
    Admission::Ticket other = *admission.Admit(1);
    EXPECT_EQ(admission.in_flight(), 2u);
    other = std::move(moved);
    EXPECT_EQ(admission.in_flight(), 1u);
  }
  EXPECT_EQ(admission.in_flight(), 0u);
}

TEST(AdmissionTest, DrainRefusesAndWaits) {
  const RoutingTable table = Limits(0, 10);
  Admission admission(table);
  absl::StatusOr<Admission::Ticket> running = admission.Admit(0);
  admission.Drain(absl::InfinitePast());
  EXPECT_EQ(admission.Admit(1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(admission.in_flight(), 1u);
  std::thread ends([&] { *running = Admission::Ticket(); });
  admission.Drain(absl::InfiniteFuture());
  EXPECT_EQ(admission.in_flight(), 0u);
  ends.join();
}

}  // namespace
}  // namespace tandem::router
