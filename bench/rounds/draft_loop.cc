#include "bench/rounds/draft_loop.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "verifier/session/output_assembler.h"

namespace tandem::bench {
namespace {

constexpr LinkId kLink = 1;
// Both sides are told the same: that the vocabularies agree is for the caller to know.
constexpr uint64_t kFingerprint = 1;
constexpr uint64_t kOtherFingerprint = 2;  // Of a drafter that is bridged, or drafts by text.
constexpr char kModel[] = "draft";

Scheduler::Options SchedulerOptions(const DraftLoop::Options& options) {
  return {.max_running = 1,
          .prefill_chunk = options.prefill_chunk,
          .limits = options.limits,
          .window_policy = "fixed",
          .vocabulary_fingerprint = kFingerprint};
}

}  // namespace

absl::StatusOr<std::unique_ptr<DraftLoop>> DraftLoop::Make(const Options& options, Engine* target,
                                                           Engine* drafter,
                                                           std::shared_ptr<const Tokenizer> tokenizer) {
  int32_t draft_width = target->config().vocab_size;
  int32_t target_width = target->config().vocab_size;
  if (options.bridge != nullptr) {
    draft_width = options.bridge->draft_width();
    target_width = options.bridge->target_width();
  } else if (options.text != nullptr) {
    draft_width = drafter->config().vocab_size;
    target_width = options.text->target_width();
  }
  if (target->config().vocab_size != target_width || drafter->config().vocab_size != draft_width) {
    return absl::FailedPreconditionError(absl::StrCat("the drafter has ", drafter->config().vocab_size,
                                                      " tokens, the target ", target->config().vocab_size));
  }
  return std::unique_ptr<DraftLoop>(new DraftLoop(options, target, drafter, std::move(tokenizer)));
}

DraftLoop::DraftLoop(const Options& options, Engine* target, Engine* drafter,
                     std::shared_ptr<const Tokenizer> tokenizer)
    : options_(options),
      tokenizer_(std::move(tokenizer)),
      target_pool_({.num_blocks = target->num_blocks(), .prefix_cache = options.prefix_cache}),
      draft_pool_({.num_blocks = drafter->num_blocks(), .prefix_cache = options.drafter_prefix_cache}),
      core_({.expand_width = options.expand_width, .calibrated_growth = options.calibrated_growth},
            {{.name = kModel,
              .engine = drafter,
              .pool = &draft_pool_,
              .vocabulary_fingerprint =
                  options.bridge == nullptr && options.text == nullptr ? kFingerprint : kOtherFingerprint,
              .context_length = std::min(static_cast<uint32_t>(drafter->config().max_context),
                                         drafter->num_blocks() * kBlockTokens),
              .feature_type = options.feature_type,
              .other_vocabularies =
                  {{.fingerprint = kFingerprint, .bridge = options.bridge, .text = options.text}}}},
            &clock_),
      scheduler_(SchedulerOptions(options), target, &target_pool_, RoundTimeModel({{1, 0.001}}), &clock_,
                 static_cast<SchedulerListener*>(this)) {
  scheduler_.OnLinkUp(kLink);
}

absl::StatusOr<DraftLoop::Output> DraftLoop::Generate(const TokenIds& prompt,
                                                      const SamplingParameters& sampling,
                                                      uint32_t max_tokens) {
  output_ = {};
  finished_.reset();
  SessionRequest request{
      .prompt = prompt,
      .max_tokens = max_tokens,
      .sampling = sampling,
      .output = std::make_unique<OutputAssembler>(tokenizer_, StopRules{.max_tokens = max_tokens}),
      .drafter = DrafterBinding{.link = kLink, .name = kModel, .draft_model = kModel},
      .text_drafting = options_.text != nullptr};
  TANDEM_RETURN_IF_ERROR(scheduler_.Submit(++last_session_, std::move(request)));
  while (!finished_.has_value()) {
    Exchange();
    TANDEM_RETURN_IF_ERROR(violation_);
    if (scheduler_.Forward()) {
      scheduler_.Conclude();
    } else {
      // It waits for what the drafter will not say.
      clock_.Advance(absl::Milliseconds(1));
    }
  }
  Exchange();
  TANDEM_RETURN_IF_ERROR(*finished_);
  return std::move(output_);
}

void DraftLoop::Exchange() {
  for (bool silent = false; !silent;) {
    silent = requests_.empty();
    for (DraftRequest& request : std::exchange(requests_, {})) {
      if (auto* open = std::get_if<OpenSession>(&request.event); open != nullptr && !options_.seeded) {
        open->sampling.temperature = 0.0f;
      }
      core_.OnRequest(kLink, request);
    }
    while (core_.HasWork()) core_.Step();
    for (const auto& [link, response] : core_.TakeResponses()) {
      scheduler_.OnDraftResponse(link, response);
      silent = false;
    }
  }
}

void DraftLoop::OnTokens(SessionId, CommittedTokens tokens) {
  for (const CommittedToken& token : tokens.tokens) output_.tokens.push_back(token.token);
}

void DraftLoop::OnFinished(SessionId, const absl::Status& status, const SessionSummary& summary) {
  finished_ = status;
  output_.rounds = summary.rounds;
  output_.drafted_rounds = summary.drafted_rounds;
  output_.draft_tokens = summary.draft_tokens;
  output_.accepted_tokens = summary.accepted_tokens;
  output_.cached_prompt_tokens = summary.cached_prompt_tokens;
}

void DraftLoop::OnDraftRequest(LinkId, DraftRequest request) {
  requests_.push_back(std::move(request));
}

void DraftLoop::OnProtocolViolation(LinkId, absl::string_view what, bool) {
  violation_ = absl::InternalError(absl::StrCat("the drafter broke the protocol: ", what));
}

}  // namespace tandem::bench
