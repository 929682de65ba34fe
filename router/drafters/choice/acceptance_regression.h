#pragma once

#include <cstddef>
#include <cstdint>

#include "Eigen/Dense"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tandem/v1/routing.pb.h"

namespace tandem::router {

// Predicts a prompt's single-token acceptance with one drafter from the prompt's features (On-the-fly
// adaptation, section 5, equation 5): least squares with an intercept,
//
//   Z = (sum w u u')^-1 sum w u a
//
// kept as sums, so that one more prompt costs an outer product and yields exactly what solving anew would
// (recursive least squares). Older prompts count less with every new one. A ridge on the coefficients makes
// few prompts safe: without any, the prior is predicted, with a wide interval. When errors of one sign follow
// one another beyond chance, as when a drafter's model is replaced, most of what came before is forgotten at
// once. Not thread-safe.
class AcceptanceRegression {
 public:
  struct Options {
    // Of older samples for every new one of weight 1. 0.998 is a memory of 500 prompts.
    double forgetting = 0.998;
    // In samples of weight 1: how much evidence a coefficient needs to be taken at half its size, when its
    // feature is 1 in size.
    double ridge = 4.0;
    double intercept_ridge = 0.1;
    // Of acceptance over all prompts and drafters, before anything is known, and its spread, which counts as
    // so many samples.
    double prior_mean = 0.6;
    double prior_deviation = 0.15;
    double prior_samples = 4.0;
    // Predictions lie in [0, highest]; a chain of certain tokens would have no end.
    double highest = 0.98;
  };

  struct Prediction {
    double mean = 0.0;
    double low = 0.0;   // With `high`, holds 90 of 100 prompts like this one,
    double high = 0.0;  // as far as errors are normal.
  };

  AcceptanceRegression(const Options& options, size_t dimension);

  // A prompt and what it came to, in [0, 1]. `weight`, in (0, 1], says how much that figure is worth. Ignored
  // unless all are finite and in range, and `features` has the dimension. Calibration prompts, whose order
  // means nothing, are observed without forgetting.
  void Observe(absl::Span<const double> features, double acceptance, double weight, bool forget = true);
  // `features` has the dimension.
  Prediction Predict(absl::Span<const double> features) const;

  // Sum of weights, older ones discounted.
  double weight() const { return weight_; }
  // Observations since the start, each counting 1.
  uint64_t samples() const { return samples_; }
  size_t dimension() const { return static_cast<size_t>(moments_.size()) - 1; }

  void Save(v1::RegressionState* state) const;
  // InvalidArgument names the field of a state that Save cannot have written.
  static absl::StatusOr<AcceptanceRegression> Load(const Options& options, size_t dimension,
                                                   const v1::RegressionState& state);

 private:
  void Solve();
  // Before a sample is observed: shifts earlier ones when what was learned does not hold any more. Returns
  // what they weigh from then on.
  double Unlearn(const Eigen::VectorXd& x, double y);

  Options options_;
  Eigen::MatrixXd gram_;     // [1 + dimension, 1 + dimension]; the first row and column are the intercept's.
  Eigen::VectorXd moments_;  // [1 + dimension], of acceptance less the prior mean.
  double squares_ = 0.0;
  double weight_ = 0.0;
  uint64_t samples_ = 0;
  double recent_error_ = 0.0;  // Averages over recent samples: of errors,
  double surprise_ = 0.0;      // and of errors in standard deviations.
  // Follow from the sums.
  Eigen::LDLT<Eigen::MatrixXd> factors_;
  Eigen::VectorXd coefficients_;
  double variance_ = 0.0;  // Of single prompts about the prediction.
};

}  // namespace tandem::router
