#include "drafter/drafting/draft_core.h"

#include <algorithm>
#include <cassert>
#include <tuple>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

// The share of the newest step in the moving average of step times.
constexpr double kNewestStep = 0.2;
// A session that has waited for more steps than this goes before any other.
constexpr uint64_t kOverdueSteps = 8;
// So many closed sessions are remembered, over all links, so that an Open that comes after its
// Close does not bring one back for ever.
constexpr size_t kClosedSessions = 256;

// Whether the target's states are those that a draft head reads.
absl::Status CheckTarget(const OpenSession& open, const DraftModel& model) {
  const HeadConfig& head = *model.engine->config().head;
  if (open.target_hidden_size == 0) {
    return absl::FailedPreconditionError(absl::StrCat("draft model ", model.name,
                                                      " is a head and reads the target's hidden states, ",
                                                      "which this verifier does not offer"));
  }
  if (open.target_hidden_size != static_cast<uint32_t>(head.target_hidden_size)) {
    return absl::FailedPreconditionError(
        absl::StrCat("draft model ", model.name, " is a head for targets of width ", head.target_hidden_size,
                     ", the target has ", open.target_hidden_size));
  }
  if (!head.feature_layers.empty() && head.feature_layers.back() > open.target_layers) {
    return absl::FailedPreconditionError(
        absl::StrCat("draft model ", model.name, " is a head that reads the state after ",
                     head.feature_layers.back(), " layers, the target has ", open.target_layers));
  }
  if (head.target_fingerprint.has_value() && open.target_fingerprint != 0 &&
      open.target_fingerprint != *head.target_fingerprint) {
    return absl::FailedPreconditionError(
        absl::StrFormat("draft model %s is a head for the target with fingerprint %016x, this one has %016x",
                        model.name, *head.target_fingerprint, open.target_fingerprint));
  }
  return absl::OkStatus();
}

// Of a tree: what a verifier reckons with is the time of a level.
int32_t LevelsPerStep(const DraftModel& model) {
  const bool is_head = model.engine != nullptr && model.engine->config().head.has_value();
  return is_head ? model.engine->config().head->num_positions : 1;
}

}  // namespace

DraftCore::DraftCore(const Options& options, std::vector<DraftModel> models, const Clock* clock)
    : options_(options), clock_(clock), scores_(options.scores, clock) {
  assert(!models.empty() && options.expand_width > 0 && options.max_step_rows > 0);
  for (DraftModel& model : models) {
    assert(FindModel(model.name) == nullptr);
    AddModel(std::move(model));
  }
}

uint32_t DraftCore::AddModel(DraftModel model) {
  assert(model.context_length >= 4 && (model.engine != nullptr || !model.sources.empty()));
  const uint32_t going_on = RetireModel(model.name).value_or(0);
  models_.push_back(std::make_unique<HostedModel>());
  HostedModel& hosted = *models_.back();
  hosted.model = std::move(model);
  if (options_.calibrated_growth) hosted.model.calibration = &hosted.calibration;
  return going_on;
}

std::optional<uint32_t> DraftCore::RetireModel(absl::string_view name) {
  HostedModel* const hosted = FindModel(name);
  if (hosted == nullptr) return std::nullopt;
  hosted->retired = true;
  return NumSessions(hosted);
}

uint32_t DraftCore::NumSessions(const HostedModel* hosted) const {
  return static_cast<uint32_t>(
      absl::c_count_if(sessions_, [hosted](const auto& entry) { return entry.second.hosted == hosted; }));
}

std::vector<std::shared_ptr<void>> DraftCore::TakeGone() {
  std::vector<std::shared_ptr<void>> gone;
  std::erase_if(models_, [&](const std::unique_ptr<HostedModel>& hosted) {
    if (!hosted->retired || NumSessions(hosted.get()) > 0 || scores_.Uses(&hosted->model)) return false;
    if (hosted->model.hold != nullptr) gone.push_back(std::move(hosted->model.hold));
    return true;
  });
  return gone;
}

DraftCore::HostedModel* DraftCore::FindModel(absl::string_view name) {
  for (const auto& hosted : models_) {
    if (hosted->model.name == name && !hosted->retired) return hosted.get();
  }
  return nullptr;
}

