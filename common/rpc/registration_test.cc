#include "common/rpc/registration.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "tandem/v1/registry.grpc.pb.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

// A machine with many tests on it takes its time.
constexpr absl::Duration kPatience = absl::Seconds(60);

// What routers answer.
class FakeRegistry final : public v1::Registry::Service {
 public:
  FakeRegistry() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeRegistry() override {
    {
      absl::MutexLock lock(&mutex_);
      hang_ = false;
    }
    server_->Shutdown();
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  void Answer(grpc::Status status) {
    absl::MutexLock lock(&mutex_);
    answer_ = std::move(status);
  }
  void Hang() {
    absl::MutexLock lock(&mutex_);
    hang_ = true;
  }
  bool AwaitCalls(size_t count) const {
    const auto enough = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return calls_.size() >= count; };
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&enough), kPatience);
  }
  std::vector<v1::ServerRegistration> calls() const {
    absl::MutexLock lock(&mutex_);
    return calls_;
  }
  std::vector<v1::DeregisterRequest> left() const {
    absl::MutexLock lock(&mutex_);
    return left_;
  }

  grpc::Status Register(grpc::ServerContext* context, const v1::RegisterRequest* request,
                        v1::RegisterResponse* response) override {
    absl::MutexLock lock(&mutex_);
    calls_.push_back(request->server());
    while (hang_ && !context->IsCancelled()) {
      const auto goes_on = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !hang_; };
      mutex_.AwaitWithTimeout(absl::Condition(&goes_on), absl::Milliseconds(5));
    }
    response->set_ttl_seconds(3);
    response->set_renew_after_seconds(0.1);
    return answer_;
  }
  grpc::Status Deregister(grpc::ServerContext*, const v1::DeregisterRequest* request,
                          v1::DeregisterResponse*) override {
    absl::MutexLock lock(&mutex_);
    left_.push_back(*request);
    return grpc::Status::OK;
  }

 private:
  mutable absl::Mutex mutex_;
  grpc::Status answer_ ABSL_GUARDED_BY(mutex_);
  bool hang_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<v1::ServerRegistration> calls_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::DeregisterRequest> left_ ABSL_GUARDED_BY(mutex_);
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

v1::ServerRegistration Self() {
  v1::ServerRegistration self = BeginRegistration({.routers = {"unused"}, .name = "v"}, "127.0.0.1:7002");
  self.mutable_verifier();
  return self;
}

RouterRegistration::Options OptionsFor(std::vector<std::string> routers) {
  return {.routers = std::move(routers), .describe = Self, .call_timeout = kPatience};
}

bool AwaitRegistered(const RouterRegistration& registration, size_t count) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (registration.num_registered() != count) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

TEST(RegistrationTest, AServerStaysRegisteredWithEveryRouterUntilItLeaves) {
  FakeRegistry first;
  FakeRegistry second;
  MetricsRegistry metrics;
  RegistrationMetric metric(&metrics);
  EXPECT_THAT(metrics.Expose(), HasSubstr("tandem_registered_routers 0"));
  const v1::ServerRegistration self = Self();
  RouterRegistration::Options options = OptionsFor({first.address(), second.address()});
  options.describe = [&self] { return self; };
  options.metric = &metric;
  std::optional<RouterRegistration> registration(std::move(options));
  EXPECT_TRUE(first.AwaitCalls(3));
  EXPECT_TRUE(second.AwaitCalls(3));
  EXPECT_TRUE(AwaitRegistered(*registration, 2));
  EXPECT_THAT(metrics.Expose(), HasSubstr("tandem_registered_routers 2"));
  for (const v1::ServerRegistration& call : first.calls()) {
    EXPECT_EQ(call.SerializeAsString(), self.SerializeAsString());
  }
  registration->Leave();
  registration.reset();
  for (const FakeRegistry* router : {&first, &second}) {
    ASSERT_EQ(router->left().size(), 1u);
    EXPECT_EQ(router->left()[0].server().SerializeAsString(), self.SerializeAsString());
  }
  EXPECT_THAT(metrics.Expose(), HasSubstr("tandem_registered_routers 0"));
}

