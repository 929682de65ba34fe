#include "common/model/file_tensors.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/mapped_pages.h"
#include "common/base/status_macros.h"
#include "common/model/config/strict_json.h"

namespace tandem {
namespace {

// Older checkpoints carry the rotary frequencies, which follow from the configuration.
bool IsRotaryBuffer(absl::string_view name) {
  return absl::EndsWith(name, ".rotary_emb.inv_freq");
}

}  // namespace

absl::StatusOr<TensorView> FileTensors::Take(const std::string& name, const std::vector<int64_t>& shape) {
  const absl::StatusOr<TensorView> found = files_.Tensor(name);
  if (absl::IsNotFound(found.status())) {
    return absl::InvalidArgumentError(absl::StrCat(files_.path(), ": tensor \"", name,
                                                   "\" is missing, expected with shape ", ShapeText(shape)));
  }
  if (!found.ok()) return found.status();
  if (found->shape != shape) {
    return absl::InvalidArgumentError(absl::StrCat(files_.FileOf(name), ": tensor \"", name, "\": shape ",
                                                   ShapeText(found->shape), ", expected ", ShapeText(shape),
                                                   " as in config.json"));
  }
  taken_.insert(name);
  return found;
}

absl::StatusOr<TensorView> FileTensors::TakeMxFp4(const std::string& name,
                                                  const std::vector<int64_t>& shape) {
  constexpr int64_t kGroup = TensorView::kScaledNumbers;
  const std::string blocks_name = name + "_blocks", scales_name = name + "_scales";
  if (shape.at(2) % kGroup != 0) {
    return absl::InvalidArgumentError(absl::StrCat(files_.FileOf(blocks_name), ": tensor \"", blocks_name,
                                                   "\": expected with a number of inputs that ", kGroup,
                                                   " divides, not ", shape.at(2)));
  }
  const int64_t groups = shape.at(2) / kGroup;
  TANDEM_ASSIGN_OR_RETURN(const char* const blocks,
                          Bytes(blocks_name, {shape.at(0), shape.at(1), groups, kGroup / 2}));
  TANDEM_ASSIGN_OR_RETURN(const char* const scales, Bytes(scales_name, {shape.at(0), shape.at(1), groups}));
  ++num_mxfp4_;
  return TensorView{.dtype = TensorView::DType::kMxFp4, .shape = shape, .data = blocks, .scales = scales};
}

absl::StatusOr<std::vector<int64_t>> FileTensors::TakeIntegers(const std::string& name, int64_t count) {
  absl::StatusOr<std::vector<int64_t>> found = files_.Integers(name, count);
  if (absl::IsNotFound(found.status())) {
    return absl::InvalidArgumentError(absl::StrCat(files_.path(), ": tensor \"", name,
                                                   "\" is missing, expected with ", count, " integers"));
  }
  if (found.ok()) taken_.insert(name);
  return found;
}

absl::StatusOr<StoredTensor> FileTensors::TakeStored(const std::string& name, absl::string_view expected) {
  absl::StatusOr<StoredTensor> found = files_.Stored(name);
  if (absl::IsNotFound(found.status())) {
    return absl::InvalidArgumentError(
        absl::StrCat(files_.path(), ": tensor \"", name, "\" is missing, expected ", expected));
  }
  if (found.ok()) taken_.insert(name);
  return found;
}

void FileTensors::IgnoreBelow(absl::string_view prefix, bool others) {
  for (const std::string& name : files_.names()) {
    if (absl::StartsWith(name, prefix) != others) taken_.insert(name);
  }
}

std::vector<std::string> FileTensors::NamesLeft() const {
  std::vector<std::string> left;
  for (const std::string& name : files_.names()) {
    if (!taken_.contains(name) && !IsRotaryBuffer(name)) left.push_back(name);
  }
  return left;
}

// A tensor that nobody asked for means that config.json does not describe this model.
absl::Status FileTensors::Finish(const std::string& architecture) {
  const std::vector<std::string> left = NamesLeft();
  if (!left.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(files_.FileOf(left.front()), ": tensor \"", PrintableText(left.front()),
                     "\": expected only the tensors of the ", architecture, " that config.json describes"));
  }
  if (num_mxfp4_ > 0) {
    LogInfo("engines convert MXFP4 weights to --weight-dtype (auto: bf16)",
            {{"file", files_.path()}, {"tensors", absl::StrCat(num_mxfp4_)}});
  }
  return absl::OkStatus();
}

void FileTensors::Release(const TensorView& tensor) const {
  DropMappedPages(tensor.data, static_cast<uint64_t>(tensor.offset_of(tensor.num_elements())));
}

absl::StatusOr<const char*> FileTensors::Bytes(const std::string& name, const std::vector<int64_t>& shape) {
  absl::StatusOr<const char*> found = files_.Bytes(name, shape);
  if (absl::IsNotFound(found.status())) {
    return absl::InvalidArgumentError(
        absl::StrCat(files_.path(), ": tensor \"", name, "\" is missing, expected as U8 ", ShapeText(shape)));
  }
  if (found.ok()) taken_.insert(name);
  return found;
}

}  // namespace tandem
