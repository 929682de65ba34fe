#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "bench/plan/plan.h"
#include "bench/plan/plan_engine.h"
#include "common/base/philox.h"
#include "common/engine/block_pool.h"
#include "common/tokenizer/tokenizer.h"
#include "drafter/drafting/draft_core.h"
#include "verifier/scheduler/drafter_pools.h"
#include "verifier/scheduler/scheduler.h"

namespace tandem::plan {

// The vocabulary fingerprint of all machines.
inline constexpr uint64_t kPlanFingerprint = 1;

// The messages on their way to one machine, in order of arrival. Messages that arrive at the same moment keep
// the order in which they were sent.
//
// A vector whose front is already taken. Messages are so large that a deque would allocate memory for each.
template <class Message>
class Inbox {
 public:
  void Push(absl::Time arrival, Message&& message) {
    if (2 * num_taken_ > messages_.size()) {
      messages_.erase(messages_.begin(), messages_.begin() + static_cast<ptrdiff_t>(num_taken_));
      num_taken_ = 0;
    }
    // Most messages arrive in the order in which they are sent.
    size_t at = messages_.size();
    while (at > num_taken_ && messages_[at - 1].first > arrival) --at;
    messages_.emplace(messages_.begin() + static_cast<ptrdiff_t>(at), arrival, std::move(message));
  }
  bool empty() const { return num_taken_ == messages_.size(); }
  absl::Time next() const { return empty() ? absl::InfiniteFuture() : messages_[num_taken_].first; }
  // Takes the next message. The reference is valid until the next Push.
  Message& Pop() { return messages_[num_taken_++].second; }

 private:
  std::vector<std::pair<absl::Time, Message>> messages_;
  size_t num_taken_ = 0;
};

// A tokenizer for the plan's vocabulary. Nothing reads the texts that it makes.
absl::StatusOr<std::shared_ptr<const Tokenizer>> MakePlanTokenizer();

// The links of a layout's drafters: one for each machine. A group of several machines is a pool.
struct DrafterPlaces {
  struct Group {
    std::string name;
    LinkId first_link = 0;
    uint32_t count = 0;
    PoolId pool = 0;  // 0 for a single machine.
  };
  std::vector<Group> groups;

  static DrafterPlaces Of(const Layout& layout);
  DrafterBinding BindingOf(size_t group) const;
};

// Receives the events of a verifier's sessions, with the time of the verifier's clock.
class VerifierEvents {
 public:
  virtual ~VerifierEvents() = default;
  virtual void OnStarted(SessionId session, absl::Time now) = 0;
  virtual void OnTokens(SessionId session, uint32_t tokens, absl::Time now) = 0;
  virtual void OnFinished(SessionId session, const absl::Status& status, const SessionSummary& summary,
                          absl::Time now) = 0;
  // The verifier refused the session.
  virtual void OnRefused(SessionId session, const absl::Status& reason, absl::Time now) = 0;
};

// A simulated verifier: the server's Scheduler and DrafterPools on a PlanTarget.
//
//   inbox -> [ Step at due(): arrived messages -> Conclude -> Forward ]* -> events, messages to drafters
//
// As in the verifier's engine loop, messages that arrive during a step are handled before the step is
// concluded. Used by one thread. Does not own the receiver of its events.
class VerifierMachine final : private SchedulerListener {
 public:
  using Send = std::function<void(absl::Time departure, LinkId link, DraftRequest&& request)>;

  VerifierMachine(const Layout& layout, const DrafterPlaces& places, uint64_t seed, Send send,
                  VerifierEvents* events);

  void Submit(absl::Time arrival, SessionId session, SessionRequest request);
  void Receive(absl::Time arrival, LinkId link, DraftResponse&& response);

  // When to call Step next, if no message comes before.
  absl::Time due() const { return due_; }
  void Step();

  absl::Duration busy() const { return engine_.busy(); }
  uint64_t num_steps() const { return engine_.num_steps(); }
  uint64_t num_rows() const { return engine_.num_rows(); }
  uint32_t num_waiting() const { return scheduler_->num_waiting(); }
  uint64_t preemptions() const { return preemptions_; }
  // Not OK after an error that must not happen: a drafter broke the protocol, or the engine failed.
  const absl::Status& failure() const { return failure_; }
  // After the last request has ended: Internal if something is left of a request.
  absl::Status CheckEmpty() const;

 private:
  // A new request, or what a drafter says.
  struct Message {
    SessionId session = 0;
    std::unique_ptr<SessionRequest> request;  // Null: a drafter's message.
    LinkId link = 0;
    DraftResponse response;
  };

  void TakeMessages(absl::Time until);
  void MoveSessions();
  void Schedule();

  void OnStarted(SessionId session) override;
  void OnTokens(SessionId session, CommittedTokens tokens) override;
  void OnFinished(SessionId session, const absl::Status& status, const SessionSummary& summary) override;
  void OnDraftRequest(LinkId link, DraftRequest request) override;
  void OnProtocolViolation(LinkId link, absl::string_view what, bool quarantined) override;
  void OnStep(const StepReport& report) override;
  void OnDrafterChanged(SessionId session, const DrafterBinding& binding) override;

  const absl::Duration between_steps_;
  const absl::Duration between_steps_per_session_;
  const Send send_;
  VerifierEvents* const events_;
  PlanClock clock_;
  PlanTarget engine_;
  BlockPool pool_;
  uint64_t draws_ = 0;
  DrafterPools pools_;
  std::unique_ptr<Scheduler> scheduler_;
  Inbox<Message> inbox_;
  bool in_flight_ = false;
  uint32_t step_sessions_ = 0;
  uint32_t num_vain_steps_ = 0;
  uint64_t preemptions_ = 0;
  absl::Time free_at_;  // When the next step may begin.
  absl::Time due_ = absl::InfiniteFuture();
  absl::Status failure_;
};

// A simulated drafter: the server's DraftCore on a PlanDraft. Used by one thread.
class DrafterMachine final {
 public:
  using Reply = std::function<void(absl::Time departure, LinkId verifier, DraftResponse&& response)>;

  // `acceptance`: of each kind; they outlive this.
  DrafterMachine(const DrafterGroup& group, std::vector<const Acceptance*> acceptance, Reply reply);

  void Receive(absl::Time arrival, LinkId verifier, DraftRequest&& request);
  absl::Time due() const { return due_; }
  void Step();

  absl::Duration busy() const { return engine_.busy(); }
  uint64_t num_steps() const { return engine_.num_steps(); }
  uint64_t num_rows() const { return engine_.num_rows(); }
  absl::Status CheckEmpty() const;

 private:
  struct Message {
    LinkId verifier = 0;
    DraftRequest request;
  };
  const absl::Duration between_steps_;
  const Reply reply_;
  PlanClock clock_;
  PlanDraft engine_;
  BlockPool pool_;
  DraftCore core_;
  DraftCore::Responses responses_;  // Of the last step, which have been sent.
  Inbox<Message> inbox_;
  absl::Time free_at_;
  absl::Time due_ = absl::InfiniteFuture();
};

}  // namespace tandem::plan
