#include "bench/plan/arrivals.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "bench/plan/plan_engine.h"

namespace tandem::plan {
namespace {

// The number of tokens that are more frequent in texts of a kind.
constexpr uint64_t kBand = 16;

TokenId DrawToken(uint64_t bits, uint32_t kind) {
  const uint64_t token = (bits & 1) != 0 ? kind * kBand + (bits >> 8) % kBand : bits >> 8;
  return static_cast<TokenId>(token % static_cast<uint64_t>(PlanEngine::kVocabSize));
}

// Chooses an index with a probability in proportion to its share. `uniform` is in [0, 1).
template <class List, class Share>
size_t PickByShare(const List& list, double uniform, const Share& share_of) {
  double sum = 0.0;
  for (const auto& entry : list) sum += share_of(entry);
  double left = uniform * sum;
  for (size_t i = 0; i + 1 < list.size(); ++i) {
    left -= share_of(list[i]);
    if (left < 0.0) return i;
  }
  return list.size() - 1;
}

}  // namespace

double PlanRandom::Exponential(double mean) {
  return -mean * std::log1p(-Uniform());
}

double PlanRandom::Normal() {
  const double radius = std::sqrt(-2.0 * std::log1p(-Uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * Uniform());
}

uint32_t PlanRandom::Draw(const Lengths& lengths) {
  double length = lengths.mean;
  if (lengths.deviation > 0.0) {
    const double relative = lengths.deviation / lengths.mean;
    const double variance = std::log1p(relative * relative);
    length = std::exp(std::log(lengths.mean) - variance / 2.0 + std::sqrt(variance) * Normal());
  }
  return static_cast<uint32_t>(
      std::clamp(std::round(length), static_cast<double>(lengths.least), static_cast<double>(lengths.most)));
}

Arrivals::Arrivals(const Traffic& traffic, double load)
    : traffic_(traffic), load_(load), times_(traffic.seed), contents_(~traffic.seed) {
  for (const RatePiece& piece : traffic.rates) highest_rate_ = std::max(highest_rate_, piece.rate * load);
}

double Arrivals::RateAt(double seconds) const {
  double rate = 0.0;
  for (const RatePiece& piece : traffic_.rates) {
    if (piece.at_seconds <= seconds) rate = piece.rate;
  }
  return rate * load_;
}

void Arrivals::Fill(PlannedRequest* request) {
  const TenantTraffic& tenant = traffic_.tenants[request->tenant];
  const size_t kind =
      PickByShare(tenant.kinds, contents_.Uniform(), [](const KindShare& k) { return k.share; });
  const auto known = std::find(traffic_.kinds.begin(), traffic_.kinds.end(), tenant.kinds[kind].kind);
  request->kind = static_cast<uint32_t>(known - traffic_.kinds.begin());
  request->prompt_tokens = contents_.Draw(tenant.prompt);
  request->output_tokens = contents_.Draw(tenant.output);
}

PlannedRequest Arrivals::Recorded(double seconds) {
  const RecordedRequest& recorded = traffic_.recorded[next_number_];
  return {.number = next_number_++,
          .at_seconds = seconds,
          .tenant = recorded.tenant,
          .kind = recorded.kind,
          .prompt_tokens = recorded.prompt_tokens,
          .output_tokens = recorded.output_tokens};
}

std::optional<PlannedRequest> Arrivals::At(double seconds) {
  if (!traffic_.recorded.empty()) {
    if (next_number_ >= traffic_.recorded.size()) return std::nullopt;
    return Recorded(seconds);
  }
  PlannedRequest request{.number = next_number_++, .at_seconds = seconds};
  request.tenant = static_cast<uint32_t>(
      PickByShare(traffic_.tenants, contents_.Uniform(), [](const TenantTraffic& t) { return t.share; }));
  Fill(&request);
  return request;
}

std::optional<PlannedRequest> Arrivals::Next() {
  if (!traffic_.recorded.empty()) {
    if (next_number_ >= traffic_.recorded.size()) return std::nullopt;
    const double at = traffic_.recorded[next_number_].at_seconds / load_;
    if (at >= traffic_.seconds) return std::nullopt;
    return Recorded(at);
  }
  if (highest_rate_ <= 0.0) return std::nullopt;
  // A Poisson process of the highest rate, thinned.
  while (true) {
    now_ += times_.Exponential(1.0 / highest_rate_);
    if (now_ >= traffic_.seconds) return std::nullopt;
    if (times_.Uniform() * highest_rate_ < RateAt(now_)) return At(now_);
  }
}

TokenIds PromptOf(const Traffic& traffic, const PlannedRequest& request) {
  TokenIds prompt(request.prompt_tokens);
  const uint64_t shared_seed = HashCombine(HashCombine(traffic.seed, request.tenant), request.kind);
  const uint64_t own_seed = HashCombine(~traffic.seed, request.number);
  const uint32_t shared = traffic.tenants[request.tenant].shared_prompt;
  for (uint32_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = DrawToken(HashCombine(i < shared ? shared_seed : own_seed, i), request.kind);
  }
  prompt[0] = static_cast<TokenId>(request.kind);
  return prompt;
}

}  // namespace tandem::plan
