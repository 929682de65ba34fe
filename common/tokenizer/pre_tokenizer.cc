#include "common/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/byte_alphabet.h"
#include "common/tokenizer/text_pattern.h"
#include "common/tokenizer/unicode/unicode.h"
#include "common/tokenizer/unicode/unicode_tables.h"

namespace tandem {
namespace {

// The word pattern of GPT-2, which ByteLevel uses by default.
constexpr absl::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// What happens to matches when text is cut. The names are those of the file format.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

std::vector<MatchedSpan> MergeContiguous(const std::vector<MatchedSpan>& spans) {
  std::vector<MatchedSpan> merged;
  for (const MatchedSpan& span : spans) {
    if (!merged.empty() && merged.back().is_match == span.is_match) {
      merged.back().end = span.end;
    } else {
      merged.push_back(span);
    }
  }
  return merged;
}

std::vector<MatchedSpan> MergeWithPrevious(const std::vector<MatchedSpan>& spans) {
  std::vector<MatchedSpan> merged;
  bool previous_is_match = false;
  for (const MatchedSpan& span : spans) {
    if (span.is_match && !previous_is_match && !merged.empty()) {
      merged.back().end = span.end;
    } else {
      merged.push_back(span);
    }
    previous_is_match = span.is_match;
  }
  return merged;
}

std::vector<MatchedSpan> MergeWithNext(const std::vector<MatchedSpan>& spans) {
  std::vector<MatchedSpan> merged;
  bool next_is_match = false;
  for (auto it = spans.rbegin(); it != spans.rend(); ++it) {
    if (it->is_match && !next_is_match && !merged.empty()) {
      merged.back().begin = it->begin;
    } else {
      merged.push_back(*it);
    }
    next_is_match = it->is_match;
  }
  std::reverse(merged.begin(), merged.end());
  return merged;
}

absl::Status EmitSpan(TextPiece piece, MatchedSpan span, PreTokenizer::Emit emit) {
  if (span.begin == span.end) return absl::OkStatus();
  return emit({piece.text.substr(span.begin, span.end - span.begin), piece.at_text_start && span.begin == 0});
}

absl::Status EmitSpans(TextPiece piece, std::vector<MatchedSpan> spans, SplitBehavior behavior,
                       PreTokenizer::Emit emit) {
  switch (behavior) {
    case SplitBehavior::kRemoved:
    case SplitBehavior::kIsolated:
      break;
    case SplitBehavior::kMergedWithPrevious:
      spans = MergeWithPrevious(spans);
      break;
    case SplitBehavior::kMergedWithNext:
      spans = MergeWithNext(spans);
      break;
    case SplitBehavior::kContiguous:
      spans = MergeContiguous(spans);
      break;
  }
  for (const MatchedSpan& span : spans) {
    if (behavior == SplitBehavior::kRemoved && span.is_match) continue;
    TANDEM_RETURN_IF_ERROR(EmitSpan(piece, span, emit));
  }
  return absl::OkStatus();
}

class SplitPreTokenizer final : public PreTokenizer {
 public:
  SplitPreTokenizer(TextPattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  absl::Status Split(TextPiece piece, Emit emit) const override {
    if (behavior_ == SplitBehavior::kRemoved || behavior_ == SplitBehavior::kIsolated) {
      // Span by span, so that the search stops when `emit` does.
      return pattern_.ForEachSpan(piece.text, [&](MatchedSpan span) {
        const bool removed = behavior_ == SplitBehavior::kRemoved && span.is_match != invert_;
        return removed ? absl::OkStatus() : EmitSpan(piece, span, emit);
      });
    }
    TANDEM_ASSIGN_OR_RETURN(std::vector<MatchedSpan> spans, pattern_.Cut(piece.text));
    if (invert_) {
      for (MatchedSpan& span : spans) span.is_match = !span.is_match;
    }
    return EmitSpans(piece, std::move(spans), behavior_, emit);
  }

 private:
  TextPattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class ByteLevelPreTokenizer final : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, std::optional<Regex> words)
      : add_prefix_space_(add_prefix_space), words_(std::move(words)) {}

