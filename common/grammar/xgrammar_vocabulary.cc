#include "common/grammar/xgrammar_vocabulary.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tandem {

bool HasGrammars() {
  return true;
}

absl::StatusOr<std::shared_ptr<const GrammarVocabulary>> GrammarVocabulary::Create(
    std::vector<std::string> bytes, std::vector<TokenId> end_tokens) {
  const auto size = static_cast<TokenId>(bytes.size());
  const auto is_token = [size](TokenId token) { return token >= 0 && token < size; };
  if (end_tokens.empty() || !std::all_of(end_tokens.begin(), end_tokens.end(), is_token)) {
    return absl::FailedPreconditionError(absl::StrCat("the model has no end-of-text token among its ", size,
                                                      " tokens, which structured output needs"));
  }
  try {
    xgrammar::TokenizerInfo info(bytes, xgrammar::VocabType::RAW, size, end_tokens,
                                 /*add_prefix_space=*/false);
    return std::make_shared<const XGrammarVocabulary>(std::move(bytes), std::move(end_tokens),
                                                      std::move(info));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("the vocabulary cannot be sorted: ", error.what()));
  }
}

}  // namespace tandem
