#include <immintrin.h>

#include "common/engine/cpu/avx512_vectors.h"
#include "common/engine/cpu/integer_products.h"
#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/kernel_templates.h"

namespace tandem {
namespace {

struct WordIntegers : Avx512Integers {
  static TANDEM_INLINE Sum MultiplyAdd(Sum sum, Weights weights, const char* pair) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(weights, BroadcastPair(pair)));
  }
};

}  // namespace

const KernelTable& Avx512Kernels() {
  static const KernelTable kTable = [] {
    KernelTable table = MakeKernelTable<Avx512>("avx512");
    SetIntegerProducts<Avx512, WordIntegers>(&table);
    // Every such processor has AVX2, and few lack VNNI.
    constexpr auto kFileCodes = static_cast<int>(WeightFormat::kFileCodes);
    table.products[kFileCodes] = Avx2Kernels().products[kFileCodes];
    return table;
  }();
  return kTable;
}

}  // namespace tandem
