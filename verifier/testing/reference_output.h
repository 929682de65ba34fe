#pragma once

#include <string>
#include <utility>

#include "common/speculation/target_sampler.h"
#include "common/testing/fake_constraint.h"
#include "common/testing/fake_engine.h"
#include "verifier/session/output_assembler.h"

namespace tandem {

// For tests: the output that a request must have, with any drafts, batches and faults.
struct ReferenceOutput {
  TokenIds tokens;
  std::string text;
  OutputEnd end;
};

// The plain loop of law 2: chooses one token after the other, each from logits that are computed from all
// tokens before it. `output` must be empty. `constraint` may be null.
inline ReferenceOutput GenerateReference(const FakeEngine& target, const TokenIds& prompt,
                                         const SamplingParameters& sampling, OutputAssembler output,
                                         const FakeConstraint::Options* constraint = nullptr,
                                         AdapterId adapter = kNoAdapter) {
  ReferenceOutput reference;
  TargetSampler sampler(sampling, target.config().vocab_size, prompt);
  TokenIds all = prompt;
  while (true) {
    std::vector<float> logits = target.ReferenceLogits(all, adapter);
    if (constraint != nullptr) FakeConstraint::Mask(*constraint, reference.tokens, absl::MakeSpan(logits));
    const TokenId token = sampler.Choose(absl::MakeSpan(logits), static_cast<uint32_t>(all.size())).token;
    sampler.Append(token);
    all.push_back(token);
    reference.tokens.push_back(token);
    OutputPiece piece = output.Push(token);
    reference.text += piece.text;
    if (!piece.end.has_value()) continue;
    reference.end = *std::move(piece.end);
    reference.text += reference.end.text;
    return reference;
  }
}

}  // namespace tandem
