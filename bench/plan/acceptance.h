#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::plan {

// The most guesses of a drafter at one position: no node has more children.
inline constexpr size_t kMostGuesses = 8;

// A drafter's guesses at one position of an output, best first, and which one was right.
struct GuessRecord {
  static constexpr uint8_t kNone = 0xff;
  std::array<float, kMostGuesses> probabilities = {};  // The drafter's; 0 beyond the last one.
  uint8_t right = kNone;                               // Which of them the target chose.
};

// How well one drafter does on one kind of text. Either its guesses along recorded outputs, in order, so that
// easy and hard passages alternate as in real text. Or, if nothing was recorded, how often its first guess is
// right, its second, and so on.
class Acceptance {
 public:
  // At least one record.
  explicit Acceptance(std::vector<GuessRecord> recorded);
  // Each probability in [0, 1], at most kMostGuesses of them, with a sum of at most 1.
  static absl::StatusOr<Acceptance> OfRates(const std::vector<double>& rates);

  bool is_recorded() const { return !records_.empty(); }
  size_t num_records() const { return records_.size(); }
  // What was recorded at a place, which is taken modulo their number.
  const GuessRecord& RecordAt(uint64_t place) const { return records_[place % records_.size()]; }
  // Likewise of what was not recorded, by a draw from [0, 1).
  GuessRecord Draw(double uniform) const;

  // How often one of the first `guesses` is right.
  double Rate(size_t guesses) const;

 private:
  Acceptance() = default;

  std::vector<GuessRecord> records_;
  std::vector<double> rates_;
};

// The acceptance for every kind and drafter.
class AcceptanceBook {
 public:
  void Add(absl::string_view kind, absl::string_view drafter, Acceptance acceptance);
  // nullptr when nothing is known of them.
  const Acceptance* Find(absl::string_view kind, absl::string_view drafter) const;
  // Adds what `tandem-bench guesses --json` wrote:
  //
  //   {"format": 1, "guesses": [{"kind": "code", "drafter": "general-1m", "temperature": 0.8,
  //     "outputs": [[[right, p1, p2, ...], ...], ...]}, ...]}
  //
  // `right` counts from 1 and is 0 where no guess was right. Where a kind and drafter come twice, as they do
  // with several temperatures, the outputs are put together. Errors name file and field.
  absl::Status AddFile(absl::string_view json, absl::string_view path);
  bool empty() const { return entries_.empty(); }
  std::vector<std::pair<std::string, std::string>> Known() const;

 private:
  std::map<std::pair<std::string, std::string>, Acceptance, std::less<>> entries_;
};

}  // namespace tandem::plan
