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

// A target's vocabulary that is not the draft model's own, and what there is between the two.
struct OtherVocabulary {
  std::string target;  // Where the drafter has it from, for people.
  uint64_t fingerprint = 0;
  std::shared_ptr<const VocabularyBridge> bridge;  // Null: there is none,
  std::string difference;                          // and this is why; else how the two differ.
  std::shared_ptr<const TextBridge> text;  // Without a bridge: for tenants that allow it. May be null.
  // The target's, for constraints; null: they are not heeded.
  std::shared_ptr<const GrammarVocabulary> grammar;
};

// A draft model as the protocol logic sees it: an engine, sources that need no weights, or both, whose trees
// are merged. All that is pointed to outlives every session, or `hold` holds it.
struct DraftModel {
  std::string name;
  Engine* engine = nullptr;   // None: sources only.
  BlockPool* pool = nullptr;  // Present when the engine is.
  // Meaningless without an engine: any vocabulary will do then.
  uint64_t vocabulary_fingerprint = 0;
  // Most tokens drafted from, at least 4; no more than the engine and the pool can hold.
  uint32_t context_length = 0;
  std::vector<SourceHost*> sources;
  const StopHead* stop_head = nullptr;  // May be null; of use with an engine that has features.
  // What its scores have been worth, over all sessions. May be null: then as much as they say.
  ScoreCalibration* calibration = nullptr;
  // Of a head: what of a session's features verifiers may send before they are used, at least a row. 1,365
  // tokens of a target of width 4,096 of which three states are read.
  uint64_t feature_window_bytes = uint64_t{32} << 20;
  FeatureType feature_type = FeatureType::kBf16;  // What it asks verifiers for.
  // Of targets that it is known beside, as far as they are not its own. None of a head: its tokens are its
  // target's.
  std::vector<OtherVocabulary> other_vocabularies;
  // Given back when nothing uses the model any more (DraftCore::TakeGone). May be null.
  std::shared_ptr<void> hold;
};

// What stands between the draft model and a session whose tokens have this fingerprint: null where nothing
// has to. FailedPrecondition where a token would not mean the same on both sides.
absl::StatusOr<const VocabularyBridge*> BridgeFor(const DraftModel& model, uint64_t vocabulary_fingerprint);

// By what such a session is drafted for where there is no bridge, if it may be; null: not by text.
const TextBridge* TextBridgeFor(const DraftModel& model, const OpenSession& open);

// How many token ids such a session has.
int32_t VocabularySize(const DraftModel& model, const VocabularyBridge* bridge);

// Room for the logits of a row of such a session: what the engine gives, and behind it what TargetLogits
// makes of that.
size_t LogitsRoom(const DraftModel& model, const VocabularyBridge* bridge);

// The logits of a row by the session's token ids, from LogitsRoom numbers whose first part the engine has
// written.
absl::Span<float> TargetLogits(const DraftModel& model, const VocabularyBridge* bridge, float* logits);

}  // namespace tandem
