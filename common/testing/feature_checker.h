#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/speculation/draft_messages.h"
#include "common/testing/fake_engine.h"

namespace tandem {

// The end of one session at a draft head's drafter. It knows which features it must be sent: the states that
// the target computes for the committed text, each position once, in order and without gaps. A test shows it
// every message of the verifier for the session, in the order of arrival, and it reports what is wrong. Old
// messages may come late or twice, as a drafter must expect: those of an older epoch, or with known
// positions, are ignored.
class FeatureChecker {
 public:
  // `target` is what the verifier runs, and outlives this.
  FeatureChecker(const FakeEngine* target, FeatureNeeds needs) : target_(target), needs_(std::move(needs)) {}

  absl::Status OnRequest(const DraftRequest& request);

  // What to answer to the opening, with features of use from `first_position` on.
  SessionOpened Answer(uint32_t first_position = 0);

  // Says that what came before the position, which is not behind the rows that came, has been used.
  FeaturesUsed Use(uint32_t position);

  uint32_t epoch() const { return epoch_; }
  uint32_t window() const { return needs_.window; }
  // Rows that are here and that Use has not told of.
  uint32_t num_unused() const { return first_.has_value() ? end_ - std::max(used_, *first_) : 0; }
  const TokenIds& tokens() const { return tokens_; }
  // Since the last opening: the position of the first row, and the one behind the last.
  std::optional<uint32_t> first() const { return first_; }
  uint32_t end() const { return end_; }
  // Whether every row that can have been computed is here: the root has none.
  bool complete() const { return first_.has_value() && end_ + 1 == tokens_.size(); }
  // Over all openings.
  uint64_t num_rows() const { return num_rows_; }
  uint64_t num_in_commits() const { return num_in_commits_; }

 private:
  absl::Status OnFeatures(const Features& features);
  absl::Status CheckRow(uint32_t position, absl::Span<const char> row) const;

  const FakeEngine* const target_;
  FeatureNeeds needs_;
  uint32_t epoch_ = 0;
  uint32_t commit_no_ = 0;
  bool answered_ = false;
  TokenIds tokens_;
  std::optional<uint32_t> first_;
  uint32_t end_ = 0;
  uint32_t used_ = 0;
  uint64_t num_rows_ = 0;
  uint64_t num_in_commits_ = 0;
};

}  // namespace tandem
