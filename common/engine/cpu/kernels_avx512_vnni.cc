#include <immintrin.h>

#include "common/engine/cpu/avx512_vectors.h"
#include "common/engine/cpu/integer_products.h"
#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/vnni_byte_products.h"

namespace tandem {
namespace {

// Multiplies and adds in one instruction.
struct VnniIntegers : Avx512Integers {
  static TANDEM_INLINE Sum MultiplyAdd(Sum sum, Weights weights, const char* pair) {
    return _mm512_dpwssd_epi32(sum, weights, BroadcastPair(pair));
  }
};

}  // namespace

const KernelTable& Avx512VnniKernels() {
  static const KernelTable kTable = [] {
    KernelTable table = Avx512Kernels();
    SetIntegerProducts<Avx512, VnniIntegers>(&table);
    SetVnniByteProducts(&table);
    return table;
  }();
  return kTable;
}

}  // namespace tandem
