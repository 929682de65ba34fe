#include "common/speculation/simd_clones.h"

namespace tandem {
namespace {

bool g_allowed = true;

}  // namespace

bool ComputesWithAvx512() {
#if defined(__x86_64__)
  static const bool kHas = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
  return kHas && g_allowed;
#else
  return false;
#endif
}

void AllowAvx512(bool allowed) {
  g_allowed = allowed;
}

}  // namespace tandem
