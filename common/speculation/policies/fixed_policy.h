#pragma once

#include <memory>

#include "common/speculation/policies/window_policy.h"

namespace tandem {

// A constant window (Leviathan et al., "Fast inference from transformers via speculative decoding", 2023).
std::unique_ptr<WindowPolicy> MakeFixedPolicy(const FixedOptions& options = {});

}  // namespace tandem
