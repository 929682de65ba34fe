#include "common/drafting/predicted_output.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "common/drafting/best_first.h"

namespace tandem {
namespace {

// From this many tokens that agree on, the place is not doubted, and parting there is remembered.
constexpr uint32_t kSureMatch = 8;
constexpr uint32_t kSomeMatch = 3;

// The probability of the expected token, by how many in front of it agree. Calibration learns what they are
// worth; they have to rise with the match and to tell its lengths apart.
float ScoreAfter(uint32_t match) {
  constexpr float kScores[] = {0.5f, 0.55f, 0.65f, 0.75f, 0.8f, 0.84f, 0.87f, 0.89f};
  if (match < std::size(kScores)) return kScores[match];
  return match < 2 * kSureMatch ? 0.92f : 0.97f;
}
// Of what may come right after a token that differs: it replaced the expected one, it was put in before that,
// or the output goes on where that token stands elsewhere; until more than one token says where.
constexpr float kReplacedScore = 0.4f;
constexpr float kPutInScore = 0.3f;
constexpr float kElsewhereScore = 0.2f;
constexpr uint32_t kDoubtedMatch = 2;

}  // namespace

PredictedOutput::PredictedOutput(TokenIds prediction) : prediction_(std::move(prediction)) {
  by_token_.resize(prediction_.size());
  std::iota(by_token_.begin(), by_token_.end(), 0u);
  std::stable_sort(by_token_.begin(), by_token_.end(),
                   [this](uint32_t a, uint32_t b) { return prediction_[a] < prediction_[b]; });
}

void PredictedOutput::Start(absl::Span<const TokenId> tokens, uint32_t prompt_length) {
  absl::Span<const TokenId> output = tokens.subspan(prompt_length);
  if (output.size() < num_observed_) {
    num_observed_ = 0;
    end_.clear();
    place_ = 0;
    match_ = 0;
    parted_ = 0;
    expected_.reset();
  }
  Observe(output.subspan(num_observed_));
}

void PredictedOutput::Observe(absl::Span<const TokenId> committed) {
  for (const TokenId token : committed) Append(token);
}

void PredictedOutput::Append(TokenId token) {
  ++num_observed_;
  if (end_.size() == kLongestMatch) end_.erase(end_.begin());
  end_.push_back(token);
  expected_.reset();
  if (place_.has_value() && *place_ < prediction_.size() && prediction_[*place_] == token) {
    ++*place_;
    ++match_;
    // A place that was found by few tokens may be another one's.
    if (match_ < kSureMatch && num_observed_ > match_) FindPlace(token);
    return;
  }
  if (place_.has_value()) {
    if (*place_ < prediction_.size()) expected_ = place_;
    if (match_ >= kSomeMatch || num_observed_ == 1) parted_ = *place_;
  }
  place_.reset();
  match_ = 0;
  FindPlace(token);
}

uint32_t PredictedOutput::MatchBefore(size_t place) const {
  const auto most = static_cast<uint32_t>(std::min(place, end_.size()));
  uint32_t length = 0;
  while (length < most && prediction_[place - 1 - length] == end_[end_.size() - 1 - length]) ++length;
  return length;
}

void PredictedOutput::FindPlace(TokenId token) {
  const auto begin = std::partition_point(by_token_.begin(), by_token_.end(),
                                          [&](uint32_t at) { return prediction_[at] < token; });
  const auto end =
      std::partition_point(begin, by_token_.end(), [&](uint32_t at) { return prediction_[at] == token; });
  if (begin == end) return;
  // Those on either side of where they parted, the nearer first; ahead before behind.
  auto ahead = std::partition_point(begin, end, [&](uint32_t at) { return at < parted_; });
  auto behind = ahead;
  size_t best = 0;
  uint32_t longest = 0;
  const auto consider = [&](uint32_t at) {
    const uint32_t match = MatchBefore(at + 1);
    if (match <= longest) return;
    longest = match;
    best = at + 1;
  };
  for (size_t i = 0; i < 2 * kMostPlaces && (ahead != end || behind != begin); ++i) {
    const bool forward =
        behind == begin || (ahead != end && *ahead - parted_ <= parted_ - *std::prev(behind));
    consider(forward ? *ahead++ : *--behind);
  }
  // Where it stands already is as good as any equal match.
  if (place_.has_value() && MatchBefore(*place_) >= longest) return;
  place_ = best;
  match_ = longest;
}

std::vector<ProposedNode> PredictedOutput::Propose(const ProposalLimits& limits) const {
  // A place below which the prediction goes on; without one, what may come right after a token that differs.
  struct Growth {
    std::optional<size_t> place;
    uint32_t match = 0;
  };
  const auto along = [this](size_t place, uint32_t match, float score) {
    return GrowthBranch<Growth>{
        .token = prediction_[place], .score = score, .state = {.place = place + 1, .match = match + 1}};
  };
  const bool parts = expected_.has_value() && match_ < kDoubtedMatch;
  if (!parts && !place_.has_value()) return {};
  const Growth root{.place = parts ? std::nullopt : place_, .match = match_};
  return GrowBestFirst<Growth>(root, limits, [&](const Growth& at) {
    std::vector<GrowthBranch<Growth>> branches;
    const auto add = [&](size_t place, uint32_t match, float score) {
      if (place >= prediction_.size()) return;
      const bool known = std::any_of(branches.begin(), branches.end(),
                                     [&](const auto& branch) { return branch.token == prediction_[place]; });
      if (!known) branches.push_back(along(place, match, score));
    };
    if (at.place.has_value()) {
      add(*at.place, at.match, ScoreAfter(at.match));
    } else {
      add(*expected_ + 1, 0, kReplacedScore);
      add(*expected_, 0, kPutInScore);
      if (place_.has_value()) add(*place_, match_, kElsewhereScore);
    }
    return branches;
  });
}

}  // namespace tandem
