#include "common/engine/cpu/amx_permission.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tandem {

#if defined(__x86_64__) && defined(__linux__)

bool AmxAvailable() {
  static const bool kAvailable = [] {
    unsigned int eax = 0;
    unsigned int ebx = 0;
    unsigned int ecx = 0;
    unsigned int edx = 0;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
    constexpr unsigned int kAmxBf16 = 1u << 22;
    constexpr unsigned int kAmxTile = 1u << 24;
    constexpr unsigned int kAmxInt8 = 1u << 25;
    constexpr unsigned int kAll = kAmxBf16 | kAmxTile | kAmxInt8;
    if ((edx & kAll) != kAll) return false;
    // The state component of the tiles' data, which Linux gives only to processes that ask (since 5.16).
    constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
    constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return kAvailable;
}

#else

bool AmxAvailable() {
  return false;
}

#endif

}  // namespace tandem
