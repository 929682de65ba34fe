#include "common/model/gguf_model.h"

#include <bit>
#include <cstring>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/log.h"
#include "common/base/mapped_pages.h"
#include "common/base/status_macros.h"
#include "common/model/config/architecture.h"
#include "common/model/config/strict_json.h"
#include "common/model/gguf_architecture.h"
#include "common/model/gguf_dequantize.h"
#include "common/model/gguf_rotary.h"
#include "common/model/quantized_blocks.h"
#include "common/model/tensor_convert.h"

namespace tandem {
namespace {

constexpr absl::string_view kLatentUp = ".attn_kv_b.weight";

// The tensor that holds an expert's matrix or bias with those of all others, and which of them it is.
struct ExpertPlace {
  std::string file_name;
  int64_t expert = 0;
};
// Of a name "blk.LAYER.experts.EXPERT.ffn_gate_exps.weight".
std::optional<ExpertPlace> FindExpert(absl::string_view name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '.');
  ExpertPlace place;
  if (parts.size() != 6 || parts[2] != "experts" || !absl::SimpleAtoi(parts[3], &place.expert)) {
    return std::nullopt;
  }
  place.file_name = absl::StrJoin({parts[0], parts[1], parts[4], parts[5]}, ".");
  return place;
}

// "blk.LAYER.shared.ffn_gate_exps.weight" as the file's "blk.LAYER.ffn_gate_shexp.weight".
std::string FileName(std::string name) {
  if (!absl::StrContains(name, ".shared.")) return name;
  return absl::StrReplaceAll(name, {{".shared.", "."}, {"_exps.", "_shexp."}});
}

class GgufTensors final : public TensorSource {
 public:
  GgufTensors(GgufFile file, const ModelConfig& config)
      : file_(std::move(file)),
        head_dim_(config.head_dim),
        num_heads_(config.num_heads),
        latent_(config.block.latent),
        num_experts_(config.block.experts.num_experts),
        architecture_(*FindGgufArchitecture(config.architecture)) {}

  void Describe(BlockDescription* block) const override { UseGgufLayout(architecture_, block); }

  bool Contains(const std::string& name) const override { return file_.Find(FileName(name)) != nullptr; }

