// tandem-schemas: generates texts under JSON schemas and says which texts they take, for schemas_test.py to
// judge.
//
//   tandem-schemas SEED [WORDS] < requests
//
// Reads lines of JSON: {"schema": TEXT, "free": whether the layout is free, "outputs": how many, "takes":
// TEXTS}. Prints a line for each: {"error": WHY}, or {"outputs": [[TEXT in hexadecimal digits, whether it is
// whole]...], "takes": [whether each text is taken...], "bytes": of its grammar}. A request for no text at
// all converts the schema and compiles nothing. A vocabulary of single bytes and some longer pieces stands in
// for a model's.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/grammar/compiled.h"
#include "common/grammar/constraint.h"
#include "common/grammar/schema_source.h"
#include "common/grammar/token_mask.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostTokens = 600;

std::vector<std::string> Vocabulary(size_t num_words) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* piece :
       {"\": ", "\", \"", "{\"", "\"}", "\": \"", "\\u00", "\\n", "\\\"", "é",    "😀",   "true",
        "null", "12",     "-1",  ".5",  "a\"",    "ab",    "],",  "}}",   "\n  ", "0\"}"}) {
    tokens.emplace_back(piece);
  }
  std::mt19937_64 random(1);
  for (size_t i = 0; i < num_words; ++i) {
    std::string word(random() % 2, ' ');
    for (size_t syllables = 1 + random() % 3; syllables > 0; --syllables) {
      word.push_back("bcdfghklmnprstvw"[random() % 16]);
      word.push_back("aeiouy"[random() % 6]);
    }
    constexpr const char* kEnds[] = {"\"", "\",", "s", ".", "-", ",", "\\n", "\":"};
    if (random() % 4 == 0) word += kEnds[random() % 8];
    tokens.push_back(
        absl::StrCat(word, i < 1000 ? "" : std::string(1, static_cast<char>('a' + random() % 26))));
  }
  return tokens;
}

// A token that is allowed. Often one that ends something, so that most outputs come to an end.
TokenId Choose(const std::vector<uint32_t>& mask, const GrammarVocabulary& vocabulary,
               std::mt19937_64& random) {
  std::vector<TokenId> allowed;
  std::vector<TokenId> ends;
  for (TokenId token = 0; token < vocabulary.size(); ++token) {
    if (!IsAllowed(mask, token)) continue;
    allowed.push_back(token);
    const std::string& bytes = vocabulary.bytes()[static_cast<size_t>(token)];
    if (bytes.empty() || bytes == "\"" || bytes == "}" || bytes == "]") ends.push_back(token);
  }
  const std::vector<TokenId>& from = !ends.empty() && random() % 4 == 0 ? ends : allowed;
  return from.empty() ? -1 : from[random() % from.size()];
}

Json Generate(const std::shared_ptr<const CompiledConstraint>& constraint,
              const GrammarVocabulary& vocabulary, std::mt19937_64& random) {
  const std::unique_ptr<ConstraintState> state = CompiledConstraint::Begin(constraint);
  std::vector<uint32_t> mask(MaskWords(vocabulary.size()));
  std::string text;
  for (size_t i = 0; i < kMostTokens; ++i) {
    // What is forced must be what the masks say.
    const std::string forced = state->ForcedBytes();
    state->FillMask(absl::MakeSpan(mask));
    const TokenId token = Choose(mask, vocabulary, random);
    if (token < 0) return Json::array({absl::BytesToHexString(text), "stuck"});
    const std::string& bytes = vocabulary.bytes()[static_cast<size_t>(token)];
    const size_t both = std::min(forced.size(), bytes.size());
    if (!state->Accept(token) || forced.substr(0, both) != bytes.substr(0, both) ||
        (bytes.empty() && !forced.empty())) {
      return Json::array({absl::BytesToHexString(text), "mask or forced bytes are wrong"});
    }
    if (bytes.empty()) return Json::array({absl::BytesToHexString(text), true});
    text += bytes;
  }
  return Json::array({absl::BytesToHexString(text), false});
}

bool Takes(const std::shared_ptr<const CompiledConstraint>& constraint, const GrammarVocabulary& vocabulary,
           const std::string& text) {
  const std::unique_ptr<ConstraintState> state = CompiledConstraint::Begin(constraint);
  for (const char byte : text) {
    if (!state->Accept(static_cast<uint8_t>(byte))) return false;
  }
  return state->Accept(vocabulary.end_tokens()[0]);
}

absl::StatusOr<Json> Answer(const Json& request, const std::shared_ptr<const GrammarVocabulary>& vocabulary,
                            std::mt19937_64& random) {
  const ConstraintSource source{.form = ConstraintSource::Form::kJsonSchema,
                                .text = request.at("schema"),
                                .any_whitespace = request.value("free", false)};
  TANDEM_RETURN_IF_ERROR(CheckConstraint(source, {}));
  TANDEM_ASSIGN_OR_RETURN(const ConstraintSource grammar, WithGrammars(source));
  Json answer = {{"outputs", Json::array()}, {"takes", Json::array()}, {"bytes", grammar.text.size()}};
  const auto num_outputs = request.value("outputs", size_t{0});
  const Json texts = request.value("takes", Json::array());
  if (num_outputs == 0 && texts.empty()) return answer;
  TANDEM_ASSIGN_OR_RETURN(const std::string compiled, CompileConstraint(source, *vocabulary));
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const CompiledConstraint> constraint,
                          LoadConstraint(compiled, vocabulary));
  for (size_t i = 0; i < num_outputs; ++i) {
    answer["outputs"].push_back(Generate(constraint, *vocabulary, random));
  }
  for (const Json& text : texts) {
    answer["takes"].push_back(Takes(constraint, *vocabulary, text.get<std::string>()));
  }
  return answer;
}

int Main(int argc, char** argv) {
  uint64_t seed = 0;
  size_t num_words = 0;
  if (argc < 2 || argc > 3 || !absl::SimpleAtoi(argv[1], &seed) ||
      (argc == 3 && !absl::SimpleAtoi(argv[2], &num_words))) {
    std::fputs("usage: tandem-schemas SEED [WORDS] < requests\n", stderr);
    return 2;
  }
  std::vector<std::string> tokens = Vocabulary(num_words);
  const auto end = static_cast<TokenId>(tokens.size());
  tokens.emplace_back();
  const auto vocabulary = GrammarVocabulary::Create(std::move(tokens), {end}).value();
  std::mt19937_64 random(seed);
  for (std::string line; std::getline(std::cin, line);) {
    const absl::StatusOr<Json> answer = Answer(Json::parse(line), vocabulary, random);
    std::cout << (answer.ok() ? *answer : Json{{"error", answer.status().message()}}) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  return tandem::Main(argc, argv);
}
