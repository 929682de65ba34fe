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

// Compiles the constraints of a drafter's sessions, for the vocabularies of its draft models, on another
// thread than the one that drafts. Thread-safe.
class DraftConstraints {
 public:
  // The vocabulary of a draft model's sessions, by the model's name and the vocabulary's fingerprint; null:
  // it drafts without constraints. `clock` and `metrics` outlive it.
  struct Vocabulary {
    std::string draft_model;
    uint64_t fingerprint = 0;
    std::shared_ptr<const GrammarVocabulary> grammar;
  };
  using Vocabularies = std::vector<Vocabulary>;
  DraftConstraints(const ConstraintFlags& options, const Vocabularies& vocabularies, const Clock* clock,
                   ConstraintMetrics* metrics);

  // Adds the vocabularies of a served model; removes those of one that is no longer served. Remove each added
  // entry once. Compilations that wait for the last entry of a vocabulary fail. Remove blocks until the
  // compiler has ended.
  void Add(const Vocabularies& vocabularies);
  void Remove(const Vocabularies& vocabularies);

  // Compiles the constraint of a session that has one. Calls `done` once, possibly before this returns.
  // Errors: those of ConstraintCompiler, InvalidArgument beyond this drafter's bounds, FailedPrecondition if
  // the draft model has no vocabulary.
  void Compile(const OpenSession& open, ConstraintCompiler::Done done);
  // Stops compiling; waiting compilations fail.
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
