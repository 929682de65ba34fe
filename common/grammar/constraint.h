#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/grammar/compiled.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem {

// Bounds on what a constraint may be, before anybody compiles it.
struct ConstraintLimits {
  size_t max_bytes = 256 << 10;
  size_t max_depth = 64;  // Of nested values of JSON, or of brackets.
};

// InvalidArgument says what is wrong and where: a byte of the text, or the path of a schema's member as a
// JSON pointer. What passes can still fail to compile.
absl::Status CheckConstraint(const ConstraintSource& source, const ConstraintLimits& limits);

// An output that is one of these texts, each of at least one byte and none twice, at least one.
absl::StatusOr<ConstraintSource> ConstraintOfChoices(absl::Span<const std::string> choices);
// An output that is a JSON object, whatever is in it.
ConstraintSource AnyJsonObject(bool any_whitespace);

// Free text with constrained parts: each begins with a tag's `begin` and ends with its `end`, which may be
// empty, and is what `content` says in between, where JSON may have a blank or a line end wherever JSON does,
// and several of them in a row with any_whitespace. Free text ends where one of the `triggers` stands, each
// of which is a beginning of one or more tags.
struct StructuralTag {
  std::string begin;
  ConstraintSource content;
  std::string end;
};
struct StructuralTags {
  std::vector<std::string> triggers;
  std::vector<StructuralTag> tags;
  bool at_least_one = false;      // The text begins with a tag.
  bool stop_after_first = false;  // It ends with the first one's end.
};
absl::StatusOr<ConstraintSource> ConstraintOfTags(const StructuralTags& tags, const ConstraintLimits& limits);

// What a model's tokens are to constraints: those with a text, whatever else its tokenizer has, and of its
// special tokens the marks of calls (call_marks.h). `end_tokens` end an output.
absl::StatusOr<std::shared_ptr<const GrammarVocabulary>> VocabularyOf(const Tokenizer& tokenizer,
                                                                      int32_t logits_width,
                                                                      absl::Span<const TokenId> end_tokens);

// Which constraint it is: equal for equal sources alone.
std::string KeyOf(const ConstraintSource& source);

}  // namespace tandem
