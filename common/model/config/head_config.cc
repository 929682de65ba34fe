#include "common/model/config/head_config.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/head_fields.h"
#include "common/model/config/model_config.h"

namespace tandem {
namespace {

absl::Status Unfit(absl::string_view path, absl::string_view field, int32_t found,
                   absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": field ", field, ": found ", found, ", expected ", expected));
}

// A size of Medusa heads that their file may leave to the target's.
absl::Status TakeSize(absl::string_view path, absl::string_view field, const ModelConfig* target,
                      int32_t of_target, int32_t* size) {
  if (target == nullptr) {
    if (*size > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": field ", field, ": absent, expected a number, or a target to take it from (--head-target)"));
  }
  if (*size > 0 && *size != of_target) {
    return Unfit(path, field, *size, absl::StrCat("the target's ", of_target));
  }
  *size = of_target;
  return absl::OkStatus();
}

// The layers that the authors of EAGLE-3 chose.
absl::Status ChooseFeatureLayers(absl::string_view path, const ModelConfig* target, HeadConfig* head) {
  const auto absent = [&](absl::string_view expected) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": field ", head->layers_field, ": absent, expected ", expected));
  };
  if (target == nullptr) {
    return absent("the layers to read, or a target to take them from (--head-target)");
  }
  if (target->num_layers < 6) return absent("it for a target of fewer than 6 layers");
  const auto layers = static_cast<uint32_t>(target->num_layers);
  head->feature_layers = {2, layers / 2, layers - 3};
  const auto end = std::unique(head->feature_layers.begin(), head->feature_layers.end());
  if (end != head->feature_layers.end() ||
      !std::is_sorted(head->feature_layers.begin(), head->feature_layers.end())) {
    return absent(absl::StrCat("it for a target of ", layers, " layers"));
  }
  return absl::OkStatus();
}

// The layers that SpecForge and DFlash's authors choose where the file names none: from the second to the
// fourth last, evenly, rounded as Python does.
absl::Status ChooseBlockLayers(absl::string_view path, int32_t num_layers, HeadConfig* head) {
  const int64_t span = head->num_target_layers - 4;
  std::vector<uint32_t>& states = head->feature_layers;
  if (num_layers == 1) {
    states = {static_cast<uint32_t>(head->num_target_layers) / 2 + 1};
  }
  for (int64_t i = 0; i < num_layers && num_layers > 1; ++i) {
    const int64_t steps = num_layers - 1, quotient = i * span / steps, rest = i * span % steps;
    const bool rounds_up = 2 * rest > steps || (2 * rest == steps && quotient % 2 == 0);
    // The half is between two numbers that begin with 1, so the even one is above an odd quotient.
    states.push_back(static_cast<uint32_t>(quotient + (rounds_up ? 1 : 0) + 2));
  }
  if (states.size() > kMostFeatureLayers) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": field ", head->layers_field, ": absent beside ",
                                                   num_layers, " layers, expected a list of up to ",
                                                   kMostFeatureLayers, " numbers of layers"));
  }
  if (span < num_layers || std::adjacent_find(states.begin(), states.end()) != states.end()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": field ", head->layers_field,
                                                   ": absent, expected it for a target of ",
                                                   head->num_target_layers, " layers"));
  }
  return absl::OkStatus();
}

absl::Status FinishBlock(absl::string_view path, const ModelConfig* target, ModelConfig* config) {
  HeadConfig& head = *config->head;
  if (head.block.mask_token >= config->vocab_size) {
    return Unfit(path, "mask_token_id", head.block.mask_token,
                 absl::StrCat("a token below vocab_size, which is ", config->vocab_size));
  }
  // References disagree about what a slot sees of its block beyond its window.
  for (size_t i = 0; i < static_cast<size_t>(config->num_layers); ++i) {
    if (config->window(i) == 0 || config->window(i) >= head.block.num_slots) continue;
    return Unfit(path, "sliding_window", config->window(i),
                 absl::StrCat("at least block_size, which is ", head.block.num_slots));
  }
  if (target != nullptr && head.num_target_layers != 0 && head.num_target_layers != target->num_layers) {
    return Unfit(path, "num_target_layers", head.num_target_layers,
                 absl::StrCat("the target's ", target->num_layers));
  }
  if (target != nullptr) head.num_target_layers = target->num_layers;
  if (head.feature_layers.empty()) {
    TANDEM_RETURN_IF_ERROR(ChooseBlockLayers(path, config->num_layers, &head));
  }
  if (target == nullptr) return absl::OkStatus();
  // Trainers differ in whether a block is embedded with the factor, and whether its logits are capped.
  const BlockDescription& block = target->block;
  if (block.embedding_scale != 1.0f || block.logit_scale != 1.0f || block.logit_cap != 0.0f) {
    return absl::UnimplementedError(absl::StrCat(
        path, ": field architectures: a DFlash head of a ", target->architecture,
        ", supported: targets without factors on embeddings or logits and without capped logits"));
  }
  return absl::OkStatus();
}

