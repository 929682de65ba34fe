#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "common/engine/cpu/testing/random_model.h"
#include "common/engine/cuda/cuda_engine.h"
#include "common/engine/cuda/testing/engine_probe.h"
#include "common/engine/cuda/testing/host_ops.h"
#include "gtest/gtest.h"

// Small models with random weights on emulated GPUs.
namespace tandem {

inline constexpr WeightType kGpuWeightTypes[] = {WeightType::kAsInFile, WeightType::kInt8, WeightType::kInt4,
                                                 WeightType::kFp8, WeightType::kFp8Tensor};

// One weight type for each kind of product.
inline constexpr WeightType kGpuProductTypes[] = {WeightType::kAsInFile, WeightType::kInt8, WeightType::kInt4,
                                                  WeightType::kFp8};

// In a form that test names allow.
inline std::string TestName(WeightType type) {
  return absl::StrReplaceAll(WeightTypeName(type), {{"-", "_"}});
}

inline ModelConfig SmallConfig() {
  ModelConfig config;
  config.architecture = "Qwen3ForCausalLM";
  config.hidden_size = 32;
  config.num_layers = 2;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 10;
  config.intermediate_size = 56;
  config.vocab_size = 131;
  config.max_context = 100;
  config.qk_norm = true;
  return config;
}

inline std::shared_ptr<const Model> SmallModel(const ModelConfig& config = SmallConfig()) {
  return MakeRandomModel({.config = config, .dtype = TensorView::DType::kBF16});
}

inline std::unique_ptr<CudaEngine> Open(const Model& model, const CudaEngine::Options& options,
                                        const HostOps::Options& ops = {}) {
  auto engine = CudaEngine::Create(model, options, std::make_unique<HostOps>(ops));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

inline HostOps& OpsOf(CudaEngine& engine) {
  return static_cast<HostOps&>(engine.ops());
}

// The root mean square of the differences, divided by that of the expected values.
inline double RelativeError(const std::vector<Logits>& got, const std::vector<Logits>& expected) {
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    for (size_t j = 0; j < expected[i].size(); ++j) {
      error += std::pow(got[i][j] - expected[i][j], 2.0);
      size += std::pow(expected[i][j], 2.0);
    }
  }
  return std::sqrt(error / size);
}

}  // namespace tandem
