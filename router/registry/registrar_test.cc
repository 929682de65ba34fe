#include "router/registry/registrar.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/registry/testing/registry_world.h"

namespace tandem::router {
namespace {

using testing::DrafterAt;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kTtl;
using testing::RegistryRouter;
using testing::SharedLeases;
using ::testing::UnorderedElementsAre;
using testing::VerifierAt;

constexpr absl::Duration kTick = absl::Milliseconds(250);

class RegistrarTest : public ::testing::Test {
 protected:
  // Time goes by, and routers look as often as they do.
  void Pass(absl::Duration time, const std::vector<RegistryRouter*>& routers) {
    for (absl::Duration passed; passed < time; passed += kTick) {
      clock_.Advance(kTick);
      for (RegistryRouter* router : routers) router->registrar->Tick();
    }
  }
  void Pass(absl::Duration time) { Pass(time, {&router_}); }

  ManualClock clock_{absl::FromUnixSeconds(1000)};
  RegistryRouter router_{&clock_, nullptr, kTtl};
};

TEST_F(RegistrarTest, AServerIsUsedAsLongAsItIsHeardOf) {
  const v1::ServerRegistration verifier = VerifierAt("v", "v:1", 1);
  v1::RegisterRequest request;
  *request.mutable_server() = verifier;
  const v1::RegisterResponse answer = router_.registrar->Register(request).value();
  EXPECT_EQ(answer.ttl_seconds(), 15);
  EXPECT_EQ(answer.renew_after_seconds(), 5);
  ASSERT_EQ(router_.verifiers.size(), 1u);
  EXPECT_EQ(router_.verifiers[0].address, "v:1");
  EXPECT_EQ(router_.verifiers[0].max_in_flight, 12u);
  EXPECT_EQ(router_.counts, std::make_pair(size_t{1}, size_t{0}));
  for (int i = 0; i < 10; ++i) {
    Pass(kTtl - absl::Seconds(1));
    ASSERT_THAT(router_.addresses(), ElementsAre("v:1"));
    ASSERT_TRUE(router_.Register(verifier).ok());
  }
  Pass(kTtl - absl::Seconds(1));
  EXPECT_THAT(router_.addresses(), ElementsAre("v:1"));
  Pass(absl::Seconds(1) + kTick);
  EXPECT_THAT(router_.addresses(), IsEmpty());
  EXPECT_EQ(router_.counts, std::make_pair(size_t{0}, size_t{0}));
  // And comes back.
  EXPECT_TRUE(router_.Register(verifier).ok());
  EXPECT_THAT(router_.addresses(), ElementsAre("v:1"));
}

TEST_F(RegistrarTest, OneAddressDoesNotTakeAllTheRoom) {
  const uint32_t most = Registration().max_per_address;
  constexpr PeerAddress kFlooder = 1, kOther = 2;
  const auto come = [this](const std::string& name, std::optional<PeerAddress> from) {
    v1::RegisterRequest request;
    *request.mutable_server() = VerifierAt(name, name + ":1", 1);
    return router_.registrar->Register(request, from).status();
  };
  for (uint32_t i = 0; i < most; ++i) ASSERT_TRUE(come(absl::StrCat("f", i), kFlooder).ok());
  const absl::Status refused = come("more", kFlooder);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("64 servers have registered from this address, which is the limit"));
  EXPECT_TRUE(come("f3", kFlooder).ok()) << "renewed";
  EXPECT_TRUE(come("other", kOther).ok());
  EXPECT_TRUE(come("socket", std::nullopt).ok());
  // What it holds ends like everything else, and then there is room again.
  Pass(kTtl + 2 * kTick);
  EXPECT_TRUE(come("more", kFlooder).ok());
}

TEST_F(RegistrarTest, WhoLeavesIsGoneAtOnceAndDoesNotComeBack) {
  const v1::ServerRegistration verifier = VerifierAt("v", "v:1", 1);
  ASSERT_TRUE(router_.Register(verifier).ok());
  ASSERT_TRUE(router_.Deregister(verifier).ok());
  EXPECT_THAT(router_.addresses(), IsEmpty());
  // A call of it that was under way.
  const absl::Status late = router_.Register(verifier);
  EXPECT_EQ(late.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(late.message()), HasSubstr("has left"));
  EXPECT_TRUE(router_.Deregister(verifier).ok()) << "again";
  // Another process, elsewhere even.
  EXPECT_TRUE(router_.Register(VerifierAt("v", "v:2", 2)).ok());
  EXPECT_THAT(router_.addresses(), ElementsAre("v:2"));
  // What the older one says now is of no effect.
  EXPECT_TRUE(router_.Deregister(verifier).ok());
  EXPECT_EQ(router_.Register(verifier).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(router_.addresses(), ElementsAre("v:2"));
}

TEST_F(RegistrarTest, ACallThatWasOvertakenByLeavingIsRefused) {
  const v1::ServerRegistration verifier = VerifierAt("v", "v:1", 1);
  ASSERT_TRUE(router_.Deregister(verifier).ok());
  EXPECT_EQ(router_.Register(verifier).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(router_.Register(VerifierAt("v", "v:2", 2)).ok());
  EXPECT_EQ(router_.counts, std::make_pair(size_t{1}, size_t{0}));
}

TEST_F(RegistrarTest, OfTwoProcessesAtOneAddressTheLaterOneIsThere) {
  const v1::ServerRegistration old = VerifierAt("v", "v:1", 1);
  const v1::ServerRegistration young = VerifierAt("v", "v:1", 2);
  ASSERT_TRUE(router_.Register(old).ok());
  ASSERT_TRUE(router_.Register(young).ok());
  const absl::Status replaced = router_.Register(old);
  EXPECT_EQ(replaced.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(replaced.message()), HasSubstr("started later"));
  EXPECT_TRUE(router_.Deregister(old).ok());
  EXPECT_THAT(router_.addresses(), ElementsAre("v:1"));
  EXPECT_TRUE(router_.Register(young).ok());
  Pass(kTtl - absl::Seconds(1));
  EXPECT_THAT(router_.addresses(), ElementsAre("v:1"));
}

TEST_F(RegistrarTest, ANameIsTakenAsLongAsItsLeaseLasts) {
  ASSERT_TRUE(router_.Register(VerifierAt("v", "v:1", 2)).ok());
  const absl::Status taken = router_.Register(VerifierAt("v", "v:2", 3));
  EXPECT_EQ(taken.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(taken.message()), HasSubstr("verifier \"v\" at v:1"));
  // Names of drafters are their own.
  EXPECT_TRUE(router_.Register(DrafterAt("v", "d:1", 1, "m")).ok());
  Pass(kTtl + kTick);
  // Whenever it started: clocks of two machines say nothing of one another.
  EXPECT_TRUE(router_.Register(VerifierAt("v", "v:2", 1)).ok());
  EXPECT_THAT(router_.addresses(), ElementsAre("v:2"));
}

TEST_F(RegistrarTest, DraftModelsHaveNamesOfTheirOwn) {
  router_.configured = {"fixed"};
  ASSERT_TRUE(router_.Register(DrafterAt("d1", "d:1", 1, "m")).ok());
  const absl::Status taken = router_.Register(DrafterAt("d2", "d:2", 1, "m"));
  EXPECT_EQ(taken.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(taken.message()), HasSubstr("drafter \"d1\" at d:1"));
  const absl::Status configured = router_.Register(DrafterAt("d3", "d:3", 1, "fixed"));
  EXPECT_EQ(configured.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(configured.message()), HasSubstr("configured"));
  ASSERT_TRUE(router_.Register(DrafterAt("d4", "d:4", 1, "n")).ok());
  EXPECT_THAT(router_.drafter_names(), UnorderedElementsAre("m", "n"));
  // Requests may go on to name one that is away.
  Pass(kTtl + kTick);
  EXPECT_THAT(router_.drafter_names(), IsEmpty());
  ASSERT_EQ(router_.drafters.size(), 2u);
  EXPECT_TRUE(router_.drafters[0].absent && router_.drafters[0].draining);
}

TEST_F(RegistrarTest, VerifiersOfOneModelHaveTheSameWeights) {
  ASSERT_TRUE(router_.Register(VerifierAt("v1", "v:1", 1)).ok());
  v1::ServerRegistration other = VerifierAt("v2", "v:2", 1);
  other.mutable_verifier()->set_weights_sha256(std::string(32, 'x'));
  const absl::Status refused = router_.Register(other);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("outputs would differ"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("verifier \"v1\" at v:1"));
  v1::ServerRegistration rounded = VerifierAt("v2", "v:2", 1);
  rounded.mutable_verifier()->mutable_model()->set_weight_type("int8");
  EXPECT_EQ(router_.Register(rounded).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(router_.Register(VerifierAt("v2", "v:2", 1)).ok());
  // The only one may come back with others.
  ASSERT_TRUE(router_.Deregister(VerifierAt("v2", "v:2", 1)).ok());
  v1::ServerRegistration renewed = VerifierAt("v1", "v:1", 2);
  renewed.mutable_verifier()->set_weights_sha256(std::string(32, 'x'));
  EXPECT_TRUE(router_.Register(renewed).ok());
  other = VerifierAt("v2", "v:2", 2);
  other.mutable_verifier()->set_weights_sha256(std::string(32, 'x'));
  EXPECT_TRUE(router_.Register(other).ok());
}

TEST_F(RegistrarTest, WhatAServerSaysOfItselfMayChange) {
  v1::ServerRegistration verifier = VerifierAt("v", "v:1", 1);
  ASSERT_TRUE(router_.Register(verifier).ok());
  verifier.mutable_capacity()->set_max_running(100);
  ASSERT_TRUE(router_.Register(verifier).ok());
  ASSERT_EQ(router_.verifiers.size(), 1u);
  EXPECT_EQ(router_.verifiers[0].max_in_flight, 108u);
}

TEST_F(RegistrarTest, ThereIsAnEndToHowManyMayCome) {
  for (int i = 0; i < 512; ++i) {
    ASSERT_TRUE(router_.Register(VerifierAt("v" + std::to_string(i), "v:" + std::to_string(i + 1), 1)).ok())
        << i;
  }
  EXPECT_EQ(router_.Register(VerifierAt("one more", "v:1000", 1)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(router_.Register(VerifierAt("more", "v:1000", 1)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(router_.Register(VerifierAt("v7", "v:8", 1)).ok());
}

TEST_F(RegistrarTest, ARouterThatStoodStillGivesUpNobody) {
  ASSERT_TRUE(router_.Register(VerifierAt("v", "v:1", 1)).ok());
  Pass(absl::Seconds(1));
  clock_.Advance(10 * kTtl);
  router_.registrar->Tick();
  EXPECT_THAT(router_.addresses(), ElementsAre("v:1"));
  Pass(kTtl + kTick);
  EXPECT_THAT(router_.addresses(), IsEmpty()) << "it did not come back";
}

TEST_F(RegistrarTest, WhoeverStartsAtAnAddressEndsTheOneBeforeEvenWhenRefused) {
  v1::ServerRegistration old = VerifierAt("v", "v:1", 1);
  ASSERT_TRUE(router_.Register(old).ok());
  ASSERT_TRUE(router_.Register(VerifierAt("w", "w:1", 1)).ok());
  v1::ServerRegistration other_weights = VerifierAt("v", "v:1", 2);
  other_weights.mutable_verifier()->set_weights_sha256(std::string(kDigestBytes, 'x'));
  EXPECT_EQ(router_.Register(other_weights).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(router_.addresses(), ElementsAre("w:1")) << "requests would go to the other weights";
  // A call of the old one that was overtaken.
  EXPECT_EQ(router_.Register(old).code(), absl::StatusCode::kFailedPrecondition);
  // Under another name, too.
  ASSERT_TRUE(router_.Register(VerifierAt("w2", "w:1", 2)).ok());
  EXPECT_THAT(router_.addresses(), ElementsAre("w:1"));
  EXPECT_EQ(router_.counts.first, 1u);
}

TEST_F(RegistrarTest, VerifiersThatComputeDifferentlyAreNotMixed) {
  v1::ServerRegistration first = VerifierAt("v", "v:1", 1);
  first.mutable_verifier()->set_arithmetic("cpu (avx512), seeded");
  ASSERT_TRUE(router_.Register(first).ok());
  v1::ServerRegistration second = VerifierAt("w", "w:1", 1);
  second.mutable_verifier()->set_arithmetic("cpu (amx), seeded");
  const absl::Status status = router_.Register(second);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cpu (amx), seeded; expected"));
  EXPECT_THAT(router_.addresses(), ElementsAre("v:1"));
}

TEST_F(RegistrarTest, WhatALaterVersionSaysIsNotKept) {
  v1::ServerRegistration server = VerifierAt("v", "v:1", 1);
  server.GetReflection()->MutableUnknownFields(&server)->AddLengthDelimited(1000, std::string(1000, 'x'));
  ASSERT_TRUE(router_.Register(server).ok());
  ASSERT_EQ(router_.registrar->Servers().size(), 1u);
  EXPECT_LT(router_.registrar->Servers()[0].ByteSizeLong(), 1000u);
}

TEST_F(RegistrarTest, NorDoesItWhenACallComesFirst) {
  ASSERT_TRUE(router_.Register(DrafterAt("d", "d:1", 1, "m")).ok());
  Pass(absl::Seconds(1));
  clock_.Advance(10 * kTtl);
  ASSERT_TRUE(router_.Register(VerifierAt("v", "v:1", 1)).ok());
  ASSERT_TRUE(router_.Deregister(VerifierAt("v", "v:1", 1)).ok());
  EXPECT_THAT(router_.drafter_names(), ElementsAre("m"));
}

TEST_F(RegistrarTest, AClockThatIsSetEndsNoLease) {
  ASSERT_TRUE(router_.Register(VerifierAt("v", "v:1", 1)).ok());
  ASSERT_TRUE(router_.Register(DrafterAt("d", "d:1", 1, "m")).ok());
  clock_.Advance(absl::Hours(1));
  // Before anybody has looked.
  ASSERT_TRUE(router_.Register(VerifierAt("v", "v:1", 1)).ok());
  EXPECT_THAT(router_.addresses(), ElementsAre("v:1"));
  EXPECT_THAT(router_.drafter_names(), ElementsAre("m"));
}

TEST_F(RegistrarTest, WaitingWaits) {
  ASSERT_TRUE(router_.Register(VerifierAt("v", "v:1", 1)).ok());
  router_.registrar->Tick();
  const absl::Time began = absl::Now();
  router_.registrar->AwaitChange(absl::Milliseconds(50));
  EXPECT_GE(absl::Now() - began, absl::Milliseconds(45));
}

// Two routers on one store.
class SharedRegistrarTest : public RegistrarTest {
 protected:
  void PassBoth(absl::Duration time) {
    for (absl::Duration passed; passed < time; passed += kTick) {
      clock_.Advance(kTick);
      for (SharedLeases* view : {&first_view_, &second_view_}) view->Tell();
      first_.registrar->Tick();
      second_.registrar->Tick();
    }
  }

  MemoryLeaseStore leases_{&clock_};
  SharedLeases first_view_{&leases_};
  SharedLeases second_view_{&leases_};
  RegistryRouter first_{&clock_, &first_view_, kTtl};
  RegistryRouter second_{&clock_, &second_view_, kTtl};
};

TEST_F(SharedRegistrarTest, OneRouterIsEnough) {
  const v1::ServerRegistration verifier = VerifierAt("v", "v:1", 1);
  ASSERT_TRUE(first_.Register(verifier).ok());
  second_.registrar->Tick();
  EXPECT_THAT(second_.addresses(), ElementsAre("v:1"));
  // By turns.
  for (RegistryRouter* router : {&second_, &first_, &second_}) {
    PassBoth(kTtl - absl::Seconds(1));
    ASSERT_TRUE(router->Register(verifier).ok());
  }
  EXPECT_THAT(first_.addresses(), ElementsAre("v:1"));
  EXPECT_EQ(first_.Register(VerifierAt("v", "v:2", 2)).code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(first_.Deregister(verifier).ok());
  second_.registrar->Tick();
  EXPECT_THAT(second_.addresses(), IsEmpty());
  EXPECT_EQ(second_.Register(verifier).code(), absl::StatusCode::kFailedPrecondition) << "it has left";
}

TEST_F(SharedRegistrarTest, WhileTheStoreIsAwayEverythingStays) {
  const v1::ServerRegistration verifier = VerifierAt("v", "v:1", 1);
  ASSERT_TRUE(first_.Register(verifier).ok());
  PassBoth(absl::Seconds(1));
  first_view_.away = second_view_.away = true;
  PassBoth(4 * kTtl);
  EXPECT_THAT(first_.addresses(), ElementsAre("v:1"));
  EXPECT_THAT(second_.addresses(), ElementsAre("v:1"));
  EXPECT_TRUE(first_.Register(verifier).ok()) << "as it was";
  EXPECT_EQ(first_.Register(VerifierAt("w", "w:1", 1)).code(), absl::StatusCode::kUnavailable);
  first_view_.away = second_view_.away = false;
  // Its lease has ended meanwhile; there is time to come back.
  PassBoth(kTtl - absl::Seconds(1));
  EXPECT_THAT(second_.addresses(), ElementsAre("v:1"));
  ASSERT_TRUE(first_.Register(verifier).ok());
  PassBoth(kTtl - absl::Seconds(1));
  EXPECT_THAT(second_.addresses(), ElementsAre("v:1"));
  PassBoth(2 * kTtl);
  EXPECT_THAT(first_.addresses(), IsEmpty());
  EXPECT_THAT(second_.addresses(), IsEmpty());
}

TEST_F(SharedRegistrarTest, RoutersThatTookContradictoryServersAgreeOnTheFirst) {
  const v1::ServerRegistration one = DrafterAt("d1", "d:1", 1, "m");
  const v1::ServerRegistration two = DrafterAt("d2", "d:2", 1, "m");
  ASSERT_TRUE(first_.Register(one).ok());
  // The second router has not heard of the first's.
  ASSERT_TRUE(second_.Register(two).ok());
  PassBoth(kTick);
  for (const RegistryRouter* router : {&first_, &second_}) {
    ASSERT_EQ(router->drafters.size(), 1u);
    EXPECT_EQ(router->drafters[0].endpoint, "d:1");
  }
  EXPECT_TRUE(second_.Register(one).ok());
  EXPECT_EQ(second_.Register(two).code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(SharedRegistrarTest, ThatAnOlderProcessLeavesDoesNotEndOneTheStoreHasLost) {
  const v1::ServerRegistration young = DrafterAt("d", "d:2", 2, "m");
  ASSERT_TRUE(first_.Register(young).ok());
  PassBoth(absl::Seconds(1));
  // Its lease ends while nobody can look.
  first_view_.away = true;
  for (absl::Duration passed; passed < 2 * kTtl; passed += kTick) {
    clock_.Advance(kTick);
    first_.registrar->Tick();
    second_.registrar->Tick();
  }
  second_view_.Tell();
  second_.registrar->Tick();
  EXPECT_THAT(second_.drafter_names(), IsEmpty());
  ASSERT_TRUE(second_.Deregister(DrafterAt("d", "d:1", 1, "m")).ok());
  first_view_.away = false;
  PassBoth(kTick);
  EXPECT_THAT(first_.drafter_names(), ElementsAre("m")) << "it has a ttl to come back";
  EXPECT_TRUE(first_.Register(young).ok());
  PassBoth(kTick);
  EXPECT_THAT(second_.drafter_names(), ElementsAre("m"));
}

TEST_F(SharedRegistrarTest, WhatMakesNoSenseIsLeftOut) {
  ASSERT_TRUE(leases_.PutLeased({.key = "registered/verifiers/x", .value = "nonsense", .ttl = kTtl}).ok());
  ASSERT_TRUE(first_.Register(VerifierAt("v", "v:1", 1)).ok());
  PassBoth(kTick);
  EXPECT_THAT(second_.addresses(), ElementsAre("v:1"));
}

}  // namespace
}  // namespace tandem::router