void DraftCore::OnRequest(LinkId link, const DraftRequest& request) {
  const Key key(link, request.session);
  if (const auto* open = std::get_if<OpenSession>(&request.event)) {
    if (!WasClosed(key, open->epoch)) OnOpen(key, *open);
  } else if (const auto* commit = std::get_if<Commit>(&request.event)) {
    OnCommit(key, *commit);
  } else if (const auto* features = std::get_if<Features>(&request.event)) {
    OnFeatures(key, *features);
  } else if (std::holds_alternative<LoadQuery>(request.event)) {
    Respond(key, LoadReport{});
  } else {
    OnClose(key);
  }
  UnparkSessions();
}

void DraftCore::OnClose(const Key& key) {
  const auto found = sessions_.find(key);
  if (found == sessions_.end()) return;
  RememberEnd(key, found->second.epoch());
  sessions_.erase(found);
}

void DraftCore::RememberEnd(const Key& key, uint32_t epoch) {
  if (closed_.size() >= kClosedSessions) closed_.pop_front();
  closed_.emplace_back(key, epoch);
}

// Whether an Open of this epoch was sent before a Close that has arrived: it came twice, or late.
bool DraftCore::WasClosed(const Key& key, uint32_t epoch) const {
  return absl::c_any_of(closed_,
                        [&](const auto& closed) { return closed.first == key && epoch <= closed.second; });
}

void DraftCore::OnLinkClosed(LinkId link) {
  sessions_.erase(sessions_.lower_bound(Key(link, 0)), sessions_.upper_bound(Key(link, UINT64_MAX)));
  std::erase_if(closed_, [link](const auto& closed) { return closed.first.first == link; });
  std::erase_if(responses_, [link](const auto& response) { return response.first == link; });
  UnparkSessions();
}

// The session that has memory of the pool and nothing to draft, and was served longest ago.
DraftCore::HostedSession* DraftCore::IdleSession(const BlockPool* pool) {
  HostedSession* longest = nullptr;
  for (auto& [key, session] : sessions_) {
    if (session.hosted->model.pool != pool || session.draft->parked() || !session.draft->idle()) continue;
    if (longest == nullptr || session.last_served < longest->last_served) longest = &session;
  }
  return longest;
}

void DraftCore::UnparkSessions() {
  std::vector<std::pair<Key, HostedSession*>> parked;
  for (auto& [key, session] : sessions_) {
    if (session.draft->parked() && !session.draft->idle()) parked.emplace_back(key, &session);
  }
  for (const auto& [key, session] : parked) scores_.GiveWay(session->hosted->model.pool);
  absl::c_stable_sort(
      parked, [](const auto& a, const auto& b) { return a.second->last_served < b.second->last_served; });
  for (const auto& [key, session] : parked) {
    while (!session->draft->Unpark()) {
      HostedSession* const idle = IdleSession(session->hosted->model.pool);
      if (idle == nullptr) break;
      idle->draft->Park();
    }
    if (session->draft->lost()) {
      AskForOpen(key, session->epoch(), "a draft head that was parked has no features");
    }
  }
}

absl::Status DraftCore::CheckOpen(const OpenSession& open, const HostedModel& hosted) const {
  const DraftModel& model = hosted.model;
  const TextBridge* const text = TextBridgeFor(model, open);
  const VocabularyBridge* bridge = nullptr;
  if (text == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(bridge, BridgeFor(model, open.vocabulary_fingerprint));
  }
  if (open.sampled_drafts && text != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "draft model ", model.name,
        " drafts by text: it has no distribution of the target's tokens, which sampled drafts need"));
  }
  if (open.sampled_drafts && model.engine == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "draft model ", model.name, " is a source: it has no distribution, which sampled drafts need"));
  }
  if (model.engine != nullptr && model.engine->config().head.has_value()) {
    TANDEM_RETURN_IF_ERROR(CheckTarget(open, model));
  }
  if (open.tokens.empty()) return absl::InvalidArgumentError("open: no tokens, expected at least one");
  if (open.tokens.size() > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("open: ", open.tokens.size(), " tokens"));
  }
  if (open.prompt_length > open.tokens.size()) {
    return absl::InvalidArgumentError(absl::StrCat("open: prompt_length ", open.prompt_length,
                                                   ", expected at most the ", open.tokens.size(), " tokens"));
  }
  const int32_t vocab_size = text != nullptr           ? text->target_width()
                             : model.engine != nullptr ? VocabularySize(model, bridge)
                                                       : INT32_MAX;
  for (size_t i = 0; i < open.tokens.size(); ++i) {
    if (open.tokens[i] >= 0 && open.tokens[i] < vocab_size) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("open: token ", open.tokens[i], " at ", i, ", expected [0, ", vocab_size, ")"));
  }
  return Validate(open.sampling, vocab_size);
}