  absl::StatusOr<TensorView> Take(const std::string& name, const std::vector<int64_t>& shape) override {
    if (const std::optional<ExpertPlace> place = FindExpert(name)) return TakeExpert(*place, shape);
    const std::string file_name = FileName(name);
    const GgufTensor* const found = file_.Find(file_name);
    if (found == nullptr && absl::EndsWith(name, kLatentUp)) {
      if (const std::string layer = file_name.substr(0, file_name.rfind("attn_kv_b"));
          file_.Find(absl::StrCat(layer, "attn_k_b.weight")) != nullptr) {
        return JoinLatent(layer, shape);
      }
    }
    if (found == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          file_.path(), ": tensor \"", file_name, "\" is missing, expected with shape ", ShapeText(shape)));
    }
    // A matrix of one output, a shared expert's gate, may be a vector in the file.
    const bool is_vector =
        shape.size() == 2 && shape[0] == 1 && found->shape == std::vector<int64_t>{shape[1]};
    if (found->shape != shape && !is_vector) return WrongShape(file_name, *found, shape);
    taken_.insert(file_name);
    const bool reordered = architecture_.paired_rows &&
                           (absl::StrContains(name, ".attn_q.") || absl::StrContains(name, ".attn_k."));
    return View({.type = found->type, .shape = shape, .bytes = found->bytes}, reordered);
  }

  absl::StatusOr<std::vector<int64_t>> TakeIntegers(const std::string& name, int64_t count) override {
    return absl::InvalidArgumentError(
        absl::StrCat(file_.path(), ": tensor \"", name, "\" is missing, expected with ", count, " integers"));
  }

  absl::Status Finish(const std::string& architecture) override {
    for (const std::string& name : file_.names()) {
      if (taken_.contains(name) || IsGgufRopeTensor(name)) continue;
      return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": tensor \"", PrintableText(name),
                                                     "\": expected only the tensors of the ", architecture,
                                                     " that the file's keys describe"));
    }
    if (!kept_.empty()) {
      uint64_t num_bytes = 0;
      std::string types;
      for (const auto& [type, kept] : kept_) {
        num_bytes += kept.num_bytes;
        absl::StrAppend(&types, types.empty() ? "" : ", ", type, " ", kept.matrices);
      }
      LogInfo("quantised weights become those of --weight-dtype; auto: kept as they are",
              {{"file", file_.path()}, {"kept", types}, {"bytes", absl::StrCat(num_bytes)}});
    }
    if (joined_.matrices > 0) {
      LogInfo("latents' quantised matrices become float32, since the file has them in parts",
              {{"file", file_.path()},
               {"matrices", absl::StrCat(joined_.matrices)},
               {"bytes", absl::StrCat(joined_.num_bytes)}});
    }
    return absl::OkStatus();
  }

  void Release(const TensorView& tensor) const override {
    if (tensor.dtype == TensorView::DType::kQuantized) return tensor.quantized->Release();
    // Only what the mapping holds can be read again.
    for (const auto& copy : copies_) {
      if (copy.get() == tensor.data) return;
    }
    DropMappedPages(tensor.data, tensor.num_bytes());
  }

 private:
  absl::Status WrongShape(const std::string& file_name, const GgufTensor& found,
                          const std::vector<int64_t>& shape) const {
    return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": tensor \"", file_name, "\": shape ",
                                                   ShapeText(found.shape), ", expected ", ShapeText(shape),
                                                   " as the file's keys say"));
  }

  absl::StatusOr<TensorView> TakeExpert(const ExpertPlace& place, const std::vector<int64_t>& shape) {
    const GgufTensor* const found = file_.Find(place.file_name);
    std::vector<int64_t> whole = {num_experts_};
    whole.insert(whole.end(), shape.begin(), shape.end());
    if (found == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": tensor \"", place.file_name,
                                                     "\" is missing, expected with shape ",
                                                     ShapeText(whole)));
    }
    if (found->shape != whole || place.expert >= num_experts_)
      return WrongShape(place.file_name, *found, whole);
    taken_.insert(place.file_name);
    // Rows are whole blocks, so matrices and biases are too.
    const size_t size = found->bytes.size() / static_cast<size_t>(num_experts_);
    return View({.type = found->type,
                 .shape = shape,
                 .bytes = found->bytes.substr(static_cast<size_t>(place.expert) * size, size)},
                /*reordered=*/false);
  }

  // A tensor of a layer, of that shape.
  absl::StatusOr<const GgufTensor*> Expect(const std::string& file_name, const std::vector<int64_t>& shape) {
    const GgufTensor* const found = file_.Find(file_name);
    if (found == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          file_.path(), ": tensor \"", file_name, "\" is missing, expected with shape ", ShapeText(shape)));
    }
    if (found->shape != shape) return WrongShape(file_name, *found, shape);
    taken_.insert(file_name);
    return found;
  }

  // kv_b_proj, [heads * (keys + values), rank], of attn_k_b, [heads, rank, keys], and attn_v_b, [heads,
  // values, rank].
  absl::StatusOr<TensorView> JoinLatent(const std::string& layer, const std::vector<int64_t>& shape) {
    const int64_t rank = latent_.kv_rank, keys = latent_.unturned_dim, values = latent_.value_dim;
    TANDEM_ASSIGN_OR_RETURN(const GgufTensor* const key_up,
                            Expect(absl::StrCat(layer, "attn_k_b.weight"), {num_heads_, rank, keys}));
    TANDEM_ASSIGN_OR_RETURN(const GgufTensor* const value_up,
                            Expect(absl::StrCat(layer, "attn_v_b.weight"), {num_heads_, values, rank}));
    if (!PlainType(key_up->type).has_value() || !PlainType(value_up->type).has_value()) {
      ++joined_.matrices;
      joined_.num_bytes += key_up->bytes.size() + value_up->bytes.size();
    }
    const bool is_bf16 = key_up->type == GgufType::kBF16 && value_up->type == GgufType::kBF16;
    TensorView view{.dtype = is_bf16 ? TensorView::DType::kBF16 : TensorView::DType::kF32, .shape = shape};
    TANDEM_ASSIGN_OR_RETURN(char* const to, Allocate(view.num_bytes()));
    view.data = to;
    const auto store = [&](int64_t at, float number) {
      const auto bits = std::bit_cast<uint32_t>(number);
      const auto half = static_cast<uint16_t>(bits >> 16);
      is_bf16 ? std::memcpy(to + 2 * at, &half, sizeof(half)) : std::memcpy(to + 4 * at, &bits, sizeof(bits));
    };
    const std::vector<float> from_keys = NumbersOf(*key_up), from_values = NumbersOf(*value_up);
    for (int64_t head = 0; head < num_heads_; ++head) {
      const int64_t begin = head * (keys + values) * rank;
      for (int64_t i = 0; i < rank; ++i) {
        for (int64_t key = 0; key < keys; ++key) {
          store(begin + key * rank + i, from_keys[static_cast<size_t>((head * rank + i) * keys + key)]);
        }
      }
      for (int64_t i = 0; i < values * rank; ++i) {
        store(begin + keys * rank + i, from_values[static_cast<size_t>(head * values * rank + i)]);
      }
    }
    return view;
  }

  static std::vector<float> NumbersOf(const GgufTensor& tensor) {
    int64_t count = 1;
    for (const int64_t size : tensor.shape) count *= size;
    std::vector<float> numbers(static_cast<size_t>(count));
    if (const std::optional<TensorView::DType> plain = PlainType(tensor.type); plain.has_value()) {
      ConvertToFloat({.dtype = *plain, .shape = {count}, .data = tensor.bytes.data()},
                     absl::MakeSpan(numbers));
    } else {
      DequantizeBlocks(tensor.type, tensor.bytes, absl::MakeSpan(numbers));
    }
    return numbers;
  }

  // In the file, or, of a vector that is quantised, a copy. `reordered`: its rows are paired.
  absl::StatusOr<TensorView> View(const GgufTensor& tensor, bool reordered) {
    const std::optional<TensorView::DType> plain = PlainType(tensor.type);
    if (!plain.has_value() && tensor.shape.size() == 2) {
      const QuantizedBlocks& matrix =
          *quantized_.emplace_back(std::make_unique<QuantizedBlocks>(tensor, reordered ? head_dim_ : 0));
      TensorView view = {
          .dtype = TensorView::DType::kQuantized, .shape = tensor.shape, .data = matrix.codes()};
      view.quantized = &matrix;
      Kept& kept = kept_[InfoOf(tensor.type).name];
      ++kept.matrices;
      kept.num_bytes += tensor.bytes.size();
      return view;
    }
    TensorView view{.dtype = plain.value_or(TensorView::DType::kF32), .shape = tensor.shape};
    if (plain.has_value()) {
      view.data = tensor.bytes.data();
    } else {
      // A vector.
      const std::vector<float> numbers = NumbersOf(tensor);
      TANDEM_ASSIGN_OR_RETURN(char* const copy, Allocate(view.num_bytes()));
      std::memcpy(copy, numbers.data(), view.num_bytes());
      view.data = copy;
    }
    if (reordered) {
      const int64_t columns = RowElements(view);
      view.strides = {
          .group_rows = 1, .group_stride = columns, .row_stride = columns, .paired_rows = head_dim_};
    }
    return view;
  }

  static std::optional<TensorView::DType> PlainType(GgufType type) {
    if (type == GgufType::kF32) return TensorView::DType::kF32;
    if (type == GgufType::kF16) return TensorView::DType::kF16;
    if (type == GgufType::kBF16) return TensorView::DType::kBF16;
    return std::nullopt;
  }

  // Memory that is there as long as this.
  absl::StatusOr<char*> Allocate(uint64_t num_bytes) {
    std::unique_ptr<char[]> copy(new (std::nothrow) char[num_bytes]);
    if (copy == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat(file_.path(), ": no memory for ", num_bytes, " bytes of a tensor"));
    }
    return copies_.emplace_back(std::move(copy)).get();
  }

  GgufFile file_;
  int64_t head_dim_;
  int64_t num_heads_;
  LatentDescription latent_;
  int64_t num_experts_;
  const GgufArchitecture& architecture_;
  absl::flat_hash_set<std::string> taken_;
  std::vector<std::unique_ptr<char[]>> copies_;
  std::vector<std::unique_ptr<const QuantizedBlocks>> quantized_;
  struct Kept {
    int64_t matrices = 0;
    uint64_t num_bytes = 0;  // In the file.
  };
  std::map<absl::string_view, Kept> kept_;  // By the name of the type.
  Kept joined_;
};

}  // namespace

std::unique_ptr<TensorSource> MakeGgufTensors(GgufFile file, const ModelConfig& config) {
  return std::make_unique<GgufTensors>(std::move(file), config);
}

}  // namespace tandem
