#include "verifier/rpc/request_wire.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/node_index.h"
#include "common/base/status_macros.h"
#include "common/drafting/predicted_output.h"
#include "common/rpc/arithmetic.h"
#include "common/rpc/sampling_wire.h"
#include "common/rpc/status.h"

namespace tandem {
namespace {

constexpr int kMaxStopStrings = 16;
constexpr size_t kMaxStopBytes = 256;
constexpr int kMaxStopTokens = 1024;
constexpr uint32_t kMaxLogprobs = 20;
constexpr int kMaxPredictionTokens = 262'144;
constexpr int32_t kMostPriority = 100;

absl::StatusOr<TokenIds> CheckedTokens(const v1::TokenIds& proto, absl::string_view field,
                                       int32_t vocab_size) {
  TokenIds tokens;
  tokens.reserve(static_cast<size_t>(proto.ids_size()));
  for (int i = 0; i < proto.ids_size(); ++i) {
    if (proto.ids(i) >= static_cast<uint32_t>(vocab_size)) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ".ids[", i, "]: ", proto.ids(i), ", expected at most ", vocab_size - 1));
    }
    tokens.push_back(static_cast<TokenId>(proto.ids(i)));
  }
  return tokens;
}

absl::StatusOr<StopRules> StopRulesFromProto(const v1::StopConditions& proto, const ServedTarget& target) {
  StopRules rules;
  if (proto.stop_size() > kMaxStopStrings) {
    return absl::InvalidArgumentError(
        absl::StrCat("stopping.stop: ", proto.stop_size(), " strings, expected at most ", kMaxStopStrings));
  }
  for (int i = 0; i < proto.stop_size(); ++i) {
    const std::string& stop = proto.stop(i);
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("stopping.stop[", i, "]: ", stop.size(), " bytes, expected 1 to ", kMaxStopBytes));
    }
    rules.stop.push_back(stop);
  }
  if (proto.stop_token_ids_size() > kMaxStopTokens) {
    return absl::InvalidArgumentError(absl::StrCat("stopping.stop_token_ids: ", proto.stop_token_ids_size(),
                                                   " tokens, expected at most ", kMaxStopTokens));
  }
  for (int i = 0; i < proto.stop_token_ids_size(); ++i) {
    if (proto.stop_token_ids(i) >= static_cast<uint32_t>(target.config.vocab_size)) {
      return absl::InvalidArgumentError(absl::StrCat("stopping.stop_token_ids[", i,
                                                     "]: ", proto.stop_token_ids(i), ", expected at most ",
                                                     target.config.vocab_size - 1));
    }
    rules.stop_tokens.insert(static_cast<TokenId>(proto.stop_token_ids(i)));
  }
  if (!proto.ignore_eos())
    rules.stop_tokens.insert(target.defaults.eos_tokens.begin(), target.defaults.eos_tokens.end());
  rules.min_tokens = proto.min_tokens();
  rules.include_stop = proto.include_stop();
  return rules;
}

// Bans what would end the output before it has its least length. `sampling` is valid otherwise.
absl::Status HoldBack(const v1::VerifierGenerateRequest& proto, const StopRules& rules, int32_t vocab_size,
                      SamplingParameters* sampling) {
  if (rules.min_tokens == 0) return absl::OkStatus();
  if (rules.min_tokens > rules.max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("stopping.min_tokens: ", rules.min_tokens,
                                                   ", expected at most max_tokens, ", rules.max_tokens));
  }
  if (proto.has_constraint()) {
    return absl::InvalidArgumentError(
        absl::StrCat("stopping.min_tokens: ", rules.min_tokens,
                     ", expected 0 with a constraint, which says where the output may end"));
  }
  sampling->early_banned_tokens.assign(rules.stop_tokens.begin(), rules.stop_tokens.end());
  std::sort(sampling->early_banned_tokens.begin(), sampling->early_banned_tokens.end());
  sampling->early_ban_end = static_cast<uint32_t>(proto.prompt().ids_size()) + rules.min_tokens;
  const TargetSampler sampler(*sampling, vocab_size, {});
  for (TokenId token = 0; token < vocab_size; ++token) {
    if (sampler.Allows(token, 0)) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("stopping.min_tokens: ", rules.min_tokens,
                                                 ", but sampling allows only tokens that end the output"));
}