  absl::Status Split(TextPiece piece, Emit emit) const override {
    std::string prefixed;
    if (add_prefix_space_ && !absl::StartsWith(piece.text, " ")) {
      prefixed = absl::StrCat(" ", piece.text);
      piece.text = prefixed;
    }
    std::string mapped;
    const auto emit_mapped = [&mapped, &emit](TextPiece word) {
      mapped.clear();
      AppendByteAlphabet(word.text, mapped);
      return emit({mapped, word.at_text_start});
    };
    if (!words_.has_value()) return emit_mapped(piece);
    size_t covered = 0;
    const auto emit_range = [&](size_t begin, size_t end) {
      return EmitSpan(piece, {.begin = begin, .end = end, .is_match = true}, emit_mapped);
    };
    const absl::Status status = words_->ForEachMatch(piece.text, [&](size_t begin, size_t end) {
      TANDEM_RETURN_IF_ERROR(emit_range(covered, begin));
      covered = end;
      return emit_range(begin, end);
    });
    if (!status.ok()) return status;
    return emit_range(covered, piece.text.size());
  }

 private:
  bool add_prefix_space_;
  std::optional<Regex> words_;
};

class DigitsPreTokenizer final : public PreTokenizer {
 public:
  explicit DigitsPreTokenizer(bool individual) : individual_(individual) {}

  absl::Status Split(TextPiece piece, Emit emit) const override {
    std::vector<MatchedSpan> spans;
    for (size_t at = 0; at < piece.text.size();) {
      const Utf8Unit unit = ReadUtf8(piece.text.substr(at));
      const bool is_digit = IsNumeric(unit.code_point);
      const bool joins = !spans.empty() && spans.back().is_match == is_digit && !(is_digit && individual_);
      if (joins) {
        spans.back().end = at + unit.length;
      } else {
        spans.push_back({at, at + unit.length, is_digit});
      }
      at += unit.length;
    }
    return EmitSpans(piece, std::move(spans), SplitBehavior::kIsolated, emit);
  }

 private:
  bool individual_;
};

// Cuts at single characters of a kind.
class CharacterPreTokenizer final : public PreTokenizer {
 public:
  using Predicate = bool (*)(uint32_t code_point);

  CharacterPreTokenizer(Predicate is_cut, SplitBehavior behavior) : is_cut_(is_cut), behavior_(behavior) {}

  absl::Status Split(TextPiece piece, Emit emit) const override {
    std::vector<MatchedSpan> spans;
    for (size_t at = 0; at < piece.text.size();) {
      const Utf8Unit unit = ReadUtf8(piece.text.substr(at));
      const bool is_cut = is_cut_(unit.code_point);
      if (!is_cut && !spans.empty() && !spans.back().is_match) {
        spans.back().end = at + unit.length;
      } else {
        spans.push_back({at, at + unit.length, is_cut});
      }
      at += unit.length;
    }
    return EmitSpans(piece, std::move(spans), behavior_, emit);
  }

 private:
  Predicate is_cut_;
  SplitBehavior behavior_;
};

// Words, and what is between them except white space: `\w+|[^\w\s]+` in Rust's regular expressions.
class WhitespacePreTokenizer final : public PreTokenizer {
 public:
  absl::Status Split(TextPiece piece, Emit emit) const override {
    enum class Kind { kNone, kBlank, kWord, kOther };
    Kind kind = Kind::kNone;
    size_t begin = 0;
    for (size_t at = 0; at < piece.text.size();) {
      const Utf8Unit unit = ReadUtf8(piece.text.substr(at));
      const Kind next = IsWordCharacter(unit.code_point) ? Kind::kWord
                        : IsWhiteSpace(unit.code_point)  ? Kind::kBlank
                                                         : Kind::kOther;
      if (next != kind) {
        if (kind == Kind::kWord || kind == Kind::kOther) {
          TANDEM_RETURN_IF_ERROR(EmitSpan(piece, {begin, at, true}, emit));
        }
        kind = next;
        begin = at;
      }
      at += unit.length;
    }
    if (kind != Kind::kWord && kind != Kind::kOther) return absl::OkStatus();
    return EmitSpan(piece, {begin, piece.text.size(), true}, emit);
  }
};

// Cuts where the script changes. Characters that go with any script belong to what precedes them. At the
// beginning, where nothing precedes them, they are dropped, as in the Hugging Face library.
class ScriptPreTokenizer final : public PreTokenizer {
 public:
  absl::Status Split(TextPiece piece, Emit emit) const override {
    int script = kAnyWritingSystem;
    size_t begin = 0;
    for (size_t at = 0; at < piece.text.size();) {
      const Utf8Unit unit = ReadUtf8(piece.text.substr(at));
      const int next = WritingSystem(unit.code_point);
      if (next != kAnyWritingSystem && next != script) {
        if (script != kAnyWritingSystem) TANDEM_RETURN_IF_ERROR(EmitSpan(piece, {begin, at, true}, emit));
        script = next;
        begin = at;
      }
      at += unit.length;
    }
    if (script == kAnyWritingSystem) return absl::OkStatus();
    return EmitSpan(piece, {begin, piece.text.size(), true}, emit);
  }
};

enum class PrependScheme { kFirst, kAlways, kNever };

class MetaspacePreTokenizer final : public PreTokenizer {
 public:
  MetaspacePreTokenizer(std::string replacement, PrependScheme prepend, bool split)
      : replacement_(std::move(replacement)), prepend_(prepend), split_(split) {}

