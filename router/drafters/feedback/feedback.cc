#include "router/drafters/feedback/feedback.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"

namespace tandem::router {
namespace {

std::vector<double> ShareBuckets() {
  return {0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0};
}

absl::string_view LabelOf(absl::string_view drafter) {
  return drafter.empty() ? "none" : drafter;
}

v1::ScoreRequest ScoreRequestOf(const FeedbackRequest& request, const FeedbackDrafter& drafter) {
  v1::ScoreRequest score;
  score.set_draft_model(drafter.draft_model);
  score.set_vocabulary_fingerprint(request.vocabulary_fingerprint);
  score.mutable_tokens()->Add(request.tokens.begin(), request.tokens.end());
  score.set_prompt_length(request.prompt_length);
  *score.mutable_sampling() = request.sampling;
  score.set_cache_salt(request.cache_salt);
  return score;
}

// Whether a drafter's answer can be true of this request: drafters are not trusted.
absl::Status CheckResponse(const FeedbackRequest& request, const v1::ScoreResponse& response) {
  const size_t output = request.tokens.size() - request.prompt_length;
  if (response.ranks().size() != output) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks: ", response.ranks().size(), ", expected ", output));
  }
  const auto first = std::count(response.ranks().begin(), response.ranks().end(), '\x01');
  if (static_cast<uint64_t>(first) != response.accepted_tokens()) {
    return absl::InvalidArgumentError(
        absl::StrCat("accepted_tokens: ", response.accepted_tokens(), ", expected ", first));
  }
  if (response.prompt_tokens() > request.prompt_length ||
      !std::isfinite(response.prompt_negative_log_likelihood()) ||
      response.prompt_negative_log_likelihood() < 0.0) {
    return absl::InvalidArgumentError("the prompt's likelihood is invalid");
  }
  return absl::OkStatus();
}

}  // namespace

Feedback::Feedback(Options options, std::unique_ptr<Scorer> scorer, FeedbackSink* sink, const Clock* clock,
                   MetricsRegistry* registry)
    : options_(std::move(options)),
      sink_(sink),
      clock_(clock),
      requests_(registry->AddCounter({"tandem_router_feedback_requests_total",
                                      "Sampled finished requests: scored by every candidate (scored), a "
                                      "drafter was not asked or did not answer (incomplete), no drafter "
                                      "could be asked (dropped), nothing to score or too long (skipped).",
                                      {"outcome"}})),
      scores_(registry->AddCounter({"tandem_router_feedback_scores_total",
                                    "Drafters' answers to score requests, by status code.",
                                    {"drafter", "outcome"}})),
      withheld_(registry->AddCounter({"tandem_router_feedback_withheld_total",
                                      "Score requests not sent to a drafter: all of its slots were taken "
                                      "(busy), or the router backs off after failures (backoff).",
                                      {"drafter", "reason"}})),
      realised_acceptance_(registry->AddHistogram(
          {"tandem_router_realised_acceptance",
           "Share of an output's tokens that a drafter would have guessed, from its score.",
           {"tenant", "drafter"}},
          ShareBuckets())),
      acceptance_error_(registry->AddHistogram(
          {"tandem_router_acceptance_error",
           "Absolute difference of predicted and realised acceptance, for every scored candidate.",
           {"tenant", "drafter"}},
          ShareBuckets())),
      regret_(registry->AddHistogram({"tandem_router_regret_ratio",
                                      "Share of the best candidate's throughput that the choice of drafter "
                                      "lost, computed from realised acceptance.",
                                      {"tenant"}},
                                     ShareBuckets())),
      chosen_(registry->AddCounter({"tandem_router_feedback_chosen_total",
                                    "Scored requests, by the drafter that was chosen.",
                                    {"tenant", "drafter"}})),
      best_(registry->AddCounter({"tandem_router_feedback_best_total",
                                  "Scored requests, by the drafter that would have been best.",
                                  {"tenant", "drafter"}})),
      slots_(options_.slots),
      scorer_(std::move(scorer)) {
  assert(sink_ != nullptr && clock_ != nullptr && scorer_ != nullptr && options_.draw);
}

Feedback::~Feedback() = default;

