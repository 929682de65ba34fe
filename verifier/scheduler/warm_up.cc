#include "verifier/scheduler/warm_up.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/speculation/sampling_parameters.h"

namespace tandem {
namespace {

// Rows of a grid without and with a context, in the order in which they are wanted.
constexpr uint32_t kFlatRows[] = {1, 4, 16, 64, 2, 8, 32};
constexpr uint32_t kDeepRows[] = {1, 16, 64, 4};
constexpr uint32_t kLargestRows = 64;
// Long enough to tell what a token more to attend to costs.
constexpr uint32_t kDeepContext = 512;
constexpr uint32_t kMostRuns = 5;
// Of the budget. A request that comes during a pass waits for its end. For a model that is so slow, this many
// times the first pass may be longer.
constexpr double kLongestPass = 1.0 / 3;
constexpr double kFewFirstPasses = 4.0;
// The first pass of an engine is slow, and all bounds come from the time of one row: it is measured again, if
// that is a small part of the budget.
constexpr double kSecondLook = 0.1;
// Of what is left, for the long context.
constexpr double kDeepShare = 0.5;
// A pass in the long context takes at most this many times that of one without.
constexpr double kDeepFactor = 2.0;
// With fewer rows than these, what further ones cost is a guess: an eighth of the first.
constexpr uint32_t kFewestRows = 4;
constexpr double kGuessedFurther = 1.0 / 8;
constexpr absl::Duration kLogPeriod = absl::Seconds(3);

// Different tokens, because the experts of a model that has some depend on them.
TokenId TokenOf(uint32_t row, int32_t vocab_size) {
  return static_cast<TokenId>((uint64_t{row} * 7919 + 1) % static_cast<uint64_t>(vocab_size));
}

// Linear between the neighbours of `rows`, and beyond them. `points`: ascending, at least one.
double Interpolated(const std::vector<std::pair<uint32_t, double>>& points, uint32_t rows) {
  if (points.size() == 1) return points.front().second;
  size_t high = 1;
  while (high + 1 < points.size() && points[high].first < rows) ++high;
  const auto [low_rows, low] = points[high - 1];
  const auto [high_rows, at_high] = points[high];
  const double share = (static_cast<double>(rows) - low_rows) / (static_cast<double>(high_rows) - low_rows);
  return low + share * (at_high - low);
}

}  // namespace

WarmUp::WarmUp(Engine* engine, BlockPool* pool, const Clock* clock, Options options)
    : engine_(engine), pool_(pool), clock_(clock), options_(std::move(options)), last_log_(clock->Now()) {
  // Half of the pool at most, because the rows need slots of their own.
  const uint64_t room = std::min<uint64_t>(static_cast<uint64_t>(engine->config().max_context),
                                           uint64_t{pool->num_blocks()} * kBlockTokens / 2);
  largest_ = static_cast<uint32_t>(
      std::max<uint64_t>(std::min<uint64_t>({kLargestRows, engine->max_rows(), room}), 1));
  for (const uint32_t rows : kFlatRows) {
    if (rows <= largest_) points_.push_back({.rows = rows});
  }
  if (room < kDeepContext) return;
  deep_context_ = kDeepContext;
  for (const uint32_t rows : kDeepRows) {
    if (rows <= largest_) points_.push_back({.rows = rows, .deep = true});
  }
}

double WarmUp::Left() const {
  return absl::ToDoubleSeconds(options_.budget - spent_);
}

uint32_t WarmUp::num_measured() const {
  return static_cast<uint32_t>(
      std::count_if(points_.begin(), points_.end(), [](const Point& point) { return point.runs > 0; }));
}

double WarmUp::Bound(uint32_t rows) const {
  const Point* below = &points_.front();
  for (const Point& point : points_) {
    if (IsFlat(point) && point.rows <= rows && point.rows > below->rows) below = &point;
  }
  return below->seconds * rows / below->rows;
}

uint32_t WarmUp::CheapestRows() const {
  const Point* cheapest = &points_.front();
  for (const Point& point : points_) {
    if (IsFlat(point) && point.seconds * cheapest->rows < cheapest->seconds * point.rows) cheapest = &point;
  }
  return cheapest->rows;
}

bool WarmUp::CanGoDeep() const {
  if (deep_context_ == 0) return false;
  const uint32_t rows = CheapestRows();
  const double passes = static_cast<double>(deep_context_ - depth_) / rows + 1.0;
  double seconds = kDeepFactor * passes * Bound(rows);
  for (const Point& point : points_) {
    if (point.deep && point.runs == 0) seconds += kDeepFactor * Bound(point.rows);
  }
  // What has begun may take all that is left.
  return seconds <= (depth_ > 0 ? 1.0 : kDeepShare) * Left();
}

std::optional<size_t> WarmUp::NextPoint(bool alone) const {
  const Point& first = points_.front();
  if (first.runs == 0) return 0;
  const double budget = absl::ToDoubleSeconds(options_.budget);
  if (first.runs == 1 && first.seconds <= std::min(kSecondLook * budget, Left())) return 0;
  const double most = std::min(std::max(kLongestPass * budget, kFewFirstPasses * first.seconds), Left());
  const bool deep = alone && CanGoDeep();
  std::optional<size_t> again;
  for (size_t i = 0; i < points_.size(); ++i) {
    const Point& point = points_[i];
    if (point.deep && !deep) continue;
    if (point.runs == 0 && (point.deep ? kDeepFactor : 1.0) * Bound(point.rows) <= most) return i;
    if (point.runs == 0 || point.runs >= kMostRuns || point.seconds > most) continue;
    if (!again.has_value() || point.runs < points_[*again].runs) again = i;
  }
  return again;
}

absl::Status WarmUp::Pass(bool alone) {
  if (done_) return absl::OkStatus();
  if (!alone) Release();
  const std::optional<size_t> next = NextPoint(alone);
  if (!next.has_value()) {
    if (alone || !CanGoDeep()) End();
    return absl::OkStatus();
  }
  Point* const point = &points_[*next];
  const absl::Status passed = point->deep && depth_ + 1 < deep_context_ ? Deepen() : Measure(point);
  if (!passed.ok()) {
    done_ = true;
    Release();
    return passed;
  }
  LogProgress(/*at_end=*/false);
  return absl::OkStatus();
}

void WarmUp::Release() {
  deep_kv_.reset();
  depth_ = 0;
}

absl::StatusOr<double> WarmUp::Step(absl::Span<const StepRow> rows) {
  const absl::Time start = clock_->Now();
  TANDEM_RETURN_IF_ERROR(engine_->Step(rows));
  const absl::Duration took = clock_->Now() - start;
  spent_ += took;
  return absl::ToDoubleSeconds(took);
}

absl::Status WarmUp::Deepen() {
  if (!deep_kv_.has_value()) {
    deep_kv_.emplace(pool_, /*space=*/0);
    // Not Start, which would take blocks of the prefix cache, and these may not be written.
    deep_kv_->Append(TokenIds(deep_context_, 0));
    TANDEM_RETURN_IF_ERROR(deep_kv_->Reserve(deep_context_));
  }
  const uint32_t end = std::min(depth_ + CheapestRows(), deep_context_ - 1);
  std::vector<StepRow> rows;
  for (uint32_t position = depth_; position < end; ++position) {
    rows.push_back({.token = TokenOf(position, engine_->config().vocab_size),
                    .context = deep_kv_->CommittedRow(position)});
  }
  TANDEM_RETURN_IF_ERROR(Step(rows).status());
  depth_ = end;
  return absl::OkStatus();
}

absl::Status WarmUp::Measure(Point* point) {
  const ModelConfig& config = engine_->config();
  // Nothing is ever published: what others find in the prefix cache was not computed here.
  SequenceKv kv(pool_, /*space=*/0);
  std::vector<SlotId> slots;
  for (uint32_t i = 0; i < point->rows; ++i) {
    TANDEM_ASSIGN_OR_RETURN(const SlotId slot, kv.AllocateScratch());
    slots.push_back(slot);
  }
  const auto vocab_size = static_cast<size_t>(config.vocab_size);
  std::vector<float> logits(engine_->chooses() ? 0 : point->rows * vocab_size);
  // What most requests ask of an engine that chooses.
  const SamplingParameters sampling = {.temperature = 0.8f, .top_p = 0.95f};
  std::vector<TokenId> tokens(point->rows);
  std::vector<SeededChoice> choices;
  for (TokenId& token : tokens) choices.push_back({.sampling = &sampling, .token = &token});
  std::vector<StepRow> rows;
  for (uint32_t i = 0; i < point->rows; ++i) {
    rows.push_back({.token = TokenOf(i, config.vocab_size),
                    .context = {.tail = absl::MakeConstSpan(slots).subspan(i, 1)}});
    if (point->deep) {
      rows.back().context.blocks = deep_kv_->blocks();
      rows.back().context.num_committed = depth_;
    }
    if (engine_->chooses()) {
      rows.back().choice = &choices[i];
    } else {
      rows.back().logits = &logits[i * vocab_size];
    }
  }
  TANDEM_ASSIGN_OR_RETURN(const double seconds, Step(rows));
  point->seconds = point->runs == 0 ? seconds : std::min(point->seconds, seconds);
  ++point->runs;
  return absl::OkStatus();
}

RoundTimeModel WarmUp::RoundTime() const {
  std::vector<std::pair<uint32_t, double>> flat;
  std::vector<std::pair<uint32_t, double>> deeper;  // By how much the context makes a pass longer.
  for (const Point& point : points_) {
    if (IsFlat(point)) flat.emplace_back(point.rows, point.seconds);
  }
  std::sort(flat.begin(), flat.end());
  // What disturbs a pass only adds to its time: one of more rows that was faster bounds it.
  for (size_t i = flat.size() - 1; i > 0; --i) {
    flat[i - 1].second = std::min(flat[i - 1].second, flat[i].second);
  }
  const auto [last_rows, last] = flat.back();
  const bool guessed = last_rows < std::min(kFewestRows, largest_);
  if (last_rows < kLargestRows) {
    // Rows do not get cheaper with their number: what goes beyond costs at least what the measured ones do on
    // average.
    const auto [first_rows, first] = flat.front();
    double further = guessed ? kGuessedFurther * first : 0.0;
    if (flat.size() > 1) {
      further = std::max(further, (last - first) / (last_rows - first_rows));
      const auto& [before_rows, before] = flat[flat.size() - 2];
      further = std::max(further, (last - before) / (last_rows - before_rows));
    }
    flat.emplace_back(kLargestRows, last + further * (kLargestRows - last_rows));
  }
  for (const Point& point : points_) {
    if (!point.deep || point.runs == 0) continue;
    deeper.emplace_back(point.rows, std::max(point.seconds - Interpolated(flat, point.rows), 0.0));
  }
  std::sort(deeper.begin(), deeper.end());
  std::vector<RoundTimeModel::Point> grid;
  for (const auto& [rows, seconds] : flat) {
    grid.push_back({.rows = rows, .seconds = seconds, .context = 1});
    if (deeper.empty()) continue;
    grid.push_back({.rows = rows,
                    .seconds = seconds + std::max(Interpolated(deeper, rows), 0.0),
                    .context = deep_context_});
  }
  return RoundTimeModel(grid, guessed);
}

void WarmUp::LogProgress(bool at_end) {
  const absl::Time now = clock_->Now();
  if (!at_end && now - last_log_ < kLogPeriod) return;
  last_log_ = now;
  const RoundTimeModel times = RoundTime();
  LogInfo(at_end ? "round times measured" : "measuring round times",
          {{"model", options_.model},
           {"measured", absl::StrCat(num_measured(), " of ", points_.size())},
           {"seconds", absl::StrFormat("%.2f", absl::ToDoubleSeconds(spent_))},
           {"seconds_left", absl::StrFormat("%.2f", at_end ? 0.0 : std::max(Left(), 0.0))},
           {"step_ms_1_row", absl::StrFormat("%.3f", 1e3 * times.Seconds(1))},
           {"step_ms_16_rows", absl::StrFormat("%.3f", 1e3 * times.Seconds(16))}});
}

void WarmUp::End() {
  done_ = true;
  Release();
  LogProgress(/*at_end=*/true);
}

}  // namespace tandem