  absl::Status Split(TextPiece piece, Emit emit) const override {
    std::string text = absl::StrReplaceAll(piece.text, {{" ", replacement_}});
    const bool wants_prefix =
        prepend_ == PrependScheme::kAlways || (prepend_ == PrependScheme::kFirst && piece.at_text_start);
    if (wants_prefix && !absl::StartsWith(text, replacement_)) text.insert(0, replacement_);
    const TextPiece replaced{text, piece.at_text_start};
    if (!split_) return emit(replaced);
    return EmitSpans(replaced, CutAtLiteral(text, replacement_), SplitBehavior::kMergedWithNext, emit);
  }

 private:
  std::string replacement_;
  PrependScheme prepend_;
  bool split_;
};

class SequencePreTokenizer final : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(std::vector<std::unique_ptr<const PreTokenizer>> steps)
      : steps_(std::move(steps)) {}

  absl::Status Split(TextPiece piece, Emit emit) const override { return SplitFrom(0, piece, emit); }

 private:
  absl::Status SplitFrom(size_t step, TextPiece piece, Emit emit) const {
    if (step == steps_.size()) return emit(piece);
    return steps_[step]->Split(
        piece, [this, step, &emit](TextPiece word) { return SplitFrom(step + 1, word, emit); });
  }

  std::vector<std::unique_ptr<const PreTokenizer>> steps_;
};

// Each step adds a level of recursion while text is cut.
constexpr int kMaxSteps = 64;

using ParsedPreTokenizer = absl::StatusOr<std::unique_ptr<const PreTokenizer>>;

ParsedPreTokenizer ParseByteLevel(const JsonView& json) {
  TANDEM_ASSIGN_OR_RETURN(const bool add_prefix_space, json.BoolMember("add_prefix_space", true));
  TANDEM_ASSIGN_OR_RETURN(const bool use_regex, json.BoolMember("use_regex", true));
  std::optional<Regex> words;
  if (use_regex) {
    TANDEM_ASSIGN_OR_RETURN(words, Regex::Compile(kGpt2Pattern));
  }
  return std::make_unique<ByteLevelPreTokenizer>(add_prefix_space, std::move(words));
}

absl::StatusOr<SplitBehavior> ParseBehavior(const JsonView& json) {
  TANDEM_ASSIGN_OR_RETURN(const std::string name, json.String());
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return json.Unsupported(absl::StrCat("split behaviour '", name, "' is not supported"));
}

ParsedPreTokenizer ParseSplit(const JsonView& json) {
  TANDEM_ASSIGN_OR_RETURN(const JsonView pattern_json, json.Member("pattern"));
  TANDEM_ASSIGN_OR_RETURN(TextPattern pattern, TextPattern::Parse(pattern_json));
  TANDEM_ASSIGN_OR_RETURN(const JsonView behavior_json, json.Member("behavior"));
  TANDEM_ASSIGN_OR_RETURN(const SplitBehavior behavior, ParseBehavior(behavior_json));
  TANDEM_ASSIGN_OR_RETURN(const bool invert, json.BoolMember("invert", false));
  return std::make_unique<SplitPreTokenizer>(std::move(pattern), behavior, invert);
}

ParsedPreTokenizer ParsePunctuation(const JsonView& json) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<JsonView> behavior_json, json.Find("behavior"));
  SplitBehavior behavior = SplitBehavior::kIsolated;
  if (behavior_json.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(behavior, ParseBehavior(*behavior_json));
  }
  return std::make_unique<CharacterPreTokenizer>(IsPunctuation, behavior);
}

