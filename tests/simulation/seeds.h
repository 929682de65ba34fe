#pragma once

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/environment_number.h"

namespace tandem::simulation {

// The seeds that a test runs: `count` from 1 on, unless the environment asks for others:
//
//   NAME_SEED    run only this one
//   NAME_FIRST   the first of them
struct Seeds {
  Seeds(absl::string_view name, uint64_t count) {
    const uint64_t only = NumberFromEnvironment(absl::StrCat(name, "_SEED"), 0, 1);
    is_single = only > 0;
    begin = is_single ? only : NumberFromEnvironment(absl::StrCat(name, "_FIRST"), 1, 1);
    end = begin + (is_single ? 1 : count);
  }

  uint64_t begin = 1;
  uint64_t end = 1;
  bool is_single = false;
};

}  // namespace tandem::simulation
