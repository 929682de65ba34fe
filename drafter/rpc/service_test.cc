#include "drafter/rpc/service.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/hash.h"
#include "common/rpc/draft_wire.h"
#include "common/rpc/server.h"
#include "common/testing/fake_engine.h"
#include "drafter/models/model_host.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kVocabularyFingerprint = 0xabcd;

v1::DraftRequest OpenRequest(SessionId session, const DraftModel& model, const TokenIds& tokens) {
  return DraftRequestToProto({session, OpenSession{.epoch = 1,
                                                   .draft_model = model.name,
                                                   .vocabulary_fingerprint = model.vocabulary_fingerprint,
                                                   .tokens = tokens,
                                                   .prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, tokens),
                                                   .sampling = {.temperature = 0.0f},
                                                   .prompt_length = static_cast<uint32_t>(tokens.size()),
                                                   .budget = {.depth = 3, .nodes = 6, .branching = 2}}});
}

// A verifier's stream, read and written from the test's thread.
class Client {
 public:
  explicit Client(const std::shared_ptr<grpc::Channel>& channel) : stub_(v1::Drafter::NewStub(channel)) {
    // Far beyond what a test takes: it only keeps a failing one from hanging.
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    stream_ = stub_->Draft(&context_);
  }

  bool Write(const v1::DraftRequest& request) { return stream_->Write(request); }
  bool WritesDone() { return stream_->WritesDone(); }
  // Nothing once the stream has ended.
  std::optional<v1::DraftResponse> Read() {
    v1::DraftResponse response;
    if (!stream_->Read(&response)) return std::nullopt;
    return response;
  }
  // Growth of the session up to the message that says there is no more.
  TokenIds ReadGrowth(SessionId session) {
    TokenIds tokens;
    while (const auto response = Read()) {
      EXPECT_EQ(response->session(), session);
      EXPECT_TRUE(response->has_grow()) << response->ShortDebugString();
      if (!response->has_grow()) break;
      tokens.insert(tokens.end(), response->grow().tokens().begin(), response->grow().tokens().end());
      if (response->grow().exhausted()) break;
    }
    return tokens;
  }
  grpc::Status Finish() { return stream_->Finish(); }
  void Cancel() { context_.TryCancel(); }

 private:
  std::unique_ptr<v1::Drafter::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::DraftRequest, v1::DraftResponse>> stream_;
};

class DrafterServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<ServerRunner>> server = ServerRunner::Start(
        {.listen_address = "127.0.0.1:0"}, {{v1::Drafter::service_full_name(), &service_}}, {});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = server_->InProcessChannel();
  }

  DraftModel FakeModel() {
    return {.name = "draft",
            .engine = &engine_,
            .pool = &pool_,
            .vocabulary_fingerprint = kVocabularyFingerprint,
            .context_length = 4096};
  }

  FakeEngine engine_{{}};
  BlockPool pool_{{.num_blocks = 256}};
  MetricsRegistry registry_;
  DrafterMetrics metrics_{&registry_};
  DrafterService service_{&metrics_};
  std::unique_ptr<ServerRunner> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(DrafterServiceTest, DraftsForASession) {
  service_.Serve({}, {FakeModel()});
  Client client(channel_);
  const TokenIds prompt = {1, 2, 3};
  ASSERT_TRUE(client.Write(OpenRequest(9, FakeModel(), prompt)));
  const auto opened = client.Read();
  ASSERT_TRUE(opened.has_value() && opened->has_opened());
  EXPECT_EQ(opened->session(), 9u);
  EXPECT_EQ(opened->opened().context_length(), 4096u);
  const TokenIds grown = client.ReadGrowth(9);
  ASSERT_EQ(grown.size(), 6u);
  EXPECT_EQ(grown[0], engine_.ReferenceChoice(prompt));

  TokenIds committed = prompt;
  committed.push_back(grown[0]);
  ASSERT_TRUE(client.Write(
      DraftRequestToProto({9, Commit{.epoch = 1,
                                     .commit_no = 1,
                                     .tokens = {grown[0]},
                                     .new_root = 1,
                                     .committed_len = 4,
                                     .prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, committed),
                                     .budget = {.depth = 4, .nodes = 9, .branching = 2}}})));
  EXPECT_GT(client.ReadGrowth(9).size(), 0u);
  ASSERT_TRUE(client.Write(DraftRequestToProto({9, CloseSession{}})));
  ASSERT_TRUE(client.WritesDone());
  EXPECT_FALSE(client.Read().has_value());
  EXPECT_TRUE(client.Finish().ok());
}

