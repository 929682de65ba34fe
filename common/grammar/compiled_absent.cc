// What a build without XGrammar has of compiled.h.

#include "absl/status/status.h"
#include "common/grammar/compiled.h"
#include "common/grammar/lark_string.h"

namespace tandem {
namespace {

absl::Status Absent() {
  return absl::UnimplementedError("this build does not support structured output (TANDEM_GRAMMAR=OFF)");
}

}  // namespace

bool HasGrammars() {
  return false;
}

absl::StatusOr<std::shared_ptr<const GrammarVocabulary>> GrammarVocabulary::Create(std::vector<std::string>,
                                                                                   std::vector<TokenId>) {
  return Absent();
}

// There is none to begin.
std::unique_ptr<ConstraintState> CompiledConstraint::Begin(std::shared_ptr<const CompiledConstraint>) {
  return nullptr;
}

absl::StatusOr<std::string> CompileConstraint(const ConstraintSource&, const GrammarVocabulary&) {
  return Absent();
}

absl::StatusOr<std::string> WithLarkStrings(absl::string_view) {
  return Absent();
}

absl::StatusOr<std::string> JsonStringsOfLark(absl::string_view) {
  return Absent();
}

absl::StatusOr<std::shared_ptr<const CompiledConstraint>> LoadConstraint(
    absl::string_view, std::shared_ptr<const GrammarVocabulary>, size_t) {
  return Absent();
}

}  // namespace tandem
