#include "bench/acceptance/token_nats.h"

#include <cstddef>

namespace tandem::bench {
namespace {

// Occurrences by which a token is half trusted. From 0.5 to 5 the errors of prediction are the same.
constexpr double kPriorCount = 5.0;

}  // namespace

void TokenNats::Observe(absl::Span<const TokenId> prompt, absl::Span<const float> nats) {
  const absl::Span<const TokenId> scored = prompt.subspan(prompt.size() - nats.size());
  for (size_t i = 0; i < nats.size(); ++i) {
    Sum& token = tokens_[static_cast<size_t>(scored[i])];
    for (Sum* sum : {&token, &all_}) {
      sum->nats += nats[i];
      sum->count += 1.0;
    }
  }
}

double TokenNats::NatsPerToken(absl::Span<const TokenId> tokens) const {
  if (all_.count == 0.0 || tokens.empty()) return 0.0;
  const double mean = all_.nats / all_.count;
  double total = 0.0;
  for (const TokenId token : tokens) {
    const Sum& sum = tokens_[static_cast<size_t>(token)];
    total += (sum.nats + kPriorCount * mean) / (sum.count + kPriorCount);
  }
  return total / static_cast<double>(tokens.size());
}

}  // namespace tandem::bench
