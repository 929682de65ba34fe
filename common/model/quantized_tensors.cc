#include "common/model/quantized_tensors.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/model/file_tensors.h"
#include "common/model/quantized_grid.h"

namespace tandem {
namespace {

using Layout = Quantization::Layout;
using Shape = std::vector<int64_t>;

// Of what is computed beside the weights: inputs, outputs, queries, keys and values.
constexpr absl::string_view kUnusedSuffixes[] = {
    ".input_scale",       ".input_zero_point", ".activation_scale", ".output_scale",
    ".output_zero_point", ".q_scale",          ".q_zero_point",     ".k_scale",
    ".k_zero_point",      ".v_scale",          ".v_zero_point",
};

int64_t DivideUp(int64_t number, int64_t by) {
  return (number + by - 1) / by;
}

bool IsPlainFloat(absl::string_view dtype) {
  return dtype == "F32" || dtype == "F16" || dtype == "BF16";
}

bool IsAllZero(absl::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char byte) { return byte == 0; });
}

class QuantizedTensors final : public TensorSource {
 public:
  QuantizedTensors(WeightFiles files, const Quantization& quantization, const std::string& embedding)
      : files_(std::move(files)), quantization_(quantization), embedding_(embedding) {}

  bool Contains(const std::string& name) const override {
    return files_.Contains(name) || StemOf(name).has_value();
  }

  absl::StatusOr<TensorView> Take(const std::string& name, const Shape& shape) override {
    const std::optional<std::string> stem = StemOf(name);
    if (!stem.has_value() || shape.size() != 2) return files_.Take(name, shape);
    TANDEM_ASSIGN_OR_RETURN(QuantizedGrid::Parts parts, Parts(*stem, shape[0], shape[1]));
    stems_.insert(*stem);
    const QuantizedGrid& matrix = *matrices_.emplace_back(std::make_unique<QuantizedGrid>(std::move(parts)));
    TensorView view = {.dtype = TensorView::DType::kQuantized, .shape = shape, .data = matrix.codes()};
    view.quantized = &matrix;
    return view;
  }

  absl::StatusOr<TensorView> TakeMxFp4(const std::string& name, const Shape& shape) override {
    return files_.TakeMxFp4(name, shape);
  }
  absl::StatusOr<std::vector<int64_t>> TakeIntegers(const std::string& name, int64_t count) override {
    return files_.TakeIntegers(name, count);
  }
  void Ignore(const std::string& name) override { files_.Ignore(name); }
  void IgnoreBelow(absl::string_view prefix, bool others) override { files_.IgnoreBelow(prefix, others); }

  absl::Status Finish(const std::string& architecture) override {
    for (const std::string& name : files_.NamesLeft()) {
      if (IsUnused(name)) files_.Ignore(name);
    }
    TANDEM_RETURN_IF_ERROR(files_.Finish(architecture));
    const auto num_coded = std::count_if(matrices_.begin(), matrices_.end(),
                                         [](const auto& matrix) { return matrix->coding().is_coded; });
    LogInfo(
        "engines convert quantised weights to --weight-dtype; auto keeps some types as they are, others "
        "become float32",
        {{"file", files_.files().path()},
         {"quant_method", quantization_.method},
         {"kept", absl::StrCat(num_coded)},
         {"others", absl::StrCat(static_cast<int64_t>(matrices_.size()) - num_coded)}});
    return absl::OkStatus();
  }

  void Release(const TensorView& tensor) const override {
    tensor.dtype == TensorView::DType::kQuantized ? tensor.quantized->Release() : files_.Release(tensor);
  }

 private:
  // What stands in front of ".weight" if the matrix of that name is quantised.
  std::optional<std::string> StemOf(absl::string_view name) const {
    if (absl::EndsWith(name, embedding_) || !absl::ConsumeSuffix(&name, ".weight")) return std::nullopt;
    const std::string stem(name);
    bool is_quantized = false;
    switch (quantization_.layout) {
      case Layout::kAwq:
      case Layout::kGptq:
        is_quantized = files_.Contains(stem + ".qweight");
        break;
      case Layout::kPacked:
        is_quantized = files_.Contains(stem + ".weight_packed");
        break;
      case Layout::kPlain: {
        const absl::StatusOr<StoredTensor> stored = files_.files().Stored(stem + ".weight");
        is_quantized = stored.ok() && !IsPlainFloat(stored->dtype);
        break;
      }
    }
    return is_quantized ? std::optional(stem) : std::nullopt;
  }

