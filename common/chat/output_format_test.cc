#include "common/chat/output_format.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

TEST(OutputFormatTest, IsFoundByTheTemplatesMarks) {
  EXPECT_EQ(NameOf(FindOutputFormat("")), "json");
  EXPECT_EQ(NameOf(FindOutputFormat("'<tool_call>\\n' ~ x ~ '</tool_call>'")), "hermes");
  EXPECT_EQ(NameOf(FindOutputFormat("<tool_call> {% if '</think>' in content %}")), "hermes+think");
  EXPECT_EQ(NameOf(FindOutputFormat("<tool_call>\n<function=f>")), "none");
  EXPECT_EQ(NameOf(FindOutputFormat("<|start_header_id|>ipython<|end_header_id|>")), "llama");
  EXPECT_EQ(NameOf(FindOutputFormat("[AVAILABLE_TOOLS] [TOOL_CALLS]")), "mistral");
  EXPECT_EQ(NameOf(FindOutputFormat("[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}")), "mistral-args");
  EXPECT_EQ(NameOf(FindOutputFormat("<｜tool▁call▁begin｜>```json</think>")), "deepseek-fenced+think");
  EXPECT_EQ(NameOf(FindOutputFormat("<｜tool▁call▁begin｜>")), "deepseek");
}

TEST(OutputFormatTest, HasNames) {
  for (const char* name : {"hermes", "llama+think", "mistral", "mistral-args+think", "deepseek",
                           "deepseek-fenced+think", "json", "none+think"}) {
    const absl::StatusOr<OutputFormat> format = OutputFormatOf(name);
    ASSERT_TRUE(format.ok()) << format.status();
    EXPECT_EQ(NameOf(*format), name);
  }
  for (const char* name : {"", "+think", "Hermes", "think", "json+thinks"}) {
    EXPECT_TRUE(absl::StrContains(OutputFormatOf(name).status().message(), "expected one of hermes, llama"))
        << name;
  }
}

}  // namespace
}  // namespace tandem
