#include "drafter/constraint_service.h"

#include "absl/strings/str_cat.h"
#include "common/grammar/constraint.h"
#include "common/rpc/constraint_wire.h"
#include "tandem/v1/types.pb.h"

namespace tandem {

DraftConstraints::DraftConstraints(const ConstraintFlags& options, const Vocabularies& vocabularies,
                                   const Clock* clock, ConstraintMetrics* metrics)
    : limits_(options.limits()),
      patience_(ConstraintCompiler::kMostSlowdown * options.compile_time),
      clock_(clock) {
  std::map<const GrammarVocabulary*, ConstraintCompiler*> compilers;
  for (const Vocabulary& vocabulary : vocabularies) {
    if (vocabulary.grammar == nullptr) continue;
    ConstraintCompiler*& compiler = compilers[vocabulary.grammar.get()];
    if (compiler == nullptr) {
      compilers_.push_back(StartConstraintCompiler(options, vocabulary.grammar, clock, metrics));
      compiler = compilers_.back().get();
    }
    by_model_.emplace(std::pair(vocabulary.draft_model, vocabulary.fingerprint), compiler);
  }
}

void DraftConstraints::Compile(const OpenSession& open, ConstraintCompiler::Done done) {
  const auto compiler = by_model_.find({open.draft_model, open.vocabulary_fingerprint});
  if (compiler == by_model_.end()) {
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
  compiler->second->Compile(*source, absl::StrCat(open.cache_salt), clock_->Now() + patience_,
                            std::move(done));
}

void DraftConstraints::Stop() {
  for (const auto& compiler : compilers_) compiler->Stop();
}

}  // namespace tandem
