// `tandem` and a server as a client sees it that reaches it while it shuts down: gRPC itself cancels every
// call.

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/config/flags.h"
#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "router/cli/commands.h"
#include "router/testing/letter_encoder.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"
#include "tandem/v1/admin.grpc.pb.h"
#include "tandem/v1/generation.grpc.pb.h"

namespace tandem::cli {
namespace {

using router::testing::LettersConfig;
using router::testing::Saying;
using router::testing::StubVerifier;
using router::testing::TestRouter;
using ::testing::HasSubstr;
using ::testing::Not;

class LeavingServer {
 public:
  LeavingServer() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&generation_);
    builder.RegisterService(&admin_);
    server_ = builder.BuildAndStart();
    endpoint_ = absl::StrCat("127.0.0.1:", port);
  }

  const std::string& endpoint() const { return endpoint_; }

 private:
  static grpc::Status Leave() { return {grpc::StatusCode::CANCELLED, "CANCELLED"}; }

  struct Generation : v1::Generation::Service {
    grpc::Status Generate(grpc::ServerContext*, const v1::GenerateRequest*,
                          grpc::ServerWriter<v1::GenerateResponse>*) override {
      return Leave();
    }
  };
  struct Admin : v1::RouterAdmin::Service {
    grpc::Status Watch(grpc::ServerContext*, const v1::WatchRequest*,
                       grpc::ServerWriter<v1::WatchEvent>*) override {
      return Leave();
    }
  };

  Generation generation_;
  Admin admin_;
  std::string endpoint_;
  std::unique_ptr<grpc::Server> server_;
};

class LeavingServerTest : public ::testing::Test {
 protected:
  int RunTandem(const std::vector<std::string>& arguments) {
    std::istringstream in;
    out_.str("");
    err_.str("");
    Terminal streams{.in = in, .out = out_, .err = err_};
    return cli::Run(arguments, streams, clock_, interrupts_);
  }

  std::string Cancelled() const {
    return absl::StrCat("tandem: UNAVAILABLE: ", leaving_.endpoint(), " cancelled the request: CANCELLED\n");
  }

  LeavingServer leaving_;
  SystemClock clock_;
  Interrupts interrupts_;
  std::ostringstream out_;
  std::ostringstream err_;
};

TEST_F(LeavingServerTest, RetryGoesToTheNextRouter) {
  StubVerifier verifier;
  verifier.SetScript(Saying("hello", 3));
  const TestRouter router(LettersConfig({verifier.endpoint()}));
  const std::vector<std::string> arguments = {
      "generate",          "hi",         "--token",        "secret-z", "--endpoint",
      leaving_.endpoint(), "--endpoint", router.endpoint()};
  std::vector<std::string> retrying = arguments;
  retrying.push_back("--retry");
  EXPECT_EQ(RunTandem(retrying), kExitOk) << err_.str();
  EXPECT_EQ(out_.str(), "hello\n");
  EXPECT_EQ(RunTandem(arguments), kExitFailure);
  EXPECT_EQ(err_.str(), Cancelled());
}

TEST_F(LeavingServerTest, EndsAWatchWithAnError) {
  EXPECT_EQ(RunTandem({"tenants", "watch", "--endpoint", leaving_.endpoint()}), kExitFailure);
  EXPECT_EQ(err_.str(), Cancelled());
}

TEST_F(LeavingServerTest, ErrorsNameTheServerThatWasCalledLast) {
  const std::string nobody = "127.0.0.1:1";
  EXPECT_EQ(RunTandem({"generate", "hi", "--retry", "--timeout", "300", "--endpoint", leaving_.endpoint(),
                       "--endpoint", nobody}),
            kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr(absl::StrCat("cannot connect to ", nobody)));
  EXPECT_THAT(err_.str(), Not(HasSubstr(leaving_.endpoint())));
}

}  // namespace
}  // namespace tandem::cli
