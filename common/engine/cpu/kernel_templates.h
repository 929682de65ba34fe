#pragma once

#include "common/engine/cpu/attention_templates.h"
#include "common/engine/cpu/coded_products.h"
#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/product_templates.h"
#include "common/engine/cpu/vector_templates.h"
#include "common/engine/cpu/weight_layouts.h"

// The kernels, written once over a vector of kLanes floats. Each instruction set's source includes this
// inside its own unnamed namespace-scoped vector type V, so that no two of them share an instantiation.
//
// V provides kMaxRows and kMaxAccumulators (how many rows and vectors a product keeps in registers) and the
// static functions used below, each lane by lane and correctly rounded. A Piece is one of the kPieces parts
// of a V that a product's inner loop works on, itself a vector with the same functions; Join makes a V of
// them.

namespace tandem {
namespace {

template <typename V>
void RmsNorm(const float* input, const float* weight, size_t size, float epsilon, float* output) {
  const size_t whole = size - size % kLanes;
  V squares = V::Broadcast(0.0f);
  for (size_t i = 0; i < whole; i += kLanes) {
    const V x = V::Load(input + i);
    squares = V::Fma(x, x, squares);
  }
  if (whole < size) {
    const V x = LoadFirst<V>(input + whole, size - whole);
    squares = V::Fma(x, x, squares);
  }
  const float mean = SumLanes(squares) / static_cast<float>(size);
  const float factor = 1.0f / __builtin_sqrtf(mean + epsilon);
  const V factors = V::Broadcast(factor);
  for (size_t i = 0; i < whole; i += kLanes) {
    V::Store(V::Multiply(V::Load(weight + i), V::Multiply(V::Load(input + i), factors)), output + i);
  }
  for (size_t i = whole; i < size; ++i) output[i] = weight[i] * (input[i] * factor);
}

template <typename V>
void LayerNorm(const float* input, const float* weight, const float* bias, size_t size, float epsilon,
               float* output) {
  const size_t whole = size - size % kLanes;
  V sum = V::Broadcast(0.0f);
  for (size_t i = 0; i < whole; i += kLanes) sum = V::Add(sum, V::Load(input + i));
  if (whole < size) sum = V::Add(sum, LoadFirst<V>(input + whole, size - whole));
  const float mean = SumLanes(sum) / static_cast<float>(size);
  const V means = V::Broadcast(mean);
  V squares = V::Broadcast(0.0f);
  for (size_t i = 0; i < whole; i += kLanes) {
    const V x = V::Subtract(V::Load(input + i), means);
    squares = V::Fma(x, x, squares);
  }
  if (whole < size) {
    // Missing elements have distance 0 from the mean.
    alignas(64) float distances[kLanes] = {};
    for (size_t i = whole; i < size; ++i) distances[i - whole] = input[i] - mean;
    const V x = V::Load(distances);
    squares = V::Fma(x, x, squares);
  }
  const float variance = SumLanes(squares) / static_cast<float>(size);
  const float factor = 1.0f / __builtin_sqrtf(variance + epsilon);
  const V factors = V::Broadcast(factor);
  for (size_t i = 0; i < whole; i += kLanes) {
    const V x = V::Multiply(V::Subtract(V::Load(input + i), means), factors);
    V::Store(V::Fma(V::Load(weight + i), x, V::Load(bias + i)), output + i);
  }
  for (size_t i = whole; i < size; ++i) {
    output[i] = __builtin_fmaf(weight[i], (input[i] - mean) * factor, bias[i]);
  }
}

// values[i] = f(values[i])
template <typename V, typename F>
TANDEM_INLINE void ForAll(size_t size, float* values, F f) {
  const size_t whole = size - size % kLanes;
  for (size_t i = 0; i < whole; i += kLanes) V::Store(f(V::Load(values + i)), values + i);
  if (whole < size) {
    StoreFirst(f(LoadFirst<V>(values + whole, size - whole)), size - whole, values + whole);
  }
}

template <typename V>
TANDEM_INLINE V Silu(V x) {
  const V one = V::Broadcast(1.0f);
  return V::Divide(x, V::Add(one, Exponential(V::Subtract(V::Broadcast(0.0f), x))));
}

template <typename V>
void SiluOf(size_t size, float* values) {
  ForAll<V>(size, values, [](V x) { return Silu(x); });
}

// max(x, 0) - |x| e(|x| / sqrt(2)) / 2, where e is 1 - erf by Abramowitz and Stegun, 7.1.26: to 1.5e-7.
template <typename V>
void GeluOf(size_t size, float* values) {
  ForAll<V>(size, values, [](V x) {
    const V zero = V::Broadcast(0.0f);
    const V magnitude = V::Max(V::Subtract(zero, x), x);
    const V z = V::Multiply(magnitude, V::Broadcast(0.70710678118654752f));
    const V one = V::Broadcast(1.0f);
    const V t = V::Divide(one, V::Fma(V::Broadcast(0.3275911f), z, one));
    V sum = V::Broadcast(1.061405429f);
    sum = V::Fma(sum, t, V::Broadcast(-1.453152027f));
    sum = V::Fma(sum, t, V::Broadcast(1.421413741f));
    sum = V::Fma(sum, t, V::Broadcast(-0.284496736f));
    sum = V::Fma(sum, t, V::Broadcast(0.254829592f));
    const V e = V::Multiply(V::Multiply(sum, t), Exponential(V::Subtract(zero, V::Multiply(z, z))));
    return V::Subtract(V::Max(zero, x), V::Multiply(V::Multiply(magnitude, V::Broadcast(0.5f)), e));
  });
}

// x / (1 + exp(-2 y)), y = sqrt(2 / pi) (x + 0.044715 x^3), which equals x / 2 (1 + tanh(y)).
template <typename V>
void GeluTanhOf(size_t size, float* values) {
  ForAll<V>(size, values, [](V x) {
    const V one = V::Broadcast(1.0f);
    const V inner = V::Fma(V::Multiply(x, x), V::Broadcast(0.044715f), one);
    const V y = V::Multiply(V::Multiply(x, inner), V::Broadcast(-2 * 0.79788456080286536f));
    return V::Divide(x, V::Add(one, Exponential(y)));
  });
}

template <typename V>
void ReluOf(size_t size, float* values) {
  ForAll<V>(size, values, [](V x) { return V::Max(V::Broadcast(0.0f), x); });
}

template <typename V>
void SiluMultiply(const float* up, size_t size, float* gate) {
  const size_t whole = size - size % kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    V::Store(V::Multiply(Silu(V::Load(gate + i)), V::Load(up + i)), gate + i);
  }
  if (whole < size) {
    const size_t rest = size - whole;
    const V value = V::Multiply(Silu(LoadFirst<V>(gate + whole, rest)), LoadFirst<V>(up + whole, rest));
    StoreFirst(value, rest, gate + whole);
  }
}

template <typename V>
void AddInto(const float* addend, size_t size, float* sum) {
  const size_t whole = size - size % kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    V::Store(V::Add(V::Load(sum + i), V::Load(addend + i)), sum + i);
  }
  for (size_t i = whole; i < size; ++i) sum[i] += addend[i];
}

