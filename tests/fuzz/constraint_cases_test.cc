// The fuzz target of constraints by itself, on inputs by chance: as many as one likes, each the same in every
// run.
//
//   TANDEM_CONSTRAINT_CASES=N    so many
//   TANDEM_CONSTRAINT_FIRST=N    from this one on
//   TANDEM_CONSTRAINT_SHOW=1     tells each before it is tried
//   TANDEM_CONSTRAINT_FORM=N     of one form: 0 choices, 1 grammars, 2 patterns, 3 schemas

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/environment_number.h"
#include "gtest/gtest.h"
#include "tests/fuzz/constraint_case.h"

namespace tandem::fuzz {
namespace {

constexpr uint64_t kMost = 1'000'000'000;
constexpr int kNumForms = 4;
constexpr int kShown = 20;

TEST(ConstraintCasesTest, OutputsSatisfyTheirConstraints) {
  const uint64_t count = NumberFromEnvironment("TANDEM_CONSTRAINT_CASES", 2000, 1, kMost);
  const uint64_t first = NumberFromEnvironment("TANDEM_CONSTRAINT_FIRST", 0, 0, kMost);
  const uint64_t form = NumberFromEnvironment("TANDEM_CONSTRAINT_FORM", kNumForms, 0, kNumForms);
  uint64_t num_taken = 0, num_faults = 0;
  absl::Duration longest;
  uint64_t longest_case = 0;
  for (uint64_t i = first; i < first + count; ++i) {
    std::mt19937_64 random(i);
    std::string input(1, static_cast<char>(form == kNumForms ? i % kNumForms : form));
    for (uint64_t bytes = 20 + random() % 200; bytes > 0; --bytes)
      input.push_back(static_cast<char>(random()));
    if (std::getenv("TANDEM_CONSTRAINT_SHOW") != nullptr) std::cerr << "case " << i << "\n";
    const absl::Time start = absl::Now();
    const absl::StatusOr<bool> taken = TryConstraint(input);
    if (absl::Now() - start > longest) {
      longest = absl::Now() - start;
      longest_case = i;
    }
    num_taken += taken.ok() && *taken ? 1 : 0;
    if (taken.ok()) continue;
    if (++num_faults <= kShown) ADD_FAILURE() << "case " << i << ": " << taken.status().message();
  }
  std::cout << num_taken << " of " << count << " were taken, " << num_faults
            << " are wrong; the longest took " << longest << ", case " << longest_case << "\n";
  EXPECT_EQ(num_faults, 0u);
  EXPECT_GT(num_taken, count / 4);
}

}  // namespace
}  // namespace tandem::fuzz
