// What a router keeps of requests in its spool, and of whose.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/base/file.h"
#include "common/base/temporary_folder.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/testing/client_call.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"
#include "tandem/v1/admin.grpc.pb.h"

namespace tandem::router {
namespace {

using testing::ChunkEvent;
using testing::ClientCall;
using testing::FinishedEvent;
using ::testing::HasSubstr;
using testing::LettersConfig;
using testing::Parse;
using testing::StartedEvent;
using testing::StubVerifier;
using testing::TestRouter;

class RecordedTrafficTest : public ::testing::Test {
 protected:
  // Of the tenants, acme is recorded; zeta is the admin.
  void Begin(bool with_spool = true) {
    if (with_spool) {
      Spool::Options options;
      options.folder.folder = temporary_.PathOf("spool");
      options.folder.keys = temporary_.PathOf("keys");
      spool_ = Spool::Open(std::move(options), &clock_, &registry_).value();
    }
    v1::RouterConfig config = LettersConfig({verifier_.endpoint()});
    config.mutable_tenants(0)->set_record_traffic(true);
    config.mutable_tenants(1)->set_admin(true);
    router_ = std::make_unique<TestRouter>(config, nullptr, nullptr, VerifierPool::Options{}, Tracer::Off(),
                                           nullptr, absl::Seconds(30), spool_.get());
  }
  // A request that the verifier answers with "ab", as it was told to; its last chunk as the client saw it.
  v1::GenerateResponse Generate(const std::string& request, const std::string& token,
                                const absl::Status& end = absl::OkStatus()) {
    ClientCall client(*router_, Parse(request), token);
    const auto call = verifier_.NextCall();
    if (call == nullptr) return {};
    asked_ = call->request().output();
    call->Send(StartedEvent(call->request()));
    v1::GenerateResponse chunk = ChunkEvent(0, "ab");
    for (v1::TokenDetail& detail : *chunk.mutable_chunk()->mutable_details()) {
      for (uint32_t i = 0; asked_.has_logprobs() && i < asked_.logprobs(); ++i) {
        detail.set_logprob(-0.25f);
        detail.add_top_logprobs()->set_token('a' + i);
      }
    }
    call->Send(chunk);
    if (end.ok()) call->Send(FinishedEvent(call->request(), 2));
    call->Finish(end);
    EXPECT_TRUE(client.Read().has_started());
    v1::GenerateResponse seen = client.Read();
    EXPECT_EQ(client.Finish().ok(), end.ok());
    return seen;
  }
  std::vector<std::string> RecordedIds(const std::string& tenant = "acme") {
    spool_->Flush();
    std::vector<std::string> ids;
    const std::string folder = temporary_.PathOf("spool/" + tenant);
    if (!std::filesystem::exists(folder)) return ids;
    const SpoolKey key = ReadSpoolKey(temporary_.PathOf("keys/" + tenant + ".key")).value();
    const auto deleted = ReadSpoolTombstones(folder).value();
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      if (file.path().extension() != ".segment") continue;
      const std::string bytes = ReadFile(file.path(), 1 << 20).value();
      const SpoolHeader header = ParseSpoolHeader(bytes, "").value();
      for (const SpoolEntry& entry : ScanSpoolFile(bytes).entries) {
        const std::string digest(entry.head.request.begin(), entry.head.request.end());
        if (deleted.contains(digest)) continue;
        ids.push_back(DecodeSpoolRecord(bytes, header, entry, key).value().request_id);
      }
    }
    return ids;
  }
  absl::StatusOr<v1::DeleteRecordsResponse> Delete(const std::string& tenant, const std::string& id,
                                                   const std::string& token = "secret-z") {
    const auto stub = v1::RouterAdmin::NewStub(CreateChannel(router_->endpoint()));
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + token);
    v1::DeleteRecordsRequest request;
    request.set_tenant(tenant);
    request.set_request_id(id);
    v1::DeleteRecordsResponse response;
    const absl::Status status = FromGrpcStatus(stub->DeleteRecords(&context, request, &response));
    if (!status.ok()) return status;
    return response;
  }

