#include "drafter/models/target_vocabulary.h"

#include <utility>

#include "common/base/status_macros.h"
#include "common/grammar/constraint.h"
#include "common/model/model.h"

namespace tandem {

absl::StatusOr<TargetVocabulary> LoadTargetVocabulary(const std::string& folder) {
  TANDEM_ASSIGN_OR_RETURN(Model::Settings settings, Model::ReadSettings(folder));
  TargetVocabulary target{.folder = folder,
                          .width = settings.config.vocab_size,
                          .end_tokens = std::move(settings.generation_defaults.eos_tokens)};
  TANDEM_ASSIGN_OR_RETURN(target.tokenizer, Tokenizer::LoadForModel(folder, target.width));
  target.fingerprint = target.tokenizer->Fingerprint(target.width);
  target.grammar = VocabularyOf(*target.tokenizer, target.width, target.end_tokens).value_or(nullptr);
  return target;
}

OtherVocabulary Compare(const std::shared_ptr<const Tokenizer>& draft, int32_t draft_width,
                        const TargetVocabulary& target) {
  OtherVocabulary other{.target = target.folder, .fingerprint = target.fingerprint};
  absl::StatusOr<VocabularyBridge> bridge =
      VocabularyBridge::Between({*draft, draft_width}, {*target.tokenizer, target.width});
  if (!bridge.ok()) {
    other.difference = std::string(bridge.status().message());
    other.text = std::make_shared<const TextBridge>(draft, target.tokenizer, target.width);
    return other;
  }
  other.difference = bridge->Describe();
  other.bridge = std::make_shared<const VocabularyBridge>(*std::move(bridge));
  other.grammar = target.grammar;
  return other;
}

}  // namespace tandem
