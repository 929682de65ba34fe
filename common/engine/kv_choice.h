#pragma once

#include "common/engine/kv_type.h"
#include "common/model/model.h"

namespace tandem {

// The greatest magnitude of a bias of keys, 0 without any.
float GreatestKeyBias(const Model& model);

// What kAuto stands for on a CPU; any other type itself: bf16, but f32 if keys have biases of kLargeKeyBias
// and more, as in Qwen2.5-0.5B. Of such keys bfloat16's 8 bits lose what distinguishes one from another.
inline constexpr float kLargeKeyBias = 8.0f;
KvType CpuKvType(const Model& model, KvType type);

}  // namespace tandem