TEST_F(DrafterServiceTest, MetricsTellWhatBecameOfNodes) {
  service_.Serve({}, {FakeModel()});
  Client client(channel_);
  ASSERT_TRUE(client.Write(OpenRequest(9, FakeModel(), {1, 2, 3})));
  ASSERT_TRUE(client.Read().has_value());
  EXPECT_EQ(client.ReadGrowth(9).size(), 6u);
  ASSERT_TRUE(client.Write(DraftRequestToProto({9, CloseSession{}})));
  // The answer to a later request is written before the metrics are; the one after that comes later still.
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(client.Write(DraftRequestToProto({10, Commit{.epoch = 1,
                                                             .commit_no = 1,
                                                             .tokens = {1},
                                                             .committed_len = 2,
                                                             .prefix_hash = 1,
                                                             .budget = {}}})));
    const auto response = client.Read();
    ASSERT_TRUE(response.has_value() && response->has_resync_needed());
  }
  const std::string text = registry_.Expose();
  EXPECT_THAT(text, HasSubstr("tandem_drafter_nodes_total{fate=\"stale\"} 6"));
  EXPECT_THAT(text, HasSubstr("tandem_drafter_prefill_tokens_total 3"));
  EXPECT_THAT(text, HasSubstr("tandem_drafter_sessions 0"));
  EXPECT_THAT(text, HasSubstr("tandem_drafter_step_seconds_count"));
  EXPECT_THAT(text, HasSubstr("tandem_drafter_backlog_nodes 0"));
  EXPECT_THAT(text, HasSubstr("tandem_drafter_kv_tokens_capacity 4096"));
}

