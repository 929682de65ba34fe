#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/speculation/draft_messages.h"
#include "drafter/drafting/draft_session.h"
#include "drafter/drafting/score_queue.h"
#include "drafter/drafting/text_translation.h"

namespace tandem {

// A verifier's stream.
using LinkId = uint64_t;

struct DraftStats {
  DraftCounters counters;
  uint32_t num_sessions = 0;
  // Sent nodes that wait to be forwarded.
  uint32_t backlog_nodes = 0;
  std::map<absl::StatusCode, uint64_t> refused_sessions;
  uint64_t resyncs = 0;  // Asked for.
  // Tokens of keys and values, over all models: held by sessions, and in total.
  uint64_t kv_tokens_used = 0;
  uint64_t kv_tokens = 0;
  uint32_t num_scores = 0;  // Waiting or under way.
  std::map<absl::StatusCode, uint64_t> answered_scores;
  std::map<std::string, double> step_seconds;  // Of drafting, by draft model.
  uint32_t num_models = 0;
  uint32_t num_retired_models = 0;  // In addition: retired models still in use.
};

// The drafter's half of the draft protocol (proto/tandem/v1/drafter.proto): all sessions of all links, for
// one or more draft models. Requests go in, steps are run while there is work, responses come out:
//
//   OnRequest, OnLinkClosed --.                .--> TakeResponses
//                              >-- sessions --<
//                     Step ---'                '--> stats
//                         '------- scores ---------> TakeScores
//
// Requests are handled between steps, so no step is running when a commit arrives. A step is one forward pass
// of one model over the rows of many sessions. Sessions whose verifier has nothing to verify come first, then
// those that were served longest ago.
//
// If there is no memory for a session's keys and values, the session is parked and returns when there is.
// Sessions that have something to draft come before those whose verifiers have paused them.
//
// Scores come last: they get a step when no session has work (a small one unless all sessions are idle), and
// one small step in every Options::steps_per_score, however busy the drafter is.
//
// Does no I/O and has no threads. Used only by the thread that owns the engines.
class DraftCore {
 public:
  struct Options {
    uint32_t max_sessions = 256;
    // Most nodes of one session that a step forwards.
    uint32_t expand_width = 4;
    // Whether trees grow by calibrated scores instead of raw ones.
    bool calibrated_growth = true;
    // Most rows of a step, prompts and nodes together. While a prompt waits, growth leaves it a quarter.
    uint32_t max_step_rows = 128;
    // The seed of sampled drafts: with the same seed, a request gets the same draws.
    uint64_t draw_seed = 0;
    ScoreQueue::Options scores;
    // Most rows of a score's step: while all sessions are idle, and otherwise, when it should take no longer
    // than a step of growth.
    uint32_t max_score_rows = 64;
    uint32_t max_score_rows_beside_drafting = 8;
    // While there is always something to draft, one step in this many goes to scores; at least 1.
    uint32_t steps_per_score = 32;
  };
  // At least one model, with distinct names. The clock outlives this.
  DraftCore(const Options& options, std::vector<DraftModel> models, const Clock* clock);

  // Adds a draft model for new sessions and scores. If there is a model of the same name, retires that one,
  // and returns how many sessions continue with it.
  uint32_t AddModel(DraftModel model);
  // Retires a model: new sessions and scores do not find it. Open sessions keep it to their end, even if they
  // are reopened. It is gone when they, and the scores that wait for it, have ended. Returns the number of
  // these sessions; nullopt if there is no such model.
  std::optional<uint32_t> RetireModel(absl::string_view name);
  // The DraftModel::hold of models that are gone.
  std::vector<std::shared_ptr<void>> TakeGone();

  void OnRequest(LinkId link, const DraftRequest& request);
  // A request for the session broke the protocol: refuses the session with `status`.
  void Reject(LinkId link, SessionId session, uint32_t epoch, absl::Status status);
  // The compiled constraint of the session's Open of `epoch`, in its initial state. May come at any time, or
  // never.
  void OnConstraint(LinkId link, SessionId session, uint32_t epoch, std::unique_ptr<ConstraintState> state);
  // Drops the link's sessions and pending responses.
  void OnLinkClosed(LinkId link);

