#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/busy_time.h"
#include "common/base/clock.h"
#include "common/rpc/server_bidi.h"
#include "common/speculation/draft_messages.h"
#include "common/tracing/span.h"
#include "drafter/drafting/draft_core.h"
#include "drafter/rpc/constraint_service.h"
#include "drafter/rpc/draft_traces.h"
#include "drafter/rpc/metrics.h"
#include "drafter/rpc/score_call.h"
#include "tandem/v1/drafter.grpc.pb.h"

namespace tandem {

// The RPC shell of a drafter. Streams post what they receive to an inbox; one engine thread owns the core,
// empties the inbox between steps, and writes the core's responses to the streams:
//
//   gRPC threads --post--> inbox --> engine thread: requests, one step, responses --> streams' write queues
//
// Scores take the same path; the engine thread finishes their calls.
//
// A message that breaks the protocol ends the session that it names. A verifier that reads too slowly loses
// its stream and the sessions on it (see ServerBidi). While a stream has many messages in the inbox, the
// service does not read more from it.
//
//   loading ---Serve---> serving ---Drain---> draining ---destruction---> stopped
//   Draft, Score: UNAVAILABLE                 streams and scores are ended with UNAVAILABLE
//
// Destroy it after the server has stopped.
class DrafterService final : public v1::Drafter::CallbackService {
 public:
  template <class Response>
  using Done = std::function<void(absl::StatusOr<Response>)>;
  // Each calls `done` once, from any thread, and does not block.
  struct Changes {
    std::function<void(const v1::LoadDraftModelRequest&, Done<v1::LoadDraftModelResponse> done)> load;
    std::function<void(const v1::UnloadDraftModelRequest&, Done<v1::UnloadDraftModelResponse> done)> unload;
  };

  // Both outlive the service.
  explicit DrafterService(DrafterMetrics* metrics, const Tracer& tracer = Tracer::Off());
  ~DrafterService() override;

  // Starts to draft; call it at most once. Objects that the models point to outlive the service.
  // `constraints` compiles the constraints of sessions; null: constraints are ignored.
  void Serve(const DraftCore::Options& options, std::vector<DraftModel> models,
             std::unique_ptr<DraftConstraints> constraints = nullptr);

  // Call it before the server starts. Without it, models do not change at run time.
  void SetChanges(Changes changes) { changes_ = std::move(changes); }
  // Sets the function that gets the holds of models that are gone, on the engine thread; without it, they are
  // released there. Call it before Serve.
  void SetRelease(std::function<void(std::shared_ptr<void>)> release) { release_ = std::move(release); }
  // As in DraftCore; a model that is gone at once is dropped before these return. Call them while this
  // serves, from any thread but the engine's.
  uint32_t AddModel(DraftModel model);
  std::optional<uint32_t> RetireModel(const std::string& name);
  // Null before Serve, without constraints, and after Stop.
  DraftConstraints* constraints() { return constraints_.get(); }

  grpc::ServerBidiReactor<v1::DraftRequest, v1::DraftResponse>* Draft(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext* context, const v1::ScoreRequest* request,
                                  v1::ScoreResponse* response) override;
  grpc::ServerUnaryReactor* LoadDraftModel(grpc::CallbackServerContext* context,
                                           const v1::LoadDraftModelRequest* request,
                                           v1::LoadDraftModelResponse* response) override;
  grpc::ServerUnaryReactor* UnloadDraftModel(grpc::CallbackServerContext* context,
                                             const v1::UnloadDraftModelRequest* request,
                                             v1::UnloadDraftModelResponse* response) override;

  // Ends all streams and refuses new ones. Returns when none is left or at the deadline.
  void Drain(absl::Time deadline);

  // Ends the engine thread; afterwards the models are not used any more. Call it after the server has
  // stopped. The destructor does the same.
  void Stop();

  // As of the engine thread's last loop.
  DraftStats stats() const;
  // How long the engine thread has been in its current loop.
  absl::Duration busy_time() const { return busy_time_.At(clock_.Now()); }

 private:
  using Stream = ServerBidi<v1::DraftRequest, v1::DraftResponse>;

  struct LinkOpened {
    std::shared_ptr<Stream> stream;
  };
  struct LinkClosed {};
  struct Rejected {
    SessionId session = 0;
    uint32_t epoch = 0;
    absl::Status status;
  };
  struct Event {
    LinkId link = 0;
    std::variant<LinkOpened, DraftRequest, Rejected, LinkClosed> what;
  };

  struct ScoreArrived {
    ScoreCall* call = nullptr;
    ScoreRequest request;
    absl::Time deadline;
  };
  struct ScoreCancelled {};
  struct ScoreEvent {
    ScoreId id = 0;
    std::variant<ScoreArrived, ScoreCancelled> what;
  };

  struct ConstraintCompiled {
    LinkId link = 0;
    SessionId session = 0;
    uint32_t epoch = 0;
    ConstraintCompiler::Compiled constraint;
  };

  void CompileConstraint(LinkId link, SessionId session, const OpenSession& open);
  void HandleConstraints();
  void OnMessage(LinkId link, const v1::DraftRequest& message);
  void OnClosed(LinkId link, const absl::Status& status);
  void Run();
  // Runs `command` on the engine thread between two steps, and waits for it.
  void RunOnEngineThread(const std::function<void(DraftCore&)>& command);
  void Handle(Event event);
  void HandleScore(ScoreEvent event);
  void EndScores(const absl::Status& reason);
  void SendResponses();
  void LogRefusal(LinkId link, const DraftResponse& response) const;
  void PublishStats();

  DrafterMetrics* const metrics_;
  const Tracer& tracer_;
  const SystemClock clock_;
  Changes changes_;
  std::function<void(std::shared_ptr<void>)> release_;
  std::unique_ptr<DraftConstraints> constraints_;
  BusyTime busy_time_;
  std::thread engine_thread_;

  // The engine thread's.
  std::unique_ptr<DraftCore> core_;
  std::unique_ptr<DraftTraces> traces_;
  std::map<LinkId, std::shared_ptr<Stream>> streams_;
  std::map<ScoreId, ScoreCall*> score_calls_;  // Not finished yet.

  mutable absl::Mutex mutex_;
  bool serving_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Event> inbox_ ABSL_GUARDED_BY(mutex_);
  std::vector<ScoreEvent> score_inbox_ ABSL_GUARDED_BY(mutex_);
  std::vector<ConstraintCompiled> compiled_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> commands_ ABSL_GUARDED_BY(mutex_);
  LinkId last_link_ ABSL_GUARDED_BY(mutex_) = 0;
  ScoreId last_score_ ABSL_GUARDED_BY(mutex_) = 0;
  // Open streams, for Drain.
  std::map<LinkId, std::shared_ptr<Stream>> open_ ABSL_GUARDED_BY(mutex_);
  DraftStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
