#include "common/rpc/model_wire.h"

namespace tandem {
v1::ModelInfo ModelInfoToProto(const std::string& name, const Model& model, const std::string& weight_type,
                               uint64_t vocabulary_fingerprint) {
  v1::ModelInfo info;
  info.set_name(name);
  info.set_vocabulary_fingerprint(vocabulary_fingerprint);
  info.set_vocabulary_size(static_cast<uint32_t>(model.config().vocab_size));
  info.set_context_length(static_cast<uint32_t>(model.config().max_context));
  info.set_parameters(model.num_parameters());
  info.set_weight_type(weight_type);
  info.set_architecture(model.config().architecture);
  return info;
}

}  // namespace tandem
