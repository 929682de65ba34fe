#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem::fuzz {

// A reader of data from outside, as a fuzz target. Its inputs come from libFuzzer (libfuzzer_main.cc) and, in
// every build, from fuzz_test.cc: seeds, earlier findings, and damaged seeds.
struct Target {
  absl::string_view name;
  // Reads one input; whether it was taken for a valid one. Whatever it is, nothing crashes, no more memory
  // and time are used than its size allows, and what the reader promises is held to by Require.
  bool (*run)(absl::string_view input);
  // Inputs to begin with, at least one of them valid. Made of the bundled models and of what tests have, so
  // that the repository need not hold them.
  std::vector<std::string> (*seeds)();
  // Spoilt seeds that the test tries: about a second's worth with sanitizers.
  int spoilt = 2000;
};

// For GoogleTest's messages.
inline void PrintTo(const Target& target, std::ostream* stream) {
  *stream << target.name;
}

// All targets that are linked into the program, by name.
std::vector<Target> Targets();

// A global variable in every target's file registers the target in programs that link the file.
class Registration {
 public:
  explicit Registration(const Target& target);
};

// Ends the process with a message unless `holds`.
void Require(bool holds, absl::string_view what);

// Returns false. Checks that an error names where it is (`name`) and is not too long, whatever the input was.
bool Refused(const absl::Status& status, absl::string_view name);

// Takes an input apart. Once it is used up, results are zero or empty.
class InputReader {
 public:
  explicit InputReader(absl::string_view input) : rest_(input) {}

  bool empty() const { return rest_.empty(); }
  uint8_t Byte();
  // Below `bound`, which is at least 1 and at most 256.
  uint8_t Below(int bound) { return static_cast<uint8_t>(Byte() % bound); }
  // Little endian, of so many bytes as come.
  uint32_t Word();
  // So many bytes at most as the next byte says.
  absl::string_view Bytes() { return Take(Byte()); }
  // The same with two bytes of length, little endian.
  absl::string_view LongBytes();
  // Up to the next kPartEnd, which is left out, or the end.
  absl::string_view Part();
  absl::string_view Rest() { return Take(rest_.size()); }

 private:
  absl::string_view Take(size_t count);

  absl::string_view rest_;
};

// Separates the texts of an input that has several.
inline constexpr char kPartEnd = '\0';

// Makes seeds for targets that read with InputReader.
std::string WithLength(absl::string_view bytes);
std::string WithLongLength(absl::string_view bytes);
std::string Parts(const std::vector<std::string>& parts);

// The content of a file in the repository; the process ends if there is none.
std::string RepositoryFile(const std::string& path);
// The names of the files in a folder of the repository that end in `ending`, sorted.
std::vector<std::string> RepositoryFiles(const std::string& folder, absl::string_view ending);

// Writes a file with that name and content to a folder of this process, and returns its path.
std::string ScratchFile(absl::string_view name, absl::string_view content);
std::string ScratchFolder();

}  // namespace tandem::fuzz