// Numbers in an eagle_config that can only be those of states: the state behind all layers, which no layer
// has as its number, or the three that everybody reads who chooses none (sgl-project/sglang#25454, #32334).
void CorrectFeatureLayers(const ModelConfig& target, HeadConfig* head) {
  if (!head->layers_may_be_states) return;
  const auto layers = static_cast<uint32_t>(target.num_layers);
  std::vector<uint32_t> numbers = head->feature_layers;
  for (uint32_t& number : numbers) --number;
  const std::vector<uint32_t> usual = {2, layers / 2, layers - 3};
  if (numbers.back() == layers || (layers >= 6 && numbers == usual))
    head->feature_layers = std::move(numbers);
  head->layers_may_be_states = false;
}

}  // namespace

absl::string_view HeadKindName(HeadConfig::Kind kind) {
  switch (kind) {
    case HeadConfig::Kind::kEagle:
      return "eagle";
    case HeadConfig::Kind::kEagle3:
      return "eagle3";
    case HeadConfig::Kind::kMedusa:
      return "medusa";
    case HeadConfig::Kind::kMtp:
      return "mtp";
    case HeadConfig::Kind::kDFlash:
      return "dflash";
  }
  return "";
}

HeadConfig EagleByTensors() {
  return {.kind = HeadConfig::Kind::kEagle, .feature_final_norm = true, .numbered_layer = true};
}

HeadConfig NextTokenModule() {
  return {.kind = HeadConfig::Kind::kMtp, .feature_final_norm = true, .own_state_is_normed = true};
}

absl::Status FinishHeadConfig(absl::string_view path, const ModelConfig* target, ModelConfig* config) {
  HeadConfig& head = *config->head;
  if (head.kind == HeadConfig::Kind::kMedusa) {
    TANDEM_RETURN_IF_ERROR(TakeSize(path, "hidden_size", target, target == nullptr ? 0 : target->hidden_size,
                                    &config->hidden_size));
    TANDEM_RETURN_IF_ERROR(TakeSize(path, "vocab_size", target, target == nullptr ? 0 : target->vocab_size,
                                    &config->vocab_size));
  }
  if (head.target_hidden_size == 0) {
    head.target_hidden_size = target != nullptr ? target->hidden_size : config->hidden_size;
  } else if (target != nullptr && head.target_hidden_size != target->hidden_size) {
    return Unfit(path, "target_hidden_size", head.target_hidden_size,
                 absl::StrCat("the target's ", target->hidden_size));
  }
  if (head.kind == HeadConfig::Kind::kEagle && head.target_hidden_size != config->hidden_size) {
    return Unfit(path, "hidden_size", config->hidden_size,
                 absl::StrCat("the target's ", head.target_hidden_size,
                              ": an EAGLE head continues from its own states"));
  }
  if (!head.projects && head.target_hidden_size != config->hidden_size) {
    return Unfit(
        path, "hidden_size", config->hidden_size,
        absl::StrCat("the target's ", head.target_hidden_size, ", as use_aux_hidden_state is false"));
  }
  if (head.draft_vocab_size == 0) head.draft_vocab_size = config->vocab_size;
  if (head.draft_vocab_size > config->vocab_size) {
    return Unfit(path, "draft_vocab_size", head.draft_vocab_size,
                 absl::StrCat("at most vocab_size, which is ", config->vocab_size));
  }
  if (head.kind == HeadConfig::Kind::kEagle3 && head.num_states() == 0) {
    TANDEM_RETURN_IF_ERROR(ChooseFeatureLayers(path, target, &head));
  }
  if (head.kind == HeadConfig::Kind::kDFlash) TANDEM_RETURN_IF_ERROR(FinishBlock(path, target, config));
  if (target != nullptr) CorrectFeatureLayers(*target, &head);
  if (target != nullptr && !head.feature_layers.empty() &&
      head.feature_layers.back() > static_cast<uint32_t>(target->num_layers)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": field ", head.layers_field, ": names the state after ", head.feature_layers.back(),
        " layers, expected at most the ", target->num_layers, " of the target"));
  }
  return absl::OkStatus();
}

}  // namespace tandem