std::optional<FeedbackRequest> Feedback::Sample(const v1::VerifierGenerateRequest& request,
                                                uint64_t vocabulary_fingerprint, bool learning) {
  const double share = learning && options_.share > 0.0 ? 1.0 : options_.share;
  const double drawn = std::ldexp(static_cast<double>(options_.draw() >> 11), -53);
  if (drawn >= share) return std::nullopt;
  FeedbackRequest sampled{.tenant = request.tenant(),
                          .model = request.model(),
                          .drafter = request.drafter().name(),
                          .features = nullptr,
                          .tokens = {},
                          .prompt_length = static_cast<uint32_t>(request.prompt().ids_size()),
                          .sampling = request.sampling(),
                          .vocabulary_fingerprint = vocabulary_fingerprint,
                          .cache_salt = request.cache_salt(),
                          .trace = nullptr};
  sampled.tokens.assign(request.prompt().ids().begin(), request.prompt().ids().end());
  return sampled;
}

std::vector<Feedback::Asked> Feedback::TakeSlots(const FeedbackRequest& request,
                                                 const std::vector<FeedbackDrafter>& candidates) {
  std::vector<Asked> asked;
  std::vector<absl::string_view> left_alone;
  const auto num_tokens = static_cast<uint32_t>(request.tokens.size());
  const absl::Time now = clock_->Now();
  {
    absl::MutexLock lock(&mutex_);
    for (const FeedbackDrafter& drafter : candidates) {
      ScoreSlots::Taken taken = slots_.Take(drafter, num_tokens, now);
      if (taken.slot.has_value()) {
        asked.push_back({drafter, *std::move(taken.slot)});
        continue;
      }
      const bool busy = taken.refusal == ScoreSlots::Refusal::kBusy;
      withheld_.With({drafter.name, busy ? "busy" : "backoff"}).Increment();
      if (!busy) left_alone.push_back(drafter.name);
    }
    if (!asked.empty()) ++in_flight_;
  }
  for (const absl::string_view drafter : left_alone) sink_->OnScoreAnswered(request, drafter, false);
  return asked;
}

void Feedback::GiveBack(const Asked& asked, const absl::Status& status) {
  ScoreSlots::Change change;
  {
    absl::MutexLock lock(&mutex_);
    change = slots_.GiveBack(asked.slot, status.ok(), clock_->Now());
  }
  // What is cancelled is so because this ends.
  if (change == ScoreSlots::Change::kNone || absl::IsCancelled(status)) return;
  if (change == ScoreSlots::Change::kAnswersAgain) {
    LogInfo("a drafter answers score requests again", {{"drafter", asked.drafter.name}});
  } else {
    LogWarning("a drafter does not answer score requests; backing off",
               {{"drafter", asked.drafter.name},
                {"endpoint", asked.drafter.endpoint},
                {"error", status.ToString(absl::StatusToStringMode::kWithNoExtraData)}});
  }
}

uint32_t Feedback::in_flight() const {
  absl::MutexLock lock(&mutex_);
  return in_flight_;
}

void Feedback::Offer(FeedbackRequest request, const std::vector<FeedbackDrafter>& candidates) {
  if (candidates.empty() || request.prompt_length == 0 || request.tokens.size() <= request.prompt_length ||
      request.tokens.size() > options_.max_tokens) {
    requests_.With({"skipped"}).Increment();
    return;
  }
  const std::vector<Asked> asked = TakeSlots(request, candidates);
  if (asked.empty()) {
    requests_.With({"dropped"}).Increment();
    return;
  }
  const auto pending = std::make_shared<Pending>();
  pending->request = std::move(request);
  pending->num_candidates = candidates.size();
  {
    absl::MutexLock lock(&pending->mutex);
    pending->num_missing = asked.size();
  }
  for (const Asked& one : asked) {
    const std::shared_ptr<Span> span = StartScore(pending->request, one.drafter);
    scorer_->Score(one.drafter, ScoreRequestOf(pending->request, one.drafter), span->context(),
                   one.slot.begun + one.slot.timeout,
                   [this, pending, span, one](const absl::StatusOr<v1::ScoreResponse>& response) {
                     span->SetStatus(response.status().code());
                     span->End(clock_->Now());
                     OnAnswer(pending, one, response);
                   });
  }
}