// Whether only the prompt is computed, for its log probabilities.
bool ScoresPrompt(const v1::VerifierGenerateRequest& proto) {
  return proto.output().has_prompt_logprobs() && proto.stopping().has_max_tokens() &&
         proto.stopping().max_tokens() == 0;
}

// The most tokens of the output: the requested number, or the room in the context.
absl::StatusOr<uint32_t> MaxTokens(const v1::VerifierGenerateRequest& proto, const ServedTarget& target) {
  const auto prompt = static_cast<uint32_t>(proto.prompt().ids_size());
  const uint32_t context = target.max_length;
  if (prompt == 0) return absl::InvalidArgumentError("prompt: no tokens, expected at least 1");
  // What the model could hold another verifier may hold.
  const auto too_long = [&](uint64_t length, const std::string& message) {
    return WithReason(length > static_cast<uint64_t>(target.config.max_context)
                          ? absl::InvalidArgumentError(message)
                          : absl::OutOfRangeError(message),
                      kContextLengthExceeded);
  };
  const uint32_t least = ScoresPrompt(proto) ? 0 : 1;
  if (prompt + uint64_t{least} > context) {
    return too_long(uint64_t{prompt} + least,
                    absl::StrCat("prompt: ", prompt, " tokens, expected at most ", context - least,
                                 " where prompt and output may have ", context));
  }
  const uint32_t room = context - prompt;
  const uint32_t max_tokens = proto.stopping().has_max_tokens() ? proto.stopping().max_tokens() : room;
  if (max_tokens < least)
    return absl::InvalidArgumentError("stopping.max_tokens: 0, expected at least 1 without prompt_logprobs");
  if (max_tokens > room) {
    return too_long(uint64_t{prompt} + max_tokens,
                    absl::StrCat("stopping.max_tokens: ", max_tokens, ", expected at most ", room,
                                 " after a prompt of ", prompt, " tokens"));
  }
  if (static_cast<uint32_t>(proto.emitted().ids_size()) > max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("emitted: ", proto.emitted().ids_size(),
                                                   " tokens, expected at most max_tokens, ", max_tokens));
  }
  return max_tokens;
}

