#include "common/tokenizer/text_pattern.h"

#include <optional>

#include "common/base/status_macros.h"

namespace tandem {
namespace {

// Adds the gaps between matches, which come from left to right, and passes everything on.
class GapFiller {
 public:
  GapFiller(size_t text_size, absl::FunctionRef<absl::Status(MatchedSpan)> on_span)
      : text_size_(text_size), on_span_(on_span) {}

  absl::Status AddMatch(size_t begin, size_t end) {
    if (covered_ < begin) TANDEM_RETURN_IF_ERROR(on_span_({covered_, begin, false}));
    covered_ = end;
    return on_span_({begin, end, true});
  }
  absl::Status Finish() {
    return covered_ < text_size_ ? on_span_({covered_, text_size_, false}) : absl::OkStatus();
  }

 private:
  const size_t text_size_;
  const absl::FunctionRef<absl::Status(MatchedSpan)> on_span_;
  size_t covered_ = 0;
};

absl::Status ForEachLiteralSpan(absl::string_view text, absl::string_view literal,
                                absl::FunctionRef<absl::Status(MatchedSpan)> on_span) {
  GapFiller spans(text.size(), on_span);
  for (size_t at = text.find(literal); at != absl::string_view::npos;
       at = text.find(literal, at + literal.size())) {
    TANDEM_RETURN_IF_ERROR(spans.AddMatch(at, at + literal.size()));
  }
  return spans.Finish();
}

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

absl::Status TextPattern::ForEachSpan(absl::string_view text,
                                      absl::FunctionRef<absl::Status(MatchedSpan)> on_span) const {
  if (const auto* literal = std::get_if<std::string>(&pattern_)) {
    return ForEachLiteralSpan(text, *literal, on_span);
  }
  GapFiller spans(text.size(), on_span);
  TANDEM_RETURN_IF_ERROR(std::get<Regex>(pattern_).ForEachMatch(
      text, [&spans](size_t begin, size_t end) { return spans.AddMatch(begin, end); }));
  return spans.Finish();
}

absl::StatusOr<std::vector<MatchedSpan>> TextPattern::Cut(absl::string_view text) const {
  std::vector<MatchedSpan> spans;
  TANDEM_RETURN_IF_ERROR(ForEachSpan(text, [&spans](MatchedSpan span) {
    spans.push_back(span);
    return absl::OkStatus();
  }));
  return spans;
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
  std::vector<MatchedSpan> spans;
  // The callback never ends the search early.
  ForEachLiteralSpan(text, literal, [&spans](MatchedSpan span) {
    spans.push_back(span);
    return absl::OkStatus();
  }).IgnoreError();
  return spans;
}

}  // namespace tandem
