#pragma once

// Compiles a function once for each instruction set and picks one when the program is loaded. Such functions
// hold loops of constant length that the compiler vectorises; as nothing is contracted or reassociated, every
// clone gives the same bits. Sanitizers cannot run before the loader's choice, so they get one version.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(TANDEM_SANITIZED)
#define TANDEM_SIMD_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TANDEM_SIMD_CLONES
#endif

namespace tandem {

// Whether functions for AVX-512 are used instead of their plain versions, which give the same bits: if the
// machine has it (F and DQ).
bool ComputesWithAvx512();
// For tests of the plain versions: false disables AVX-512. Do not call it while other threads choose tokens.
void AllowAvx512(bool allowed);

}  // namespace tandem
