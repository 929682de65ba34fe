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

// A drafter as the choice sees it.
struct Candidate {
  std::string drafter;
  AcceptanceRegression::Prediction acceptance;
  double samples = 0.0;  // How many requests or calibration prompts the prediction rests on.
  // Requests since the start that were finished with it, and those among them that taught no acceptance,
  // since nothing was tried: they count as samples, or a drafter that seldom drafts would be explored without
  // end.
  uint64_t finished = 0;
  uint64_t idle_finished = 0;
  std::optional<DraftCosts> costs;  // Nothing: never measured.
  // What the drafter says of itself: seconds for a level of one session's tree, all of it hidden at best.
  std::optional<double> told_level_seconds;
  double correction = 1.0;      // Measured over predicted throughput of its recent requests.
  uint64_t idle_decisions = 0;  // How many decisions ago it was last timed, or tried for that.
  // Decided upon, and not finished yet.
  uint32_t pending = 0;
  // Scores teach it, so that it is known whether it was used or not. A draft head scores nothing without the
  // target's features: all there is to know of it are the requests that it drafted for.
  bool scored = true;
};

// Decoding without a drafter, as the choice sees it; fields as in Candidate.
struct PlainDecoding {
  double correction = 1.0;
  uint64_t idle_decisions = 0;
};

struct ChoiceOptions {
  // A drafter is explored until it has so many samples.
  double explore_samples = 25.0;
  // A drafter, or plain decoding, that was not timed for so many decisions is used once, so that a change of
  // its speed is noticed. 0: never.
  uint64_t refresh_decisions = 512;
  // Of the decisions, so many are each candidate's that is not scored, whatever is predicted: a share of all
  // prompts, since those for which it was chosen say little of the others. 0: none.
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

// The candidate with the highest predicted throughput, plain decoding included: Theorem 3's test carried over
// to any number of candidates. Before that comes exploration: the one with the fewest samples, counting
// requests on their way, and then one that no request has used yet and whose costs nothing tells, as after a
// calibration from another machine. Then comes, by `draw`, uniform in [0, 1), a share for each that is not
// scored. Ties go to plain decoding and then to the candidate that comes first.
// While `verify` is empty, since nothing has measured it, the highest predicted acceptance wins. A drafter
// whose costs were not measured is taken for what it says of itself, with the others' exposed seconds; one
// that says nothing, to cost what the others do on average, or nothing.
CandidateChoice ChooseCandidate(absl::Span<const Candidate> candidates, absl::Span<const double> verify,
                                const PlainDecoding& plain, const ChoiceOptions& options, double draw);

}  // namespace tandem::router