ParsedPreTokenizer MakeBertPreTokenizer() {
  std::vector<std::unique_ptr<const PreTokenizer>> steps;
  steps.push_back(std::make_unique<CharacterPreTokenizer>(IsWhiteSpace, SplitBehavior::kRemoved));
  steps.push_back(std::make_unique<CharacterPreTokenizer>(IsPunctuation, SplitBehavior::kIsolated));
  return std::make_unique<SequencePreTokenizer>(std::move(steps));
}

ParsedPreTokenizer ParseMetaspace(const JsonView& json) {
  TANDEM_ASSIGN_OR_RETURN(std::string replacement, json.StringMember("replacement"));
  if (replacement.empty()) return json.Invalid("the replacement is empty");
  // Files that predate prepend_scheme have add_prefix_space.
  TANDEM_ASSIGN_OR_RETURN(const bool add_prefix_space, json.BoolMember("add_prefix_space", true));
  TANDEM_ASSIGN_OR_RETURN(const bool split, json.BoolMember("split", true));
  TANDEM_ASSIGN_OR_RETURN(const std::optional<JsonView> scheme, json.Find("prepend_scheme"));
  PrependScheme prepend = add_prefix_space ? PrependScheme::kAlways : PrependScheme::kNever;
  if (scheme.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(const std::string name, scheme->String());
    if (name == "always") {
      prepend = PrependScheme::kAlways;
    } else if (name == "first") {
      prepend = PrependScheme::kFirst;
    } else if (name == "never") {
      prepend = PrependScheme::kNever;
    } else {
      return scheme->Unsupported(absl::StrCat("prepend scheme '", name, "' is not supported"));
    }
  }
  return std::make_unique<MetaspacePreTokenizer>(std::move(replacement), prepend, split);
}

ParsedPreTokenizer ParseStep(const JsonView& json, int& steps_left);

ParsedPreTokenizer ParseSequence(const JsonView& json, int& steps_left) {
  TANDEM_ASSIGN_OR_RETURN(const JsonView list, json.Member("pretokenizers"));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<JsonView> elements, list.Elements());
  std::vector<std::unique_ptr<const PreTokenizer>> steps;
  for (const JsonView& element : elements) {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<const PreTokenizer> step, ParseStep(element, steps_left));
    steps.push_back(std::move(step));
  }
  return std::make_unique<SequencePreTokenizer>(std::move(steps));
}

ParsedPreTokenizer ParseStep(const JsonView& json, int& steps_left) {
  if (--steps_left < 0) return json.Invalid(absl::StrCat("more than ", kMaxSteps, " steps in all"));
  TANDEM_ASSIGN_OR_RETURN(const std::string type, json.StringMember("type"));
  if (type == "Sequence") return ParseSequence(json, steps_left);
  if (type == "ByteLevel") return ParseByteLevel(json);
  if (type == "Split") return ParseSplit(json);
  if (type == "Metaspace") return ParseMetaspace(json);
  if (type == "Punctuation") return ParsePunctuation(json);
  if (type == "UnicodeScripts") return std::make_unique<ScriptPreTokenizer>();
  if (type == "Whitespace") return std::make_unique<WhitespacePreTokenizer>();
  if (type == "BertPreTokenizer") return MakeBertPreTokenizer();
  if (type == "WhitespaceSplit") {
    return std::make_unique<CharacterPreTokenizer>(IsWhiteSpace, SplitBehavior::kRemoved);
  }
  if (type == "Digits") {
    TANDEM_ASSIGN_OR_RETURN(const bool individual, json.BoolMember("individual_digits", false));
    return std::make_unique<DigitsPreTokenizer>(individual);
  }
  return json.Unsupported(absl::StrCat("pre-tokenizer type '", type, "' is not supported"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const PreTokenizer>> ParsePreTokenizer(const JsonView& json) {
  int steps_left = kMaxSteps;
  return ParseStep(json, steps_left);
}

}  // namespace tandem
