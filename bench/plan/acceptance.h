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

// The most guesses of a drafter at one position. No node has more children.
inline constexpr size_t kMostGuesses = 8;

// A drafter's guesses at one position of an output, best first, and which of them was right.
struct GuessRecord {
  static constexpr uint8_t kNone = 0xff;
  std::array<float, kMostGuesses> probabilities = {};  // By the drafter; 0 after the last guess.
  uint8_t right = kNone;                               // The guess that the target chose.
};

// How well one drafter guesses one kind of text. Either a recording of its guesses along outputs, or how
// often its first guess is right, its second, and so on. A recording keeps its order, so easy and hard
// stretches follow one another as in real text. Immutable.
class Acceptance {
 public:
  // At least one record.
  explicit Acceptance(std::vector<GuessRecord> recorded);
  // InvalidArgument unless there are 1 to kMostGuesses rates, each in [0, 1], with a sum of at most 1.
  static absl::StatusOr<Acceptance> OfRates(const std::vector<double>& rates);

  bool is_recorded() const { return !records_.empty(); }
  size_t num_records() const { return records_.size(); }
  // The record at `place`, modulo the number of records. Only of a recording.
  const GuessRecord& RecordAt(uint64_t place) const { return records_[place % records_.size()]; }
  // A record drawn from the rates. `uniform` is in [0, 1).
  GuessRecord Draw(double uniform) const;

  // How often one of the first `guesses` guesses is right.
  double Rate(size_t guesses) const;

 private:
  Acceptance() = default;

  std::vector<GuessRecord> records_;
  std::vector<double> rates_;
};

// The acceptance of every pair of a kind of text and a drafter.
class AcceptanceBook {
 public:
  void Add(absl::string_view kind, absl::string_view drafter, Acceptance acceptance);
  // Null if the pair is unknown.
  const Acceptance* Find(absl::string_view kind, absl::string_view drafter) const;
  // Adds a file that `tandem-bench guesses --json` has written:
  //
  //   {"format": 1, "guesses": [{"kind": "code", "drafter": "general-1m", "temperature": 0.8,
  //     "outputs": [[[right, p1, p2, ...], ...], ...]}, ...]}
  //
  // `right` counts from 1; 0: no guess was right. If a kind and drafter occur several times, as with several
  // temperatures, their outputs are put together. Errors name the file and the field.
  absl::Status AddFile(absl::string_view json, absl::string_view path);
  bool empty() const { return entries_.empty(); }
  std::vector<std::pair<std::string, std::string>> Known() const;

 private:
  std::map<std::pair<std::string, std::string>, Acceptance, std::less<>> entries_;
};

}  // namespace tandem::plan
