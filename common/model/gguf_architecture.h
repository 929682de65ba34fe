#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/model/config/architecture.h"

namespace tandem {

// A key of a GGUF file, behind the architecture's name and a dot, and the field of config.json that says the
// same.
struct GgufKeyField {
  absl::string_view key;
  const char* field;
};

inline constexpr char kRmsEpsilonField[] = "rms_norm_eps";

// What the keys and tensors of an architecture of llama.cpp's mean, where it differs from the others'.
struct GgufArchitecture {
  absl::string_view name;
  absl::string_view model;  // config.json's
  absl::string_view model_type;
  bool has_experts = false;
  bool paired_rows = false;  // Of queries and keys: numbers that turn together lie side by side.
  // config.json's name for the epsilon; a LayerNorm's if it is not kRmsEpsilonField.
  const char* epsilon = kRmsEpsilonField;
  const char* rotary_share = nullptr;  // The field with the share of a head that turns, if not all does.
  // All layers have a window but every `window_every`-th, all if it is 1; 0: files with a window are refused.
  int window_every = 0;
  bool windows_vary = false;  // A file without a window's size has no windows.
  // Scores are scaled by the width of a head, in models of so many layers by hidden_size / heads; 0: the
  // family decides.
  int layers_scaled_by_hidden = 0;
  absl::Span<const GgufKeyField> keys = {};  // Beside those that all have.
  absl::Span<const absl::string_view> required = {};
  absl::string_view mlp_norm = "ffn_norm";
};

// Several with one name differ in has_experts, or in what else the configuration's reader knows.
absl::Span<const GgufArchitecture> GgufArchitectures();

// "llama, mistral, ...", for messages.
std::string GgufArchitectureNames();

// Null for a model that no architecture stands for.
const GgufArchitecture* FindGgufArchitecture(absl::string_view model);

// Changes a description of a folder's tensors into that of the file's: names, and fused and transposed
// matrices, which are the same for all architectures. Tensors of an expert are named LAYER.experts.N.NAME,
// and those of a shared one LAYER.shared.NAME, with the names of the file's tensors of all experts.
void UseGgufLayout(const GgufArchitecture& architecture, BlockDescription* block);

}  // namespace tandem
