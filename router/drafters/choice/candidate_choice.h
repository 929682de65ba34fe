#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "router/drafters/choice/acceptance_regression.h"
#include "router/drafters/choice/throughput.h"

namespace tandem::router {

// What the choice knows about a drafter.
struct Candidate {
  std::string drafter;
  AcceptanceRegression::Prediction acceptance;
  double samples = 0.0;  // How many requests or calibration prompts the prediction rests on.
  // Requests finished with it since the start, and those of them that gave no acceptance, because no draft
  // was verified. The latter count as samples; otherwise a drafter that seldom drafts would be explored for
  // ever.
  uint64_t finished = 0;
  uint64_t idle_finished = 0;
  std::optional<DraftCosts> costs;  // Nothing: never measured.
  // As the drafter reports: seconds for a level of one session's tree, which at best is all hidden.
  std::optional<double> told_level_seconds;
  double correction = 1.0;      // Measured over predicted throughput of its recent requests.
  uint64_t idle_decisions = 0;  // How many decisions ago it was last timed, or tried for that.
  // Requests for which it was chosen and that have not finished.
  uint32_t pending = 0;
  // Whether scores of the drafter exist, so that it is known even if it is not used. A draft head cannot
  // score without the target's features: it is known only from requests for which it drafted.
  bool scored = true;
};

// What the choice knows about decoding without a drafter; fields as in Candidate.
struct PlainDecoding {
  double correction = 1.0;
  uint64_t idle_decisions = 0;
};

struct ChoiceOptions {
  // A drafter is explored until it has this many samples.
  double explore_samples = 25.0;
  // If a drafter, or plain decoding, was not timed for this many decisions, it is used once, to notice a
  // change of its speed. 0: never.
  uint64_t refresh_decisions = 512;
  // The share of decisions that each unscored candidate gets, whatever is predicted. It is a share of all
  // prompts, because the prompts for which a candidate was chosen say little about the others. 0: none.
  double explore_share = 0.02;
};

// Why a drafter, as in the label of tandem_router_drafter_selected_total.
inline constexpr absl::string_view kReasonAuto = "auto";  // Promises the highest throughput.
inline constexpr absl::string_view kReasonExplore =
    "explore";  // Is too little known, or one that is not scored.
inline constexpr absl::string_view kReasonRefresh = "refresh";  // Was not used for long.

struct CandidateForecast {
  WindowForecast window;
  DraftCosts costs;                // In force, measured or not.
  double tokens_per_second = 0.0;  // Corrected. 0 while b_p is not known.
};

struct CandidateChoice {
  std::optional<size_t> candidate;  // Absent: plain decoding.
  absl::string_view reason = kReasonAuto;
  CandidateForecast plain;
  std::vector<CandidateForecast> forecasts;  // One per candidate.
};

// Chooses the candidate with the highest predicted throughput, including plain decoding: the test of Theorem
// 3 for any number of candidates. Exploration comes first, in this order:
//
// 1. the candidate with the fewest samples, counting requests in flight, if it has too few;
// 2. a candidate that no request has used and whose costs are unknown, as after a calibration on another
//    machine;
// 3. a share for each unscored candidate, by `draw`, uniform in [0, 1).
//
// Ties go to plain decoding, then to the first candidate. While `verify` is empty, because nothing was
// measured, the highest predicted acceptance wins. A drafter without measured costs counts with the speed
// that it reports and the others' exposed seconds; one that reports none costs as much as the others on
// average, or nothing.
CandidateChoice ChooseCandidate(absl::Span<const Candidate> candidates, absl::Span<const double> verify,
                                const PlainDecoding& plain, const ChoiceOptions& options, double draw);

}  // namespace tandem::router