  bool IsUnused(absl::string_view name) const {
    if (quantization_.layout == Layout::kPacked || quantization_.layout == Layout::kPlain) {
      for (const absl::string_view suffix : kUnusedSuffixes) {
        if (absl::EndsWith(name, suffix)) return true;
      }
      return false;
    }
    // Older GPTQ files have a bias beside every matrix.
    absl::string_view stem = name;
    if (!absl::ConsumeSuffix(&stem, ".bias") || !stems_.contains(stem)) return false;
    const absl::StatusOr<StoredTensor> stored = files_.files().Stored(name);
    return stored.ok() && IsAllZero(stored->bytes);
  }

  template <typename... Words>
  absl::Status Error(const std::string& name, const Words&... words) const {
    return absl::InvalidArgumentError(
        absl::StrCat(files_.files().FileOf(name), ": tensor \"", name, "\": ", words...));
  }

  // A tensor that must have this dtype and one of these shapes, of which messages name the first.
  absl::StatusOr<StoredTensor> TakeAs(const std::string& name, absl::string_view dtype,
                                      const std::vector<Shape>& shapes, QuantizedGrid::Parts* parts) {
    const std::string expected = absl::StrCat(dtype, " ", ShapeText(shapes.front()));
    TANDEM_ASSIGN_OR_RETURN(StoredTensor stored, files_.TakeStored(name, expected));
    const bool has_dtype = dtype == kAnyFloat ? IsPlainFloat(stored.dtype) : stored.dtype == dtype;
    if (!has_dtype || std::find(shapes.begin(), shapes.end(), stored.shape) == shapes.end()) {
      return Error(name, stored.dtype, " ", ShapeText(stored.shape), ", expected ", expected);
    }
    parts->stored.push_back(stored.bytes);
    return stored;
  }

  absl::Status TakeScales(const std::string& name, const std::vector<Shape>& shapes, QuantizedGrid::Grid grid,
                          QuantizedGrid::Parts* parts) {
    using DType = QuantizedGrid::Scales::DType;
    TANDEM_ASSIGN_OR_RETURN(const StoredTensor scales, TakeAs(name, kAnyFloat, shapes, parts));
    parts->scales = {.dtype = scales.dtype == "F32"   ? DType::kF32
                              : scales.dtype == "F16" ? DType::kF16
                                                      : DType::kBF16,
                     .data = scales.bytes.data(),
                     .grid = grid};
    return absl::OkStatus();
  }

  // The group of each input, which must be there if config.json asks for it.
  absl::Status TakeGroups(const std::string& name, QuantizedGrid::Parts* parts) {
    if (!quantization_.needs_group_index && !files_.Contains(name)) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(const StoredTensor stored, TakeAs(name, "I32", {{parts->num_inputs}}, parts));
    std::vector<int32_t> groups(static_cast<size_t>(parts->num_inputs));
    std::memcpy(groups.data(), stored.bytes.data(), stored.bytes.size());
    // compressed-tensors writes -1 where inputs are in order.
    if (std::all_of(groups.begin(), groups.end(), [](int32_t group) { return group == -1; })) {
      return absl::OkStatus();
    }
    bool in_order = true;
    for (size_t i = 0; i < groups.size(); ++i) {
      if (groups[i] < 0 || groups[i] >= parts->num_groups) {
        return Error(name, groups[i], " at ", i, ", expected a group from 0 to ", parts->num_groups - 1);
      }
      in_order = in_order && groups[i] == static_cast<int64_t>(i) / parts->inputs_per_scale;
    }
    if (!in_order) parts->group_of_input = std::move(groups);
    return absl::OkStatus();
  }

  absl::Status ExpectWhole(const std::string& name, absl::string_view what, int64_t size,
                           int64_t per_word) const {
    if (size % per_word == 0) return absl::OkStatus();
    return Error(name, "expected with a number of ", what, " that ", per_word, " divides, not ", size);
  }

  absl::StatusOr<QuantizedGrid::Parts> Parts(const std::string& stem, int64_t outputs, int64_t inputs) {
    QuantizedGrid::Parts parts;
    parts.num_outputs = outputs;
    parts.num_inputs = inputs;
    parts.bits = quantization_.bits;
    const auto shared = [](int32_t size, int64_t all) { return size == 0 ? all : int64_t{size}; };
    parts.outputs_per_scale = shared(quantization_.outputs_per_scale, outputs);
    parts.inputs_per_scale = shared(quantization_.inputs_per_scale, inputs);
    parts.num_groups = DivideUp(inputs, parts.inputs_per_scale);
    absl::Status status;
    switch (quantization_.layout) {
      case Layout::kAwq:
      case Layout::kGptq:
        status = FillWithGroupsFirst(stem, &parts);
        break;
      case Layout::kPacked:
        status = FillPacked(stem, &parts);
        break;
      case Layout::kPlain:
        status = FillPlain(stem, &parts);
        break;
    }
    if (!status.ok()) return status;
    return parts;
  }

