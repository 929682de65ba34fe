#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/grammar/constraint_compiler.h"
#include "common/rpc/constraint_service.h"
#include "common/speculation/draft_messages.h"

namespace tandem {

// Compiles the constraints of a drafter's sessions, for the vocabularies of its draft models, off the thread
// that drafts. Safe from any thread.
class DraftConstraints {
 public:
  // What the tokens of a draft model's sessions are, by its name and their fingerprint; null: it drafts
  // freely. `clock` and `metrics` outlive it.
  struct Vocabulary {
    std::string draft_model;
    uint64_t fingerprint = 0;
    std::shared_ptr<const GrammarVocabulary> grammar;
  };
  using Vocabularies = std::vector<Vocabulary>;
  DraftConstraints(const ConstraintFlags& options, const Vocabularies& vocabularies, const Clock* clock,
                   ConstraintMetrics* metrics);

  // Calls `done` once, perhaps before this returns, with the constraint of a session that has one:
  // ConstraintCompiler's errors, InvalidArgument for what is beyond this drafter's bounds, FailedPrecondition
  // for a draft model that has no vocabulary.
  void Compile(const OpenSession& open, ConstraintCompiler::Done done);
  // From now on nothing is compiled, and whoever waits hears it.
  void Stop();

 private:
  const ConstraintLimits limits_;
  const absl::Duration patience_;  // How long a session's constraint may take, waiting included.
  const Clock* const clock_;
  std::vector<std::unique_ptr<ConstraintCompiler>> compilers_;
  std::map<std::pair<std::string, uint64_t>, ConstraintCompiler*> by_model_;  // And fingerprint.
};

}  // namespace tandem
