// Places follow what verifiers have room for, so that what waits does so at the router, where tenants have
// their shares.
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "router/testing/client_call.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"

namespace tandem::router {
namespace {

using testing::ChunkEvent;
using testing::ClientCall;
using testing::FinishedEvent;
using testing::LettersConfig;
using testing::Parse;
using testing::StartedEvent;
using testing::StubVerifier;
using testing::TestRouter;

// Until it is so; false if it has not become so for long.
template <class Condition>
bool ComesTrue(const Condition& condition) {
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (!condition()) {
    if (absl::Now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

class FairShareCallTest : public ::testing::Test {
 protected:
  // acme may queue 40 requests and has weight 1, zeta has weight 3.
  void Start(uint32_t max_running) {
    verifier_.SetServing(true);
    verifier_.SetCapacity(max_running);
    v1::RouterConfig config = LettersConfig({verifier_.endpoint()});
    v1::TenantConfig& acme = *config.mutable_tenants(0);
    acme.clear_max_concurrent_requests();
    acme.set_max_queued_requests(40);
    config.mutable_tenants(1)->set_weight(3);
    router_ = std::make_unique<TestRouter>(config);
  }
  double Places() { return router_->MetricValue("tandem_router_places{model=\"letters\"}"); }
  std::unique_ptr<ClientCall> Begin(const std::string& token) {
    return std::make_unique<ClientCall>(*router_, Parse(R"pb(text: "hello"
                                                             sampling { seed: 5 })pb"),
                                        token);
  }
  double Refused(const std::string& tenant) {
    return router_->MetricValue(
        "tandem_router_requests_total{code=\"RESOURCE_EXHAUSTED\",model=\"letters\"," +
        ("tenant=\"" + tenant + "\"}"));
  }
  static void End(StubVerifier::Call& call) {
    call.Send(StartedEvent(call.request()));
    call.Send(ChunkEvent(0, "x"));
    call.Send(FinishedEvent(call.request(), 1));
    call.Finish(absl::OkStatus());
  }

  StubVerifier verifier_;
  std::unique_ptr<TestRouter> router_;
};

TEST_F(FairShareCallTest, AFloodWaitsAtTheRouterAndWeightsHold) {
  Start(/*max_running=*/4);
  ASSERT_TRUE(ComesTrue([&] { return Places() == 5; })) << "four that run and one on its way";
  std::vector<std::unique_ptr<ClientCall>> calls;
  for (int i = 0; i < 60; ++i) calls.push_back(Begin("secret-a"));
  ASSERT_TRUE(ComesTrue([&] { return Refused("acme") == 15; })) << "but for 5 places and 40 in its queue";
  std::deque<std::shared_ptr<StubVerifier::Call>> running;
  for (int i = 0; i < 5; ++i) running.push_back(verifier_.NextCall());
  for (int i = 0; i < 30; ++i) calls.push_back(Begin("secret-z"));
  ASSERT_TRUE(ComesTrue([&] { return router_->router().admission().queued() == 70; }));
  EXPECT_EQ(verifier_.num_calls(), 5) << "no more than it has room for";

  int zeta = 0;
  constexpr int kTurns = 32;
  for (int turn = 0; turn < kTurns; ++turn) {
    ASSERT_NE(running.front(), nullptr);
    End(*running.front());
    running.pop_front();
    running.push_back(verifier_.NextCall());
    ASSERT_NE(running.back(), nullptr);
    zeta += running.back()->request().tenant() == "zeta" ? 1 : 0;
  }
  EXPECT_NEAR(zeta, 0.75 * kTurns, 0.2 * 0.75 * kTurns);
  EXPECT_EQ(Refused("zeta"), 0);
}

TEST_F(FairShareCallTest, PlacesFollowTheVerifiers) {
  StubVerifier other;
  other.SetServing(false);
  other.SetCapacity(16);
  verifier_.SetServing(true);
  verifier_.SetCapacity(4);
  TestRouter router(LettersConfig({verifier_.endpoint(), other.endpoint()}));
  const auto places = [&] { return router.MetricValue("tandem_router_places{model=\"letters\"}"); };
  EXPECT_TRUE(ComesTrue([&] { return places() == 5; }));
  other.SetServing(true);
  EXPECT_TRUE(ComesTrue([&] { return places() == 23; }));
  verifier_.SetServing(false);
  EXPECT_TRUE(ComesTrue([&] { return places() == 18; }));
  // Started anew with other flags.
  verifier_.SetCapacity(8);
  verifier_.SetServing(true);
  EXPECT_TRUE(ComesTrue([&] { return places() == 27; }));
}

}  // namespace
}  // namespace tandem::router
