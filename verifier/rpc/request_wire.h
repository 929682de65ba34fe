#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/grammar/constraint.h"
#include "common/model/config/model_config.h"
#include "common/tokenizer/tokenizer.h"
#include "tandem/v1/verifier.pb.h"
#include "verifier/session/session.h"

namespace tandem {

// What a verifier serves. Requests are checked against it.
struct ServedTarget {
  std::string name;
  ModelConfig config;
  GenerationDefaults defaults;
  std::shared_ptr<const Tokenizer> tokenizer;
  uint32_t max_window = 0;
  // Most tokens of a request, prompt and output together: the context, or the room for keys and values if
  // that is less.
  uint32_t max_length = 0;
  VerificationRuleKind verification_rule = VerificationRuleKind::kSeeded;
  bool drafts_locally = false;  // Requests that no drafter drafts for are drafted all the same.
  ConstraintLimits constraints;
  std::shared_ptr<HeldAdapters> adapters;  // Null: its device has none.
  uint64_t arithmetic = 0;                 // ArithmeticOf what the verifier says of itself; 0: not known.
};

// Its vocabulary, for constraints.
inline absl::StatusOr<std::shared_ptr<const GrammarVocabulary>> VocabularyOf(const ServedTarget& target) {
  return VocabularyOf(*target.tokenizer, target.config.vocab_size, target.defaults.eos_tokens);
}

// Converts a Verifier.Generate call to a session request, without its drafter, because only the service knows
// the links. Errors: InvalidArgument, with the field, its value and what was expected; OutOfRange, likewise,
// if the model has room for the request but this verifier has not; FailedPrecondition if the request is for
// another model; NotFound or Unimplemented if its adapter is not here; Aborted if its output began on a
// verifier with other arithmetic.
absl::StatusOr<SessionRequest> SessionRequestFromProto(const v1::VerifierGenerateRequest& proto,
                                                       const ServedTarget& target, absl::Time deadline);

// Committed tokens as an event for the client.
v1::GenerateResponse ChunkToProto(CommittedTokens tokens, bool with_logprobs);
v1::GenerateResponse PromptToProto(const PromptPart& part);
v1::GenerateResponse FinishedToProto(const SessionSummary& summary);

}  // namespace tandem
