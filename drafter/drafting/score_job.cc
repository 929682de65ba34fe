#include "drafter/drafting/score_job.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

// Most memory for the logits of a step.
constexpr size_t kMaxLogitsBytes = size_t{16} << 20;

// -ln softmax(logits)[token]; nothing when no logit is finite.
std::optional<double> NegativeLogLikelihood(absl::Span<const float> logits, TokenId token) {
  const float peak = *absl::c_max_element(logits);
  if (!std::isfinite(peak) || !std::isfinite(logits[static_cast<size_t>(token)])) return std::nullopt;
  double total = 0.0;
  for (float logit : logits) total += std::exp(double{logit} - double{peak});
  return std::log(total) + double{peak} - double{logits[static_cast<size_t>(token)]};
}

}  // namespace

absl::Status CheckScoreRequest(const ScoreRequest& request, const DraftModel& model, uint32_t max_tokens) {
  TANDEM_ASSIGN_OR_RETURN(const VocabularyBridge* const bridge,
                          BridgeFor(model, request.vocabulary_fingerprint));
  if (model.engine != nullptr && model.engine->config().head.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "draft model ", model.name, " is a head: it cannot score without the target's hidden states"));
  }
  if (request.tokens.empty()) return absl::InvalidArgumentError("tokens: none, expected at least one");
  if (request.tokens.size() > max_tokens) {
    return absl::ResourceExhaustedError(
        absl::StrCat("tokens: ", request.tokens.size(), ", expected at most ", max_tokens));
  }
  if (request.prompt_length > request.tokens.size()) {
    return absl::InvalidArgumentError(absl::StrCat("prompt_length: ", request.prompt_length,
                                                   ", expected at most the ", request.tokens.size(),
                                                   " tokens"));
  }
  if (request.prompt_length == 0) {
    return absl::InvalidArgumentError("prompt_length: 0, expected at least 1");
  }
  const int32_t vocab_size = model.engine != nullptr ? VocabularySize(model, bridge) : INT32_MAX;
  for (size_t i = 0; i < request.tokens.size(); ++i) {
    if (request.tokens[i] >= 0 && request.tokens[i] < vocab_size) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tokens[", i, "]: ", request.tokens[i], ", expected [0, ", vocab_size, ")"));
  }
  return Validate(request.sampling, vocab_size);
}

ScoreJob::ScoreJob(const DraftModel* model, ScoreRequest request)
    : model_(model),
      request_(std::move(request)),
      bridge_(BridgeFor(*model, request_.vocabulary_fingerprint).value()),
      kv_(model->pool, request_.cache_salt) {
  const absl::Span<const TokenId> tokens = request_.tokens;
  result_.ranks.reserve(tokens.size() - request_.prompt_length);
  for (SourceHost* source : model->sources) {
    result_.remembers_outputs = result_.remembers_outputs || source->remembers_outputs();
    sources_.push_back(source->NewReplay(request_.cache_salt, request_.vocabulary_fingerprint));
    sources_.back()->Start(tokens.first(request_.prompt_length), request_.prompt_length);
  }
  next_target_ = request_.prompt_length;
  if (!has_engine()) return;
  sampler_.emplace(request_.sampling, VocabularySize(*model, bridge_), tokens.first(request_.prompt_length));
  // The window that a session opened with the prompt would have.
  MoveWindow(request_.prompt_length);
  next_target_ = std::min<uint32_t>(window_start_ + 1, static_cast<uint32_t>(tokens.size()));
}

// The window from which token `target` is guessed, once all before it is committed: everything, or else three
// quarters of the context, to be filled up to one token that a tree would have.
void ScoreJob::MoveWindow(uint32_t target) {
  const uint32_t context = model_->context_length;
  window_start_ = target < context ? 0 : target - (context - context / 4);
  // The last token is followed by none.
  window_end_ = std::min(static_cast<uint32_t>(request_.tokens.size()) - 1, window_start_ + context - 1);
  next_row_ = window_start_;
  kv_ = SequenceKv(model_->pool, request_.cache_salt);
  // Appended and not started from: nothing comes from the prefix cache.
  kv_.Append(absl::MakeConstSpan(request_.tokens).subspan(window_start_, window_end_ - window_start_));
}

uint32_t ScoreJob::NumBlocksMissing() const {
  const uint32_t length = window_end_ - window_start_;
  const uint32_t wanted = (length + kBlockTokens - 1) / kBlockTokens;
  return wanted - std::min(wanted, static_cast<uint32_t>(kv_.blocks().size()));
}

// A quarter of the pool stays for sessions, except where the window itself leaves less.
uint32_t ScoreJob::NumBlocksToSpare() const {
  const uint32_t blocks = model_->pool->num_blocks();
  const uint32_t wanted = (window_end_ - window_start_ + kBlockTokens - 1) / kBlockTokens;
  return std::min(blocks / 4, blocks - std::min(blocks, wanted));
}