TEST_F(DrafterServiceTest, RefusesAnotherVocabulary) {
  service_.Serve({}, {FakeModel()});
  Client client(channel_);
  DraftModel other = FakeModel();
  ++other.vocabulary_fingerprint;
  ASSERT_TRUE(client.Write(OpenRequest(1, other, {1, 2, 3})));
  const auto response = client.Read();
  ASSERT_TRUE(response.has_value() && response->has_refused());
  EXPECT_EQ(response->refused().code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
}

TEST_F(DrafterServiceTest, GarbageCostsTheSessionItNames) {
  service_.Serve({}, {FakeModel()});
  Client client(channel_);
  ASSERT_TRUE(client.Write(OpenRequest(1, FakeModel(), {1, 2, 3})));
  ASSERT_TRUE(client.Read().has_value());
  EXPECT_EQ(client.ReadGrowth(1).size(), 6u);

  std::vector<v1::DraftRequest> garbage(4);
  garbage[0].set_session(7);  // No event.
  garbage[1] = OpenRequest(7, FakeModel(), {1});
  garbage[1].mutable_open()->add_tokens(UINT32_MAX);
  garbage[2] = OpenRequest(7, FakeModel(), {1});
  garbage[2].mutable_open()->mutable_budget()->set_nodes(UINT32_MAX);
  garbage[3].set_session(7);
  garbage[3].mutable_commit();
  for (const v1::DraftRequest& request : garbage) {
    ASSERT_TRUE(client.Write(request));
    const auto response = client.Read();
    ASSERT_TRUE(response.has_value() && response->has_refused()) << request.ShortDebugString();
    EXPECT_EQ(response->session(), 7u);
    EXPECT_EQ(response->refused().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  }
  // The other session goes on.
  v1::DraftRequest commit;
  commit.set_session(1);
  commit.mutable_commit()->set_epoch(1);
  commit.mutable_commit()->set_commit_no(1);
  commit.mutable_commit()->add_tokens(5);
  commit.mutable_commit()->set_committed_len(4);
  commit.mutable_commit()->set_prefix_hash(ExtendPrefixHash(kEmptyPrefixHash, {1, 2, 3, 5}));
  commit.mutable_commit()->mutable_budget()->set_depth(2);
  commit.mutable_commit()->mutable_budget()->set_nodes(2);
  commit.mutable_commit()->mutable_budget()->set_branching(1);
  ASSERT_TRUE(client.Write(commit));
  EXPECT_EQ(client.ReadGrowth(1).size(), 2u);
}

TEST_F(DrafterServiceTest, ALostStreamTakesItsSessionsAlong) {
  service_.Serve({.max_sessions = 1}, {FakeModel()});
  {
    Client client(channel_);
    ASSERT_TRUE(client.Write(OpenRequest(1, FakeModel(), {1, 2, 3})));
    ASSERT_TRUE(client.Read().has_value());
    client.Cancel();
    EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  // The place is free as soon as the engine thread has heard of it.
  Client client(channel_);
  for (SessionId session = 1;; ++session) {
    ASSERT_TRUE(client.Write(OpenRequest(session, FakeModel(), {1, 2, 3})));
    const auto response = client.Read();
    ASSERT_TRUE(response.has_value());
    if (response->has_opened()) break;
    EXPECT_EQ(response->refused().code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  }
}

TEST_F(DrafterServiceTest, IsUnavailableWhileItLoadsAndWhenItDrains) {
  {
    Client early(channel_);
    EXPECT_FALSE(early.Read().has_value());
    const grpc::Status status = early.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_THAT(status.error_message(), HasSubstr("loading"));
  }
  service_.Serve({}, {FakeModel()});
  Client client(channel_);
  ASSERT_TRUE(client.Write(OpenRequest(1, FakeModel(), {1, 2, 3})));
  ASSERT_TRUE(client.Read().has_value());
  EXPECT_EQ(client.ReadGrowth(1).size(), 6u);
  server_->Drain({.grace = absl::Seconds(30)}, [&](absl::Time deadline) {
    service_.Drain(deadline);
    Client late(channel_);
    EXPECT_EQ(late.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  });
  EXPECT_FALSE(client.Read().has_value());
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(DrafterServiceTest, DraftsWithADemoModel) {
  auto host = ModelHost::Open(
      {{"general", absl::StrCat(TANDEM_SOURCE_DIR, "/deploy/demo-models/tandem-draft-general-1m")}});
  ASSERT_TRUE(host.ok()) << host.status();
  ASSERT_TRUE((*host)->Load({.kv_tokens = 2048}).ok());
  const DraftModel model = (*host)->draft_models().at(0);
  service_.Serve({}, {model});
  Client client(channel_);
  ASSERT_TRUE(client.Write(OpenRequest(1, model, {1, 20, 300, 40, 50})));
  ASSERT_TRUE(client.Read().has_value());
  const TokenIds first = client.ReadGrowth(1);
  EXPECT_EQ(first.size(), 6u);
  // Again on a stream of its own: the same tree.
  Client again(channel_);
  ASSERT_TRUE(again.Write(OpenRequest(1, model, {1, 20, 300, 40, 50})));
  ASSERT_TRUE(again.Read().has_value());
  EXPECT_EQ(again.ReadGrowth(1), first);
  // The service holds the host's engine until it is destroyed, so streams and server go first.
  client.Cancel();
  again.Cancel();
  server_.reset();
  service_.Stop();
}

}  // namespace
}  // namespace tandem