template <typename V>
void MultiplyInto(const float* factor, size_t size, float* product) {
  const size_t whole = size - size % kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    V::Store(V::Multiply(V::Load(product + i), V::Load(factor + i)), product + i);
  }
  for (size_t i = whole; i < size; ++i) product[i] *= factor[i];
}

template <typename V>
void ScaleOf(float factor, size_t size, float* values) {
  ForAll<V>(size, values, [factor](V x) { return V::Multiply(x, V::Broadcast(factor)); });
}

template <typename V>
void CapOf(float cap, size_t size, float* values) {
  ForAll<V>(size, values, [cap](V x) { return Cap(cap, x); });
}

template <typename V>
void ExponentialOf(size_t size, float* values) {
  ForAll<V>(size, values, [](V x) { return Exponential(x); });
}

template <typename V>
KernelTable MakeKernelTable(const char* name) {
  KernelTable table;
  table.name = name;
  ProductKernel& f32 = table.products[static_cast<int>(WeightFormat::kF32)];
  f32.layout = F32Lines();
  f32.multiply = Multiply<V, F32Weights>;
  ProductKernel& bf16 = table.products[static_cast<int>(WeightFormat::kBf16)];
  bf16.layout = Bf16Lines();
  bf16.multiply = Multiply<V, Bf16Weights>;
  SetCodedProducts<V>(&table);
  table.rms_norm = RmsNorm<V>;
  table.layer_norm = LayerNorm<V>;
  table.activations[0] = SiluOf<V>;
  table.activations[1] = GeluOf<V>;
  table.activations[2] = GeluTanhOf<V>;
  table.activations[3] = ReluOf<V>;
  table.silu_multiply = SiluMultiply<V>;
  table.add = AddInto<V>;
  table.multiply = MultiplyInto<V>;
  table.scale = ScaleOf<V>;
  table.cap = CapOf<V>;
  table.exponential = ExponentialOf<V>;
  table.attend = Attend<V>;
  return table;
}

}  // namespace
}  // namespace tandem
