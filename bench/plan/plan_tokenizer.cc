#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "bench/plan/machines.h"
#include "bench/plan/plan_engine.h"
#include "nlohmann/json.hpp"

namespace tandem::plan {
namespace {

// Every token is a letter of its own, as byte-level tokenizers write them.
std::string Definition() {
  nlohmann::json vocabulary = nlohmann::json::object();
  for (int32_t token = 0; token < PlanEngine::kVocabSize; ++token) {
    vocabulary[std::string(1, static_cast<char>('0' + token))] = token;
  }
  const nlohmann::json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  return nlohmann::json{
      {"version", "1.0"},
      {"added_tokens", nlohmann::json::array()},
      {"normalizer", nullptr},
      {"pre_tokenizer", byte_level},
      {"post_processor", nullptr},
      {"decoder", byte_level},
      {"model", {{"type", "BPE"}, {"vocab", std::move(vocabulary)}, {"merges", nlohmann::json::array()}}}}
      .dump();
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> Load() {
  // Tokenizers are read from folders. mkdtemp puts random characters in place of the X.
  std::string folder = (std::filesystem::temp_directory_path() / "tandem-plan-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot make a folder ", folder, " for temporary files"));
  }
  std::ofstream(absl::StrCat(folder, "/tokenizer.json")) << Definition();
  absl::StatusOr<std::shared_ptr<const Tokenizer>> tokenizer = Tokenizer::Load(folder);
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return tokenizer;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Tokenizer>> MakePlanTokenizer() {
  static const auto* const tokenizer = new absl::StatusOr<std::shared_ptr<const Tokenizer>>(Load());
  return *tokenizer;
}

}  // namespace tandem::plan
