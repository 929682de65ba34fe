#include "common/tokenizer/text_pattern.h"

#include <optional>

#include "common/base/status_macros.h"

namespace tandem {
namespace {

// Collects matches given from left to right, and fills the gaps.
class SpanCollector {
 public:
  explicit SpanCollector(size_t text_size) : text_size_(text_size) {}

  void AddMatch(size_t begin, size_t end) {
    if (covered_ < begin) spans_.push_back({covered_, begin, false});
    spans_.push_back({begin, end, true});
    covered_ = end;
  }
  std::vector<MatchedSpan> Finish() {
    if (covered_ < text_size_) spans_.push_back({covered_, text_size_, false});
    return std::move(spans_);
  }

 private:
  size_t text_size_;
  size_t covered_ = 0;
  std::vector<MatchedSpan> spans_;
};

}  // namespace

absl::StatusOr<TextPattern> TextPattern::Parse(const JsonView& json) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<JsonView> literal, json.Find("String"));
  if (literal.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(std::string text, literal->String());
    if (text.empty()) return literal->Invalid("an empty pattern matches everywhere");
    return TextPattern(std::move(text));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::optional<JsonView> regex, json.Find("Regex"));
  if (!regex.has_value()) return json.Unsupported("expected a pattern of the kind String or Regex");
  TANDEM_ASSIGN_OR_RETURN(const std::string source, regex->String());
  absl::StatusOr<Regex> compiled = Regex::Compile(source);
  if (absl::IsUnimplemented(compiled.status())) return regex->Unsupported(compiled.status().message());
  if (!compiled.ok()) return regex->Invalid(compiled.status().message());
  return TextPattern(*std::move(compiled));
}

absl::StatusOr<std::vector<MatchedSpan>> TextPattern::Cut(absl::string_view text) const {
  if (const auto* literal = std::get_if<std::string>(&pattern_)) return CutAtLiteral(text, *literal);
  SpanCollector spans(text.size());
  TANDEM_RETURN_IF_ERROR(std::get<Regex>(pattern_).ForEachMatch(
      text, [&spans](size_t begin, size_t end) { spans.AddMatch(begin, end); }));
  return spans.Finish();
}

absl::StatusOr<std::string> TextPattern::Replace(absl::string_view text,
                                                 absl::string_view replacement) const {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<MatchedSpan> spans, Cut(text));
  std::string out;
  out.reserve(text.size());
  for (const MatchedSpan& span : spans) {
    const absl::string_view piece =
        span.is_match ? replacement : text.substr(span.begin, span.end - span.begin);
    out.append(piece.data(), piece.size());
  }
  return out;
}

std::vector<MatchedSpan> CutAtLiteral(absl::string_view text, absl::string_view literal) {
  SpanCollector spans(text.size());
  for (size_t at = text.find(literal); at != absl::string_view::npos;
       at = text.find(literal, at + literal.size())) {
    spans.AddMatch(at, at + literal.size());
  }
  return spans.Finish();
}

}  // namespace tandem
