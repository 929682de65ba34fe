// Patterns of tokenizer files, which are translated for PCRE2, and texts that they are matched against.

#include "common/tokenizer/regex.h"
#include "common/tokenizer/unicode/unicode.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

bool RunRegex(absl::string_view input) {
  InputReader reader(input);
  const absl::StatusOr<Regex> regex = Regex::Compile(reader.Part());
  if (!regex.ok()) return Refused(regex.status(), "");
  const absl::string_view text = reader.Rest();
  if (FindInvalidUtf8(text).has_value()) return true;
  size_t last = 0;
  const absl::Status status = regex->ForEachMatch(text, [&](size_t begin, size_t end) -> absl::Status {
    Require(begin >= last && begin <= end && end <= text.size(), "matches in order, within the text");
    last = end;
    return absl::OkStatus();
  });
  if (!status.ok()) Require(absl::IsResourceExhausted(status), "no other error than backtracking's");
  return true;
}

// Every pattern in a JSON document.
void AddPatterns(const nlohmann::json& json, std::vector<std::string>& seeds) {
  if (json.is_object() && json.contains("Regex")) {
    seeds.push_back(Parts({json["Regex"].get<std::string>(), "Hello  w\xc3\xb6rld's 1234 \n\n_?x"}));
  }
  if (json.is_structured()) {
    for (const nlohmann::json& child : json) AddPatterns(child, seeds);
  }
}

std::vector<std::string> RegexSeeds() {
  std::vector<std::string> seeds = {
      Parts({R"((?i:'s|'t)|\p{L}+|\p{N}{1,3}|\s+(?!\S)|[^\s\p{L}]+)", "It's 12 apples"}),
      Parts({R"(\A\h+\z|(?<name>a)\k<name>|[a-z&&[^aeiou]]+)", "bcd aa"})};
  for (const char* const file :
       {"features.json", "components.json", "llama3/tokenizer.json", "qwen2/tokenizer.json"}) {
    AddPatterns(nlohmann::json::parse(RepositoryFile(std::string("common/tokenizer/testdata/") + file)),
                seeds);
  }
  return seeds;
}

const Registration kRegex({.name = "regex", .run = RunRegex, .seeds = RegexSeeds, .spoilt = 20'000});

}  // namespace
}  // namespace tandem::fuzz