bool ScoreJob::CanReserve() const {
  if (!has_engine()) return true;
  const uint32_t missing = NumBlocksMissing();
  return missing == 0 || missing + NumBlocksToSpare() <= model_->pool->num_available();
}

bool ScoreJob::Reserve() {
  return !has_engine() || kv_.Reserve(window_end_ - window_start_, NumBlocksToSpare()).ok();
}

void ScoreJob::Suspend() {
  if (!has_engine()) return;
  kv_.Suspend();
  next_row_ = window_start_;
}

void ScoreJob::AddRows(uint32_t max_rows, StepBatch* batch) {
  assert(has_engine() && max_rows > 0);
  const size_t room = LogitsRoom(*model_, bridge_);
  const size_t affordable = std::max<size_t>(1, kMaxLogitsBytes / (room * sizeof(float)));
  rows_.clear();
  row_after_step_ =
      next_row_ + static_cast<uint32_t>(std::min<size_t>({max_rows, affordable, window_end_ - next_row_}));
  for (uint32_t i = next_row_; i < row_after_step_; ++i) {
    float* logits = nullptr;
    if (i + 1 >= next_target_) {
      logits = batch->NewLogits(room);
      rows_.push_back({.target = i + 1, .logits = logits});
    }
    const TokenId token = request_.tokens[i];
    batch->Add(bridge_ == nullptr ? token : bridge_->ToDraft(token), kv_.CommittedRow(i - window_start_),
               logits);
  }
}

absl::Status ScoreJob::OnStep() {
  next_row_ = row_after_step_;
  for (const Row& row : rows_) {
    TANDEM_RETURN_IF_ERROR(row.target < request_.prompt_length ? ScorePrompt(row) : ScoreOutput(row));
    next_target_ = row.target + 1;
  }
  if (done()) {
    kv_.Suspend();
  } else if (next_row_ == window_end_) {
    MoveWindow(next_target_);
  }
  return absl::OkStatus();
}

absl::Status ScoreJob::ScorePrompt(const Row& row) {
  const absl::Span<const float> logits = TargetLogits(*model_, bridge_, row.logits);
  const TokenId token = request_.tokens[row.target];
  // The draft model says nothing of a token that it has not.
  if (bridge_ != nullptr && !bridge_->HasDraft(token)) return absl::OkStatus();
  const std::optional<double> loss = NegativeLogLikelihood(logits, token);
  if (!loss.has_value()) {
    return absl::InternalError(
        absl::StrCat("draft model ", model_->name, " computed logits that are not finite"));
  }
  result_.prompt_negative_log_likelihood += *loss;
  ++result_.prompt_tokens;
  return absl::OkStatus();
}

absl::Status ScoreJob::ScoreOutput(const Row& row) {
  TokenProbabilities guesses =
      sampler_->Guess(TargetLogits(*model_, bridge_, row.logits), row.target, kScoredGuesses);
  if (guesses.empty()) {
    return absl::InternalError(
        absl::StrCat("draft model ", model_->name, " computed logits that are not finite"));
  }
  Rank(MergeWithSources(std::move(guesses)), request_.tokens[row.target]);
  Observe(request_.tokens[row.target]);
  return absl::OkStatus();
}

TokenProbabilities ScoreJob::MergeWithSources(TokenProbabilities guesses) const {
  if (sources_.empty()) return guesses;
  for (const auto& source : sources_) {
    const ProposalLimits limits{.depth = 1, .nodes = kScoredGuesses, .branching = kScoredGuesses};
    for (const ProposedNode& node : source->Propose(limits)) {
      const auto same =
          absl::c_find_if(guesses, [&](const TokenProbability& guess) { return guess.token == node.token; });
      if (same == guesses.end()) {
        guesses.push_back({.token = node.token, .probability = node.score});
      } else {
        same->probability = CombineScores(same->probability, node.score);
      }
    }
  }
  absl::c_stable_sort(guesses, [](const TokenProbability& a, const TokenProbability& b) {
    return a.probability != b.probability ? a.probability > b.probability : a.token < b.token;
  });
  if (guesses.size() > kScoredGuesses) guesses.resize(kScoredGuesses);
  return guesses;
}

void ScoreJob::Rank(absl::Span<const TokenProbability> guesses, TokenId token) {
  uint8_t rank = 0;
  for (size_t i = 0; i < guesses.size() && rank == 0; ++i) {
    if (guesses[i].token == token) rank = static_cast<uint8_t>(i + 1);
  }
  if (rank == 1) ++result_.accepted_tokens;
  result_.ranks.push_back(rank);
}

void ScoreJob::Observe(TokenId token) {
  if (sampler_.has_value()) sampler_->Append(token);
  for (const auto& source : sources_) source->Observe(absl::MakeConstSpan(&token, 1));
}

void ScoreJob::Replay(uint32_t max_tokens) {
  assert(!has_engine());
  for (; max_tokens > 0 && !done(); --max_tokens) {
    const TokenId token = request_.tokens[next_target_++];
    Rank(MergeWithSources({}), token);
    Observe(token);
  }
}

}  // namespace tandem
