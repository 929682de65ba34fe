#include "router/admin/admin_service.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"
#include "tandem/v1/admin.grpc.pb.h"
#include "tandem/v1/generation.grpc.pb.h"
#include "tandem/v1/routing.grpc.pb.h"

namespace tandem::router {
namespace {

using testing::ChunkEvent;
using testing::FinishedEvent;
using ::testing::HasSubstr;
using testing::LettersConfig;
using testing::Saying;
using testing::StartedEvent;
using testing::StubVerifier;
using testing::TestRouter;

// Acme's requests may wait; zeta administers.
v1::RouterConfig AdminConfig(const StubVerifier& verifier) {
  v1::RouterConfig config = LettersConfig({verifier.endpoint()});
  config.mutable_tenants(0)->set_max_queued_requests(2);
  config.mutable_tenants(1)->set_admin(true);
  config.mutable_drafters(1)->set_trusted(true);
  return config;
}

class AdminServiceTest : public ::testing::Test {
 protected:
  using Stub = v1::RouterAdmin::Stub;

  template <class Request, class Response>
  absl::Status Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response, const std::string& token = "secret-z") {
    grpc::ClientContext context;
    Prepare(context, token);
    return FromGrpcStatus((stub_.get()->*method)(&context, request, response));
  }

  static void Prepare(grpc::ClientContext& context, const std::string& token) {
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
  }

  // Runs a generation to its end.
  absl::Status Generate(const std::string& id, const std::string& token = "secret-a") {
    grpc::ClientContext context;
    return Generate(id, token, context);
  }
  absl::Status Generate(const std::string& id, const std::string& token, grpc::ClientContext& context) {
    Prepare(context, token);
    v1::GenerateRequest request;
    request.set_request_id(id);
    request.set_text("hello");
    const auto reader = v1::Generation::NewStub(channel_)->Generate(&context, request);
    v1::GenerateResponse event;
    while (reader->Read(&event)) {
    }
    return FromGrpcStatus(reader->Finish());
  }

  absl::Status Swap(const std::string& drafter, bool running = false,
                    v1::SwapTenantDrafterResponse* response = nullptr) {
    v1::SwapTenantDrafterRequest request;
    request.set_tenant("acme");
    request.set_drafter(drafter);
    request.set_running(running);
    v1::SwapTenantDrafterResponse ignored;
    return Call(&Stub::SwapTenantDrafter, request, response == nullptr ? &ignored : response);
  }

  StubVerifier verifier_;
  TestRouter router_{AdminConfig(verifier_)};
  std::shared_ptr<grpc::Channel> channel_ = CreateChannel(router_.endpoint());
  std::unique_ptr<Stub> stub_ = v1::RouterAdmin::NewStub(channel_);
};

TEST_F(AdminServiceTest, OnlyAdminsMayCall) {
  v1::ListTenantsResponse list;
  EXPECT_EQ(Call(&Stub::ListTenants, v1::ListTenantsRequest(), &list, "").code(),
            absl::StatusCode::kUnauthenticated);
  const absl::Status denied = Call(&Stub::ListTenants, v1::ListTenantsRequest(), &list, "secret-a");
  EXPECT_EQ(denied.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(denied.message(), HasSubstr("tenant \"acme\" may not administer this router"));
  v1::SwapTenantDrafterResponse swapped;
  EXPECT_EQ(Call(&Stub::SwapTenantDrafter, v1::SwapTenantDrafterRequest(), &swapped, "secret-a").code(),
            absl::StatusCode::kPermissionDenied);
  grpc::ClientContext context;
  Prepare(context, "secret-a");
  v1::WatchEvent event;
  const auto reader = stub_->Watch(&context, v1::WatchRequest());
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);

  ASSERT_TRUE(Call(&Stub::ListTenants, v1::ListTenantsRequest(), &list).ok());
  ASSERT_EQ(list.tenants_size(), 2);
  EXPECT_EQ(list.tenants(0).config().name(), "acme");
  EXPECT_EQ(list.tenants(0).config().token(), "");
}

TEST_F(AdminServiceTest, ASwapHoldsForTheNextRequest) {
  verifier_.SetScript([](StubVerifier::Call& call) {
    call.Send(StartedEvent(call.request()));
    call.Send(ChunkEvent(0, "x"));
    call.Send(FinishedEvent(call.request(), 1));
    EXPECT_EQ(call.request().drafter().draft_model(), "draft-" + call.request().request_id());
    call.Finish(absl::OkStatus());
  });
  for (int i = 0; i < 20; ++i) {
    for (const char* drafter : {"math", "code"}) {
      ASSERT_TRUE(Swap(drafter).ok());
      EXPECT_TRUE(Generate(drafter).ok());
    }
  }
}

TEST_F(AdminServiceTest, ChangesDoNotDisturbRequests) {
  verifier_.SetScript(Saying("hello", 2));
  std::atomic<bool> stop{false};
  std::thread swaps([&] {
    for (int i = 0; !stop; ++i) EXPECT_TRUE(Swap(i % 2 == 0 ? "math" : "code").ok());
  });
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Generate("r").ok());
  stop = true;
  swaps.join();
}

