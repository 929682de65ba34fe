// tandem-masks: prints masks of constraints after random prefixes, for masks_test.py to compare with those of
// another implementation.
//
//   tandem-masks FOLDER NUM_PREFIXES SEED < constraints
//
// Reads constraints as lines of JSON: {"form": "json_schema", "regex" or "grammar", "text": ...}. Prints
// lines of JSON: what the tokens of the model in FOLDER are to constraints, and the constraints with grammars
// in the place of schemas and expressions; then the prefixes of each constraint with the masks after them,
// words in hexadecimal digits.

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/grammar/compiled.h"
#include "common/grammar/constraint.h"
#include "common/grammar/schema_source.h"
#include "common/grammar/token_mask.h"
#include "common/model/model.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using Json = nlohmann::json;

// A prefix is no longer than this, so that most of them lie where there is much to choose.
constexpr size_t kLongestPrefix = 60;

std::string Digits(const std::vector<uint32_t>& mask) {
  std::string digits;
  for (const uint32_t word : mask) absl::StrAppendFormat(&digits, "%08x", word);
  return digits;
}

TokenId AnyAllowed(const std::vector<uint32_t>& mask, int32_t vocab_size, std::mt19937_64& random) {
  std::vector<TokenId> allowed;
  for (TokenId token = 0; token < vocab_size; ++token) {
    if (IsAllowed(mask, token)) allowed.push_back(token);
  }
  return allowed.empty() ? -1 : allowed[random() % allowed.size()];
}

absl::StatusOr<ConstraintSource> ReadSource(const Json& line) {
  const std::string form = line.at("form");
  ConstraintSource source{.text = line.at("text")};
  if (form == "regex") {
    source.form = ConstraintSource::Form::kRegex;
  } else if (form == "grammar") {
    source.form = ConstraintSource::Form::kGrammar;
  } else if (form != "json_schema") {
    return absl::InvalidArgumentError(absl::StrCat("form: ", form));
  }
  return source;
}

absl::Status PrintMasks(const ConstraintSource& source, std::shared_ptr<const GrammarVocabulary> vocabulary,
                        size_t index, size_t num_prefixes, std::mt19937_64& random) {
  TANDEM_ASSIGN_OR_RETURN(const std::string bytes, CompileConstraint(source, *vocabulary));
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const CompiledConstraint> compiled,
                          LoadConstraint(bytes, vocabulary));
  std::vector<uint32_t> mask(MaskWords(vocabulary->size()));
  while (num_prefixes > 0) {
    const std::unique_ptr<ConstraintState> state = CompiledConstraint::Begin(compiled);
    TokenIds prefix;
    for (bool ended = false; !ended && num_prefixes > 0; --num_prefixes) {
      state->FillMask(absl::MakeSpan(mask));
      std::cout << Json{{"constraint", index}, {"prefix", prefix}, {"mask", Digits(mask)}} << "\n";
      const TokenId token = AnyAllowed(mask, vocabulary->size(), random);
      ended = token < 0 || prefix.size() == kLongestPrefix || !state->Accept(token);
      prefix.push_back(token);
    }
  }
  return absl::OkStatus();
}

absl::Status Run(const std::string& folder, size_t num_prefixes, uint64_t seed) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model, Model::Load(folder));
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> tokenizer,
                          Tokenizer::LoadForModel(folder, model->config().vocab_size));
  TANDEM_ASSIGN_OR_RETURN(
      const std::shared_ptr<const GrammarVocabulary> vocabulary,
      VocabularyOf(*tokenizer, model->config().vocab_size, model->generation_defaults().eos_tokens));
  Json bytes = Json::array();
  for (const std::string& token : vocabulary->bytes()) bytes.push_back(absl::BytesToHexString(token));
  std::vector<ConstraintSource> sources;
  Json texts = Json::array();
  for (std::string line; std::getline(std::cin, line);) {
    TANDEM_ASSIGN_OR_RETURN(ConstraintSource source, ReadSource(Json::parse(line)));
    TANDEM_ASSIGN_OR_RETURN(source, WithGrammars(source));
    texts.push_back(source.text);
    sources.push_back(std::move(source));
  }
  std::cout << Json{{"bytes", std::move(bytes)},
                    {"end_tokens", vocabulary->end_tokens()},
                    {"texts", std::move(texts)}}
            << "\n";
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < sources.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(PrintMasks(sources[i], vocabulary, i, num_prefixes / sources.size() + 1, random));
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  uint64_t num_prefixes = 0;
  uint64_t seed = 0;
  if (argc != 4 || !absl::SimpleAtoi(argv[2], &num_prefixes) || !absl::SimpleAtoi(argv[3], &seed)) {
    std::fputs("usage: tandem-masks FOLDER NUM_PREFIXES SEED < constraints\n", stderr);
    return 2;
  }
  const absl::Status status = Run(argv[1], num_prefixes, seed);
  if (!status.ok()) std::fprintf(stderr, "tandem-masks: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  return tandem::Main(argc, argv);
}
