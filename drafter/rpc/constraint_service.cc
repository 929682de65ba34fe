#include "drafter/rpc/constraint_service.h"

#include "absl/strings/str_cat.h"
#include "common/grammar/constraint.h"
#include "common/rpc/constraint_wire.h"
#include "tandem/v1/types.pb.h"

namespace tandem {

DraftConstraints::DraftConstraints(const ConstraintFlags& options, const Vocabularies& vocabularies,
                                   const Clock* clock, ConstraintMetrics* metrics)
    : limits_(options.limits()),
      patience_(ConstraintCompiler::kMostSlowdown * options.compile_time),
      clock_(clock),
      options_(options),
      metrics_(metrics) {
  Add(vocabularies);
}

void DraftConstraints::Add(const Vocabularies& vocabularies) {
  absl::MutexLock lock(&mutex_);
  if (stopped_) return;
  for (const Vocabulary& vocabulary : vocabularies) {
    if (vocabulary.grammar == nullptr) continue;
    const VocabularyKey key(vocabulary.fingerprint, vocabulary.grammar->end_tokens());
    const auto [entry, is_new] =
        by_model_.try_emplace(std::pair(vocabulary.draft_model, vocabulary.fingerprint));
    ++entry->second.count;
    if (!is_new) continue;
    Shared& shared = compilers_[key];
    if (shared.compiler == nullptr) {
      shared.compiler = StartConstraintCompiler(options_, vocabulary.grammar, clock_, metrics_);
    }
    ++shared.users;
    entry->second.key = key;
    entry->second.compiler = shared.compiler.get();
  }
}

void DraftConstraints::Remove(const Vocabularies& vocabularies) {
  std::vector<std::unique_ptr<ConstraintCompiler>> unused;  // They end without the mutex.
  absl::MutexLock lock(&mutex_);
  for (const Vocabulary& vocabulary : vocabularies) {
    const auto entry = by_model_.find({vocabulary.draft_model, vocabulary.fingerprint});
    if (vocabulary.grammar == nullptr || entry == by_model_.end() || --entry->second.count > 0) continue;
    const auto shared = compilers_.find(entry->second.key);
    by_model_.erase(entry);
    if (shared == compilers_.end() || --shared->second.users > 0) continue;
    unused.push_back(std::move(shared->second.compiler));
    compilers_.erase(shared);
  }
}

void DraftConstraints::Compile(const OpenSession& open, ConstraintCompiler::Done done) {
  // Held to the end, so that the compiler is not removed meanwhile.
  absl::MutexLock lock(&mutex_);
  const auto entry = by_model_.find({open.draft_model, open.vocabulary_fingerprint});
  if (entry == by_model_.end()) {
    std::move(done)(absl::FailedPreconditionError(
        absl::StrCat("draft model ", open.draft_model, " has no vocabulary for constraints")));
    return;
  }
  v1::Constraint proto;
  if (!proto.ParseFromString(*open.constraint)) {
    std::move(done)(absl::InvalidArgumentError("constraint: not a message"));
    return;
  }
  absl::StatusOr<ConstraintSource> source = ConstraintFromProto(proto, limits_);
  if (!source.ok()) {
    std::move(done)(source.status());
    return;
  }
  // Tenants have salts of their own, and take turns.
  entry->second.compiler->Compile(*source, absl::StrCat(open.cache_salt), clock_->Now() + patience_,
                                  std::move(done));
}

void DraftConstraints::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
  for (const auto& [key, shared] : compilers_) shared.compiler->Stop();
}

}  // namespace tandem
