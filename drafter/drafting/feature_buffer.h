#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/speculation/draft_messages.h"

namespace tandem {

// The target's hidden states of one session that a draft head has not used yet, as they came: rows for
// positions begin() .. end() - 1, without gaps. What comes from a verifier is not trusted.
class FeatureBuffer {
 public:
  // `num_states`, `hidden_size`: of a row. `max_bytes`: held at most.
  FeatureBuffer(uint32_t num_states, uint32_t hidden_size, FeatureType type, size_t max_bytes);

  // Forgets everything; rows are expected from `position` on.
  void Restart(uint32_t position);
  // Takes the rows that are new, all of which lie below `limit`. After a gap in front of them it starts over
  // with them: begin() tells. InvalidArgument, changing nothing, for rows of another type or size or at
  // positions that cannot have any; ResourceExhausted, having forgotten everything, when they do not fit.
  absl::Status Add(const Features& features, uint32_t limit);
  // Forgets the rows before `position`.
  void DropBefore(uint32_t position);

  uint32_t begin() const { return begin_; }
  uint32_t end() const { return end_; }
  size_t num_bytes() const { return rows_.size() - dropped_bytes_; }

  // Numbers of a row.
  uint32_t row_size() const { return num_states_ * hidden_size_; }
  // The row of a position in [begin(), end()), into `row`, [row_size()]. InvalidArgument when a number is not
  // finite: it would spoil keys and values that others may find in the prefix cache.
  absl::Status Read(uint32_t position, absl::Span<float> row) const;

 private:
  const uint32_t num_states_;
  const uint32_t hidden_size_;
  const FeatureType type_;
  const size_t row_bytes_;
  const size_t max_bytes_;
  uint32_t begin_ = 0;
  uint32_t end_ = 0;
  std::string rows_;
  size_t dropped_bytes_ = 0;  // At the front of rows_, until they are most of it: moving the rest takes time.
};

}  // namespace tandem
