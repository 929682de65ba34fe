#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "tandem/v1/admin.pb.h"

namespace tandem {

// What decides the bits of a verifier's outputs, in words, by what it says of itself as the verifier of
// `model` alone. Empty if it does not say enough.
std::string ComputesInWords(const v1::ServerInfo& info, const v1::ModelInfo& model);

// Their hash, 0 of none: verifiers with the same go on with one another's outputs. Routers and verifiers
// compare theirs, so that it is part of the wire protocol: never change it.
uint64_t ArithmeticOf(absl::string_view computes);
// Of outputs with an adapter of that fingerprint.
uint64_t ArithmeticWithAdapter(uint64_t arithmetic, uint64_t fingerprint);

}  // namespace tandem