TEST_F(AdminServiceTest, ASwapMovesRunningRequestsToo) {
  v1::SwapDrafterResponse answer;
  answer.set_swapped(3);
  answer.set_refused(1);
  answer.set_refusal("other vocabulary");
  verifier_.SetSwapAnswer(answer);
  absl::Status status;
  std::thread client([&] { status = Generate("runs"); });
  const auto call = verifier_.NextCall();
  ASSERT_NE(call, nullptr);
  v1::SwapTenantDrafterResponse response;
  EXPECT_TRUE(Swap("code", /*running=*/true, &response).ok());
  EXPECT_EQ(verifier_.swaps().size(), 0u) << "it has that one already";
  EXPECT_TRUE(Swap("math", /*running=*/true, &response).ok());
  EXPECT_EQ(response.num_moved(), 3u);
  EXPECT_EQ(response.num_failed(), 1u);
  EXPECT_EQ(response.previous_drafter(), "code");
  EXPECT_EQ(response.failure(), "other vocabulary");
  ASSERT_EQ(verifier_.swaps().size(), 1u);
  const v1::SwapDrafterRequest swap = verifier_.swaps()[0];
  EXPECT_EQ(swap.tenant(), "acme");
  EXPECT_EQ(swap.from(), "code");
  EXPECT_EQ(swap.to().draft_model(), "draft-math");
  EXPECT_TRUE(swap.to().trusted());
  call->Finish(absl::InvalidArgumentError("no"));
  client.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(AdminServiceTest, ADrainingDrafterIsNoAlternate) {
  std::atomic<int> alternates{-1};
  verifier_.SetScript([&](StubVerifier::Call& call) {
    alternates = call.request().alternates_size();
    Saying("x", 1)(call);
  });
  ASSERT_TRUE(Generate("before").ok());
  EXPECT_EQ(alternates, 1);
  v1::DrainDrafterRequest drain;
  drain.set_name("math");
  v1::DrafterInfo info;
  ASSERT_TRUE(Call(&Stub::DrainDrafter, drain, &info).ok());
  ASSERT_TRUE(Generate("after").ok());
  EXPECT_EQ(alternates, 0);
}

TEST_F(AdminServiceTest, WatchTellsChanges) {
  grpc::ClientContext context;
  Prepare(context, "secret-z");
  const auto reader = stub_->Watch(&context, v1::WatchRequest());
  v1::WatchEvent event;
  int num_told = 0;
  while (reader->Read(&event) && !event.has_synced()) ++num_told;
  EXPECT_EQ(num_told, 4);
  ASSERT_TRUE(Swap("math").ok());
  while (reader->Read(&event) && !event.has_tenant()) {
  }
  EXPECT_EQ(event.tenant().config().drafter(), "math");
  context.TryCancel();
  while (reader->Read(&event)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(AdminServiceTest, WatchEndsWithTheRightToIt) {
  v1::SetTenantRequest request;
  request.mutable_config()->set_name("acme");
  request.mutable_config()->set_admin(true);
  request.add_fields("admin");
  v1::TenantInfo info;
  ASSERT_TRUE(Call(&Stub::SetTenant, request, &info).ok());
  grpc::ClientContext context;
  Prepare(context, "secret-a");
  const auto reader = stub_->Watch(&context, v1::WatchRequest());
  v1::WatchEvent event;
  while (reader->Read(&event) && !event.has_synced()) {
  }
  request.mutable_config()->set_admin(false);
  ASSERT_TRUE(Call(&Stub::SetTenant, request, &info).ok());
  while (reader->Read(&event)) EXPECT_FALSE(event.has_tenant());
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(AdminServiceTest, ABadCanaryIsRolledBack) {
  v1::SetTenantRequest request;
  v1::TenantConfig& acme = *request.mutable_config();
  acme.set_name("acme");
  acme.set_drafter("code");
  acme.set_drafter_policy(v1::DRAFTER_POLICY_CANARY);
  acme.mutable_canary()->set_drafter("math");
  acme.mutable_canary()->set_percent(50);
  acme.mutable_canary()->set_min_rounds(10);
  v1::TenantInfo info;
  ASSERT_TRUE(Call(&Stub::SetTenant, request, &info).ok());
  // Ten drafted rounds a request, in which math has nothing accepted and code all.
  verifier_.SetScript([](StubVerifier::Call& call) {
    const bool good = call.request().drafter().name() == "code";
    const uint32_t num_tokens = good ? 30 : 10;
    call.Send(StartedEvent(call.request()));
    call.Send(ChunkEvent(0, std::string(num_tokens, 'x')));
    v1::GenerateResponse finished = FinishedEvent(call.request(), num_tokens);
    v1::SpeculationStats& stats = *finished.mutable_finished()->mutable_speculation();
    stats.set_drafter(call.request().drafter().name());
    stats.set_rounds(10);
    stats.set_drafted_rounds(10);
    // What the verifier guesses by itself beside math must not save it.
    stats.set_draft_tokens(20);
    stats.set_accepted_tokens(20);
    v1::SourceStats& source = *stats.add_by_source();
    source.set_source(good ? v1::DRAFT_SOURCE_DRAFTER : v1::DRAFT_SOURCE_LOCAL);
    source.set_drafter(call.request().drafter().name());
    source.set_drafted_rounds(10);
    source.set_draft_tokens(20);
    source.set_accepted_tokens(20);
    source.add_accepted_per_position(10);
    source.add_accepted_per_position(10);
    call.Send(std::move(finished));
    call.Finish(absl::OkStatus());
  });
  v1::GetTenantRequest get;
  get.set_name("acme");
  int requests = 0;
  while (info.rolled_back().empty() && requests < 500) {
    ASSERT_TRUE(Generate(absl::StrCat("request-", requests++)).ok());
    ASSERT_TRUE(Call(&Stub::GetTenant, get, &info).ok());
  }
  EXPECT_THAT(info.rolled_back(), HasSubstr("math made 1.00 tokens per round where code made 3.00"));
  EXPECT_EQ(info.config().drafter_policy(), v1::DRAFTER_POLICY_PINNED);
  EXPECT_EQ(info.config().drafter(), "code");
  // Counted right after it shows.
  const std::string rollbacks = R"(tandem_router_canary_rollbacks_total{drafter="math",tenant="acme"})";
  const absl::Time patience = absl::Now() + absl::Seconds(60);
  while (router_.MetricValue(rollbacks) == 0 && absl::Now() < patience) std::this_thread::yield();
  EXPECT_EQ(router_.MetricValue(rollbacks), 1);
}

TEST_F(AdminServiceTest, RequestsWaitForTheirPlace) {
  std::vector<std::thread> clients;
  std::vector<absl::Status> statuses(4);
  const auto begin = [&](int i) {
    clients.emplace_back([this, &statuses, i] { statuses[i] = Generate(absl::StrCat("r", i)); });
  };
  const auto await_queued = [this](double number) {
    while (router_.MetricValue("tandem_router_queued") != number) std::this_thread::yield();
  };
  begin(0);
  begin(1);
  const auto first = verifier_.NextCall();
  const auto second = verifier_.NextCall();
  ASSERT_TRUE(first != nullptr && second != nullptr);
  begin(2);
  await_queued(1);
  begin(3);
  await_queued(2);
  EXPECT_EQ(verifier_.num_calls(), 2) << "acme has two places";
  const absl::Status full = Generate("r4");
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryAfter(full).has_value());

  verifier_.SetScript(Saying("x", 1));
  for (const auto& call : {first, second}) call->Finish(absl::InvalidArgumentError("no"));
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(statuses[2].ok()) << statuses[2];
  EXPECT_TRUE(statuses[3].ok()) << statuses[3];
  EXPECT_EQ(router_.MetricValue("tandem_router_queued"), 0);
  EXPECT_EQ(router_.MetricValue(R"(tandem_router_queue_seconds_count{tenant="acme"})"), 4);
}

TEST_F(AdminServiceTest, LeavingTheQueueFreesItAtOnce) {
  std::vector<std::thread> clients;
  for (int i = 0; i < 2; ++i) clients.emplace_back([this] { (void)Generate("runs"); });
  const auto first = verifier_.NextCall();
  const auto second = verifier_.NextCall();
  ASSERT_TRUE(first != nullptr && second != nullptr);
  grpc::ClientContext context;
  absl::Status cancelled;
  std::thread waits([&] { cancelled = Generate("waits", "secret-a", context); });
  while (router_.router().admission().queued() != 1) std::this_thread::yield();
  context.TryCancel();
  waits.join();
  EXPECT_EQ(cancelled.code(), absl::StatusCode::kCancelled);
  while (router_.router().admission().queued() != 0) std::this_thread::yield();
  for (const auto& call : {first, second}) call->Finish(absl::InvalidArgumentError("no"));
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(verifier_.num_calls(), 2) << "what left the queue was never worked on";
}

TEST_F(AdminServiceTest, QuotaOfTokens) {
  v1::SetTenantRequest request;
  request.mutable_config()->set_name("acme");
  request.mutable_config()->set_tokens_per_minute(5);
  request.add_fields("tokens_per_minute");
  v1::TenantInfo info;
  ASSERT_TRUE(Call(&Stub::SetTenant, request, &info).ok());
  verifier_.SetScript(Saying("hello", 5));
  ASSERT_TRUE(Generate("first").ok())
      << "6 tokens of prompt and 5 of output, of which 5 could be taken before";
  const absl::Status refused = Generate("second");
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("5 tokens per minute"));
  // 7 tokens until there is a whole one again.
  EXPECT_GT(RetryAfter(refused).value(), absl::Seconds(60));
  EXPECT_LE(RetryAfter(refused).value(), absl::Seconds(85));
  // Nor does anything else that tokenizes a prompt get past it.
  grpc::ClientContext context;
  Prepare(context, "secret-a");
  v1::ExplainChoiceRequest explain;
  explain.mutable_request()->set_text("hello");
  v1::ChoiceExplanation explanation;
  const auto routing = v1::Routing::NewStub(channel_);
  EXPECT_EQ(routing->ExplainChoice(&context, explain, &explanation).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

}  // namespace
}  // namespace tandem::router
