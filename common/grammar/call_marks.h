#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/grammar/compiled.h"

namespace tandem {

// What stands around calls of functions (common/chat) and is one special token in some vocabularies. There a
// structural tag means that token where one of these stands in its begin or end, and free text holds neither
// the tokens nor, of those that begin a tag, the text.
inline constexpr std::array<absl::string_view, 9> kCallMarks = {"[TOOL_CALLS]",
                                                                "[ARGS]",
                                                                "<tool_call>",
                                                                "</tool_call>",
                                                                "<｜tool▁calls▁begin｜>",
                                                                "<｜tool▁call▁begin｜>",
                                                                "<｜tool▁sep｜>",
                                                                "<｜tool▁call▁end｜>",
                                                                "<｜tool▁calls▁end｜>"};

// What the token of the mark kCallMarks[mark] has for bytes in a vocabulary of constraints: such as are in no
// text, so that no constraint takes it for text.
std::string CallMarkBytes(size_t mark);
inline constexpr size_t kCallMarkBytes = 5;
// The mark whose bytes `bytes` begin with; kCallMarks.size() if there is none.
size_t FindCallMark(absl::string_view bytes);

// Structural tags, as ConstraintOfTags wrote them, with the marks that `vocabulary` has tokens for as a
// structural tag can spell them. A grammar that was made of the result has in their place what WithMarkBytes
// makes the marks' bytes of. As it is where there are none.
absl::StatusOr<std::string> WithCallMarks(absl::string_view structural_tags,
                                          const GrammarVocabulary& vocabulary);
// `grammar` in XGrammar's serialised form.
absl::StatusOr<std::string> WithMarkBytes(const std::string& grammar);

}  // namespace tandem
