#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/model/config/head_config.h"
#include "common/model/config/model_config.h"

namespace tandem {

// Where the file of an EAGLE head keeps its tensors. Trainers differ in names, not in what they mean: the
// first layer is `midlayer` (the authors, SpecForge, AngelSlim) or `layers.0` (speculators, ModelOpt,
// TorchSpec), and a name may stand before all but the output matrix (`model.`, NeMo Automodel).
struct HeadTensorNames {
  std::string root;
  bool found = false;  // Whether the file has a layer by any of these names.
  // Of each layer, from the first on; behind the root.
  std::vector<std::string> layers;
  // Of the norm before attention in layers but the first. SGLang calls these layers `additional_layers`, and
  // the norm as it calls that of the first layer's state.
  std::vector<std::string> input_norms;

  std::string InRoot(absl::string_view name) const;
};

// Whether the file has a tensor.
using HasTensor = absl::FunctionRef<bool(const std::string&)>;

// The names in a file; the head's own default for a single layer if the file has none of them.
HeadTensorNames FindHeadTensors(HasTensor has_tensor, const HeadConfig& head);

// Whether the file has an EAGLE-3 head, whatever config.json calls it.
bool IsEagle3ByTensors(HasTensor has_tensor);

// Sets the number of layers to that of the file. Config.json may repeat the target's number instead. `target`
// may be null. InvalidArgument if it says something else; Unimplemented for EAGLE-1 with several layers.
absl::Status SetHeadLayers(const HeadTensorNames& names, absl::string_view path, const ModelConfig* target,
                           ModelConfig* config);

// Unimplemented for a tensor, of those that were not read, which belongs to a feature by the name of that
// feature's field. OK if there is none. `all_read`: the head has what it needs, and the rest is unknown;
// else something was missing, and only features that no head here has say why.
absl::Status CheckUnreadTensors(const std::vector<std::string>& names, bool all_read, absl::string_view path);

}  // namespace tandem
