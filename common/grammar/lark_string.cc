#include "common/grammar/lark_string.h"

#include <xgrammar/grammar.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/grammar/finite_texts.h"
#include "common/grammar/tags_json.h"
#include "common/grammar/xgrammar_expressions.h"

namespace tandem {
namespace {

using Json = nlohmann::json;

constexpr int32_t kFirstPrintable = 0x20;

// Of a rule: name, body, lookahead and two words on it, token budget, character budget, capture, lazy,
// temperature.
constexpr size_t kBody = 1;
constexpr size_t kTokenBudget = 4;
constexpr size_t kCharacterBudget = 5;
constexpr size_t kCapture = 6;
constexpr size_t kLazy = 7;
constexpr size_t kTemperature = 8;

using Range = std::pair<int32_t, int32_t>;

// A character of a string or class of the grammar.
std::string Escaped(int32_t code_point) {
  return absl::StrFormat("\\U%08X", code_point);
}

// The spelling in JSON of a character that has to be escaped there, as part of a string of the grammar.
std::string EscapedInJson(int32_t code_point) {
  switch (code_point) {
    case '"':
      return R"(\\\")";
    case '\\':
      return R"(\\\\)";
    case '\b':
      return R"(\\b)";
    case '\f':
      return R"(\\f)";
    case '\n':
      return R"(\\n)";
    case '\r':
      return R"(\\r)";
    case '\t':
      return R"(\\t)";
    default:
      return absl::StrFormat(R"(\\u%04x)", code_point);
  }
}

bool NeedsEscape(int32_t code_point) {
  return code_point < kFirstPrintable || code_point == '"' || code_point == '\\';
}

// Writes a grammar of XGrammar's, in its serialised form, as EBNF of the JSON spellings of its texts.
class StringWriter {
 public:
  explicit StringWriter(const Json& grammar)
      : rules_(grammar.at("rules")),
        begins_(grammar.at("grammar_expr_indptr").get<std::vector<size_t>>()),
        data_(grammar.at("grammar_expr_data").get<std::vector<int32_t>>()),
        root_(grammar.at("root_rule_id").get<size_t>()) {}

  absl::StatusOr<std::string> Write() const {
    std::string text = absl::StrCat("root ::= \"\\\"\" ", NameOf(root_), " \"\\\"\"\n");
    for (size_t i = 0; i < rules_.size(); ++i) {
      const Json& rule = rules_.at(i);
      if (rule.size() != kTemperature + 1)
        return absl::InternalError("XGrammar's rules have an unexpected form");
      if (rule.at(kTokenBudget) != -1 || rule.at(kCharacterBudget) != -1 || rule.at(kLazy) != false ||
          !rule.at(kCapture).get_ref<const std::string&>().empty() || !rule.at(kTemperature).is_null()) {
        return absl::InvalidArgumentError(
            absl::StrCat("rule ", rule.at(0).get<std::string>(), ": attributes are not supported"));
      }
      TANDEM_ASSIGN_OR_RETURN(const std::string body, Expression(rule.at(kBody).get<size_t>(), 0));
      absl::StrAppend(&text, NameOf(i), " ::= ", body, "\n");
    }
    return text;
  }

 private:
  // Nesting within one rule; XGrammar's own parser has bounded it.
  static constexpr int kMostDepth = 1000;

  static std::string NameOf(size_t rule) { return absl::StrCat("rule_", rule); }

  absl::StatusOr<std::string> Expression(size_t id, int depth) const {
    if (id >= begins_.size() || begins_[id] + 2 > data_.size() || depth > kMostDepth)
      return absl::InternalError("XGrammar's expressions have an unexpected form");
    const size_t begin = begins_[id];
    const auto length = static_cast<size_t>(data_[begin + 1]);
    if (begin + 2 + length > data_.size())
      return absl::InternalError("XGrammar's expressions have an unexpected form");
    const std::vector<int32_t> data(data_.begin() + static_cast<ptrdiff_t>(begin + 2),
                                    data_.begin() + static_cast<ptrdiff_t>(begin + 2 + length));
    switch (data_[begin]) {
      case kByteString:
        return String(data);
      case kCharacterClass:
        return Class(data);
      case kCharacterClassStar:
        return absl::StrCat(Class(data), "*");
      case kEmpty:
        return std::string("\"\"");
      case kRule:
        return NameOf(static_cast<size_t>(data.at(0)));
      case kSequence:
        return Joined(data, " ", depth);
      case kChoices:
        return Joined(data, " | ", depth);
      case kRepeat:
        return absl::StrCat(NameOf(static_cast<size_t>(data.at(0))), "{", data.at(1), ",",
                            data.at(2) < 0 ? "" : absl::StrCat(data.at(2)), "}");
      default:
        return absl::InvalidArgumentError(
            "special tokens, nested dispatches, substrings and the flag i of regular expressions are not "
            "supported in the input of a tool");
    }
  }

