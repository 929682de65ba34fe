#include "common/tokenizer/template_trials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"

namespace tandem {
namespace {

using Blank = ChatSpelling::Blank;
using ::testing::HasSubstr;

// Templates of our own that behave in histories with calls as those of well-known models.

// Qwen3: splits the content of an assistant, so none is an error.
constexpr char kSplits[] = R"({%- for t in tools or [] %}{{ t | tojson }}{% endfor %}
{%- for m in messages %}<{{ m.role }}>
{%- if m.role == 'assistant' %}{{ m.content.split('</think>')[-1] }}
{%- if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}
{%- for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments if c.function.arguments is string
else c.function.arguments | tojson }}]{% endfor %}
{%- else %}{{ m.content }}{% endif %}</{{ m.role }}>{% endfor %})";

// DeepSeek V3: arguments are text, and only a message whose content is none makes calls.
constexpr char kAddsText[] = R"({%- for t in tools or [] %}{{ t | tojson }}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'assistant' and m.content is none %}
{%- for c in m.tool_calls %}{{ '[' + c.function.name + ' ' + c.function.arguments + ']' }}{% endfor %}
{%- else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %})";

// Llama 3.1: one call at a time, in place of any content, arguments as an object.
constexpr char kOneCall[] = R"({%- for t in tools or [] %}{{ t | tojson(indent=4) }}{% endfor %}
{%- for m in messages %}<{{ m.role }}>
{%- if m.tool_calls is defined %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}
{%- set f = m.tool_calls[0].function %}{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}
{%- else %}{{ m.content | trim }}{% endif %}{% endfor %})";

// Hermes: prints the content whatever it is, and arguments as JSON.
constexpr char kPrints[] = R"({%- for t in tools or [] %}{{ t | tojson }}{% endfor %}
{%- for m in messages %}<{{ m.role }}>{{ m.content }}
{%- for c in m.tool_calls or [] %}[{{ c.function | tojson }}]{% endfor %}{% endfor %})";

// GLM: arguments member by member.
constexpr char kMembers[] = R"({%- for t in tools or [] %}{{ t | tojson }}{% endfor %}
{%- for m in messages %}<{{ m.role }}>
{%- if m.content is string and m.content %}{{ m.content }}{% endif %}
{%- if m.role == 'assistant' and m.reasoning_content is string %}<think>{{ m.reasoning_content }}</think>{% endif %}
{%- for c in m.tool_calls or [] %}[{{ c.function.name }}
{%- for k, v in c.function.arguments.items() %}<k>{{ k }}</k><v>{{ v }}</v>{% endfor %}]{% endfor %}{% endfor %})";

// SmolVLM: contents are lists of parts.
constexpr char kLists[] = R"({%- for m in messages %}<{{ m.role }}>
{%- for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}{% endfor %})";

// Llama 3.2 Vision and others: a text or a list.
constexpr char kBoth[] = R"({%- for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}
{%- else %}{% for p in m.content or [] %}{{ p.text }}{% if not loop.last %}|{% endif %}{% endfor %}{% endif %}
{%- endfor %})";

// gpt-oss: another name for reasoning, and a content that must not be there beside it.
constexpr char kThinks[] = R"({%- for m in messages %}<{{ m.role }}>
{%- if m.thinking %}({{ m.thinking }}){% endif %}{{ m.content }}
{%- for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %})";

// ChatML without tools.
constexpr char kPlain[] = R"({%- for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %})";

