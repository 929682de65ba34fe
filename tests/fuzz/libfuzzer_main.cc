// What libFuzzer calls, for the target TANDEM_FUZZ_TARGET.
//
//   TANDEM_FUZZ_SEEDS=FOLDER   write the seeds there, and end

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "gtest/gtest.h"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

const Target& TheTarget() {
  static const Target target = [] {
    for (const Target& candidate : Targets()) {
      if (candidate.name == TANDEM_FUZZ_TARGET) return candidate;
    }
    Require(false, "the target " TANDEM_FUZZ_TARGET);
    std::abort();
  }();
  return target;
}

void WriteSeeds(const std::string& folder) {
  std::filesystem::create_directories(folder);
  int number = 0;
  for (const std::string& seed : TheTarget().seeds()) {
    std::ofstream(absl::StrCat(folder, "/seed-", number++), std::ios::binary) << seed;
  }
}

}  // namespace
}  // namespace tandem::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  // Warnings about what is read would be most of the output.
  tandem::SetLogLevel(tandem::LogLevel::kError);
  // What the fixtures of tests expect is a finding too.
  GTEST_FLAG_SET(break_on_failure, true);
  if (const char* const folder = std::getenv("TANDEM_FUZZ_SEEDS"); folder != nullptr) {
    tandem::fuzz::WriteSeeds(folder);
    std::exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::fuzz::TheTarget().run({reinterpret_cast<const char*>(data), size});
  return 0;
}