  // kAwq and kGptq.
  absl::Status FillWithGroupsFirst(const std::string& stem, QuantizedGrid::Parts* parts) {
    const bool is_awq = quantization_.layout == Layout::kAwq;
    const int64_t outputs = parts->num_outputs, inputs = parts->num_inputs, groups = parts->num_groups;
    const int64_t per_word = 32 / quantization_.bits;
    const std::string codes_name = stem + ".qweight", zeros_name = stem + ".qzeros";
    TANDEM_RETURN_IF_ERROR(ExpectWhole(codes_name, "outputs", outputs, per_word));
    if (!is_awq) TANDEM_RETURN_IF_ERROR(ExpectWhole(codes_name, "inputs", inputs, per_word));
    const Shape shape = is_awq ? Shape{inputs, outputs / per_word} : Shape{inputs / per_word, outputs};
    TANDEM_ASSIGN_OR_RETURN(const StoredTensor codes, TakeAs(codes_name, "I32", {shape}, parts));
    parts->codes = codes.bytes.data();
    parts->codes_kind =
        is_awq ? QuantizedGrid::Codes::kWordsAlongOutputs : QuantizedGrid::Codes::kWordsAlongInputs;
    TANDEM_ASSIGN_OR_RETURN(const StoredTensor zeros,
                            TakeAs(zeros_name, "I32", {{groups, outputs / per_word}}, parts));
    parts->zeros = {
        .kind = is_awq ? QuantizedGrid::Zeros::Kind::kAwqWords : QuantizedGrid::Zeros::Kind::kWords,
        .data = zeros.bytes.data(),
        .grid = {.output_stride = 1, .input_stride = outputs / per_word},
        .constant = quantization_.zeros_less_one ? 1 : 0};
    if (quantization_.symmetric) {
      TANDEM_RETURN_IF_ERROR(ExpectMiddles(zeros_name, zeros.bytes));
      parts->zeros = {.constant = 1 << (quantization_.bits - 1)};
    }
    TANDEM_RETURN_IF_ERROR(TakeScales(stem + ".scales", {{groups, outputs}},
                                      {.output_stride = 1, .input_stride = outputs}, parts));
    return is_awq ? absl::OkStatus() : TakeGroups(stem + ".g_idx", parts);
  }

  // Of symmetric codes only the middle is a zero point. Writers differ on whether they take one off, whatever
  // `checkpoint_format` they name.
  absl::Status ExpectMiddles(const std::string& name, absl::string_view words) const {
    const uint32_t middle = uint32_t{1} << (quantization_.bits - 1);
    for (const uint32_t each : {middle - 1, middle}) {
      const uint32_t word = each * (quantization_.bits == 4 ? 0x11111111u : 0x01010101u);
      bool all = true;
      for (size_t at = 0; all && at < words.size(); at += sizeof(word)) {
        all = std::memcmp(words.data() + at, &word, sizeof(word)) == 0;
      }
      if (all) return absl::OkStatus();
    }
    return Error(name, "expected ", middle - 1, " for all zero points, or for all of them ", middle,
                 ", as quantization_config.sym is true");
  }

  absl::Status FillPacked(const std::string& stem, QuantizedGrid::Parts* parts) {
    const int64_t outputs = parts->num_outputs, inputs = parts->num_inputs;
    const int64_t per_word = 32 / quantization_.bits;
    TANDEM_ASSIGN_OR_RETURN(const StoredTensor codes, TakeAs(stem + ".weight_packed", "I32",
                                                             {{outputs, DivideUp(inputs, per_word)}}, parts));
    parts->codes = codes.bytes.data();
    parts->codes_kind = QuantizedGrid::Codes::kWordsOfOutput;
    TANDEM_RETURN_IF_ERROR(ExpectShape(stem + ".weight_shape", {outputs, inputs}));
    TANDEM_RETURN_IF_ERROR(TakeScalesOfBlocks(stem + ".weight_scale", parts));
    parts->zeros = {.constant = 1 << (quantization_.bits - 1)};
    if (!quantization_.symmetric) {
      TANDEM_ASSIGN_OR_RETURN(const StoredTensor zeros,
                              TakeAs(stem + ".weight_zero_point", "I32",
                                     {{DivideUp(outputs, per_word), parts->num_groups}}, parts));
      parts->zeros = {.kind = QuantizedGrid::Zeros::Kind::kWords,
                      .data = zeros.bytes.data(),
                      .grid = {.output_stride = parts->num_groups, .input_stride = 1}};
    }
    return TakeGroups(stem + ".weight_g_idx", parts);
  }

