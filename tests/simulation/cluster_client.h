#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "router/cli/resumption.h"
#include "tests/simulation/client.h"
#include "tests/simulation/event_queue.h"
#include "tests/simulation/findings.h"
#include "tests/simulation/rpc.h"

namespace tandem::simulation {

// A client of several routers. When a stream breaks, it continues with another router, as `tandem generate`
// does. It compares everything that it receives with the right output. If verifiers compute differently,
// there are several right outputs, and each must be consistent from beginning to end.
class ClusterClient {
 public:
  struct Options {
    Host host = 0;
    std::vector<Host> routers;
    size_t first_router = 0;
    // How verifiers compute once the faults are over, which is at `calm`.
    std::set<uint64_t> arithmetics;
    absl::Time calm;
  };
  // `targets`: one for each way in which verifiers compute.
  ClusterClient(EventQueue* queue, const Options& options, ClientRequest request, RpcNetwork* network,
                std::shared_ptr<const Tokenizer> tokenizer, const std::vector<const FakeEngine*>& targets,
                Findings* findings);

  // At the request's arrival, and when it gives up.
  void Start();
  void Cancel();

  bool finished() const { return status_.has_value(); }
  const std::optional<absl::Status>& status() const { return status_; }
  const ClientRequest& request() const { return request_; }
  size_t num_attempts() const { return num_attempts_; }
  size_t num_resumed() const { return num_resumed_; }  // Attempts that began with some output.
  // Whether its output began where no verifier computes any more, so that it could not go on.
  bool orphaned() const { return orphaned_; }
  size_t num_tokens() const { return received_.size(); }
  // Whether a clock that is wrong may have ended it early.
  void Excuse() { excused_ = true; }

 private:
  void Expect(bool holds, const std::string& otherwise) const;
  void Attempt();
  void OnEvent(size_t attempt, const v1::GenerateResponse& event);
  void OnDone(size_t attempt, const absl::Status& status);
  void OnStarted(const v1::GenerationStarted& started);
  void OnChunk(const v1::GenerationChunk& chunk);
  void OnFinished(const v1::GenerationFinished& finished);
  void Finish(const absl::Status& status);

  EventQueue& queue_;
  const Options options_;
  const ClientRequest request_;
  RpcNetwork& network_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::vector<const FakeEngine*> targets_;
  Findings& findings_;
  std::vector<ReferenceOutput> outputs_;  // Those that are still possible.
  cli::Resumption resumption_;
  std::shared_ptr<RpcCall> call_;
  size_t num_attempts_ = 0;
  size_t num_resumed_ = 0;
  size_t in_vain_ = 0;
  bool progress_ = false;
  bool stream_started_ = false;  // The current one.
  TokenIds received_;
  std::string text_;
  bool excused_ = false;
  bool orphaned_ = false;
  std::optional<absl::Status> status_;
};

}  // namespace tandem::simulation
