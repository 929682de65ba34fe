#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tandem::bench {

// In the place of a drafter's name: speculation without one, so that the verifier alone drafts.
inline constexpr char kLocalDrafts[] = "local";

// One way to run the same requests: what must not change an output.
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

// A policy of a Matrix taken apart; the window is 0 if it names none. InvalidArgument: the window is not a
// number above 0.
struct PolicyChoice {
  std::string policy;
  uint32_t max_window = 0;
};
absl::StatusOr<PolicyChoice> ParsePolicyChoice(absl::string_view text);

// The product of the matrix's lists, whose policies ParsePolicyChoice takes; one with a window of its own is
// not combined with max_windows. An empty list leaves the setting to the server. Plain decoding has no policy
// and no window, and runs once, on the first model. Labels tell apart what differs.
std::vector<Configuration> MakeConfigurations(const Matrix& matrix);

// What may change outputs.
struct Sampling {
  double temperature = 0.0;
  uint64_t seed = 0;
};

// The seeds matter above temperature 0 only; at 0 the first one runs alone.
std::vector<Sampling> MakeSamplings(const std::vector<double>& temperatures,
                                    const std::vector<uint64_t>& seeds);

// How requests come: `concurrency` at a time, each as soon as one has ended; or, with a rate, as a Poisson
// process, however many are under way.
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

// Every configuration in every (repetition, batch, sampling, load), the configurations of one such cell right
// after one another, so that they meet the same machine. The first of a cell is the next one in each cell
// that differs from the one before in repetition or batch alone: nobody always runs first, or after the same
// one.
std::vector<Turn> MakeSchedule(uint32_t repetitions, uint32_t batches, uint32_t samplings, uint32_t loads,
                               uint32_t configurations);

// `count` arrival times after the start of a Poisson process, in order. The same for the same seed
// everywhere.
std::vector<absl::Duration> PoissonArrivals(double per_second, size_t count, uint64_t seed);

}  // namespace tandem::bench
