#include "router/drafters/choice/acceptance_regression.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tandem::router {
namespace {

// 5 % and 95 % of a normal distribution lie beyond so many deviations.
constexpr double kIntervalDeviations = 1.645;
// An error that is due to chance has an average over recent samples with a deviation of 0.26, sqrt(s / (2 -
// s)): five of those are none. Single errors count up to three deviations, so that it takes five samples at
// least.
constexpr double kSurpriseShare = 0.125;
constexpr double kLargestSurprise = 3.0;
constexpr double kSurpriseLimit = 1.3;
// What earlier samples weigh then, and what must be known before.
constexpr double kKeptWhenSurprised = 0.1;
constexpr double kKnownWeight = 16.0;
// No feature, weight or count that is written comes near it.
constexpr double kLargest = 1e9;

Eigen::VectorXd WithIntercept(absl::Span<const double> features) {
  Eigen::VectorXd x(static_cast<Eigen::Index>(features.size()) + 1);
  x[0] = 1.0;
  std::copy(features.begin(), features.end(), x.data() + 1);
  return x;
}

}  // namespace

AcceptanceRegression::AcceptanceRegression(const Options& options, size_t dimension)
    : options_(options),
      gram_(Eigen::MatrixXd::Zero(static_cast<Eigen::Index>(dimension) + 1,
                                  static_cast<Eigen::Index>(dimension) + 1)),
      moments_(Eigen::VectorXd::Zero(static_cast<Eigen::Index>(dimension) + 1)) {
  Solve();
}

void AcceptanceRegression::Observe(absl::Span<const double> features, double acceptance, double weight,
                                   bool forget) {
  const bool usable =
      features.size() == dimension() && acceptance >= 0.0 && acceptance <= 1.0 && weight > 0.0 &&
      weight <= 1.0 &&
      std::all_of(features.begin(), features.end(), [](double feature) { return std::abs(feature) < 1e3; });
  if (!usable) return;
  const Eigen::VectorXd x = WithIntercept(features);
  const double y = acceptance - options_.prior_mean;
  double keep = forget ? std::pow(options_.forgetting, weight) : 1.0;
  if (forget) keep *= Unlearn(x, y);
  gram_ = keep * gram_ + weight * (x * x.transpose());
  moments_ = keep * moments_ + weight * y * x;
  squares_ = keep * squares_ + weight * y * y;
  weight_ = keep * weight_ + weight;
  ++samples_;
  Solve();
}

double AcceptanceRegression::Unlearn(const Eigen::VectorXd& x, double y) {
  if (weight_ < kKnownWeight) return 1.0;
  const double leverage = std::max(x.dot(factors_.solve(x)), 0.0);
  const double error = y - coefficients_.dot(x);
  const double deviations = error / std::sqrt(variance_ * (1.0 + leverage));
  surprise_ += kSurpriseShare * (std::clamp(deviations, -kLargestSurprise, kLargestSurprise) - surprise_);
  recent_error_ += kSurpriseShare * (error - recent_error_);
  if (std::abs(surprise_) < kSurpriseLimit) return 1.0;
  // As if all earlier samples had come out like recent ones: what features say of prompts is kept.
  squares_ += recent_error_ * (2.0 * moments_[0] + recent_error_ * gram_(0, 0));
  moments_ += recent_error_ * gram_.col(0);
  surprise_ = recent_error_ = 0.0;
  return kKeptWhenSurprised;
}

void AcceptanceRegression::Solve() {
  Eigen::MatrixXd system = gram_;
  system.diagonal().array() += options_.ridge;
  system(0, 0) += options_.intercept_ridge - options_.ridge;
  factors_.compute(system);
  coefficients_ = factors_.solve(moments_);
  // What is left of the squares, with the prior's as if it had been seen.
  const double residual =
      squares_ - 2.0 * coefficients_.dot(moments_) + coefficients_.dot(gram_ * coefficients_);
  const double prior = options_.prior_samples * options_.prior_deviation * options_.prior_deviation;
  // Coefficients that the data decided have fitted some of the noise away.
  const double fitted = std::min(factors_.solve(gram_).trace(), 0.9 * weight_);
  variance_ = (std::max(residual, 0.0) + prior) / (weight_ - fitted + options_.prior_samples);
}

AcceptanceRegression::Prediction AcceptanceRegression::Predict(absl::Span<const double> features) const {
  const Eigen::VectorXd x = WithIntercept(features);
  const double mean = options_.prior_mean + coefficients_.dot(x);
  const double leverage = std::max(x.dot(factors_.solve(x)), 0.0);
  const double reach = kIntervalDeviations * std::sqrt(variance_ * (1.0 + leverage));
  return {.mean = std::clamp(mean, 0.0, options_.highest),
          .low = std::clamp(mean - reach, 0.0, options_.highest),
          .high = std::clamp(mean + reach, 0.0, options_.highest)};
}

void AcceptanceRegression::Save(v1::RegressionState* state) const {
  for (Eigen::Index row = 0; row < gram_.rows(); ++row) {
    for (Eigen::Index column = 0; column <= row; ++column) state->add_gram(gram_(row, column));
  }
  state->mutable_moments()->Add(moments_.data(), moments_.data() + moments_.size());
  state->set_squares(squares_);
  state->set_weight(weight_);
  state->set_samples(samples_);
}

absl::StatusOr<AcceptanceRegression> AcceptanceRegression::Load(const Options& options, size_t dimension,
                                                                const v1::RegressionState& state) {
  const size_t rows = dimension + 1;
  if (static_cast<size_t>(state.moments_size()) != rows ||
      static_cast<size_t>(state.gram_size()) != rows * (rows + 1) / 2) {
    return absl::InvalidArgumentError(absl::StrCat("regression: sums of ", state.moments_size(), " and ",
                                                   state.gram_size(), " entries, expected those of ",
                                                   dimension, " features"));
  }
  const auto in_range = [](double value) { return std::abs(value) < kLargest; };
  if (!std::all_of(state.gram().begin(), state.gram().end(), in_range) ||
      !std::all_of(state.moments().begin(), state.moments().end(), in_range) ||
      !(state.squares() >= 0.0 && state.squares() < kLargest) ||
      !(state.weight() >= 0.0 && state.weight() < kLargest)) {
    return absl::InvalidArgumentError("regression: a sum is not finite, negative or too large");
  }
  AcceptanceRegression regression(options, dimension);
  int next = 0;
  for (Eigen::Index row = 0; row < regression.gram_.rows(); ++row) {
    for (Eigen::Index column = 0; column <= row; ++column) {
      regression.gram_(row, column) = regression.gram_(column, row) = state.gram(next++);
    }
  }
  // Sums of squares with positive weights: anything else was not summed up here.
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> eigen(regression.gram_, Eigen::EigenvaluesOnly);
  if (eigen.info() != Eigen::Success ||
      eigen.eigenvalues().minCoeff() < -1e-6 * (1.0 + eigen.eigenvalues().maxCoeff())) {
    return absl::InvalidArgumentError("regression.gram: not positive semidefinite");
  }
  std::copy(state.moments().begin(), state.moments().end(), regression.moments_.data());
  regression.squares_ = state.squares();
  regression.weight_ = state.weight();
  regression.samples_ = state.samples();
  regression.Solve();
  return regression;
}

}  // namespace tandem::router
