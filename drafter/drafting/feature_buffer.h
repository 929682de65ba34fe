#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/speculation/draft_messages.h"

namespace tandem {

// Holds the target's hidden states of one session, in wire format, until a draft head uses them: rows for
// positions begin() .. end() - 1, without gaps. Checks everything, because verifiers are not trusted.
class FeatureBuffer {
 public:
  // `num_states`, `hidden_size`: of a row. `max_bytes`: the largest size of the buffer.
  FeatureBuffer(uint32_t num_states, uint32_t hidden_size, FeatureType type, size_t max_bytes);

  // Drops all rows, and expects rows from `position` on.
  void Restart(uint32_t position);
  // Adds the new rows, which must be below `limit`. If there is a gap before them, drops the old rows and
  // restarts with the new ones, as begin() shows. InvalidArgument, without a change, for rows of another type
  // or size, or at impossible positions; ResourceExhausted, after dropping all rows, if they do not fit.
  absl::Status Add(const Features& features, uint32_t limit);
  // Drops the rows before `position`.
  void DropBefore(uint32_t position);

  uint32_t begin() const { return begin_; }
  uint32_t end() const { return end_; }
  size_t num_bytes() const { return rows_.size() - dropped_bytes_; }

  // Numbers of a row.
  uint32_t row_size() const { return num_states_ * hidden_size_; }
  // Reads the row of a position in [begin(), end()) into `row`, [row_size()]. InvalidArgument if a number is
  // not finite, because it would spoil keys and values that other sessions may find in the prefix cache.
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
