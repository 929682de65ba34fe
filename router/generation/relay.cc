#include "router/generation/relay.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/rpc/status.h"

namespace tandem::router {
namespace {

// Deeper trees than any verifier makes; what claims more is counted as this.
constexpr uint32_t kDeepestWindow = 1024;
// Most pairs of source and drafter with their own statistics.
constexpr int kMostSources = 32;
constexpr uint32_t kMaxPromptChunk = 1024;

void CountAt(google::protobuf::RepeatedField<uint32_t>& counts, uint32_t index, uint32_t by) {
  while (counts.size() <= static_cast<int>(index)) counts.Add(0);
  counts[static_cast<int>(index)] += by;
}

void AddCounts(const google::protobuf::RepeatedField<uint32_t>& from,
               google::protobuf::RepeatedField<uint32_t>& to) {
  for (int i = 0; i < from.size(); ++i) CountAt(to, static_cast<uint32_t>(i), from[i]);
}

// The entry of a source and drafter; nullptr if there is no room for another.
v1::SourceStats* FindOrAdd(v1::DraftSource source, const std::string& drafter, v1::SpeculationStats& stats) {
  for (v1::SourceStats& entry : *stats.mutable_by_source()) {
    if (entry.source() == source && entry.drafter() == drafter) return &entry;
  }
  if (stats.by_source_size() >= kMostSources) return nullptr;
  v1::SourceStats* const entry = stats.add_by_source();
  entry->set_source(source);
  entry->set_drafter(drafter);
  return entry;
}

template <class Stats>
void SetRates(Stats& stats) {
  const auto accepted = static_cast<float>(stats.accepted_tokens());
  stats.set_mean_acceptance_length(
      stats.drafted_rounds() == 0 ? 1.0f : 1.0f + accepted / static_cast<float>(stats.drafted_rounds()));
  stats.set_draft_acceptance_rate(
      stats.draft_tokens() == 0 ? 0.0f : accepted / static_cast<float>(stats.draft_tokens()));
}

void AddSources(const v1::SpeculationStats& from, v1::SpeculationStats& to) {
  for (const v1::SourceStats& source : from.by_source()) {
    v1::SourceStats* const entry = FindOrAdd(source.source(), source.drafter(), to);
    if (entry == nullptr) continue;
    entry->set_drafted_rounds(entry->drafted_rounds() + source.drafted_rounds());
    entry->set_draft_tokens(entry->draft_tokens() + source.draft_tokens());
    entry->set_accepted_tokens(entry->accepted_tokens() + source.accepted_tokens());
    AddCounts(source.accepted_per_position(), *entry->mutable_accepted_per_position());
    entry->set_rejections(entry->rejections() + source.rejections());
    entry->set_wait_seconds(entry->wait_seconds() + source.wait_seconds());
    SetRates(*entry);
  }
}

void AddStats(const v1::SpeculationStats& from, v1::SpeculationStats& to) {
  to.set_rounds(to.rounds() + from.rounds());
  to.set_drafted_rounds(to.drafted_rounds() + from.drafted_rounds());
  to.set_hits(to.hits() + from.hits());
  to.set_misses(to.misses() + from.misses());
  to.set_draft_tokens(to.draft_tokens() + from.draft_tokens());
  to.set_accepted_tokens(to.accepted_tokens() + from.accepted_tokens());
  AddCounts(from.accepted_per_position(), *to.mutable_accepted_per_position());
  AddCounts(from.window_histogram(), *to.mutable_window_histogram());
  to.set_merged_rounds(to.merged_rounds() + from.merged_rounds());
  AddSources(from, to);
}

}  // namespace

void Relay::OnAttempt(absl::string_view endpoint) {
  endpoint_ = std::string(endpoint.data(), endpoint.size());
  attempt_started_ = false;
  prompt_in_turn_ = 0;
  AddStats(current_, lost_);
  current_.Clear();
}

absl::Status Relay::CheckChunk(const v1::GenerationChunk& chunk) const {
  if (!attempt_started_) return ProtocolError("a chunk before started");
  if (!prompt_told()) return ProtocolError("a chunk before the prompt");
  if (chunk.offset() != tokens_.size()) {
    return ProtocolError(absl::StrCat("a chunk at offset ", chunk.offset(), ", expected ", tokens_.size()));
  }
  return absl::OkStatus();
}

// A verifier that takes over sends the prompt from the beginning; the part that the client has is cut off.
absl::StatusOr<bool> Relay::OnPrompt(v1::PromptChunk& chunk) {
  const auto size = static_cast<uint32_t>(chunk.details_size());
  if (!attempt_started_) return ProtocolError("a part of the prompt before started");
  if (chunk.offset() != prompt_in_turn_ || size > kMaxPromptChunk ||
      chunk.tokens_size() != chunk.details_size() || size > prompt_tokens_ - prompt_in_turn_) {
    return ProtocolError(absl::StrCat("a part of the prompt at offset ", chunk.offset(), " with ", size,
                                      " tokens, expected it at ", prompt_in_turn_, " and at most ",
                                      prompt_tokens_ - prompt_in_turn_));
  }
  prompt_in_turn_ += size;
  if (prompt_in_turn_ <= prompt_told_) return false;
  const auto known = static_cast<int>(size - (prompt_in_turn_ - prompt_told_));
  chunk.mutable_details()->DeleteSubrange(0, known);
  chunk.mutable_tokens()->erase(chunk.tokens().begin(), chunk.tokens().begin() + known);
  chunk.set_offset(prompt_told_);
  prompt_told_ = prompt_in_turn_;
  return true;
}

void Relay::Count(const v1::GenerationChunk& chunk) {
  tokens_.insert(tokens_.end(), chunk.tokens().begin(), chunk.tokens().end());
  uint32_t accepted = 0;
  for (const v1::TokenDetail& detail : chunk.details()) {
    accepted += detail.source() == v1::TOKEN_SOURCE_ACCEPTED ? 1 : 0;
  }
  current_.set_rounds(current_.rounds() + 1);
  CountAt(*current_.mutable_window_histogram(), std::min(chunk.window(), kDeepestWindow), 1);
  CountShares(chunk);
  if (chunk.kind() != v1::ROUND_KIND_HIT && chunk.kind() != v1::ROUND_KIND_MISS) return;
  current_.set_drafted_rounds(current_.drafted_rounds() + 1);
  if (chunk.kind() == v1::ROUND_KIND_HIT) {
    current_.set_hits(current_.hits() + 1);
  } else {
    current_.set_misses(current_.misses() + 1);
  }
  current_.set_draft_tokens(current_.draft_tokens() + chunk.draft_tokens());
  current_.set_accepted_tokens(current_.accepted_tokens() + accepted);
  for (uint32_t i = 0; i < accepted; ++i) CountAt(*current_.mutable_accepted_per_position(), i, 1);
}

// A round's statistics by source, without rejections, which only a verifier knows.
void Relay::CountShares(const v1::GenerationChunk& chunk) {
  uint32_t num_sources = 0;
  uint32_t position = 0;
  const auto num_tokens = static_cast<uint32_t>(chunk.tokens_size());
  for (const v1::RoundShare& share : chunk.shares()) {
    v1::SourceStats* const entry = FindOrAdd(share.source(), share.drafter(), current_);
    if (entry == nullptr) continue;
    entry->set_wait_seconds(entry->wait_seconds() + share.wait_seconds());
    if (share.draft_tokens() == 0) continue;
    ++num_sources;
    entry->set_drafted_rounds(entry->drafted_rounds() + 1);
    entry->set_draft_tokens(entry->draft_tokens() + share.draft_tokens());
    entry->set_accepted_tokens(entry->accepted_tokens() + share.accepted_tokens());
    // A path begins with the drafter's own tokens, then come its partner's, then the verifier's.
    for (uint32_t i = 0; i < share.accepted_tokens() && position < num_tokens; ++i, ++position) {
      CountAt(*entry->mutable_accepted_per_position(), position, 1);
    }
    SetRates(*entry);
  }
  if (num_sources > 1) current_.set_merged_rounds(current_.merged_rounds() + 1);
}

void Relay::AddLostRounds(v1::SpeculationStats& stats) const {
  if (lost_.rounds() == 0) return;
  AddStats(lost_, stats);
  SetRates(stats);
}

absl::StatusOr<bool> Relay::OnEvent(v1::GenerateResponse& event) {
  if (finished_) return ProtocolError("an event after finished");
  event.clear_output();
  switch (event.event_case()) {
    case v1::GenerateResponse::kStarted: {
      if (attempt_started_) return ProtocolError("started twice");
      attempt_started_ = true;
      if (started_) return false;
      started_ = true;
      event.mutable_started()->set_model(names_.model);
      event.mutable_started()->set_drafter(names_.drafter);
      event.mutable_started()->set_partner(names_.partner);
      event.mutable_started()->mutable_prompt_token_ids()->Assign(names_.prompt.begin(), names_.prompt.end());
      return true;
    }
    case v1::GenerateResponse::kChunk: {
      if (absl::Status status = CheckChunk(event.chunk()); !status.ok()) return status;
      Count(event.chunk());
      return true;
    }
    case v1::GenerateResponse::kFinished:
      if (!attempt_started_) return ProtocolError("finished before started");
      if (!prompt_told()) return ProtocolError("finished before the prompt");
      finished_ = true;
      AddLostRounds(*event.mutable_finished()->mutable_speculation());
      return true;
    case v1::GenerateResponse::kPrompt:
      return OnPrompt(*event.mutable_prompt());
    case v1::GenerateResponse::EVENT_NOT_SET:
      // An event of a later protocol version, which clients of this one do not know either.
      return false;
  }
  return false;
}

Relay::End Relay::OnEnd(const absl::Status& status, bool in_time) const {
  // Everything was delivered; how the connection ended afterwards does not matter to the client.
  if (finished_) return {.status = absl::OkStatus()};
  const std::string verifier = absl::StrCat("verifier ", endpoint_);
  // It is not what the router takes it for, and computes otherwise than where the output began.
  if (absl::IsAborted(status) && !tokens_.empty()) {
    return {.retry = true,
            .status = absl::UnavailableError(absl::StrCat(verifier, " cannot continue after ", num_tokens(),
                                                          " tokens: ", status.message()))};
  }
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return {.status = ProtocolError("the end of the stream without finished")};
    case absl::StatusCode::kUnavailable:
    // The client did not cancel, or this call would have ended: the verifier has cancelled the request.
    case absl::StatusCode::kCancelled: {
      const absl::string_view how = absl::IsCancelled(status) ? " cancelled the request" : " was lost";
      return {.retry = true,
              .status = absl::UnavailableError(
                  absl::StrCat(verifier, how, " after ", num_tokens(), " tokens: ", status.message()))};
    }
    // Another one may have room. But one that made progress had room, and then it is the client that reads
    // too slowly, wherever its request runs.
    case absl::StatusCode::kResourceExhausted:
      return {.retry = current_.rounds() == 0, .status = status};
    case absl::StatusCode::kDeadlineExceeded:
      if (!in_time) return {.status = status};
      return {
          .retry = true,
          .status = absl::UnavailableError(absl::StrCat(verifier, " was lost after ", num_tokens(),
                                                        " tokens: it reports that the deadline has passed"))};
    // What the verifier says about the request is for the client, details included.
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
      return {.status = status};
    // The model has room for it, but not this verifier: another one may, and one that had is no fault of the
    // client's.
    case absl::StatusCode::kOutOfRange:
      return {.retry = current_.rounds() == 0,
              .status = num_tokens() == 0
                            ? Restated(status, absl::StatusCode::kInvalidArgument, status.message())
                            : absl::UnavailableError(
                                  absl::StrCat(verifier, " has no room for the rest: ", status.message()))};
    // The adapter is not there any more; another verifier may hold it.
    case absl::StatusCode::kNotFound:
      return {.retry = current_.rounds() == 0,
              .status = num_tokens() == 0
                            ? status
                            : absl::UnavailableError(absl::StrCat(verifier, ": ", status.message()))};
    default:
      return {.status = absl::InternalError(absl::StrCat(verifier, " failed with ",
                                                         absl::StatusCodeToString(status.code()), " after ",
                                                         num_tokens(), " tokens: ", status.message()))};
  }
}

absl::Status Relay::ProtocolError(absl::string_view what) const {
  return absl::InternalError(absl::StrCat("verifier ", endpoint_, " broke the protocol: ", what, " after ",
                                          num_tokens(), " tokens"));
}

}  // namespace tandem::router