void DraftCore::OnOpen(const Key& key, const OpenSession& open) {
  auto found = sessions_.find(key);
  if (found != sessions_.end() && open.epoch <= found->second.epoch()) return;
  // A session stays with the model that it has, though others of the name may have come since.
  const bool stays = found != sessions_.end() && found->second.hosted->model.name == open.draft_model;
  HostedModel* hosted = stays ? found->second.hosted : FindModel(open.draft_model);
  if (hosted == nullptr) {
    return Refuse(key, open.epoch, absl::NotFoundError(absl::StrCat("no draft model ", open.draft_model)));
  }
  if (absl::Status status = CheckOpen(open, *hosted); !status.ok()) return Refuse(key, open.epoch, status);
  if (ExtendPrefixHash(kEmptyPrefixHash, open.tokens) != open.prefix_hash) {
    return AskForOpen(key, open.epoch, "open: the prefix hash does not match the tokens");
  }
  if (found == sessions_.end() && sessions_.size() >= options_.max_sessions) {
    return Refuse(
        key, open.epoch,
        absl::ResourceExhaustedError(absl::StrCat("all ", options_.max_sessions, " sessions are in use")));
  }

  HostedSession& session = sessions_[key];
  // By text it drafts in its own vocabulary, whatever the target's is.
  const TextBridge* const text = TextBridgeFor(hosted->model, open);
  const uint64_t fingerprint =
      text != nullptr ? hosted->model.vocabulary_fingerprint : open.vocabulary_fingerprint;
  if (session.draft == nullptr || session.hosted != hosted ||
      session.draft->cache_salt() != open.cache_salt ||
      session.draft->vocabulary_fingerprint() != fingerprint ||
      (session.text == nullptr ? nullptr : session.text->bridge()) != text) {
    session.hosted = hosted;
    session.draft = std::make_unique<DraftSession>(&hosted->model, open.cache_salt, fingerprint,
                                                   options_.expand_width, options_.draw_seed, &counters_);
    session.text =
        text == nullptr ? nullptr : std::make_unique<TextTranslation>(text, hosted->model.context_length);
  }
  if (absl::Status status = session.draft->Open(text == nullptr ? open : session.text->Open(open));
      !status.ok()) {
    return Refuse(key, open.epoch, status);
  }
  SessionOpened opened{.epoch = open.epoch,
                       .context_length = hosted->model.context_length,
                       .predicts_acceptance = session.draft->predicts_acceptance(),
                       .features = session.draft->feature_needs()};
  Respond(key, std::move(opened));
  SendGrowth(key, &session);
}

void DraftCore::OnCommit(const Key& key, const Commit& commit) {
  const auto found = sessions_.find(key);
  if (found == sessions_.end()) return AskForOpen(key, commit.epoch, "no such session");
  const HostedSession& session = found->second;
  Answer(key, commit.epoch,
         session.text != nullptr ? CommitByText(session, commit) : session.draft->OnCommit(commit));
}

absl::Status DraftCore::CommitByText(const HostedSession& session, const Commit& commit) {
  TANDEM_ASSIGN_OR_RETURN(const TextTranslation::Told told, session.text->OnCommit(commit));
  if (const auto* inner = std::get_if<tandem::Commit>(&told)) return session.draft->OnCommit(*inner);
  if (const auto* inner = std::get_if<OpenSession>(&told)) return session.draft->Open(*inner);
  return absl::OkStatus();
}

void DraftCore::OnFeatures(const Key& key, const Features& features) {
  const auto found = sessions_.find(key);
  // A session that was refused, and whose verifier does not know it yet.
  if (found == sessions_.end()) return;
  Answer(key, features.epoch, found->second.draft->OnFeatures(features));
}

void DraftCore::OnConstraint(LinkId link, SessionId session, uint32_t epoch,
                             std::unique_ptr<ConstraintState> state) {
  const auto found = sessions_.find(Key(link, session));
  if (found == sessions_.end() || found->second.epoch() != epoch) return;
  found->second.draft->Constrain(std::move(state), clock_);
}

// Handles the result of a message of that epoch.
void DraftCore::Answer(const Key& key, uint32_t epoch, absl::Status status) {
  if (status.ok()) {
    SendGrowth(key, &sessions_.at(key));
  } else if (absl::IsAborted(status)) {
    AskForOpen(key, epoch, status.message());
  } else {
    Refuse(key, epoch, std::move(status));
  }
}

