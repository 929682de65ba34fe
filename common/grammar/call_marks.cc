#include "common/grammar/call_marks.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace tandem {
namespace {

// No byte of UTF-8 four times, then a letter for the mark.
constexpr absl::string_view kNoText = "\xff\xff\xff\xff";
// Structural tags are JSON, which cannot have that: the last code point, which is no character, stands in for
// it. It has as many bytes.
constexpr absl::string_view kStandIn = "\xf4\x8f\xbf\xbf";
static_assert(kNoText.size() == kStandIn.size() && kNoText.size() + 1 == kCallMarkBytes);

std::string Coded(absl::string_view prefix, size_t mark) {
  return absl::StrCat(prefix, std::string(1, static_cast<char>('a' + mark)));
}

using Replacements = std::vector<std::pair<absl::string_view, std::string>>;

void Replace(const Replacements& marks, nlohmann::ordered_json* text) {
  *text = absl::StrReplaceAll(text->get<std::string>(), marks);
}

}  // namespace

std::string CallMarkBytes(size_t mark) {
  return Coded(kNoText, mark);
}

size_t FindCallMark(absl::string_view bytes) {
  if (bytes.size() < kCallMarkBytes || !absl::StartsWith(bytes, kNoText)) return kCallMarks.size();
  const size_t mark = static_cast<unsigned char>(bytes[kNoText.size()]) - size_t{'a'};
  return std::min(mark, kCallMarks.size());
}

void KeepMarksApart(std::vector<std::string>* bytes) {
  const auto is_mark = [](const std::string& token) {
    return token.size() == kCallMarkBytes && FindCallMark(token) < kCallMarks.size();
  };
  if (std::none_of(bytes->begin(), bytes->end(), is_mark)) return;
  for (std::string& token : *bytes) {
    if (!is_mark(token) && absl::StrContains(token, kNoText.front())) token.clear();
  }
}

absl::StatusOr<std::string> WithCallMarks(absl::string_view structural_tags,
                                          const GrammarVocabulary& vocabulary) {
  Replacements marks;
  for (const std::string& token : vocabulary.bytes()) {
    const size_t mark = token.size() == kCallMarkBytes ? FindCallMark(token) : kCallMarks.size();
    if (mark < kCallMarks.size()) marks.emplace_back(kCallMarks[mark], Coded(kStandIn, mark));
  }
  if (marks.empty()) return std::string(structural_tags);
  if (absl::StrContains(structural_tags, kStandIn)) {
    return absl::InvalidArgumentError("U+10FFFF: not supported within structural tags");
  }
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(structural_tags, nullptr, false);
  if (json.is_discarded()) return absl::InvalidArgumentError("structural tags are not JSON");
  nlohmann::ordered_json& format = json["format"];
  const auto code = [&marks](nlohmann::ordered_json& tag) {
    Replace(marks, &tag["begin"]);
    Replace(marks, &tag["end"]);
  };
  if (format["type"] == "plus") {  // Tags alone: there is no free text that could contain a mark.
    for (nlohmann::ordered_json& tag : format["content"]["elements"][0]["elements"]) code(tag);
    return json.dump();
  }
  std::vector<std::string> excluded;
  for (const auto& [text, coded] : marks) excluded.push_back(coded);
  for (nlohmann::ordered_json& trigger : format["triggers"]) {
    for (const auto& [text, coded] : marks) {
      if (!absl::StartsWith(trigger.get_ref<const std::string&>(), text)) continue;
      // Begins a tag, and only as the token.
      std::replace(excluded.begin(), excluded.end(), coded, std::string(text));
    }
    Replace(marks, &trigger);
  }
  for (nlohmann::ordered_json& tag : format["tags"]) code(tag);
  std::sort(excluded.begin(), excluded.end());
  excluded.erase(std::unique(excluded.begin(), excluded.end()), excluded.end());
  format["excludes"] = excluded;
  return json.dump();
}

absl::StatusOr<std::string> WithMarkBytes(const std::string& grammar) {
  // Of an expression: its kind, of which 0 is a string of bytes, how many words follow, and these.
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(grammar);
  const nlohmann::ordered_json& begins = json.at("grammar_expr_indptr");
  auto data = json.at("grammar_expr_data").get<std::vector<int32_t>>();
  for (const nlohmann::ordered_json& begin : begins) {
    const auto at = begin.get<size_t>();
    if (at + 2 > data.size() || data[at] != 0) continue;
    const auto length = static_cast<size_t>(data[at + 1]);
    if (at + 2 + length > data.size()) {
      return absl::InternalError("XGrammar's strings have an unexpected form");
    }
    for (size_t i = at + 2; i + kCallMarkBytes <= at + 2 + length; ++i) {
      const auto is = [&](size_t offset, char byte) {
        return data[i + offset] == static_cast<unsigned char>(byte);
      };
      bool found = true;
      for (size_t k = 0; k < kStandIn.size(); ++k) found = found && is(k, kStandIn[k]);
      if (!found) continue;
      for (size_t k = 0; k < kNoText.size(); ++k) data[i + k] = static_cast<unsigned char>(kNoText[k]);
    }
  }
  json["grammar_expr_data"] = data;
  return json.dump();
}

}  // namespace tandem
