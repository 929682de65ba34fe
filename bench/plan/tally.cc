#include "bench/plan/tally.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/hash.h"

namespace tandem::plan {
namespace {

// A queue counts as growing if the requests in flight increase by more than this share of the arrivals,
constexpr double kGrowingShare = 0.05;
// plus so many standard deviations of their number.
constexpr double kGrowingDeviations = 3.0;

absl::Time TimeOf(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

}  // namespace

BusyTimes::BusyTimes(const std::vector<std::unique_ptr<VerifierMachine>>& of_verifiers,
                     const std::vector<std::unique_ptr<DrafterMachine>>& of_drafters) {
  for (const auto& machine : of_verifiers) {
    verifiers.push_back(machine->busy());
    steps += machine->num_steps();
    rows += machine->num_rows();
    preemptions += machine->preemptions();
  }
  for (const auto& machine : of_drafters) drafters.push_back(machine->busy());
}

void BusyTimes::Add(const BusyTimes& other, int sign) {
  for (size_t i = 0; i < verifiers.size(); ++i) verifiers[i] += sign * other.verifiers[i];
  for (size_t i = 0; i < drafters.size(); ++i) drafters[i] += sign * other.drafters[i];
  const auto add = [sign](uint64_t of_other, uint64_t* own) { *own += sign > 0 ? of_other : -of_other; };
  add(other.steps, &steps);
  add(other.rows, &rows);
  add(other.preemptions, &preemptions);
}

Tally::Tally(const Traffic& traffic, const Slice& slice)
    : traffic_(traffic),
      begin_(TimeOf(slice.begin)),
      end_(TimeOf(slice.end)),
      shown_from_(slice.first ? absl::UnixEpoch() : begin_),
      point_seconds_(traffic.seconds / kTimelinePoints) {
  result_.seconds = slice.end - slice.begin;
  for (size_t i = 0; i < kTimelinePoints; ++i) {
    result_.timeline.push_back({.at_seconds = static_cast<double>(i) * point_seconds_});
  }
}

size_t Tally::PointOf(absl::Time time) const {
  const double point = SecondsOf(time) / point_seconds_;
  return static_cast<size_t>(std::clamp(point, 0.0, static_cast<double>(kTimelinePoints)));
}

absl::Duration Tally::InWindow(absl::Time from, absl::Time to) const {
  return std::max(std::min(to, end_) - std::max(from, begin_), absl::ZeroDuration());
}

void Tally::Spread(absl::Time from, absl::Time to, double TimelinePoint::*field) {
  from = std::max(from, shown_from_);
  to = std::min(to, end_);
  for (size_t i = PointOf(from); i < kTimelinePoints; ++i) {
    const absl::Time begin = TimeOf(result_.timeline[i].at_seconds);
    if (begin >= to) break;
    const absl::Duration part = std::min(to, begin + absl::Seconds(point_seconds_)) - std::max(from, begin);
    result_.timeline[i].*field += std::max(absl::ToDoubleSeconds(part), 0.0) / point_seconds_;
  }
}

void Tally::OnSent(const PlannedRequest& request, absl::Time sent) {
  ++result_.all_arrived;
  if (IsMeasured(sent)) ++result_.arrived;
  if (const size_t point = PointOf(sent); IsShown(sent) && point < kTimelinePoints) {
    result_.timeline[point].requests_per_second += 1.0 / point_seconds_;
  }
  result_.all_asked_tokens += request.output_tokens;
}

void Tally::OnChosen(const PlannedRequest&, absl::string_view drafter, absl::Time sent) {
  if (IsMeasured(sent)) ++result_.requests_by_drafter[std::string(drafter)];
}

void Tally::OnTokens(uint32_t tokens, absl::Time now, absl::Time sent, absl::Time since, absl::Time seen,
                     bool first) {
  result_.all_tokens += tokens;
  if (IsMeasured(now)) window_tokens_ += tokens;
  if (const size_t point = PointOf(now); IsShown(now) && point < kTimelinePoints) {
    result_.timeline[point].tokens_per_second += tokens / point_seconds_;
  }
  if (!IsMeasured(sent)) return;
  const double seconds = absl::ToDoubleSeconds(seen - since);
  if (first) {
    first_token_.Add(seconds);
  } else {
    token_gap_.Add(seconds / tokens, tokens);
  }
}

void Tally::OnEnded(const PlannedRequest& request, const CallEnd& end) {
  ++(end.status.ok() ? result_.all_completed : result_.all_refused);
  if (end.status.ok() && end.tokens != request.output_tokens) ++short_outputs_;
  last_end_ = std::max(last_end_, end.ended);
  if (IsMeasured(end.ended)) window_ended_ += end.status.ok();
  in_flight_time_ += InWindow(end.sent, end.ended);
  queued_time_ += InWindow(end.at_router, end.started);
  Spread(end.sent, end.ended, &TimelinePoint::in_flight);
  Spread(end.at_router, end.started, &TimelinePoint::queued);
  if (end.sent < begin_ && end.ended >= begin_) ++in_flight_at_begin_;
  if (end.sent < end_ && end.ended >= end_) ++in_flight_at_end_;
  for (const int64_t part : {absl::ToUnixNanos(end.started), absl::ToUnixNanos(end.ended)}) {
    // A sum, so that the order of requests that end at the same moment does not matter.
    result_.digest += HashCombine(HashCombine(request.number, end.tokens), static_cast<uint64_t>(part));
  }
  const SessionSummary& summary = *end.summary;
  if (!IsMeasured(end.sent)) return;
  ++(end.status.ok() ? result_.completed : result_.refused);
  if (!end.status.ok()) return;
  latency_.Add(absl::ToDoubleSeconds(end.ended - end.sent));
  queued_.Add(absl::ToDoubleSeconds(end.started - end.at_router));
  result_.rounds += summary.rounds;
  result_.drafted_rounds += summary.drafted_rounds;
  result_.hits += summary.hits;
  result_.draft_tokens += summary.draft_tokens;
  result_.accepted_tokens += summary.accepted_tokens;
}

void Tally::OnTime(absl::Time next, const std::function<BusyTimes()>& busy) {
  if (next >= begin_ && !busy_at_begin_.has_value()) busy_at_begin_ = busy();
  if (next >= end_ && !busy_.has_value()) {
    busy_ = busy();
    busy_->Add(*busy_at_begin_, -1);
  }
}

void Tally::Merge(const Tally& other) {
  Result& own = result_;
  const Result& more = other.result_;
  own.seconds += more.seconds;
  for (uint64_t Result::*field :
       {&Result::arrived, &Result::completed, &Result::refused, &Result::all_arrived, &Result::all_completed,
        &Result::all_refused, &Result::all_asked_tokens, &Result::all_tokens, &Result::rounds,
        &Result::drafted_rounds, &Result::hits, &Result::draft_tokens, &Result::accepted_tokens,
        &Result::digest}) {
    own.*field += more.*field;
  }
  for (const auto& [drafter, requests] : more.requests_by_drafter)
    own.requests_by_drafter[drafter] += requests;
  for (size_t i = 0; i < kTimelinePoints; ++i) {
    own.timeline[i].requests_per_second += more.timeline[i].requests_per_second;
    own.timeline[i].tokens_per_second += more.timeline[i].tokens_per_second;
    own.timeline[i].in_flight += more.timeline[i].in_flight;
    own.timeline[i].queued += more.timeline[i].queued;
  }
  first_token_.Merge(other.first_token_);
  token_gap_.Merge(other.token_gap_);
  latency_.Merge(other.latency_);
  queued_.Merge(other.queued_);
  window_tokens_ += other.window_tokens_;
  window_ended_ += other.window_ended_;
  in_flight_time_ += other.in_flight_time_;
  queued_time_ += other.queued_time_;
  in_flight_at_begin_ += other.in_flight_at_begin_;
  in_flight_at_end_ += other.in_flight_at_end_;
  short_outputs_ += other.short_outputs_;
  last_end_ = std::max(last_end_, other.last_end_);
  if (busy_.has_value() && other.busy_.has_value()) busy_->Add(*other.busy_, 1);
}

void Tally::JudgeSaturation(Result* result) const {
  const auto arrived = static_cast<double>(result->arrived);
  if (result->refused > 0) {
    result->saturated = true;
    result->saturation = absl::StrFormat("%.2f %% of the requests were refused",
                                         100.0 * static_cast<double>(result->refused) / arrived);
    return;
  }
  // A closed loop waits for answers, so its queue cannot grow.
  if (traffic_.concurrency > 0) return;
  const double before = static_cast<double>(in_flight_at_begin_);
  const double growth = static_cast<double>(in_flight_at_end_) - before;
  if (growth <= kGrowingShare * arrived + kGrowingDeviations * std::sqrt(before + 1.0)) return;
  result->saturated = true;
  result->saturation =
      absl::StrFormat("requests in flight grew from %d to %d", in_flight_at_begin_, in_flight_at_end_);
}

absl::StatusOr<Result> Tally::Sum(const Layout& layout) const {
  Result result = result_;
  if (result.all_completed + result.all_refused != result.all_arrived) {
    return absl::InternalError(absl::StrCat(result.all_arrived, " requests came, and ",
                                            result.all_completed + result.all_refused, " ended"));
  }
  if (short_outputs_ > 0) {
    return absl::InternalError(
        absl::StrCat(short_outputs_, " requests ended well without the tokens that they asked for"));
  }
  const double seconds = result.seconds;
  result.makespan_seconds = SecondsOf(last_end_);
  result.requests_per_second = static_cast<double>(window_ended_) / seconds;
  result.tokens_per_second = static_cast<double>(window_tokens_) / seconds;
  result.first_token = LatencyFigures::Of(first_token_);
  result.token_gap = LatencyFigures::Of(token_gap_);
  result.latency = LatencyFigures::Of(latency_);
  result.queued = LatencyFigures::Of(queued_);
  result.mean_in_flight = absl::ToDoubleSeconds(in_flight_time_) / seconds;
  result.mean_queued = absl::ToDoubleSeconds(queued_time_) / seconds;
  if (busy_.has_value()) {
    const auto share = [&](const std::vector<absl::Duration>& times, size_t first, size_t count) {
      absl::Duration busy;
      for (size_t i = first; i < first + count; ++i) busy += times[i];
      return std::min(absl::ToDoubleSeconds(busy) / (seconds * static_cast<double>(count)), 1.0);
    };
    result.verifier_utilisation = share(busy_->verifiers, 0, busy_->verifiers.size());
    size_t first = 0;
    for (const DrafterGroup& group : layout.drafters) {
      if (group.count == 0) continue;
      result.drafter_utilisation[group.name] = share(busy_->drafters, first, group.count);
      first += group.count;
    }
    if (busy_->steps > 0) {
      result.mean_step_rows = static_cast<double>(busy_->rows) / static_cast<double>(busy_->steps);
    }
    result.preemptions = busy_->preemptions;
  }
  if (result.rounds > 0) {
    result.tokens_per_round =
        1.0 + static_cast<double>(result.accepted_tokens) / static_cast<double>(result.rounds);
  }
  result.price_per_hour = layout.PricePerHour();
  if (window_tokens_ > 0) {
    result.cost_per_million_tokens = result.price_per_hour / 3600.0 / result.tokens_per_second * 1e6;
  }
  JudgeSaturation(&result);
  return result;
}

}  // namespace tandem::plan
