#include "bench/plan/machines.h"
#include "bench/plan/plan_engine.h"
#include "nlohmann/json.hpp"

namespace tandem::plan {
namespace {

// A byte-level tokenizer in which every token is one character.
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

}  // namespace

absl::StatusOr<std::shared_ptr<const Tokenizer>> MakePlanTokenizer() {
  return Tokenizer::Parse(Definition(), "the planner's tokenizer");
}

}  // namespace tandem::plan
