#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tandem::bench {

// In place of a drafter's name: speculation without a drafter, so that only the verifier drafts.
inline constexpr char kLocalDrafts[] = "local";

// One way to run the same requests: settings that must not change an output.
struct Configuration {
  std::string label;
  std::string model;        // Served name; targets that differ in their verifiers' settings only.
  std::string drafter;      // Empty: plain decoding. kLocalDrafts: what the verifier guesses by itself.
  std::string policy;       // Empty: the verifier's.
  uint32_t max_window = 0;  // 0: the verifier's.
};

struct Matrix {
  std::vector<std::string> models;    // Empty: the tenant's default.
  std::vector<std::string> drafters;  // "off" is plain decoding, kLocalDrafts no drafter.
  std::vector<std::string> policies;  // "fsm", or "fixed:4" for a largest window of its own.
  std::vector<uint32_t> max_windows;
};

// The parts of a Matrix's policy; the window is 0 if it names none. InvalidArgument if the window is not a
// number above 0.
struct PolicyChoice {
  std::string policy;
  uint32_t max_window = 0;
};
absl::StatusOr<PolicyChoice> ParsePolicyChoice(absl::string_view text);

// All combinations of the matrix's lists, whose policies ParsePolicyChoice parses. A policy with its own
// window is not combined with max_windows. An empty list leaves the setting to the server. Plain decoding has
// no policy and no window, and runs once, on the first model. Labels show the settings that differ.
std::vector<Configuration> MakeConfigurations(const Matrix& matrix);

// Settings that may change outputs.
struct Sampling {
  double temperature = 0.0;
  uint64_t seed = 0;
};

// Seeds only matter above temperature 0; at 0, only the first one runs.
std::vector<Sampling> MakeSamplings(const std::vector<double>& temperatures,
                                    const std::vector<uint64_t>& seeds);

// How requests arrive: `concurrency` at a time, each as soon as one has ended; or, with a rate, as a Poisson
// process, however many are running.
struct Load {
  uint32_t concurrency = 1;
  double requests_per_second = 0.0;  // Above 0: open loop.

  bool open() const { return requests_per_second > 0.0; }
  std::string Label() const;
};

// One configuration's turn with one batch of prompts.
struct Turn {
  uint32_t repetition = 0;
  uint32_t batch = 0;
  uint32_t sampling = 0;
  uint32_t load = 0;
  uint32_t configuration = 0;
};

// Every configuration in every cell (repetition, batch, sampling, load). The configurations of a cell run
// right after one another, so that they see the same machine. The first one rotates from each cell to the
// next that differs only in repetition or batch, so that no configuration always runs first, or always after
// the same one.
std::vector<Turn> MakeSchedule(uint32_t repetitions, uint32_t batches, uint32_t samplings, uint32_t loads,
                               uint32_t configurations);

// The first `count` arrival times of a Poisson process, in order. The same seed gives the same times
// everywhere.
std::vector<absl::Duration> PoissonArrivals(double per_second, size_t count, uint64_t seed);

}  // namespace tandem::bench
