#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tandem::simulation {

// The number in an environment variable; `otherwise` if there is none.
inline uint64_t NumberFromEnvironment(absl::string_view name, uint64_t otherwise) {
  const char* const value = std::getenv(std::string(name).c_str());
  uint64_t number = 0;
  return value != nullptr && absl::SimpleAtoi(value, &number) ? number : otherwise;
}

// The seeds that a test runs: `count` from 1 on, unless the environment asks for others:
//
//   NAME_SEED    run only this one
//   NAME_FIRST   the first of them
struct Seeds {
  Seeds(absl::string_view name, uint64_t count) {
    const uint64_t only = NumberFromEnvironment(absl::StrCat(name, "_SEED"), 0);
    is_single = only > 0;
    begin = is_single ? only : NumberFromEnvironment(absl::StrCat(name, "_FIRST"), 1);
    end = begin + (is_single ? 1 : count);
  }

  uint64_t begin = 1;
  uint64_t end = 1;
  bool is_single = false;
};

}  // namespace tandem::simulation
