#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/drafting/source_host.h"
#include "common/engine/block_pool.h"
#include "common/engine/engine.h"
#include "common/grammar/compiled.h"
#include "common/speculation/draft_messages.h"
#include "common/speculation/score_calibration.h"
#include "common/tokenizer/text_bridge.h"
#include "common/tokenizer/vocabulary_bridge.h"
#include "drafter/drafting/stop_head.h"

namespace tandem {

// A target's vocabulary that differs from the draft model's, and the bridges between the two.
struct OtherVocabulary {
  std::string target;  // Where the drafter has it from, for people.
  uint64_t fingerprint = 0;
  std::shared_ptr<const VocabularyBridge> bridge;  // Null: there is none,
  std::string difference;                          // and this is why; else how the two differ.
  std::shared_ptr<const TextBridge> text;  // Without a bridge: for tenants that allow it. May be null.
  // The target's vocabulary for constraints; null: constraints are ignored.
  std::shared_ptr<const GrammarVocabulary> grammar;
};

// A draft model for the protocol logic: an engine, sources without weights, or both, with merged trees. All
// pointers outlive every session, or are kept alive by `hold`.
struct DraftModel {
  std::string name;
  Engine* engine = nullptr;   // None: sources only.
  BlockPool* pool = nullptr;  // Present when the engine is.
  // Unused without an engine: sources take any vocabulary.
  uint64_t vocabulary_fingerprint = 0;
  // Most context tokens, at least 4; at most as many as the engine and the pool can hold.
  uint32_t context_length = 0;
  std::vector<SourceHost*> sources;
  const StopHead* stop_head = nullptr;  // May be null; of use with an engine that has features.
  // The calibration of its scores, over all sessions. Null: raw scores are used.
  ScoreCalibration* calibration = nullptr;
  // Of a head: how many bytes of a session's unused features verifiers may send; at least a row. The default
  // is 1,365 tokens of a target of width 4,096 of which the head reads three states.
  uint64_t feature_window_bytes = uint64_t{32} << 20;
  FeatureType feature_type = FeatureType::kBf16;  // What it asks verifiers for.
  // Vocabularies of known targets that differ from its own. Empty for a head, whose tokens are its target's.
  std::vector<OtherVocabulary> other_vocabularies;
  // Returned when nothing uses the model any more (DraftCore::TakeGone). May be null.
  std::shared_ptr<void> hold;
};

// The bridge between the draft model and a session whose vocabulary has this fingerprint; null if none is
// needed. FailedPrecondition if tokens would not mean the same on both sides.
absl::StatusOr<const VocabularyBridge*> BridgeFor(const DraftModel& model, uint64_t vocabulary_fingerprint);

// The text bridge for such a session, if there is no other bridge and the session allows it; otherwise null.
const TextBridge* TextBridgeFor(const DraftModel& model, const OpenSession& open);

// How many token ids such a session has.
int32_t VocabularySize(const DraftModel& model, const VocabularyBridge* bridge);

// Numbers needed for the logits of a row of such a session: the engine's, followed by the result of
// TargetLogits.
size_t LogitsRoom(const DraftModel& model, const VocabularyBridge* bridge);

// The logits of a row by the session's token ids. `logits`: LogitsRoom numbers, whose first part the engine
// has written.
absl::Span<float> TargetLogits(const DraftModel& model, const VocabularyBridge* bridge, float* logits);

}  // namespace tandem