TEST(RegistrationTest, ARefusalIsTriedAgain) {
  FakeRegistry router;
  router.Answer({grpc::StatusCode::ALREADY_EXISTS, "the name is taken"});
  RouterRegistration registration(OptionsFor({router.address()}));
  EXPECT_TRUE(router.AwaitCalls(3));
  EXPECT_EQ(registration.num_registered(), 0u);
  router.Answer(grpc::Status::OK);
  EXPECT_TRUE(AwaitRegistered(registration, 1));
  router.Answer({grpc::StatusCode::UNAVAILABLE, "the store does not answer"});
  EXPECT_TRUE(AwaitRegistered(registration, 0));
}

TEST(RegistrationTest, OneRouterThatIsAwayHoldsUpNoOther) {
  FakeRegistry router;
  RouterRegistration registration(OptionsFor({"127.0.0.1:1", router.address()}));
  EXPECT_TRUE(AwaitRegistered(registration, 1));
}

TEST(RegistrationTest, LeavingCutsShortWhatIsUnderWayAndIsSaidAfterIt) {
  FakeRegistry router;
  router.Hang();
  std::optional<RouterRegistration> registration(OptionsFor({router.address()}));
  EXPECT_TRUE(router.AwaitCalls(1));
  const absl::Time start = absl::Now();
  registration.reset();
  EXPECT_LT(absl::Now() - start, kPatience / 2);
  // Whether the call had been worked on is not known.
  EXPECT_EQ(router.left().size(), 1u);
}

TEST(RegistrationTest, EveryProcessIsAnotherInstance) {
  const v1::ServerRegistration one = BeginRegistration({.routers = {"r:1"}}, "127.0.0.1:7002");
  const v1::ServerRegistration two = BeginRegistration({.routers = {"r:1"}}, "127.0.0.1:7002");
  EXPECT_EQ(one.instance().instance().size(), 16u);
  EXPECT_NE(one.instance().instance(), two.instance().instance());
  EXPECT_EQ(one.instance().name(), "127.0.0.1:7002");
  EXPECT_EQ(one.address(), "127.0.0.1:7002");
  const v1::ServerRegistration named =
      BeginRegistration({.routers = {"r:1"}, .advertise = "host:9", .name = "n"}, "0.0.0.0:7002");
  EXPECT_EQ(named.instance().name(), "n");
  EXPECT_EQ(named.address(), "host:9");
}

TEST(RegistrationTest, FlagsAreChecked) {
  EXPECT_TRUE(CheckRegistrationFlags({}, "0.0.0.0:7002").ok());
  EXPECT_TRUE(CheckRegistrationFlags({.routers = {"r:1"}}, "127.0.0.1:0").ok());
  EXPECT_TRUE(CheckRegistrationFlags({.routers = {"r:1"}, .advertise = "v:7002"}, "0.0.0.0:7002").ok());
  EXPECT_TRUE(CheckRegistrationFlags({.routers = {"r:1"}, .advertise = "[fd00::1]:7002"}, "[::]:7002").ok());
  const std::vector<std::pair<RegistrationFlags, std::string>> wrong = {
      {{.routers = {"r:1"}}, "--advertise: missing, and --listen=0.0.0.0:7002"},
      {{.routers = {""}, .advertise = "v:1"}, "--register: an empty address"},
      {{.routers = {"r:1"}, .advertise = "v"}, "--advertise: \"v\", expected host:port"},
      {{.routers = {"r:1"}, .advertise = "v:0"}, "--advertise"},
      {{.routers = {"r:1"}, .advertise = "[::]:7002"}, "--advertise"},
      {{.advertise = "v:1"}, "expected --register as well"},
      {{.name = "v"}, "expected --register as well"},
      {{.routers = std::vector<std::string>(65, "r:1"), .advertise = "v:1"}, "at most 64"},
  };
  for (const auto& [flags, part] : wrong) {
    const absl::Status status = CheckRegistrationFlags(flags, "0.0.0.0:7002");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

}  // namespace
}  // namespace tandem