  const TemporaryFolder temporary_;
  SystemClock clock_;
  MetricsRegistry registry_;
  StubVerifier verifier_;
  std::unique_ptr<Spool> spool_;
  std::unique_ptr<TestRouter> router_;
  v1::OutputOptions asked_;
};

TEST_F(RecordedTrafficTest, OnlyOfTenantsThatOptedIn) {
  Begin();
  const v1::GenerateResponse seen = Generate(R"pb(text: "hello" request_id: "r-1")pb", "secret-a");
  EXPECT_EQ(asked_.logprobs(), 20u);
  EXPECT_EQ(seen.chunk().details(0).top_logprobs_size(), 0);
  EXPECT_EQ(seen.chunk().details(0).logprob(), 0.0f);
  Generate(R"pb(text: "hello" request_id: "r-2")pb", "secret-z");
  EXPECT_FALSE(asked_.has_logprobs());
  EXPECT_EQ(RecordedIds(), std::vector<std::string>{"r-1"});
  EXPECT_FALSE(std::filesystem::exists(temporary_.PathOf("spool/zeta")));
  EXPECT_FALSE(std::filesystem::exists(temporary_.PathOf("keys/zeta.key")));
}

TEST_F(RecordedTrafficTest, TheClientGetsWhatItAskedFor) {
  Begin();
  const v1::GenerateResponse seen = Generate(R"pb(text: "hello"
                                                  output { logprobs: 2 })pb",
                                             "secret-a");
  EXPECT_EQ(seen.chunk().details(1).top_logprobs_size(), 2);
  EXPECT_EQ(seen.chunk().details(1).logprob(), -0.25f);
}

TEST_F(RecordedTrafficTest, WhatFailsOrIsResumedIsNotKept) {
  Begin();
  Generate(R"pb(text: "hello" request_id: "r-1")pb", "secret-a", absl::InternalError("broken"));
  ClientCall client(*router_, Parse(R"pb(text: "hello"
                                         sampling { seed: 1 }
                                         resume { emitted { ids: 97 } })pb"),
                    "secret-a");
  const auto call = verifier_.NextCall();
  ASSERT_NE(call, nullptr);
  EXPECT_FALSE(call->request().output().has_logprobs());
  client.Cancel();
  EXPECT_TRUE(RecordedIds().empty());
}

TEST_F(RecordedTrafficTest, AdminsDeleteRecords) {
  Begin();
  for (const char* id : {"r-1", "r-2"}) {
    Generate(absl::StrCat("text: \"hello\" request_id: \"", id, "\""), "secret-a");
  }
  EXPECT_EQ(RecordedIds().size(), 2u);
  EXPECT_EQ(Delete("acme", "", "secret-a").status().code(), absl::StatusCode::kPermissionDenied);
  ASSERT_TRUE(Delete("acme", "r-1").ok());
  EXPECT_EQ(RecordedIds(), std::vector<std::string>{"r-2"});
  const auto deleted = Delete("acme", "");
  ASSERT_TRUE(deleted.ok()) << deleted.status();
  EXPECT_TRUE(deleted->removed_key());
  EXPECT_GT(deleted->removed_files(), 0u);
  EXPECT_FALSE(std::filesystem::exists(temporary_.PathOf("keys/acme.key")));
  EXPECT_EQ(Delete("", "").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RecordedTrafficTest, WithoutASpoolNothingIsAskedFor) {
  Begin(/*with_spool=*/false);
  Generate(R"pb(text: "hello")pb", "secret-a");
  EXPECT_FALSE(asked_.has_logprobs());
  const absl::Status status = Delete("acme", "").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--spool"));
}

TEST_F(RecordedTrafficTest, ALostSpoolLosesNoRequest) {
  Begin();
  Generate(R"pb(text: "hello" request_id: "r-1")pb", "secret-a");
  spool_->Flush();
  std::filesystem::remove_all(temporary_.PathOf("spool"));
  temporary_.Write("spool", "a file in its place");
  EXPECT_EQ(Generate(R"pb(text: "hello" request_id: "r-2")pb", "secret-a").chunk().text(), "ab");
  spool_->Flush();
  EXPECT_THAT(registry_.Expose(), HasSubstr("tandem_router_spool_dropped_total{reason=\"disk\"} 1"));
}

}  // namespace
}  // namespace tandem::router
