#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "tandem/v1/admin.pb.h"

namespace tandem {

// Describes the arithmetic on which the bits of a verifier's outputs depend. `info`: of the verifier as one
// of `model` alone. Empty if it does not say enough.
std::string ComputesInWords(const v1::ServerInfo& info, const v1::ModelInfo& model);

// The hash of ComputesInWords, 0 if that is empty. Verifiers with the same hash continue one another's
// outputs. Routers and verifiers compare hashes, so this is part of the wire protocol: never change it.
uint64_t ArithmeticOf(absl::string_view computes);
// The same for outputs with an adapter of this fingerprint.
uint64_t ArithmeticWithAdapter(uint64_t arithmetic, uint64_t fingerprint);

}  // namespace tandem
