#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "router/drafters/feedback/feedback_sink.h"
#include "router/drafters/feedback/score_slots.h"
#include "router/drafters/feedback/scorer.h"
#include "tandem/v1/drafter.pb.h"
#include "tandem/v1/verifier.pb.h"

namespace tandem::router {

// Full-information feedback (DESIGN section 5): for a share of the finished requests, every drafter that
// could have drafted scores the output, which tells what its acceptance would have been. The sink learns from
// the scores, and regret is measured instead of guessed:
//
//   Sample at the start --> tokens are kept --> Offer at the end --> Score to every candidate --> sink
//                     '-- not sampled              |                 that has a slot (ScoreSlots)
//                                                  '-- dropped: no candidate has a slot
//                                                  '-- skipped: nothing to score, or too long
//
// A drafter that cannot score, such as a draft head, is treated like one that fails: it is asked less and
// less often. Its acceptance is known only from requests for which it drafted.
//
//   tandem_router_feedback_requests_total{outcome}          sampled requests: scored, incomplete (a drafter
//                                                           was not asked or did not answer), dropped,
//                                                           skipped
//   tandem_router_feedback_scores_total{drafter,outcome}    answers of drafters, by status code
//   tandem_router_feedback_withheld_total{drafter,reason}   scores that a drafter was not asked for
//   tandem_router_realised_acceptance{tenant,drafter}       by scores
//   tandem_router_acceptance_error{tenant,drafter}          |predicted - realised|, predicted before
//                                                           learning from the scores
//   tandem_router_regret_ratio{tenant}                      throughput lost by the choice, as a share of the
//                                                           best candidate's, both by realised acceptance
//   tandem_router_feedback_chosen_total{tenant,drafter}     what was chosen for scored requests,
//   tandem_router_feedback_best_total{tenant,drafter}       and what would have been best
//
// Feedback never makes anything wait: work that would have to wait is dropped and counted. A drafter without
// a free slot is left out of a request's scores, and the other scores are still used. A drafter that does not
// answer in time delays only the requests that it was asked about, at most as many as it has slots. Prompts
// and outputs are kept until their scores have arrived: of at most as many requests as drafters have slots,
// plus the running ones. Thread-safe.
class Feedback {
 public:
  struct Options {
    double share = 0.05;         // Of requests, in [0, 1]. 0: none at all.
    uint32_t max_tokens = 8192;  // Prompt and output; longer ones are skipped.
    ScoreSlots::Options slots;
    std::function<uint64_t()> draw;  // Random bits. Thread-safe.
  };

  // All pointers outlive this, including the metrics registry. One per registry.
  Feedback(Options options, std::unique_ptr<Scorer> scorer, FeedbackSink* sink, const Clock* clock,
           MetricsRegistry* registry);
  // Waits until no score is in flight.
  ~Feedback();

  // Decides whether this request is to be scored when it is over: a share of all requests is, and every
  // request from which the choice of drafters is still `learning`. If so, returns its prompt and parameters;
  // add the output to `tokens`.
  std::optional<FeedbackRequest> Sample(const v1::VerifierGenerateRequest& request,
                                        uint64_t vocabulary_fingerprint, bool learning);

  // A sampled request is over. `candidates`: the drafters that could have drafted for it.
  void Offer(FeedbackRequest request, const std::vector<FeedbackDrafter>& candidates);

  // The number of requests that are being scored.
  uint32_t in_flight() const;

 private:
  struct Pending {
    FeedbackRequest request;
    size_t num_candidates = 0;
    absl::Mutex mutex;
    size_t num_missing ABSL_GUARDED_BY(mutex) = 0;
    std::vector<DrafterScore> scores ABSL_GUARDED_BY(mutex);
  };

  // A drafter that is asked to score a request.
  struct Asked {
    FeedbackDrafter drafter;
    ScoreSlots::Slot slot;
  };

  // Takes a slot at every candidate that has one. The request is in flight if there is any.
  std::vector<Asked> TakeSlots(const FeedbackRequest& request,
                               const std::vector<FeedbackDrafter>& candidates);
  void GiveBack(const Asked& asked, const absl::Status& status);
  // Starts the span of one drafter's score; records nothing if the request is not traced.
  std::shared_ptr<Span> StartScore(const FeedbackRequest& request, const FeedbackDrafter& drafter) const;
  void OnAnswer(const std::shared_ptr<Pending>& pending, const Asked& asked,
                const absl::StatusOr<v1::ScoreResponse>& response);
  void Conclude(const FeedbackRequest& request, const std::vector<DrafterScore>& scores);
  void RecordRegret(const FeedbackRequest& request, const std::vector<DrafterScore>& scores);

  const Options options_;
  FeedbackSink* const sink_;
  const Clock* const clock_;
  CounterFamily& requests_;
  CounterFamily& scores_;
  CounterFamily& withheld_;
  HistogramFamily& realised_acceptance_;
  HistogramFamily& acceptance_error_;
  HistogramFamily& regret_;
  CounterFamily& chosen_;
  CounterFamily& best_;
  mutable absl::Mutex mutex_;
  uint32_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  ScoreSlots slots_ ABSL_GUARDED_BY(mutex_);
  // Destroyed first, so that no callback runs after that.
  std::unique_ptr<Scorer> scorer_;
};

}  // namespace tandem::router