// What is not to be drafted is checked all the same.
absl::Status TakePrediction(const v1::VerifierGenerateRequest& proto, const ServedTarget& target,
                            SessionRequest& request) {
  if (proto.prediction().ids_size() > kMaxPredictionTokens) {
    return absl::InvalidArgumentError(absl::StrCat("prediction: ", proto.prediction().ids_size(),
                                                   " tokens, expected at most ", kMaxPredictionTokens));
  }
  TANDEM_ASSIGN_OR_RETURN(TokenIds prediction,
                          CheckedTokens(proto.prediction(), "prediction", target.config.vocab_size));
  if (!request.speculate || prediction.empty()) return absl::OkStatus();
  request.prediction = std::make_unique<PredictedOutput>(std::move(prediction));
  request.prediction->Observe(request.emitted);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SessionRequest> SessionRequestFromProto(const v1::VerifierGenerateRequest& proto,
                                                       const ServedTarget& target, absl::Time deadline) {
  if (proto.model() != target.name) {
    return absl::FailedPreconditionError(
        absl::StrCat("model: \"", proto.model(), "\", but this verifier holds \"", target.name, "\""));
  }
  SessionRequest request;
  request.deadline = deadline;
  request.cache_salt = proto.cache_salt();
  request.text_drafting = proto.text_drafting();
  if (!proto.adapter().empty()) {
    if (target.adapters == nullptr) {
      return absl::UnimplementedError(
          "adapter: this verifier's device does not support adapters, expected a verifier with --device=cpu");
    }
    TANDEM_ASSIGN_OR_RETURN(request.adapter, target.adapters->Find(proto.adapter()));
  }
  request.arithmetic = request.adapter == nullptr
                           ? target.arithmetic
                           : ArithmeticWithAdapter(target.arithmetic, request.adapter->fingerprint);
  if (proto.arithmetic() != 0 && request.arithmetic != 0 && proto.arithmetic() != request.arithmetic) {
    return absl::AbortedError(absl::StrCat("arithmetic: ", proto.arithmetic(), ", but this verifier's is ",
                                           request.arithmetic, ": it would continue the output differently"));
  }
  TANDEM_ASSIGN_OR_RETURN(request.max_tokens, MaxTokens(proto, target));
  TANDEM_ASSIGN_OR_RETURN(request.prompt, CheckedTokens(proto.prompt(), "prompt", target.config.vocab_size));
  TANDEM_ASSIGN_OR_RETURN(request.emitted,
                          CheckedTokens(proto.emitted(), "emitted", target.config.vocab_size));
  TANDEM_ASSIGN_OR_RETURN(request.sampling,
                          SamplingFromProto(proto.sampling(), target.defaults, target.config.vocab_size));
  if (proto.output().has_logprobs()) {
    if (proto.output().logprobs() > kMaxLogprobs) {
      return absl::InvalidArgumentError(
          absl::StrCat("output.logprobs: ", proto.output().logprobs(), ", expected at most ", kMaxLogprobs));
    }
    request.num_logprobs = static_cast<int>(proto.output().logprobs());
  }
  if (proto.output().has_prompt_logprobs()) {
    if (proto.output().prompt_logprobs() > kMaxLogprobs) {
      return absl::InvalidArgumentError(absl::StrCat(
          "output.prompt_logprobs: ", proto.output().prompt_logprobs(), ", expected at most ", kMaxLogprobs));
    }
    request.num_prompt_logprobs = static_cast<int>(proto.output().prompt_logprobs());
  }
  request.tenant = proto.tenant();
  if (proto.priority() < -kMostPriority || proto.priority() > kMostPriority) {
    return absl::InvalidArgumentError(absl::StrCat("priority: ", proto.priority(), ", expected [",
                                                   -kMostPriority, ", ", kMostPriority, "]"));
  }
  request.priority = proto.priority();
  const v1::SpeculationOptions& speculation = proto.speculation();
  if (!speculation.window_policy().empty()) {
    TANDEM_RETURN_IF_ERROR(MakeWindowPolicy(speculation.window_policy()).status());
    request.window_policy = speculation.window_policy();
  }
  if (speculation.max_window() > target.max_window) {
    return absl::InvalidArgumentError(absl::StrCat("speculation.max_window: ", speculation.max_window(),
                                                   ", expected at most ", target.max_window));
  }
  request.max_window = speculation.max_window();
  if (proto.policy_state().size() > kMaxPolicyStateBytes) {
    return absl::InvalidArgumentError(absl::StrCat("policy_state: ", proto.policy_state().size(),
                                                   " bytes, expected at most ", kMaxPolicyStateBytes));
  }
  request.policy_state = proto.policy_state();
  request.speculate = speculation.mode() != v1::SPECULATION_MODE_OFF && request.max_tokens > 0;
  TANDEM_RETURN_IF_ERROR(TakePrediction(proto, target, request));
  request.trace_rounds = proto.output().round_trace();
  request.trace_trees = proto.output().round_tree();
  TANDEM_ASSIGN_OR_RETURN(StopRules rules, StopRulesFromProto(proto.stopping(), target));
  rules.max_tokens = std::max(request.max_tokens, 1u);
  TANDEM_RETURN_IF_ERROR(HoldBack(proto, rules, target.config.vocab_size, &request.sampling));
  rules.include_special_tokens = proto.output().include_special_tokens();
  request.output = std::make_unique<OutputAssembler>(target.tokenizer, std::move(rules));
  request.replayed_end = request.output->Replay(request.emitted);
  return request;
}

namespace {

double UnixSeconds(absl::Time time) {
  return absl::ToDoubleSeconds(time - absl::UnixEpoch());
}

v1::RoundKind KindToProto(RoundKind kind) {
  switch (kind) {
    case RoundKind::kHit:
      return v1::ROUND_KIND_HIT;
    case RoundKind::kMiss:
      return v1::ROUND_KIND_MISS;
    case RoundKind::kUndrafted:
      break;
  }
  return v1::ROUND_KIND_UNDRAFTED;
}

v1::DraftSource SourceToProto(DraftOrigin origin) {
  switch (KindOf(origin)) {
    case SourceKind::kDrafter:
      return v1::DRAFT_SOURCE_DRAFTER;
    case SourceKind::kLocal:
      return v1::DRAFT_SOURCE_LOCAL;
    case SourceKind::kGrammar:
      return v1::DRAFT_SOURCE_GRAMMAR;
    case SourceKind::kPrediction:
      return v1::DRAFT_SOURCE_PREDICTION;
  }
  return v1::DRAFT_SOURCE_UNSPECIFIED;
}

void SharesToProto(const CommittedTokens& tokens, v1::GenerationChunk& chunk) {
  for (size_t i = 0; i < kNumDraftOrigins; ++i) {
    const OriginShare& share = tokens.shares[i];
    if (share.empty()) continue;
    const auto origin = static_cast<DraftOrigin>(i);
    v1::RoundShare& entry = *chunk.add_shares();
    entry.set_source(SourceToProto(origin));
    entry.set_drafter(tokens.drafters.NameOf(origin));
    entry.set_draft_tokens(share.nodes);
    entry.set_accepted_tokens(share.accepted);
    entry.set_wait_seconds(share.wait_seconds);
  }
}

void NodesToProto(absl::Span<const RoundNode> nodes, const RoundDrafters& drafters,
                  google::protobuf::RepeatedPtrField<v1::TreeNodeTrace>& proto) {
  for (const RoundNode& node : nodes) {
    const DraftOrigin origin = node.guesses.credited();
    v1::TreeNodeTrace& entry = *proto.Add();
    entry.set_parent(PlaceAfterRoot(node.parent));
    entry.set_token(static_cast<uint32_t>(node.token));
    entry.set_score(node.score);
    entry.set_source(SourceToProto(origin));
    entry.set_drafter(drafters.NameOf(origin));
  }
}

v1::RoundTrace TraceToProto(const RoundTrace& trace) {
  v1::RoundTrace proto;
  proto.set_kind(KindToProto(trace.report.kind));
  proto.set_depth(trace.report.depth);
  proto.set_nodes(trace.report.nodes);
  proto.set_wait_seconds(trace.report.wait_seconds);
  proto.set_verify_start(UnixSeconds(trace.verify_start));
  proto.set_verify_seconds(absl::ToDoubleSeconds(trace.verify_time));
  for (const GrowthTrace& growth : trace.growth) {
    v1::GrowthTrace& entry = *proto.add_growth();
    entry.set_received(UnixSeconds(growth.received));
    entry.set_nodes(growth.nodes);
    entry.set_step_seconds(growth.step_seconds);
  }
  NodesToProto(trace.tree.nodes(), trace.report.drafters, *proto.mutable_tree());
  for (const uint32_t index : trace.accepted) proto.mutable_tree(static_cast<int>(index))->set_accepted(true);
  NodesToProto(trace.masked, trace.report.drafters, *proto.mutable_masked());
  proto.set_masked_nodes(trace.report.masked);
  return proto;
}

}  // namespace

namespace {

void LogprobsToProto(const TokenChoice& choice, v1::TokenDetail& detail) {
  detail.set_logprob(choice.logprob);
  for (const TokenLogprob& top : choice.top_logprobs) {
    v1::TokenLogprob& entry = *detail.add_top_logprobs();
    entry.set_token(static_cast<uint32_t>(top.token));
    entry.set_logprob(top.logprob);
  }
}

}  // namespace

v1::GenerateResponse PromptToProto(const PromptPart& part) {
  v1::GenerateResponse response;
  v1::PromptChunk& chunk = *response.mutable_prompt();
  chunk.set_offset(part.offset);
  for (size_t i = 0; i < part.tokens.size(); ++i) {
    chunk.add_tokens(static_cast<uint32_t>(part.tokens[i].token));
    v1::TokenDetail& detail = *chunk.add_details();
    if (part.offset + i > 0) LogprobsToProto(part.tokens[i], detail);
  }
  return response;
}

v1::GenerateResponse ChunkToProto(CommittedTokens tokens, bool with_logprobs) {
  v1::GenerateResponse response;
  v1::GenerationChunk& chunk = *response.mutable_chunk();
  chunk.set_offset(tokens.offset);
  chunk.set_text(std::move(tokens.text));
  if (tokens.trace.has_value()) *chunk.mutable_round() = TraceToProto(*tokens.trace);
  chunk.set_kind(KindToProto(tokens.kind));
  chunk.set_window(tokens.depth);
  chunk.set_draft_tokens(tokens.nodes);
  SharesToProto(tokens, chunk);
  for (const CommittedToken& token : tokens.tokens) {
    chunk.add_tokens(static_cast<uint32_t>(token.token));
    v1::TokenDetail& detail = *chunk.add_details();
    detail.set_source(token.drafted_by.has_value() ? v1::TOKEN_SOURCE_ACCEPTED : v1::TOKEN_SOURCE_TARGET);
    if (token.drafted_by.has_value()) detail.set_draft_source(SourceToProto(*token.drafted_by));
    detail.set_text_bytes(token.text_bytes);
    if (!with_logprobs) continue;
    LogprobsToProto(token.choice, detail);
  }
  return response;
}

namespace {

// 1 + accepted / rounds, and accepted / tokens, as vLLM has them.
template <class Stats>
void SetRates(uint32_t rounds, uint32_t tokens, uint32_t accepted, Stats& stats) {
  const auto count = static_cast<float>(accepted);
  stats.set_mean_acceptance_length(rounds == 0 ? 1.0f : 1.0f + count / static_cast<float>(rounds));
  stats.set_draft_acceptance_rate(tokens == 0 ? 0.0f : count / static_cast<float>(tokens));
}

void OriginToProto(const OriginSummary& summary, v1::SourceStats& stats) {
  stats.set_source(SourceToProto(summary.origin));
  stats.set_drafter(summary.drafter);
  stats.set_drafted_rounds(summary.rounds);
  stats.set_draft_tokens(summary.draft_tokens);
  stats.set_accepted_tokens(summary.accepted_tokens);
  for (uint32_t count : summary.accepted_per_position) stats.add_accepted_per_position(count);
  SetRates(summary.rounds, summary.draft_tokens, summary.accepted_tokens, stats);
  stats.set_rejections(summary.rejections);
  stats.set_wait_seconds(summary.wait_seconds);
}

}  // namespace

v1::GenerateResponse FinishedToProto(const SessionSummary& summary) {
  v1::GenerateResponse response;
  v1::GenerationFinished& finished = *response.mutable_finished();
  switch (summary.end.reason) {
    case OutputEnd::Reason::kStopToken:
      finished.set_reason(v1::FINISH_REASON_STOP_TOKEN);
      break;
    case OutputEnd::Reason::kStopString:
      finished.set_reason(v1::FINISH_REASON_STOP_STRING);
      break;
    case OutputEnd::Reason::kMaxTokens:
      finished.set_reason(v1::FINISH_REASON_MAX_TOKENS);
      break;
  }
  finished.set_matched_stop(summary.end.matched_stop);
  finished.set_text(summary.end.text);
  v1::Usage& usage = *finished.mutable_usage();
  usage.set_prompt_tokens(summary.prompt_tokens);
  usage.set_completion_tokens(summary.output_tokens);
  usage.set_cached_prompt_tokens(summary.cached_prompt_tokens);
  v1::SpeculationStats& stats = *finished.mutable_speculation();
  stats.set_drafter(summary.drafter);
  stats.set_drafter_lost(summary.drafter_lost);
  stats.set_rounds(summary.rounds);
  stats.set_drafted_rounds(summary.drafted_rounds);
  stats.set_hits(summary.hits);
  stats.set_misses(summary.misses);
  stats.set_draft_tokens(summary.draft_tokens);
  stats.set_accepted_tokens(summary.accepted_tokens);
  SetRates(summary.drafted_rounds, summary.draft_tokens, summary.accepted_tokens, stats);
  for (const OriginSummary& origin : summary.by_origin) OriginToProto(origin, *stats.add_by_source());
  stats.set_merged_rounds(summary.merged_rounds);
  for (uint32_t count : summary.accepted_per_position) stats.add_accepted_per_position(count);
  for (uint32_t count : summary.window_histogram) stats.add_window_histogram(count);
  stats.set_drafter_accepted_tokens(summary.drafter_accepted_tokens);
  stats.set_drafter_rejections(summary.drafter_rejections);
  stats.set_policy_state(summary.policy_state);
  stats.set_masked_draft_tokens(summary.masked_draft_tokens);
  v1::MeasuredCosts& costs = *stats.mutable_costs();
  if (summary.exposed_level_seconds >= 0.0) {
    costs.set_exposed_level_seconds(static_cast<float>(summary.exposed_level_seconds));
    costs.set_hidden_level_seconds(static_cast<float>(summary.hidden_level_seconds));
  }
  for (double seconds : summary.verify_seconds) costs.add_verify_seconds(static_cast<float>(seconds));
  costs.set_decode_tokens(summary.decode_tokens);
  costs.set_decode_seconds(summary.decode_seconds);
  return response;
}

}  // namespace tandem
