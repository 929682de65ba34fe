#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/testing/fake_constraint.h"
#include "tests/simulation/event_queue.h"
#include "tests/simulation/findings.h"
#include "tests/simulation/session_owner.h"
#include "verifier/session/session.h"
#include "verifier/testing/reference_output.h"

namespace tandem::simulation {

// A client's request and its time.
struct ClientRequest {
  SessionId id = 0;
  absl::Time arrival;
  TokenIds prompt;
  uint32_t num_emitted = 0;  // So much of the output is there already, from another verifier.
  SamplingParameters sampling;
  StopRules rules;
  uint64_t cache_salt = 0;
  absl::Time deadline = absl::InfiniteFuture();
  std::optional<absl::Time> cancel;
  std::optional<DrafterBinding> drafter;
  std::vector<DrafterBinding> alternates;
  std::optional<DrafterBinding> partner;
  std::vector<std::pair<absl::Time, DrafterBinding>> swaps;  // Of its drafter, while it is there.
  std::string window_policy;
  uint32_t max_window = 0;
  bool constrained = false;        // To what FakeConstraint allows.
  bool accepted_by_ratio = false;  // The output is a sample, which depends on the drafts.
};

// One client: compares what it receives with the output that law 2 prescribes, and checks law 5.
class Client final : public SessionOwner {
 public:
  Client(ClientRequest request, std::shared_ptr<const Tokenizer> tokenizer, const FakeEngine& target,
         Findings* findings);

  const ClientRequest& request() const { return request_; }
  SessionId session() const override { return request_.id; }
  SessionRequest MakeSessionRequest(const MachineClock& clock) override;
  void OnStarted() override;
  void OnTokens(const CommittedTokens& tokens) override;
  void OnFinished(const MachineClock& clock, const absl::Status& status,
                  const SessionSummary& summary) override;
  void OnRejected(const absl::Status& status) override;

  bool finished() const { return status_.has_value(); }
  const std::optional<absl::Status>& status() const { return status_; }
  const SessionSummary& summary() const { return summary_; }
  // Prompt and what has arrived of the output: a chat's next turn begins with it.
  TokenIds conversation() const;

 private:
  void Expect(bool holds, const std::string& otherwise) const;
  const FakeConstraint::Options* constraint() const { return request_.constrained ? &allowed_ : nullptr; }
  void CheckComplete(const SessionSummary& summary) const;
  void CheckPossible(const SessionSummary& summary) const;
  void CheckSummary(const SessionSummary& summary) const;
  void CheckShares(const CommittedTokens& tokens) const;
  void CheckOrigins(const SessionSummary& summary) const;

  const ClientRequest request_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const FakeEngine& target_;
  Findings* const findings_;
  const FakeConstraint::Options allowed_;
  ReferenceOutput reference_;
  absl::Time verifier_deadline_ = absl::InfiniteFuture();
  bool started_ = false;
  TokenIds received_;
  // By origin and the name that it is told under: draft tokens and accepted ones, over all rounds.
  std::map<std::pair<DraftOrigin, std::string>, std::pair<uint32_t, uint32_t>> by_origin_;
  std::string text_;
  std::optional<absl::Status> status_;
  SessionSummary summary_;
};

}  // namespace tandem::simulation
