#include "common/rpc/model_wire.h"

#include <optional>
#include <string>

#include "common/model/config/head_config.h"
#include "common/model/target_fingerprint.h"

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
  if (const std::optional<HeadConfig>& head = model.config().head; head.has_value()) {
    info.set_head_kind(std::string(HeadKindName(head->kind)));
    info.set_target_fingerprint(head->target_fingerprint.value_or(0));
    info.set_target_hidden_size(static_cast<uint32_t>(head->target_hidden_size));
  } else {
    info.set_target_fingerprint(TargetFingerprint(model));
  }
  return info;
}

}  // namespace tandem
