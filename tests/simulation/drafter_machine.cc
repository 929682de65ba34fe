#include "tests/simulation/drafter_machine.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/testing/fake_constraint.h"

namespace tandem::simulation {

DrafterMachine::DrafterMachine(EventQueue* queue, const Options& options, Random random, Reply reply,
                               Findings* findings)
    : Machine(queue),
      options_(options),
      reply_(std::move(reply)),
      findings_(findings),
      queue_(queue),
      random_(random.Fork()),
      target_({.vocab_size = options.model.vocab_size, .num_blocks = 1}) {
  if (options_.byzantine) liar_.emplace(random, vocab_size());
  Start();
}

DrafterMachine::~DrafterMachine() = default;

void DrafterMachine::Start() {
  model_ = std::make_unique<FakeEngine>(options_.model);
  engine_ = std::make_unique<TimedEngine>(model_.get(), &clock(), options_.per_step, options_.per_row);
  pool_ = std::make_unique<BlockPool>(BlockPool::Options{.num_blocks = options_.model.num_blocks});
  DraftModel draft_model{.name = kModelName,
                         .engine = engine_.get(),
                         .pool = pool_.get(),
                         .vocabulary_fingerprint = options_.vocabulary_fingerprint,
                         .context_length = options_.context_length,
                         .stop_head = &stop_head_};
  if (options_.bridge != nullptr) {
    draft_model.other_vocabularies = {
        {.fingerprint = options_.bridged_fingerprint, .bridge = options_.bridge}};
  }
  if (options_.source.has_value()) {
    source_ = std::make_unique<SourceHost>(*options_.source);
    draft_model.sources = {source_.get()};
  }
  core_ = std::make_unique<DraftCore>(options_.core, std::vector<DraftModel>{draft_model}, &clock());
}

void DrafterMachine::Restart() {
  Post([this] {
    core_.reset();
    findings_->Expect(pool_->num_held() == 0, "a drafter that ended holds blocks");
    Start();
  });
}

void DrafterMachine::OnRequest(uint64_t connection, DraftRequest request) {
  Post([this, connection, request = std::move(request)] {
    last_connection_ = connection;
    if (liar_.has_value()) liar_->Observe(request);
    if (options_.features.has_value()) CheckFeatures(connection, request);
    // Its model is none that reads them.
    if (std::holds_alternative<Features>(request.event)) return;
    core_->OnRequest(connection, request);
    CompileConstraint(connection, request);
  });
}

void DrafterMachine::CompileConstraint(uint64_t connection, const DraftRequest& request) {
  const auto* const open = std::get_if<OpenSession>(&request.event);
  if (open == nullptr || open->constraint == nullptr || !random_.Chance(options_.compiles)) return;
  queue_->At(queue_->now() + options_.compile_time,
             [this, connection, session = request.session, epoch = open->epoch] {
               Post([this, connection, session, epoch] {
                 core_->OnConstraint(
                     connection, session, epoch,
                     std::make_unique<FakeConstraint>(FakeConstraint::Options{.vocab_size = vocab_size()}));
               });
             });
}

// A liar asks for anything, and has nothing to complain of.
void DrafterMachine::CheckFeatures(uint64_t connection, const DraftRequest& request) {
  if (liar_.has_value()) return;
  const std::pair key(connection, request.session);
  if (std::holds_alternative<OpenSession>(request.event)) {
    checkers_.try_emplace(key, &target_, *options_.features);
  }
  const auto checker = checkers_.find(key);
  if (checker == checkers_.end()) return;
  const uint64_t rows = checker->second.num_rows();
  const uint64_t commits = checker->second.num_in_commits();
  const absl::Status status = checker->second.OnRequest(request);
  findings_->Expect(status.ok(),
                    absl::StrCat("features of session ", request.session, ": ", status.message()));
  const uint32_t window = checker->second.window();
  if (window > 0 && checker->second.num_unused() >= std::max(1u, window / 4)) {
    Send(connection, {request.session, checker->second.Use(checker->second.end())});
  }
  num_feature_rows_ += checker->second.num_rows() - rows;
  num_feature_commits_ += checker->second.num_in_commits() - commits;
  if (std::holds_alternative<CloseSession>(request.event)) checkers_.erase(checker);
}

void DrafterMachine::OnClosed(uint64_t connection) {
  Post([this, connection] {
    core_->OnLinkClosed(connection);
    std::erase_if(checkers_, [connection](const auto& entry) { return entry.first.first == connection; });
  });
}

void DrafterMachine::Send(uint64_t connection, DraftResponse response) {
  if (auto* const opened = std::get_if<SessionOpened>(&response.event);
      opened != nullptr && options_.features.has_value()) {
    // Its cache has the beginning of some texts.
    const uint32_t first = (7 * opened->epoch + static_cast<uint32_t>(response.session)) % 20;
    const auto checker = checkers_.find({connection, response.session});
    if (liar_.has_value()) {
      opened->features = options_.features;
    } else if (checker != checkers_.end() && checker->second.epoch() == opened->epoch) {
      opened->features = checker->second.Answer(first).features;
    }
  }
  if (liar_.has_value()) liar_->Damage(&response);
  reply_(clock().queue_now(), connection, std::move(response));
}

void DrafterMachine::Work(bool was_due) {
  findings_->Expect(!was_due || core_->HasWork(), "a drafter woke for nothing");
  if (core_->HasWork()) {
    const uint64_t steps = model_->num_steps();
    core_->Step();
    findings_->Expect(model_->num_steps() == steps + 1, "a drafter's step did not use its engine");
  }
  const absl::Status blocks = core_->CheckBlocks();
  findings_->Expect(blocks.ok(), absl::StrCat("a drafter: ", blocks.message()));
  for (auto& [connection, response] : core_->TakeResponses()) Send(connection, std::move(response));
  if (!liar_.has_value()) return;
  for (DraftResponse& response : liar_->Invent()) reply_(clock().queue_now(), last_connection_, response);
}

void DrafterMachine::CheckClosed() {
  // A liar may have refused a session and kept it.
  if (liar_.has_value()) return;
  findings_->Expect(core_->stats().num_sessions == 0,
                    absl::StrCat("a drafter still has ", core_->stats().num_sessions, " sessions"));
}

void DrafterMachine::CheckEmpty() {
  findings_->Expect(pool_->num_held() == 0, absl::StrCat("a drafter holds ", pool_->num_held(), " blocks"));
  const DraftCounters counters = core_->stats().counters;
  findings_->Expect(
      counters.sent_nodes == counters.accepted_nodes + counters.pruned_nodes + counters.stale_nodes,
      absl::StrCat("a drafter sent ", counters.sent_nodes, " nodes, of which ", counters.accepted_nodes,
                   " were accepted, ", counters.pruned_nodes, " pruned and ", counters.stale_nodes,
                   " stale"));
}

}  // namespace tandem::simulation