  absl::StatusOr<std::string> Joined(const std::vector<int32_t>& parts, absl::string_view between,
                                     int depth) const {
    std::vector<std::string> texts;
    for (const int32_t part : parts) {
      TANDEM_ASSIGN_OR_RETURN(std::string text, Expression(static_cast<size_t>(part), depth + 1));
      texts.push_back(std::move(text));
    }
    return absl::StrCat("(", absl::StrJoin(texts, between), ")");
  }

  static absl::StatusOr<std::string> String(const std::vector<int32_t>& data) {
    std::string bytes;
    for (const int32_t byte : data) bytes.push_back(static_cast<char>(byte));
    if (CleanUtf8(bytes) != bytes) return absl::InvalidArgumentError("a text of the grammar is not UTF-8");
    std::string text = "\"";
    for (const char c : bytes) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte >= 0x80) {
        text.push_back(c);  // Of a character that stands there as it is.
      } else {
        text += NeedsEscape(byte) ? EscapedInJson(byte) : Escaped(byte);
      }
    }
    return text + "\"";
  }

  static std::string Class(const std::vector<int32_t>& data) {
    std::vector<Range> ranges;
    for (size_t i = 1; i + 1 < data.size(); i += 2) ranges.emplace_back(data[i], data[i + 1]);
    std::sort(ranges.begin(), ranges.end());
    if (!data.empty() && data[0] != 0) ranges = Complement(ranges);
    std::vector<std::string> choices;
    std::string plain;
    for (const auto& [first, last] : ranges) {
      for (int32_t at = first; at <= std::min(last, int32_t{'\\'}); ++at) {
        if (NeedsEscape(at)) choices.push_back(absl::StrCat("\"", EscapedInJson(at), "\""));
      }
      AddPlain(first, last, &plain);
    }
    if (!plain.empty()) choices.push_back(absl::StrCat("[", plain, "]"));
    // A class of nothing: no text is in it.
    if (choices.empty()) return "[^\\U00000000-\\U0010FFFF]";
    return absl::StrCat("(", absl::StrJoin(choices, " | "), ")");
  }

  static std::vector<Range> Complement(const std::vector<Range>& ranges) {
    std::vector<Range> others;
    int32_t next = 0;
    for (const auto& [first, last] : ranges) {
      if (first > next) others.emplace_back(next, first - 1);
      next = std::max(next, last + 1);
    }
    if (next <= kMaxCodePoint) others.emplace_back(next, kMaxCodePoint);
    return others;
  }

  // What of a range stands in JSON as it is.
  static void AddPlain(int32_t first, int32_t last, std::string* plain) {
    for (const auto& [low, high] :
         {Range{kFirstPrintable, '"' - 1}, Range{'"' + 1, '\\' - 1}, Range{'\\' + 1, kMaxCodePoint}}) {
      const int32_t from = std::max(first, low);
      const int32_t to = std::min(last, high);
      if (from <= to) absl::StrAppend(plain, Escaped(from), "-", Escaped(to));
    }
  }

  const Json& rules_;
  const std::vector<size_t> begins_;
  const std::vector<int32_t> data_;
  const size_t root_;
};

}  // namespace

absl::StatusOr<std::string> JsonStringsOfLark(absl::string_view lark) {
  try {
    const xgrammar::Grammar grammar = xgrammar::Grammar::FromLark(std::string(lark));
    const Json json = Json::parse(grammar.SerializeJSON());
    // Here, where its rules have their names. What never ends is taken out of what is written.
    Json checked = json;
    TANDEM_RETURN_IF_ERROR(KeepFiniteTexts(lark, &checked).status());
    return StringWriter(json).Write();
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

absl::StatusOr<std::string> WithLarkStrings(absl::string_view structural_tags) {
  if (!absl::StrContains(structural_tags, kLarkStringType)) return std::string(structural_tags);
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(structural_tags, nullptr, false);
  if (json.is_discarded()) return absl::InvalidArgumentError("structural tags are not JSON");
  nlohmann::ordered_json& tags = TagsIn(json);
  for (size_t i = 0; i < tags.size(); ++i) {
    nlohmann::ordered_json& content = tags[i]["content"];
    if (content["type"] != kLarkStringType) continue;
    const absl::StatusOr<std::string> grammar = JsonStringsOfLark(content["lark"].get<std::string>());
    if (!grammar.ok()) {
      return absl::Status(grammar.status().code(),
                          absl::StrCat("tags[", i, "].content: ", grammar.status().message()));
    }
    content = {{"type", "grammar"}, {"grammar", *grammar}};
  }
  return json.dump();
}

}  // namespace tandem