std::shared_ptr<Span> Feedback::StartScore(const FeedbackRequest& request,
                                           const FeedbackDrafter& drafter) const {
  if (request.trace == nullptr) return std::make_shared<Span>();
  Span span = request.trace->Child("tandem.v1.Drafter/Score", SpanKind::kClient, clock_->Now());
  span.SetCall("tandem.v1.Drafter", "Score");
  span.SetServer(drafter.endpoint);
  span.Set("tandem.drafter", drafter.name);
  return std::make_shared<Span>(std::move(span));
}

void Feedback::OnAnswer(const std::shared_ptr<Pending>& pending, const Asked& asked,
                        const absl::StatusOr<v1::ScoreResponse>& response) {
  const FeedbackRequest& request = pending->request;
  const std::string& drafter = asked.drafter.name;
  const absl::Status status = response.ok() ? CheckResponse(request, *response) : response.status();
  scores_.With({drafter, absl::AsciiStrToLower(absl::StatusCodeToString(status.code()))}).Increment();
  GiveBack(asked, status);
  if (!absl::IsCancelled(status)) sink_->OnScoreAnswered(request, drafter, status.ok());
  std::vector<DrafterScore> scores;
  {
    absl::MutexLock lock(&pending->mutex);
    // What had seen the output when it guessed it says nothing about the next one.
    if (status.ok() && !(response->remembers_outputs() && drafter == request.drafter)) {
      const auto output_tokens = static_cast<uint32_t>(response->ranks().size());
      pending->scores.push_back(
          {.drafter = drafter,
           .acceptance = static_cast<double>(response->accepted_tokens()) / output_tokens,
           .output_tokens = output_tokens,
           .prompt_negative_log_likelihood =
               response->prompt_tokens() == 0
                   ? 0.0
                   : response->prompt_negative_log_likelihood() / response->prompt_tokens(),
           .prompt_tokens = response->prompt_tokens()});
    }
    if (--pending->num_missing > 0) return;
    scores = std::move(pending->scores);
  }
  // In an order that does not depend on who answered first.
  std::sort(scores.begin(), scores.end(),
            [](const DrafterScore& a, const DrafterScore& b) { return a.drafter < b.drafter; });
  requests_.With({scores.size() == pending->num_candidates ? "scored" : "incomplete"}).Increment();
  Conclude(request, scores);
  if (request.trace != nullptr) request.trace->End(clock_->Now());
  absl::MutexLock lock(&mutex_);
  --in_flight_;
}

void Feedback::Conclude(const FeedbackRequest& request, const std::vector<DrafterScore>& scores) {
  for (const DrafterScore& score : scores) {
    realised_acceptance_.With({request.tenant, score.drafter}).Observe(score.acceptance);
    const std::optional<double> predicted = sink_->PredictAcceptance(request, score.drafter);
    if (!predicted.has_value()) continue;
    acceptance_error_.With({request.tenant, score.drafter}).Observe(std::abs(*predicted - score.acceptance));
  }
  RecordRegret(request, scores);
  for (const DrafterScore& score : scores) sink_->OnScored(request, score);
}

// A drafter that was chosen and did not score is taken at what verification accepted of it; without that
// nothing is known of the regret. No drafter is always a candidate.
void Feedback::RecordRegret(const FeedbackRequest& request, const std::vector<DrafterScore>& scores) {
  std::string best;
  const double undrafted = sink_->Throughput(request, "", 0.0);
  double most = undrafted;
  std::optional<double> chosen;
  if (request.drafter.empty()) chosen = undrafted;
  for (const DrafterScore& score : scores) {
    const double throughput = sink_->Throughput(request, score.drafter, score.acceptance);
    if (score.drafter == request.drafter) chosen = throughput;
    if (throughput > most) {
      most = throughput;
      best = score.drafter;
    }
  }
  if (!chosen.has_value()) {
    chosen = sink_->RealisedThroughput(request);
    if (chosen.has_value() && *chosen > most) {
      most = *chosen;
      best = request.drafter;
    }
  }
  if (!chosen.has_value() || !(most > 0.0) || !std::isfinite(most)) return;
  // Of equals the one that was chosen is as good as any.
  if (*chosen >= most) best = request.drafter;
  chosen_.With({request.tenant, LabelOf(request.drafter)}).Increment();
  best_.With({request.tenant, LabelOf(best)}).Increment();
  regret_.With({request.tenant}).Observe(std::clamp((most - *chosen) / most, 0.0, 1.0));
}

}  // namespace tandem::router
