#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/drafter_machine.h"
#include "tests/simulation/findings.h"
#include "tests/simulation/network.h"
#include "tests/simulation/random.h"
#include "tests/simulation/rpc.h"
#include "tests/simulation/session_owner.h"
#include "tests/simulation/verifier_machine.h"
#include "verifier/rpc/request_wire.h"

namespace tandem::simulation {

class VerifierHost;

// A Verifier.Generate call. Its request goes to the scheduler as the service reads it from the wire, and the
// scheduler's answers come back as the service writes them.
class VerifierCall final : public SessionOwner {
 public:
  VerifierCall(SessionId id, VerifierHost* host, VerifierMachine* machine, std::shared_ptr<RpcCall> rpc);

  // Reads the request. What cannot be taken, or has its output already, is answered at once; else true.
  bool Read();
  bool over() const { return over_; }
  // What it computed keys and values of, for whom, and where.
  const TokenIds& context() const { return context_; }
  uint64_t salt() const { return salt_; }
  const VerifierMachine* machine() const { return &machine_; }
  // The process has ended.
  void Abandon() {
    over_ = true;
    rpc_ = nullptr;
  }

  SessionId session() const override { return id_; }
  SessionRequest MakeSessionRequest(const MachineClock& clock) override;
  void OnStarted() override;
  void OnTokens(const CommittedTokens& tokens) override;
  void OnFinished(const MachineClock& clock, const absl::Status& status,
                  const SessionSummary& summary) override;
  void OnRejected(const absl::Status& status) override;

 private:
  void Send(v1::GenerateResponse event);
  void Finish(const absl::Status& status);

  const SessionId id_;
  VerifierHost& host_;
  VerifierMachine& machine_;
  std::shared_ptr<RpcCall> rpc_;
  SessionRequest read_;
  uint64_t untold_arithmetic_ = 0;
  TokenIds context_;
  uint64_t salt_ = 0;
  v1::GenerateResponse started_;
  absl::Time arrived_;
  absl::Time deadline_;
  bool over_ = false;
};

// Seeds of the models that verifiers may hold.
inline constexpr uint64_t kWeights = 1;
inline constexpr uint64_t kOtherWeights = 2;

// A host of verifiers: one process after the other, its connections to drafters, and its registration with
// routers.
class VerifierHost {
 public:
  struct Options {
    Host host = 0;
    std::string name;     // Registered under it,
    std::string address;  // and found there.
    VerifierMachine::Options machine;
    bool computes_differently = false;
    std::vector<DrafterMachine*> drafters;
    std::vector<LinkConditions> links;  // To them.
    uint64_t index = 0;                 // Among the cluster's.
    std::vector<Host> routers;
    absl::Duration ttl = absl::Seconds(3);
    std::shared_ptr<const Tokenizer> tokenizer;
    double drift = 0.0;
  };
  static constexpr uint64_t kMostHosts = 16;

  VerifierHost(EventQueue* queue, Options options, RpcNetwork* network, Random random,
               std::function<bool()> over, Findings* findings);

  void Start();
  // The process ends at once; with the machine, `silently`. False: there was none.
  bool Kill(bool silently);
  bool running() const { return machine_ != nullptr; }
  void StopFor(absl::Duration duration);
  void JumpBy(absl::Duration duration);
  // Another process takes its place, with the other weights than those that it was to have, or with these
  // again. False: there was none.
  bool Replace(bool others, absl::Duration pause);
  // How it computes when nothing is amiss.
  uint64_t arithmetic() const { return arithmetic_; }
  // Calls that have not ended.
  size_t num_sessions() const;
  uint64_t num_calls() const { return calls_.size(); }
  Link& link(size_t drafter) { return *links_[drafter]; }

  // P6: the part of its prompt that a request had from the prefix cache was computed there for its tenant.
  void CheckCached(const VerifierCall& call, uint32_t cached);
  uint64_t num_cached() const { return num_cached_; }  // Requests that had some of it.
  // Those for which another tenant's cache had more.
  uint64_t num_kept_apart() const { return num_kept_apart_; }

  // Once every request has ended.
  void CheckEmpty();
  // When it last stood still or its clock jumped.
  absl::Time disturbed() const { return disturbed_; }

  const Options& options() const { return options_; }
  const ServedTarget& target() const { return target_; }
  Findings& findings() { return findings_; }

 private:
  void Serve(VerifierMachine* machine, const std::shared_ptr<RpcCall>& rpc);
  bool computes_differently() const { return options_.computes_differently != replaced_; }
  v1::ServerInfo Describe() const;
  void AddLink(size_t drafter);
  void Disturb();
  void Register(uint64_t process);

  EventQueue& queue_;
  const Options options_;
  RpcNetwork& network_;
  Random random_;
  const std::function<bool()> over_;
  Findings& findings_;
  ServedTarget target_;
  const absl::Duration clock_ahead_;
  uint64_t arithmetic_ = 0;
  bool replaced_ = false;
  VerifierMachine* machine_ = nullptr;                      // The one that runs.
  std::vector<std::unique_ptr<VerifierMachine>> machines_;  // All there ever were: events may name them.
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<bool> up_;  // Of the links, as the process knows.
  std::vector<std::unique_ptr<VerifierCall>> calls_;
  uint64_t process_ = 0;  // That was started last.
  v1::ServerRegistration registration_;
  SessionId last_session_ = 0;
  uint64_t num_cached_ = 0;
  uint64_t num_kept_apart_ = 0;
  absl::Time disturbed_ = absl::InfinitePast();
};

}  // namespace tandem::simulation
