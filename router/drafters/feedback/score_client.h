#pragma once

#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/client_context.h"
#include "grpcpp/security/credentials.h"
#include "router/drafters/feedback/scorer.h"
#include "tandem/v1/drafter.grpc.pb.h"

namespace tandem::router {

// Asks for scores over gRPC (Drafter.Score), with one channel for each endpoint.
class ScoreClient final : public Scorer {
 public:
  // Null `credentials`: without TLS.
  explicit ScoreClient(std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr)
      : credentials_(std::move(credentials)) {}
  ~ScoreClient() override;

  void Score(const FeedbackDrafter& drafter, v1::ScoreRequest request, const TraceContext& trace,
             absl::Time deadline, Done done) override;

 private:
  struct Call {
    grpc::ClientContext context;
    std::shared_ptr<v1::Drafter::Stub> stub;
    v1::ScoreRequest request;
    v1::ScoreResponse response;
    Done done;
  };

  std::shared_ptr<v1::Drafter::Stub> StubOf(const std::string& endpoint);
  void OnDone(std::list<Call>::iterator call, const grpc::Status& status);

  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<v1::Drafter::Stub>> stubs_ ABSL_GUARDED_BY(mutex_);
  std::list<Call> calls_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tandem::router
