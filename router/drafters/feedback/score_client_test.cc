#include "router/drafters/feedback/score_client.h"

#include <future>

#include "absl/time/clock.h"
#include "common/rpc/server.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

// Answers with the number of tokens; holds back what names the model "slow".
class StubDrafter final : public v1::Drafter::CallbackService {
 public:
  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext*, const v1::ScoreRequest* request,
                                  v1::ScoreResponse* response) override {
    class Call final : public grpc::ServerUnaryReactor {
     public:
      void OnCancel() override { Finish(grpc::Status::CANCELLED); }
      void OnDone() override { delete this; }
    };
    auto* const call = new Call();
    if (request->draft_model() == "slow") return call;
    response->set_accepted_tokens(static_cast<uint32_t>(request->tokens_size()));
    const bool known = request->draft_model() == "known";
    call->Finish(known ? grpc::Status::OK : grpc::Status(grpc::StatusCode::NOT_FOUND, "no such model"));
    return call;
  }
};

class ScoreClientTest : public ::testing::Test {
 protected:
  ScoreClientTest() {
    server_ = ServerRunner::Start({.listen_address = "127.0.0.1:0"},
                                  {{v1::Drafter::service_full_name(), &service_}}, {})
                  .value();
    client_ = std::make_unique<ScoreClient>();
  }

  std::future<absl::StatusOr<v1::ScoreResponse>> Ask(const std::string& model, const std::string& endpoint,
                                                     absl::Duration limit = absl::Seconds(60)) {
    v1::ScoreRequest request;
    request.set_draft_model(model);
    request.add_tokens(1);
    request.add_tokens(2);
    auto answer = std::make_shared<std::promise<absl::StatusOr<v1::ScoreResponse>>>();
    client_->Score(
        {"name", endpoint, model}, request, TraceContext(), absl::Now() + limit,
        [answer](absl::StatusOr<v1::ScoreResponse> response) { answer->set_value(std::move(response)); });
    return answer->get_future();
  }

  StubDrafter service_;
  std::unique_ptr<ServerRunner> server_;
  std::unique_ptr<ScoreClient> client_;
};

TEST_F(ScoreClientTest, CarriesAnswersAndErrors) {
  const auto right = Ask("known", server_->address()).get();
  ASSERT_TRUE(right.ok()) << right.status();
  EXPECT_EQ(right->accepted_tokens(), 2u);
  EXPECT_EQ(Ask("other", server_->address()).get().status(), absl::NotFoundError("no such model"));
  EXPECT_EQ(Ask("slow", server_->address(), absl::Milliseconds(50)).get().status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(Ask("known", "unix:/no/such/socket", absl::Seconds(2)).get().ok());
}

TEST_F(ScoreClientTest, DestructionEndsWhatIsUnderWay) {
  auto slow = Ask("slow", server_->address());
  client_.reset();
  EXPECT_EQ(slow.get().status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace tandem::router