ChatRenderer RendererOf(const ChatTemplate& chat_template) {
  return [&chat_template](absl::Span<const ChatMessage> messages, const ChatTemplateOptions& options) {
    return chat_template.Render(messages, {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, options);
  };
}

TemplateTraits TraitsOf(absl::string_view source) {
  const absl::StatusOr<ChatTemplate> chat_template = ChatTemplate::Parse(source);
  EXPECT_TRUE(chat_template.ok()) << chat_template.status();
  return TryTemplate(RendererOf(*chat_template), source);
}

// The prompt of a conversation as the template is found to expect it.
std::string PromptOf(absl::string_view source, const std::vector<ChatMessage>& messages) {
  ChatTemplateOptions options;
  options.spelling = TraitsOf(source).spelling;
  return ChatTemplate::Parse(source)->Render(messages, {}, options).value_or("an error");
}

std::vector<ChatMessage> CallOf(std::optional<std::string> content, std::string reasoning = "") {
  return {{"user", "Hi"},
          {.role = "assistant",
           .content = std::move(content),
           .tool_calls = {{.id = "x", .name = "f", .arguments = R"({"a": "b"})"}},
           .reasoning = std::move(reasoning)}};
}

TEST(TemplateTrialsTest, KeepsWhatWorks) {
  for (const char* source : {kOneCall, kMembers}) {
    EXPECT_EQ(TraitsOf(source).spelling, ChatSpelling{}) << source << DescribeTraits(TraitsOf(source));
  }
  EXPECT_EQ(PromptOf(kOneCall, CallOf(std::nullopt)),
            R"(<user>Hi<assistant>{"name": "f", "parameters": {"a": "b"}})");
  EXPECT_EQ(PromptOf(kMembers, CallOf("", "hm")), "<user>Hi<assistant><think>hm</think>[f<k>a</k><v>b</v>]");
}

TEST(TemplateTrialsTest, NoContentIsEmptyWhereNoneFails) {
  EXPECT_EQ(TraitsOf(kSplits).spelling, ChatSpelling{.no_content = Blank::kEmpty});
  const std::string prompt = R"(<user>Hi</user><assistant>[f {"a": "b"}]</assistant>)";
  EXPECT_EQ(PromptOf(kSplits, CallOf(std::nullopt)), prompt);
  EXPECT_EQ(PromptOf(kSplits, CallOf("")), prompt);
}

TEST(TemplateTrialsTest, NoContentIsEmptyWhereNoneIsPrinted) {
  EXPECT_EQ(TraitsOf(kPrints).spelling, ChatSpelling{.no_content = Blank::kEmpty});
  EXPECT_EQ(PromptOf(kPrints, CallOf(std::nullopt)),
            R"(<user>Hi<assistant>[{"name": "f", "arguments": {"a": "b"}}])");
  EXPECT_EQ(PromptOf(kPrints, CallOf("None")),
            R"(<user>Hi<assistant>None[{"name": "f", "arguments": {"a": "b"}}])");
}

TEST(TemplateTrialsTest, ArgumentsAreTextWhereObjectsFail) {
  EXPECT_EQ(TraitsOf(kAddsText).spelling,
            (ChatSpelling{.arguments_as_text = true, .empty_content = Blank::kNone}));
  const std::string prompt = R"(<user>Hi[f {"a": "b"}])";
  EXPECT_EQ(PromptOf(kAddsText, CallOf(std::nullopt)), prompt);
  // With the client's own empty text the call would be lost.
  EXPECT_EQ(PromptOf(kAddsText, CallOf("")), prompt);
}

TEST(TemplateTrialsTest, ArgumentsAreTextWhereObjectsArePrintedAsPythonDoes) {
  const std::string source = absl::StrCat(kPlain, "{% for c in messages[-1].tool_calls or [] %}",
                                          "{{ c.function.name ~ c.function.arguments }}{% endfor %}",
                                          "{% for c in (messages | selectattr('tool_calls') | list) %}"
                                          "{{ c.tool_calls[0].function.arguments }}{% endfor %}");
  EXPECT_TRUE(TraitsOf(source).spelling.arguments_as_text);
  EXPECT_THAT(PromptOf(source, CallOf("Now.")), HasSubstr(R"({"a": "b"})"));
}

TEST(TemplateTrialsTest, AnEmptyContentStaysWhereItWorks) {
  constexpr char kTells[] =
      "{% for m in messages %}{{ 'none' if m.content is none else 'no' if m.content is undefined else "
      "'<' ~ m.content ~ '>' }}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}{% endfor %}";
  EXPECT_EQ(TraitsOf(kTells).spelling, ChatSpelling{});
  EXPECT_THAT(PromptOf(kTells, CallOf("")), HasSubstr("<Hi><>{"));
  EXPECT_THAT(PromptOf(kTells, CallOf(std::nullopt)), HasSubstr("<Hi>none{"));
  EXPECT_THAT(PromptOf(kTells, CallOf("x")), HasSubstr("<Hi><x>{"));
}

TEST(TemplateTrialsTest, NoContentIsAbsentWhereOnlyThatWorks) {
  constexpr char kIfGiven[] =
      "{% for m in messages %}{% if 'content' in m %}{{ '<' + m.content + '>' }}"
      "{{ raise_exception('empty') if not m.content }}{% endif %}"
      "{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}{% endfor %}";
  EXPECT_EQ(TraitsOf(kIfGiven).spelling,
            (ChatSpelling{.no_content = Blank::kAbsent, .empty_content = Blank::kAbsent}));
  EXPECT_EQ(PromptOf(kIfGiven, CallOf("")), R"(<Hi>{"name": "f", "arguments": {"a": "b"}})");
}

TEST(TemplateTrialsTest, TextIsAListWhereTemplatesTakeNothingElse) {
  const ChatSpelling spelling = TraitsOf(kLists).spelling;
  EXPECT_TRUE(spelling.text_as_parts);
  EXPECT_EQ(PromptOf(kLists, {{"user", "Hi"}}), "<user>Hi");
  EXPECT_EQ(PromptOf(kLists, {{.role = "user", .parts = {"Hi", " you"}}}), "<user>Hi you");
}

TEST(TemplateTrialsTest, PartsStayAListWhereTemplatesTakeThem) {
  EXPECT_EQ(TraitsOf(kBoth).spelling, (ChatSpelling{.takes_parts = true}));
  const std::vector<ChatMessage> parts = {{.role = "user", .parts = {"a", "b"}}};
  EXPECT_EQ(PromptOf(kBoth, parts), "<user>a|b");
  EXPECT_EQ(PromptOf(kPlain, parts), "<user>a\nb");
}

TEST(TemplateTrialsTest, ReasoningHasTheNameThatTheTemplateReads) {
  EXPECT_EQ(TraitsOf(kThinks).spelling,
            (ChatSpelling{.no_content = Blank::kEmpty, .reasoning_name = "thinking"}));
  EXPECT_THAT(PromptOf(kThinks, CallOf(std::nullopt, "hm")), HasSubstr("(hm)f{"));
}

TEST(TemplateTrialsTest, SaysWhatIsLaidOut) {
  const TemplateTraits plain = TraitsOf(kPlain);
  EXPECT_TRUE(plain.takes_system && plain.takes_results);
  EXPECT_FALSE(plain.takes_tools || plain.takes_calls || plain.takes_documents);
  EXPECT_EQ(DescribeTraits(plain),
            "chat template: lays out system, results; arguments are objects, contents text, no content is "
            "\"\", an empty one beside calls \"\", reasoning is reasoning_content");
  const TemplateTraits llama = TraitsOf(kOneCall);
  EXPECT_TRUE(llama.takes_system && llama.takes_results && llama.takes_tools && llama.takes_calls);
  EXPECT_TRUE(TraitsOf("{% for d in documents or [] %}{{ d.text }}{% endfor %}").takes_documents);
  EXPECT_FALSE(TraitsOf("{{ raise_exception('x') if messages[0].role == 'system' }}{{ messages[0].content "
                        "}}{# tools #}")
                   .takes_system);
}

TEST(TemplateTrialsTest, NamesAnErrorOfTheTemplate) {
  const TemplateTraits traits = TraitsOf("\n{{ messages.nothing.at.all }}");
  EXPECT_THAT(std::string(traits.problem.message()), HasSubstr("line 2: 'nothing' is undefined"));
  EXPECT_EQ(DescribeTraits(traits), traits.problem.message());
  const TemplateTraits endless = TraitsOf("{% for i in range(99999) %}{{ i }}{% endfor %}");
  EXPECT_TRUE(absl::IsResourceExhausted(endless.problem)) << endless.problem;
}

// The templates of the folder, which behave like those of the models that they are named after.
TEST(TemplateTrialsTest, KnowsTheTemplatesOfTheTests) {
  const std::map<std::string, ChatSpelling> kExpected = {{"tools_deepseek", {.empty_content = Blank::kNone}},
                                                         {"tools_hermes", {}},
                                                         {"tools_llama", {}},
                                                         {"tools_mistral", {}}};
  for (const auto& [name, spelling] : kExpected) {
    const std::string source =
        ReadFile(absl::StrCat(TANDEM_SOURCE_DIR, "/common/tokenizer/testdata/chat/", name, ".jinja"), 1 << 20)
            .value();
    const TemplateTraits traits = TraitsOf(source);
    EXPECT_EQ(traits.spelling, spelling) << name << ": " << DescribeTraits(traits);
    EXPECT_TRUE(traits.takes_tools && traits.takes_calls && traits.takes_results) << name;
  }
}

}  // namespace
}  // namespace tandem
