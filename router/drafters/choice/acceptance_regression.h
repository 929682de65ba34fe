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
// The matrices are stored as sums, so that a new prompt costs one outer product and gives exactly the result
// of solving from scratch (recursive least squares). Older prompts count less with every new one. A ridge on
// the coefficients makes predictions from few prompts safe; without any prompt the prediction is the prior,
// with a wide interval. If errors of one sign accumulate beyond chance, for example because a drafter's model
// was replaced, most of the earlier evidence is dropped at once. Not thread-safe.
class AcceptanceRegression {
 public:
  struct Options {
    // Factor on the weight of older samples for every new sample of weight 1. 0.998 is a memory of 500
    // prompts.
    double forgetting = 0.998;
    // In samples of weight 1: the evidence at which a coefficient has half its full size, if its feature has
    // size 1.
    double ridge = 4.0;
    double intercept_ridge = 0.1;
    // Mean and spread of acceptance over all prompts and drafters, used before anything is known, and how
    // many samples the spread counts for.
    double prior_mean = 0.6;
    double prior_deviation = 0.15;
    double prior_samples = 4.0;
    // Predictions lie in [0, highest]. At acceptance 1, a chain would never end.
    double highest = 0.98;
  };

  struct Prediction {
    double mean = 0.0;
    double low = 0.0;   // With `high`, holds 90 of 100 prompts like this one,
    double high = 0.0;  // as far as errors are normal.
  };

  AcceptanceRegression(const Options& options, size_t dimension);

  // Adds a prompt and its acceptance, in [0, 1]. `weight`, in (0, 1]: how reliable that figure is. Ignored
  // unless all are finite and in range, and `features` has the right dimension. Observe calibration prompts
  // without `forgetting`, because their order has no meaning.
  void Observe(absl::Span<const double> features, double acceptance, double weight, bool forget = true);
  // `features` must have the right dimension.
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
  // Called before a sample is added: if what was learned is no longer true, shifts the earlier samples.
  // Returns the factor on their weight.
  double Unlearn(const Eigen::VectorXd& x, double y);

  Options options_;
  Eigen::MatrixXd gram_;     // [1 + dimension, 1 + dimension]; the first row and column are the intercept's.
  Eigen::VectorXd moments_;  // [1 + dimension], of acceptance less the prior mean.
  double squares_ = 0.0;
  double weight_ = 0.0;
  uint64_t samples_ = 0;
  double recent_error_ = 0.0;  // Averages over recent samples: of errors,
  double surprise_ = 0.0;      // and of errors in standard deviations.
  // Computed from the sums.
  Eigen::LDLT<Eigen::MatrixXd> factors_;
  Eigen::VectorXd coefficients_;
  double variance_ = 0.0;  // Of single prompts about the prediction.
};

}  // namespace tandem::router
