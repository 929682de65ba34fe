#include "drafter/drafting/draft_model.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tandem {

absl::StatusOr<const VocabularyBridge*> BridgeFor(const DraftModel& model, uint64_t vocabulary_fingerprint) {
  if (model.engine == nullptr || vocabulary_fingerprint == model.vocabulary_fingerprint) return nullptr;
  std::string why = "which is not among the vocabularies that the drafter was given";
  for (const OtherVocabulary& other : model.other_vocabularies) {
    if (other.fingerprint != vocabulary_fingerprint) continue;
    if (other.bridge != nullptr) return other.bridge.get();
    why = other.difference;
    if (other.text != nullptr) why += "; the tenant does not allow drafting by text";
  }
  return absl::FailedPreconditionError(
      absl::StrFormat("draft model %s has the vocabulary fingerprint %016x, the target %016x: %s", model.name,
                      model.vocabulary_fingerprint, vocabulary_fingerprint, why));
}

const TextBridge* TextBridgeFor(const DraftModel& model, const OpenSession& open) {
  if (model.engine == nullptr || !open.text_drafting) return nullptr;
  if (open.vocabulary_fingerprint == model.vocabulary_fingerprint) return nullptr;
  for (const OtherVocabulary& other : model.other_vocabularies) {
    if (other.fingerprint == open.vocabulary_fingerprint && other.bridge == nullptr) return other.text.get();
  }
  return nullptr;
}

int32_t VocabularySize(const DraftModel& model, const VocabularyBridge* bridge) {
  return bridge == nullptr ? model.engine->config().vocab_size : bridge->target_width();
}

size_t LogitsRoom(const DraftModel& model, const VocabularyBridge* bridge) {
  const size_t own = model.engine->config().logits_size();
  return bridge == nullptr ? own : own + static_cast<size_t>(bridge->target_width());
}

absl::Span<float> TargetLogits(const DraftModel& model, const VocabularyBridge* bridge, float* logits) {
  const absl::Span<float> own(logits, static_cast<size_t>(model.engine->config().vocab_size));
  if (bridge == nullptr) return own;
  const absl::Span<float> mapped(logits + own.size(), static_cast<size_t>(bridge->target_width()));
  bridge->ToTarget(own, mapped);
  return mapped;
}

}  // namespace tandem
