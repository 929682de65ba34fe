#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/grammar/compiled.h"

namespace tandem {

// The marks around calls of functions (common/chat), each of which is one special token in some vocabularies.
// In such a vocabulary, a mark in a structural tag's begin or end means that token. Free text then contains
// none of these tokens, and no text of a mark that begins a tag.
inline constexpr std::array<absl::string_view, 9> kCallMarks = {"[TOOL_CALLS]",
                                                                "[ARGS]",
                                                                "<tool_call>",
                                                                "</tool_call>",
                                                                "<｜tool▁calls▁begin｜>",
                                                                "<｜tool▁call▁begin｜>",
                                                                "<｜tool▁sep｜>",
                                                                "<｜tool▁call▁end｜>",
                                                                "<｜tool▁calls▁end｜>"};

// The bytes of the token of kCallMarks[mark] in a vocabulary for constraints. They occur in no text, so that
// no constraint takes the token for text.
std::string CallMarkBytes(size_t mark);
inline constexpr size_t kCallMarkBytes = 5;
// The mark whose bytes `bytes` begin with; kCallMarks.size() if there is none.
size_t FindCallMark(absl::string_view bytes);

// `bytes`: of a vocabulary's tokens, including marks. Clears the bytes of other tokens that could spell a
// mark, such as tokens of single bytes. No UTF-8 text contains them.
void KeepMarksApart(std::vector<std::string>* bytes);

// Structural tags, as ConstraintOfTags wrote them, in which marks that have tokens in `vocabulary` are
// replaced by placeholders. In a grammar that was compiled from the result, WithMarkBytes replaces the
// placeholders by the marks' bytes. Unchanged if there are no marks.
absl::StatusOr<std::string> WithCallMarks(absl::string_view structural_tags,
                                          const GrammarVocabulary& vocabulary);
// `grammar`: in XGrammar's serialised form.
absl::StatusOr<std::string> WithMarkBytes(const std::string& grammar);

}  // namespace tandem
