#pragma once

#include <xgrammar/tokenizer_info.h>

#include <memory>
#include <string>
#include <vector>

#include "common/grammar/compiled.h"

namespace tandem {

// A vocabulary in XGrammar's sorted form. Used only by this folder's sources that are named after XGrammar.
class XGrammarVocabulary final : public GrammarVocabulary {
 public:
  XGrammarVocabulary(std::vector<std::string> bytes, std::vector<TokenId> end_tokens,
                     xgrammar::TokenizerInfo info)
      : GrammarVocabulary(std::move(bytes), std::move(end_tokens)), info_(std::move(info)) {}

  // Every vocabulary of a build with XGrammar is one.
  static const xgrammar::TokenizerInfo& InfoOf(const GrammarVocabulary& vocabulary) {
    return static_cast<const XGrammarVocabulary&>(vocabulary).info_;
  }

 private:
  const xgrammar::TokenizerInfo info_;
};

}  // namespace tandem
