#include "drafter/drafting/stop_head.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>
#include <vector>

#include "Eigen/Dense"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/safetensors.h"
#include "common/model/tensor_convert.h"

namespace tandem {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

class ResidualHead final : public StopHead {
 public:
  struct Layer {
    Matrix weight;
    Eigen::VectorXf bias;
  };

  ResidualHead(std::vector<Layer> layers, Eigen::VectorXf weight, float bias)
      : layers_(std::move(layers)), weight_(std::move(weight)), bias_(bias) {}

  float Acceptance(absl::Span<const float> state) const override {
    Eigen::VectorXf x =
        Eigen::Map<const Eigen::VectorXf>(state.data(), static_cast<Eigen::Index>(state.size()));
    for (const Layer& layer : layers_) {
      const Eigen::VectorXf y = layer.weight * x + layer.bias;
      x.array() += y.array() / (1.0f + (-y.array()).exp());
    }
    const float probability = 1.0f / (1.0f + std::exp(-(weight_.dot(x) + bias_)));
    constexpr float kSmallest = std::numeric_limits<float>::min();
    return std::isfinite(probability) ? std::clamp(probability, kSmallest, 1.0f) : kSmallest;
  }

 private:
  const std::vector<Layer> layers_;
  const Eigen::VectorXf weight_;
  const float bias_;
};

// The numbers of a tensor that must have this shape.
absl::StatusOr<std::vector<float>> ReadTensor(const SafetensorsFile& file, const std::string& name,
                                              const std::vector<int64_t>& shape) {
  absl::StatusOr<TensorView> tensor = file.Tensor(name);
  if (!tensor.ok()) {
    return absl::Status(tensor.status().code(),
                        absl::StrCat(file.path(), ": ", tensor.status().message(), ", expected a stop head"));
  }
  if (tensor->shape != shape) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor ", name, " has the shape ",
                                                   ShapeText(tensor->shape), ", expected ",
                                                   ShapeText(shape)));
  }
  std::vector<float> values(static_cast<size_t>(tensor->num_elements()));
  ConvertToFloat(*tensor, absl::MakeSpan(values));
  return values;
}

absl::StatusOr<ResidualHead::Layer> ReadLayer(const SafetensorsFile& file, int index, int64_t size) {
  const std::string prefix = absl::StrCat("layers.", index, ".");
  ResidualHead::Layer layer;
  TANDEM_ASSIGN_OR_RETURN(const std::vector<float> weight,
                          ReadTensor(file, absl::StrCat(prefix, "weight"), {size, size}));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<float> bias,
                          ReadTensor(file, absl::StrCat(prefix, "bias"), {size}));
  layer.weight = Eigen::Map<const Matrix>(weight.data(), size, size);
  layer.bias = Eigen::Map<const Eigen::VectorXf>(bias.data(), size);
  return layer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const StopHead>> StopHead::LoadIfPresent(const std::string& folder,
                                                                        int32_t hidden_size) {
  const std::string path = absl::StrCat(folder, "/", kFileName);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return nullptr;
  TANDEM_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  std::vector<ResidualHead::Layer> layers;
  for (int i = 0; file.Contains(absl::StrCat("layers.", i, ".weight")); ++i) {
    if (i >= kMaxLayers) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": more than ", kMaxLayers, " layers, expected a stop head"));
    }
    TANDEM_ASSIGN_OR_RETURN(ResidualHead::Layer layer, ReadLayer(file, i, hidden_size));
    layers.push_back(std::move(layer));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<float> weight,
                          ReadTensor(file, "output.weight", {1, hidden_size}));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<float> bias, ReadTensor(file, "output.bias", {1}));
  const size_t known = 2 * layers.size() + 2;
  if (file.names().size() != known) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": ", file.names().size(), " tensors, expected ", known,
        ": layers.N.weight and layers.N.bias without a gap in N, output.weight and output.bias"));
  }
  return std::make_unique<const ResidualHead>(
      std::move(layers), Eigen::Map<const Eigen::VectorXf>(weight.data(), hidden_size), bias[0]);
}

}  // namespace tandem
