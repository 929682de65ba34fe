#include "common/tokenizer/bpe_model.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/json_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What the reader of GGUF files writes.
json ByNumber() {
  return {{"type", "BPE"}, {"contents", {"A", "B", "AB", "C", "ABC"}}, {"merge_ids", {0, 1, 2, 2, 3, 4}}};
}

absl::StatusOr<BpeModel> Parse(json model) {
  return BpeModel::Parse(JsonView::Of(std::move(model), "f"));
}

TEST(BpeModelTest, TakesContentsAndMergesByNumber) {
  const json by_name = {{"type", "BPE"},
                        {"vocab", {{"A", 0}, {"B", 1}, {"AB", 2}, {"C", 3}, {"ABC", 4}}},
                        {"merges", {"A B", "AB C"}}};
  for (const json& each : {ByNumber(), by_name}) {
    const auto model = Parse(each);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->vocabulary().size(), 5u);
    EXPECT_EQ(model->Find("ABC"), 4);
    BpeModel::Scratch scratch;
    TokenIds tokens;
    ASSERT_TRUE(model->Tokenize("ABCBAxAB", 100, scratch, tokens).ok());
    EXPECT_THAT(tokens, ElementsAre(4, 1, 0, 2));
  }
}

TEST(BpeModelTest, RefusesNumbersThatAreNoTokens) {
  const struct {
    const char* member;
    json value;
    const char* message;
  } kCases[] = {
      {"contents", "A", "f: $.contents: expected an array of contents"},
      {"contents", {"A", 1}, "$.contents[1]: expected a string"},
      {"contents", {"A", "B", "A"}, "$.contents[2]: the content of an earlier token"},
      {"merge_ids", "A", "$.merge_ids: expected triples of ids"},
      {"merge_ids", {0, 1}, "$.merge_ids: expected triples of ids"},
      {"merge_ids", {0, 1, 5}, "$.merge_ids[2]: expected a token's id"},
      {"merge_ids", {0, -1, 2}, "$.merge_ids[1]: expected a token's id"},
      {"merge_ids", {0.5, 1, 2}, "$.merge_ids[0]: expected a token's id"},
      {"merge_ids", {0, 1, 2, ~uint64_t{0}, 1, 2}, "$.merge_ids[3]: expected a token's id"},
      {"merge_ids", nullptr, "member 'merges' is missing"},
  };
  for (const auto& each : kCases) {
    json model = ByNumber();
    model[each.member] = each.value;
    const absl::Status status = Parse(model).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(each.message)) << model;
  }
}

}  // namespace
}  // namespace tandem
