#include "bench/acceptance/prediction_error.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "bench/acceptance/token_nats.h"
#include "router/drafters/choice/acceptance_regression.h"
#include "router/drafters/choice/drafter_chooser.h"
#include "router/drafters/features/feature_model.h"

namespace tandem::bench {
namespace {

using router::AcceptanceRegression;
using router::FeatureModel;
using router::FeatureVector;

// Where FeatureVector has the perplexity.
constexpr size_t kPerplexityFeature = 1;
constexpr size_t kInnerFolds = 5;
constexpr double kLeastScale = 1e-3;

struct Split {
  std::vector<size_t> learned;
  std::vector<size_t> left_out;
};

// A number for each prompt of a split.
struct SplitValues {
  std::vector<double> learned;
  std::vector<double> left_out;

  void Standardise() {
    const auto count = static_cast<double>(learned.size());
    const double mean = std::accumulate(learned.begin(), learned.end(), 0.0) / count;
    double squares = 0.0;
    for (const double value : learned) squares += (value - mean) * (value - mean) / count;
    const double scale = std::max(std::sqrt(squares), kLeastScale);
    for (std::vector<double>* values : {&learned, &left_out}) {
      for (double& value : *values) {
        value = std::clamp((value - mean) / scale, -FeatureModel::kBound, FeatureModel::kBound);
      }
    }
  }
};

SplitValues RealNats(const AcceptanceData& data, size_t drafter, const Split& split) {
  SplitValues values;
  for (const size_t i : split.learned)
    values.learned.push_back(data.prompts[i].scores[drafter].NatsPerToken());
  for (const size_t i : split.left_out)
    values.left_out.push_back(data.prompts[i].scores[drafter].NatsPerToken());
  return values;
}

SplitValues GuessedNats(const AcceptanceData& data, size_t drafter, const Split& split) {
  const auto observe = [&](size_t prompt, TokenNats& nats) {
    nats.Observe(data.prompts[prompt].tokens, data.prompts[prompt].scores[drafter].prompt_nats);
  };
  SplitValues values;
  values.learned.resize(split.learned.size());
  for (size_t fold = 0; fold < kInnerFolds; ++fold) {
    TokenNats others(data.vocab_size);
    for (size_t k = 0; k < split.learned.size(); ++k) {
      if (k % kInnerFolds != fold) observe(split.learned[k], others);
    }
    for (size_t k = fold; k < split.learned.size(); k += kInnerFolds) {
      values.learned[k] = others.NatsPerToken(data.prompts[split.learned[k]].tokens);
    }
  }
  TokenNats all(data.vocab_size);
  for (const size_t i : split.learned) observe(i, all);
  for (const size_t i : split.left_out) values.left_out.push_back(all.NatsPerToken(data.prompts[i].tokens));
  return values;
}

struct SplitFeatures {
  std::vector<FeatureVector> learned;
  std::vector<FeatureVector> left_out;

  SplitFeatures With(SplitValues perplexity) const {
    perplexity.Standardise();
    SplitFeatures changed = *this;
    for (size_t k = 0; k < learned.size(); ++k)
      changed.learned[k][kPerplexityFeature] = perplexity.learned[k];
    for (size_t k = 0; k < left_out.size(); ++k)
      changed.left_out[k][kPerplexityFeature] = perplexity.left_out[k];
    return changed;
  }
};

SplitFeatures FeaturesOf(const AcceptanceData& data, uint32_t dimension, const Split& split) {
  std::vector<TokenIds> tokens;
  for (const size_t i : split.learned) tokens.push_back(data.prompts[i].tokens);
  FeatureModel::Fitted fitted = FeatureModel::Fit(tokens, dimension, data.vocab_size);
  SplitFeatures features{.learned = std::move(fitted.features), .left_out = {}};
  for (const size_t i : split.left_out) {
    features.left_out.push_back(fitted.model.Extract(data.prompts[i].tokens).features);
  }
  return features;
}

double SquaredErrorOfMean(const AcceptanceData& data, size_t drafter, const Split& split) {
  double mean = 0.0;
  for (const size_t i : split.learned) {
    mean += data.prompts[i].scores[drafter].acceptance / static_cast<double>(split.learned.size());
  }
  double sum = 0.0;
  for (const size_t i : split.left_out) sum += std::pow(data.prompts[i].scores[drafter].acceptance - mean, 2);
  return sum;
}

double SquaredError(const AcceptanceData& data, size_t drafter, const Split& split,
                    const SplitFeatures& features) {
  AcceptanceRegression regression({}, features.learned.front().size());
  for (size_t k = 0; k < split.learned.size(); ++k) {
    const ScoredPrompt::Score& score = data.prompts[split.learned[k]].scores[drafter];
    regression.Observe(features.learned[k], score.acceptance, router::SampleWeight(score.output_tokens),
                       /*forget=*/false);
  }
  double sum = 0.0;
  for (size_t k = 0; k < split.left_out.size(); ++k) {
    const double predicted = regression.Predict(features.left_out[k]).mean;
    sum += std::pow(predicted - data.prompts[split.left_out[k]].scores[drafter].acceptance, 2);
  }
  return sum;
}

}  // namespace

std::vector<PredictionError> MeasurePredictionErrors(const AcceptanceData& data,
                                                     const PredictionErrorOptions& options) {
  std::vector<PredictionError> errors;
  for (const std::string& drafter : data.drafters) errors.push_back({.drafter = drafter});
  std::mt19937 random(options.seed);
  std::vector<size_t> order(data.prompts.size());
  std::iota(order.begin(), order.end(), 0);
  for (uint32_t repeat = 0; repeat < options.repeats; ++repeat) {
    std::shuffle(order.begin(), order.end(), random);
    for (uint32_t fold = 0; fold < options.folds; ++fold) {
      Split split;
      for (size_t i = 0; i < order.size(); ++i) {
        (i % options.folds == fold ? split.left_out : split.learned).push_back(order[i]);
      }
      const SplitFeatures features = FeaturesOf(data, options.dimension, split);
      for (size_t d = 0; d < errors.size(); ++d) {
        const auto add = [&](PerplexityKind kind, double squares) {
          errors[d].root_mean_square[static_cast<size_t>(kind)] += squares;
        };
        add(PerplexityKind::kNone, SquaredErrorOfMean(data, d, split));
        add(PerplexityKind::kTrigrams, SquaredError(data, d, split, features));
        add(PerplexityKind::kTokens,
            SquaredError(data, d, split, features.With(GuessedNats(data, d, split))));
        add(PerplexityKind::kReal, SquaredError(data, d, split, features.With(RealNats(data, d, split))));
      }
    }
  }
  const auto count = static_cast<double>(data.prompts.size()) * options.repeats;
  for (PredictionError& error : errors) {
    for (double& sum : error.root_mean_square) sum = std::sqrt(sum / count);
  }
  return errors;
}

}  // namespace tandem::bench
