// Every target on its seeds, on what was found before (regressions/TARGET), and on seeds that are spoilt in
// ways that are the same in every run. What looks further is run.sh.
//
//   TANDEM_FUZZ_TIMES=N   spoil N times as many

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/environment_number.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fuzz/fuzz_target.h"

// Of AddressSanitizer, where there is one.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace tandem::fuzz {
namespace {

// The input that is tried, for whoever wants to see it again.
std::string& CurrentName() {
  static auto* const name = new std::string();
  return *name;
}
absl::string_view current_input;

void KeepInput() {
  const std::string path = absl::StrCat(TANDEM_BINARY_DIR, "/fuzz-finding-", CurrentName());
  std::ofstream(path, std::ios::binary) << current_input;
  std::fprintf(stderr, "the input is in %s\n", path.c_str());
}

void OnSignal(int signal) {
  KeepInput();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

bool Try(const Target& target, absl::string_view input) {
  CurrentName() = std::string(target.name);
  current_input = input;
  const bool taken = target.run(input);
  if (::testing::Test::HasFailure()) KeepInput();
  return taken;
}

class Spoiler {
 public:
  explicit Spoiler(uint64_t seed) : random_(seed) {}

  // One to six changes: a flipped bit, another byte, a byte that matters in texts, a number at its bounds, a
  // cut, a piece that is removed, repeated, or of another seed.
  std::string Spoil(const std::vector<std::string>& seeds) {
    std::string bytes = seeds[Below(seeds.size())];
    for (size_t changes = 1 + Below(6); changes > 0; --changes) Change(seeds, bytes);
    return bytes;
  }

 private:
  size_t Below(size_t bound) { return static_cast<size_t>(random_() % bound); }

  std::string PieceOf(const std::string& bytes) {
    if (bytes.empty()) return "";
    return bytes.substr(Below(bytes.size()), 1 + Below(Below(4) == 0 ? 64 : 8));
  }

  void Change(const std::vector<std::string>& seeds, std::string& bytes) {
    constexpr char kStructure[] = "{}[]()<>\",:;-+.0123456789eE%#|\\\n\t \x7f\xff";  // And its end.
    const size_t at = bytes.empty() ? 0 : Below(bytes.size());
    switch (Below(10)) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << Below(8)));
        break;
      case 1:
        if (!bytes.empty()) bytes[at] = static_cast<char>(random_());
        break;
      case 2:
        if (!bytes.empty()) bytes[at] = kStructure[Below(sizeof(kStructure))];
        break;
      case 3: {
        constexpr uint64_t kBounds[] = {0,      1,          0x7f,       0xff,      0x7fff,
                                        0xffff, 0x7fffffff, 0xffffffff, INT64_MAX, UINT64_MAX};
        const uint64_t number = kBounds[Below(std::size(kBounds))];
        const size_t size = size_t{1} << Below(4);
        for (size_t i = 0; i < size && at + i < bytes.size(); ++i)
          bytes[at + i] = static_cast<char>(number >> (8 * i));
        break;
      }
      case 4:
        if (Below(4) == 0) bytes.resize(at);
        break;
      case 5:
        bytes.erase(at, 1 + Below(16));
        break;
      case 6:
        bytes.insert(at, PieceOf(bytes));
        break;
      case 7:
        bytes.insert(at, PieceOf(seeds[Below(seeds.size())]));
        break;
      case 8: {
        const std::string piece = PieceOf(seeds[Below(seeds.size())]);
        bytes.replace(at, piece.size(), piece);
        break;
      }
      case 9: {
        constexpr absl::string_view kNumbers[] = {"-1",        "1e999", "99999999999999999999",
                                                  "0.0000001", "NaN",   "2147483648"};
        bytes.insert(at, std::string(kNumbers[Below(std::size(kNumbers))]));
        break;
      }
    }
  }

  std::mt19937_64 random_;
};

class FuzzTest : public ::testing::TestWithParam<Target> {
 protected:
  static void SetUpTestSuite() {
    SetLogLevel(LogLevel::kError);
    if (__sanitizer_set_death_callback != nullptr) {
      __sanitizer_set_death_callback(KeepInput);
    } else {
      for (const int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGBUS}) std::signal(signal, OnSignal);
    }
  }
};

// Seeds that nothing takes would try nothing but how the first byte is refused.
TEST_P(FuzzTest, TakesItsSeeds) {
  const std::vector<std::string> seeds = GetParam().seeds();
  size_t num_taken = 0;
  for (const std::string& seed : seeds) num_taken += Try(GetParam(), seed) ? 1 : 0;
  std::cout << num_taken << " of " << seeds.size() << " seeds were taken\n";
  EXPECT_GE(5 * num_taken, seeds.size());
}

TEST_P(FuzzTest, WithstandsWhatWasFoundBefore) {
  const std::string folder = absl::StrCat("tests/fuzz/regressions/", GetParam().name);
  for (const std::string& name : RepositoryFiles(folder, "")) {
    SCOPED_TRACE(name);
    Try(GetParam(), RepositoryFile(absl::StrCat(folder, "/", name)));
  }
}

TEST_P(FuzzTest, WithstandsSpoiltSeeds) {
  const auto times = static_cast<int>(NumberFromEnvironment("TANDEM_FUZZ_TIMES", 1, 1, 10'000));
  const std::vector<std::string> seeds = GetParam().seeds();
  Spoiler spoiler(HashBytes(GetParam().name));
  int num_taken = 0, num_refused = 0;
  for (int i = 0; i < GetParam().spoilt * times; ++i) {
    const std::string input = spoiler.Spoil(seeds);
    ++(Try(GetParam(), input) ? num_taken : num_refused);
    ASSERT_FALSE(HasFailure()) << "spoilt seed " << i;
  }
  std::cout << num_taken << " taken, " << num_refused << " refused\n";
  EXPECT_GT(num_taken, GetParam().spoilt / 1000) << "nearly none was taken: the spoilt seeds reach nothing";
  EXPECT_GT(num_refused, GetParam().spoilt / 1000);
}

INSTANTIATE_TEST_SUITE_P(All, FuzzTest, ::testing::ValuesIn(Targets()),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

}  // namespace
}  // namespace tandem::fuzz
