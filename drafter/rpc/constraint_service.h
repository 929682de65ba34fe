#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/base/token.h"
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

  // Those of a model that is served now, and of one that is not any more: each entry that was added is
  // removed once. What waits for the last entry of a vocabulary hears that nothing is compiled. Remove waits
  // for the compiler to end.
  void Add(const Vocabularies& vocabularies);
  void Remove(const Vocabularies& vocabularies);

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
  const ConstraintFlags options_;
  ConstraintMetrics* const metrics_;
  // Models whose tokens are the same, and end texts alike, share a compiler.
  using VocabularyKey = std::pair<uint64_t, TokenIds>;
  struct Shared {
    std::unique_ptr<ConstraintCompiler> compiler;
    int users = 0;
  };
  struct Entry {
    VocabularyKey key;
    ConstraintCompiler* compiler = nullptr;
    int count = 0;  // Several versions of a model may be served at a time.
  };
  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<VocabularyKey, Shared> compilers_ ABSL_GUARDED_BY(mutex_);
  // By draft model and fingerprint.
  std::map<std::pair<std::string, uint64_t>, Entry> by_model_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