void DraftCore::Respond(const Key& key, decltype(DraftResponse::event) event) {
  responses_.emplace_back(key.first, DraftResponse{.session = key.second, .event = std::move(event)});
}

void DraftCore::AskForOpen(const Key& key, uint32_t epoch, absl::string_view reason) {
  ++resyncs_;
  Respond(key, ResyncNeeded{.epoch = epoch, .reason = std::string(reason)});
}

void DraftCore::Reject(LinkId link, SessionId session, uint32_t epoch, absl::Status status) {
  Refuse(Key(link, session), epoch, std::move(status));
}

// Also drops the session, if there is one.
void DraftCore::Refuse(const Key& key, uint32_t epoch, absl::Status status) {
  sessions_.erase(key);
  ++refused_sessions_[status.code()];
  Respond(key, SessionRefused{.epoch = epoch, .status = std::move(status)});
}

void DraftCore::SendGrowth(const Key& key, HostedSession* session) {
  session->draft->TakeGrowth(&growth_);
  if (session->text != nullptr) growth_ = session->text->OnGrowth(growth_);
  for (Grow& grow : growth_) {
    const std::optional<absl::Duration>& step_time = session->hosted->step_time;
    const double seconds = absl::ToDoubleSeconds(step_time.value_or(absl::ZeroDuration()));
    grow.step_seconds = static_cast<float>(seconds / LevelsPerStep(session->hosted->model));
    Respond(key, std::move(grow));
  }
  if (const std::optional<FeaturesUsed> used = session->draft->TakeFeaturesUsed(); used.has_value()) {
    Respond(key, *used);
  }
}

void DraftCore::OnScore(ScoreId id, ScoreRequest request, absl::Time deadline) {
  const HostedModel* const hosted = FindModel(request.draft_model);
  if (hosted == nullptr) {
    return scores_.Refuse(id, absl::NotFoundError(absl::StrCat("no draft model ", request.draft_model)));
  }
  scores_.Submit(id, &hosted->model, std::move(request), deadline);
}

bool DraftCore::HasDrafting() const {
  return absl::c_any_of(sessions_, [](const auto& entry) { return entry.second.draft->NumRowsWanted() > 0; });
}

// The model with work whose last step is the oldest.
DraftCore::HostedModel* DraftCore::NextModel() {
  if (models_.size() == 1) return HasDrafting() ? models_.front().get() : nullptr;
  HostedModel* next = nullptr;
  for (const auto& [key, session] : sessions_) {
    if (session.draft->NumRowsWanted() == 0) continue;
    if (next == nullptr || session.hosted->last_served < next->last_served) next = session.hosted;
  }
  return next;
}

// Growth serves sessions in this order: those that have waited too long; those whose verifier may be waiting;
// the least recently served; those whose nodes are most likely to be needed.
DraftCore::Turn DraftCore::TurnOf(const HostedSession& session) const {
  const bool overdue = session.last_served + kOverdueSteps < step_number_;
  return {!overdue, !session.draft->OwesFirstNodes(), session.last_served, -session.draft->BestValue()};
}

DraftCore::Shares DraftCore::PlanStep(const HostedModel* hosted) {
  Shares growing;
  Shares prefilling;
  for (auto& [key, session] : sessions_) {
    const uint32_t wanted = session.hosted == hosted ? session.draft->NumRowsWanted() : 0;
    if (wanted == 0) continue;
    Shares& shares = session.draft->NeedsPrefill() ? prefilling : growing;
    shares.push_back({.key = key, .session = &session, .rows = wanted, .turn = TurnOf(session)});
  }
  absl::c_sort(growing, [](const Share& a, const Share& b) {
    return a.turn != b.turn ? a.turn < b.turn : a.key < b.key;
  });
  absl::c_stable_sort(prefilling, [](const Share& a, const Share& b) {
    return a.session->last_served < b.session->last_served;
  });

  const uint32_t max_rows = std::min(options_.max_step_rows, hosted->model.engine->max_rows());
  uint32_t used = 0;
  Shares plan;
  const auto give = [&](Share* share, uint32_t up_to) {
    if (used >= up_to) return false;
    share->rows = std::min(share->rows, up_to - used);
    used += share->rows;
    plan.push_back(*share);
    return true;
  };
  const uint32_t for_growth = prefilling.empty() ? max_rows : max_rows - (max_rows + 3) / 4;
  auto next = growing.begin();
  while (next != growing.end() && give(&*next, for_growth)) ++next;
  for (Share& share : prefilling) {
    if (!give(&share, max_rows)) break;
  }
  while (next != growing.end() && give(&*next, max_rows)) ++next;
  return plan;
}