  // Drafter.Score; every id gets one answer from TakeScores.
  void OnScore(ScoreId id, ScoreRequest request, absl::Time deadline);
  void CancelScore(ScoreId id, const absl::Status& reason) { scores_.Cancel(id, reason); }
  void CancelScores(const absl::Status& reason) { scores_.CancelAll(reason); }

  bool HasWork() const { return HasDrafting() || scores_.CanStep(); }
  // Runs one step; does nothing if there is no work. If the engine fails, the sessions of the step, or the
  // score, are refused. Returns whether it drafted (and did not score).
  bool Step();

  using Responses = std::vector<std::pair<LinkId, DraftResponse>>;
  // `memory`, such as what an earlier call returned, holds the next responses.
  Responses TakeResponses(Responses memory = {});
  std::vector<ScoreAnswer> TakeScores() { return scores_.TakeAnswers(); }
  DraftStats stats() const;
  // For tests and simulations: checks that all blocks are accounted for.
  absl::Status CheckBlocks() const;

 private:
  using Key = std::pair<LinkId, SessionId>;
  struct HostedModel {
    DraftModel model;
    ScoreCalibration calibration;  // The model's.
    // Moving average over steps that grew a tree.
    std::optional<absl::Duration> step_time;
    uint64_t last_served = 0;
    bool retired = false;
  };
  struct HostedSession {
    HostedModel* hosted = nullptr;
    std::unique_ptr<DraftSession> draft;
    std::unique_ptr<TextTranslation>
        text;                  // Translates between it and the verifier; null: both use the same tokens.
    uint64_t last_served = 0;  // Number of the step.

    uint32_t epoch() const { return text != nullptr ? text->epoch() : draft->epoch(); }
  };
  // Sessions of a lower turn come first (TurnOf).
  using Turn = std::tuple<bool, bool, uint64_t, float>;
  struct Share {
    Key key;
    HostedSession* session = nullptr;
    uint32_t rows = 0;
    Turn turn;
  };
  using Shares = absl::InlinedVector<Share, 16>;

  absl::Status CheckOpen(const OpenSession& open, const HostedModel& hosted) const;
  void OnOpen(const Key& key, const OpenSession& open);
  void OnCommit(const Key& key, const Commit& commit);
  static absl::Status CommitByText(const HostedSession& session, const Commit& commit);
  void OnFeatures(const Key& key, const Features& features);
  void Answer(const Key& key, uint32_t epoch, absl::Status status);
  void OnClose(const Key& key);
  void RememberEnd(const Key& key, uint32_t epoch);
  bool WasClosed(const Key& key, uint32_t epoch) const;
  void Refuse(const Key& key, uint32_t epoch, absl::Status status);
  void Respond(const Key& key, decltype(DraftResponse::event) event);
  void AskForOpen(const Key& key, uint32_t epoch, absl::string_view reason);
  void SendGrowth(const Key& key, HostedSession* session);
  HostedModel* FindModel(absl::string_view name);
  uint32_t NumSessions(const HostedModel* hosted) const;
  HostedModel* NextModel();
  bool HasDrafting() const;
  bool IsScoresTurn();
  void DraftStep();
  void UnparkSessions();
  HostedSession* IdleSession(const BlockPool* pool);
  Turn TurnOf(const HostedSession& session) const;
  Shares PlanStep(const HostedModel* hosted);

  const Options options_;
  const Clock* clock_;
  DraftCounters counters_;  // Before sessions_, which add to it to the end.
  std::vector<std::unique_ptr<HostedModel>> models_;
  std::map<std::string, absl::Duration> drafted_;  // All steps together, by the models' names.
  std::map<Key, HostedSession> sessions_;          // Ordered, so that every run schedules alike.
  // The last sessions that were closed, oldest first, and the epoch of each.
  std::deque<std::pair<Key, uint32_t>> closed_;
  StepBatch batch_;
  uint64_t step_number_ = 0;
  std::map<absl::StatusCode, uint64_t> refused_sessions_;
  uint64_t resyncs_ = 0;
  ScoreQueue scores_;
  uint32_t steps_since_score_ = 0;
  std::vector<Grow> growth_;  // Used by SendGrowth alone, which keeps its memory.
  Responses responses_;
};

}  // namespace tandem
