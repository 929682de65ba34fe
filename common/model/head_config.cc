#include "common/model/head_config.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

constexpr char kLayersField[] = "eagle_aux_hidden_state_layer_ids";

}  // namespace

absl::string_view HeadKindName(HeadConfig::Kind kind) {
  switch (kind) {
    case HeadConfig::Kind::kEagle:
      return "eagle";
    case HeadConfig::Kind::kEagle3:
      return "eagle3";
  }
  return "";
}

HeadConfig EagleByTensors() {
  return {.kind = HeadConfig::Kind::kEagle, .feature_final_norm = true, .numbered_layer = true};
}

absl::Status FinishHeadConfig(absl::string_view path, int32_t hidden_size, int32_t vocab_size,
                              int32_t target_hidden_size, int32_t target_layers, HeadConfig* head) {
  const bool has_target = target_layers > 0;
  if (head->target_hidden_size == 0) {
    head->target_hidden_size = has_target ? target_hidden_size : hidden_size;
  } else if (has_target && head->target_hidden_size != target_hidden_size) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": field target_hidden_size: found ",
                                                   head->target_hidden_size, ", expected the target's ",
                                                   target_hidden_size));
  }
  if (head->kind == HeadConfig::Kind::kEagle && head->target_hidden_size != hidden_size) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": field hidden_size: found ", hidden_size,
                                                   ", expected the target's ", head->target_hidden_size,
                                                   ": an EAGLE head goes on from states of its own"));
  }
  if (head->draft_vocab_size == 0) head->draft_vocab_size = vocab_size;
  if (head->draft_vocab_size > vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": field draft_vocab_size: found ",
                                                   head->draft_vocab_size,
                                                   ", expected at most vocab_size, which is ", vocab_size));
  }
  if (head->kind == HeadConfig::Kind::kEagle3 && head->feature_layers.empty()) {
    if (!has_target) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": field ", kLayersField,
          ": absent, expected the layers to read, or a target to take them from (--head-target)"));
    }
    if (target_layers < 6) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": field ", kLayersField, ": absent, expected it for a target of fewer than 6 layers"));
    }
    const auto layers = static_cast<uint32_t>(target_layers);
    head->feature_layers = {2, layers / 2, layers - 3};
    const auto end = std::unique(head->feature_layers.begin(), head->feature_layers.end());
    if (end != head->feature_layers.end() ||
        !std::is_sorted(head->feature_layers.begin(), head->feature_layers.end())) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": field ", kLayersField, ": absent, expected it for a target of ", layers, " layers"));
    }
  }
  if (has_target && !head->feature_layers.empty() &&
      head->feature_layers.back() > static_cast<uint32_t>(target_layers)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": field ", kLayersField, ": names the state after ", head->feature_layers.back(),
                     " layers, expected at most the ", target_layers, " of the target"));
  }
  return absl::OkStatus();
}

}  // namespace tandem