bool DraftCore::IsScoresTurn() {
  if (!scores_.CanStep()) return false;
  if (HasDrafting() && ++steps_since_score_ < options_.steps_per_score) return false;
  steps_since_score_ = 0;
  return true;
}

bool DraftCore::Step() {
  scores_.Expire();
  if (!IsScoresTurn()) {
    DraftStep();
    return true;
  }
  const bool undisturbed =
      absl::c_all_of(sessions_, [](const auto& entry) { return entry.second.draft->idle(); });
  scores_.Step(undisturbed ? options_.max_score_rows : options_.max_score_rows_beside_drafting);
  return false;
}

void DraftCore::DraftStep() {
  HostedModel* hosted = NextModel();
  if (hosted == nullptr) return;
  hosted->last_served = ++step_number_;
  batch_.Clear();
  const Shares plan = PlanStep(hosted);
  bool grows = false;
  for (const Share& share : plan) {
    grows = grows || !share.session->draft->NeedsPrefill();
    share.session->draft->AddRows(share.rows, &batch_);
    share.session->last_served = step_number_;
  }

  const absl::Time start = clock_->Now();
  const absl::Status stepped = hosted->model.engine->Step(batch_.rows());
  // The clock may be set back, and peers take a negative time for a violation.
  const absl::Duration took = std::max(clock_->Now() - start, absl::ZeroDuration());
  drafted_[hosted->model.name] += took;
  if (!hosted->step_time.has_value()) {
    hosted->step_time = took;
  } else if (grows) {
    *hosted->step_time += kNewestStep * (took - *hosted->step_time);
  }

  for (const Share& share : plan) {
    absl::Status status =
        stepped.ok()
            ? share.session->draft->OnStep()
            : absl::InternalError(absl::StrCat("draft model ", hosted->model.name, ": ", stepped.message()));
    if (status.ok()) {
      SendGrowth(share.key, share.session);
    } else {
      Refuse(share.key, share.session->epoch(), std::move(status));
    }
  }
  UnparkSessions();
}

DraftCore::Responses DraftCore::TakeResponses(Responses memory) {
  for (auto& [link, response] : responses_) {
    response.drafter_sessions = static_cast<uint32_t>(sessions_.size());
  }
  memory.clear();
  return std::exchange(responses_, std::move(memory));
}

absl::Status DraftCore::CheckBlocks() const {
  for (const auto& hosted : models_) {
    if (hosted->model.pool == nullptr) continue;
    std::vector<BlockId> held;
    for (const auto& [key, session] : sessions_) {
      if (session.hosted->model.pool == hosted->model.pool) session.draft->ListBlocks(&held);
    }
    scores_.ListBlocks(hosted->model.pool, &held);
    TANDEM_RETURN_IF_ERROR(hosted->model.pool->CheckConserved(held));
  }
  return absl::OkStatus();
}

DraftStats DraftCore::stats() const {
  DraftStats stats{.counters = counters_,
                   .num_sessions = static_cast<uint32_t>(sessions_.size()),
                   .refused_sessions = refused_sessions_,
                   .resyncs = resyncs_,
                   .num_scores = scores_.size(),
                   .answered_scores = scores_.answered()};
  for (const auto& [key, session] : sessions_) stats.backlog_nodes += session.draft->num_waiting();
  for (const auto& hosted : models_) {
    ++(hosted->retired ? stats.num_retired_models : stats.num_models);
    stats.step_seconds[hosted->model.name] = 0.0;
  }
  for (const auto& [name, drafted] : drafted_) stats.step_seconds[name] = absl::ToDoubleSeconds(drafted);
  absl::flat_hash_set<const BlockPool*> pools;  // A merged model shares its pool with the one it is made of.
  for (const auto& hosted : models_) {
    if (hosted->model.pool == nullptr || !pools.insert(hosted->model.pool).second) continue;
    stats.kv_tokens_used += uint64_t{hosted->model.pool->num_held()} * kBlockTokens;
    stats.kv_tokens += uint64_t{hosted->model.pool->num_blocks()} * kBlockTokens;
  }
  return stats;
}

}  // namespace tandem