  // A tensor of two integers that repeats a shape.
  absl::Status ExpectShape(const std::string& name, const Shape& shape) {
    TANDEM_ASSIGN_OR_RETURN(const StoredTensor stored, files_.TakeStored(name, "I64 [2]"));
    Shape found(2);
    if (stored.dtype == "I64" && stored.shape == Shape{2}) {
      std::memcpy(found.data(), stored.bytes.data(), stored.bytes.size());
    } else if (stored.dtype == "I32" && stored.shape == Shape{2}) {
      int32_t narrow[2];
      std::memcpy(narrow, stored.bytes.data(), sizeof(narrow));
      found = {narrow[0], narrow[1]};
    } else {
      return Error(name, stored.dtype, " ", ShapeText(stored.shape), ", expected I64 [2]");
    }
    if (found == shape) return absl::OkStatus();
    return Error(name, ShapeText(found), ", expected ", ShapeText(shape), " as in config.json");
  }

  absl::Status FillPlain(const std::string& stem, QuantizedGrid::Parts* parts) {
    TANDEM_ASSIGN_OR_RETURN(const StoredTensor codes,
                            TakeAs(stem + ".weight", quantization_.is_float ? "F8_E4M3" : "I8",
                                   {{parts->num_outputs, parts->num_inputs}}, parts));
    parts->codes = codes.bytes.data();
    parts->codes_kind = quantization_.is_float ? QuantizedGrid::Codes::kFloat8 : QuantizedGrid::Codes::kInt8;
    const bool is_inverse = files_.Contains(stem + ".weight_scale_inv");
    TANDEM_RETURN_IF_ERROR(
        TakeScalesOfBlocks(stem + (is_inverse ? ".weight_scale_inv" : ".weight_scale"), parts));
    const std::string zeros_name = stem + ".weight_zero_point";
    if (quantization_.symmetric) {
      if (!files_.Contains(zeros_name)) return absl::OkStatus();
      TANDEM_ASSIGN_OR_RETURN(const StoredTensor zeros, files_.TakeStored(zeros_name, "zeros"));
      return IsAllZero(zeros.bytes) ? absl::OkStatus()
                                    : Error(zeros_name, "expected zeros, as `symmetric` is true");
    }
    TANDEM_ASSIGN_OR_RETURN(const StoredTensor zeros,
                            TakeAs(zeros_name, "I8", ShapesOfBlocks(*parts), parts));
    parts->zeros = {
        .kind = QuantizedGrid::Zeros::Kind::kInt8, .data = zeros.bytes.data(), .grid = parts->scales.grid};
    return absl::OkStatus();
  }

  absl::Status TakeScalesOfBlocks(const std::string& name, QuantizedGrid::Parts* parts) {
    const QuantizedGrid::Grid grid = {.output_stride = parts->num_groups, .input_stride = 1};
    return TakeScales(name, ShapesOfBlocks(*parts), grid, parts);
  }

  // [outputs, inputs], each divided by what shares a scale; ones at the end may be left out.
  static std::vector<Shape> ShapesOfBlocks(const QuantizedGrid::Parts& parts) {
    const int64_t rows = DivideUp(parts.num_outputs, parts.outputs_per_scale);
    std::vector<Shape> shapes = {{rows, parts.num_groups}};
    if (parts.num_groups == 1) shapes.push_back({rows});
    if (parts.num_groups == 1 && rows == 1) shapes.emplace_back();
    return shapes;
  }

  static constexpr absl::string_view kAnyFloat = "F32, F16 or BF16";

  FileTensors files_;
  const Quantization quantization_;
  const std::string embedding_;
  std::vector<std::unique_ptr<const QuantizedGrid>> matrices_;
  absl::flat_hash_set<std::string> stems_;  // Of their names.
};

}  // namespace

std::unique_ptr<TensorSource> MakeQuantizedTensors(WeightFiles files, const Quantization& quantization,
                                                   const std::string& embedding) {
  return std::make_unique<QuantizedTensors>(std::move(files), quantization, embedding);
}

}  // namespace tandem
