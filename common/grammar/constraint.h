#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/grammar/compiled.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem {

// Bounds on a constraint, checked before it is compiled.
struct ConstraintLimits {
  size_t max_bytes = 256 << 10;
  size_t max_depth = 64;  // Of nested values of JSON, or of brackets.
};

// InvalidArgument says what is wrong and where: a byte of the text, or the path of a schema's member as a
// JSON pointer. What passes can still fail to compile.
absl::Status CheckConstraint(const ConstraintSource& source, const ConstraintLimits& limits);

// The output is one of these texts: at least one text, each of at least one byte. Errors name the index:
// "[3]: empty".
absl::StatusOr<ConstraintSource> ConstraintOfChoices(absl::Span<const std::string> choices);
// The output is any JSON object.
ConstraintSource AnyJsonObject(bool any_whitespace);

// The output is a JSON string whose whole value matches the expression.
ConstraintSource JsonStringsMatching(absl::string_view regex);

// Free text with constrained parts. A part begins with a tag's `begin`, ends with its `end`, which may be
// empty, and matches `content` in between. JSON in it has the free layout. Free text ends at one of the
// `triggers`; each trigger is a prefix of one or more tags.
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
  // It is tags alone, with at most one line end after each. Only with at_least_one, without stop_after_first.
  bool only_tags = false;
};
absl::StatusOr<ConstraintSource> ConstraintOfTags(const StructuralTags& tags, const ConstraintLimits& limits);

// A model's vocabulary for constraints: tokens with text, and the special tokens that are marks of calls
// (call_marks.h). `end_tokens` end an output.
absl::StatusOr<std::shared_ptr<const GrammarVocabulary>> VocabularyOf(const Tokenizer& tokenizer,
                                                                      int32_t logits_width,
                                                                      absl::Span<const TokenId> end_tokens);

// A key of the constraint: equal only for equal sources.
std::string KeyOf(const ConstraintSource& source);

}  // namespace tandem
