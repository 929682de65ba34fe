#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/civil_time.h"
#include "absl/time/time.h"
#include "common/base/file.h"
#include "common/tokenizer/chat_template.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

// testdata/jinja/make_golden.py renders the same with Jinja itself.
TEST(JinjaGoldenTest, RendersAsJinja) {
  const absl::StatusOr<std::string> golden =
      ReadFile(absl::StrCat(TANDEM_SOURCE_DIR, "/common/tokenizer/testdata/jinja/golden.json"), 4 << 20);
  ASSERT_TRUE(golden.ok()) << golden.status();
  nlohmann::ordered_json document = nlohmann::ordered_json::parse(*golden);
  ChatTemplateOptions options;
  options.now = absl::FromCivil(absl::CivilSecond(2026, 3, 7, 14, 5, 6), absl::UTCTimeZone());
  document.at("variables").erase("messages");
  options.json_variables = document.at("variables").dump();
  size_t num_texts = 0;
  size_t num_errors = 0;
  size_t num_wrong = 0;
  for (const nlohmann::ordered_json& test_case : document.at("cases")) {
    const std::string source = test_case[0];
    const absl::StatusOr<ChatTemplate> parsed = ChatTemplate::Parse(source);
    const absl::StatusOr<std::string> text = parsed.ok() ? parsed->Render({{"user", "Hi"}}, {}, options)
                                                         : absl::StatusOr<std::string>(parsed.status());
    const bool same =
        test_case[1].is_null() ? !text.ok() : text.ok() && *text == test_case[1].get<std::string>();
    if (!same && ++num_wrong < 100)
      ADD_FAILURE() << source << "\n  expected " << test_case[1] << "\n  found    "
                    << (text.ok() ? nlohmann::ordered_json(*text).dump() : text.status().ToString());
    ++(test_case[1].is_null() ? num_errors : num_texts);
  }
  EXPECT_EQ(num_wrong, 0);
  EXPECT_GT(num_texts, 6000);
  EXPECT_GT(num_errors, 2000);
}

// What Jinja or Python has and this engine has not: the template is refused when it is loaded, by name and
// line, also in a branch that no conversation reaches.
TEST(JinjaGoldenTest, RefusesAtLoadWhatItHasNot) {
  const struct {
    const char* source;
    const char* message;
  } kCases[] = {
      {"\n{% if false %}{% include 'a' %}{% endif %}", "line 2: tag 'include' is not supported"},
      {"{% import 'a' as b %}", "line 1: tag 'import' is not supported"},
      {"{% from 'a' import b %}", "line 1: tag 'from' is not supported"},
      {"{% extends 'a' %}", "line 1: tag 'extends' is not supported"},
      {"{% do x.append(1) %}", "line 1: tag 'do' is not supported"},
      {"{% trans %}a{% endtrans %}", "line 1: tag 'trans' is not supported"},
      {"\n\n{{ x | pprint if false }}", "line 3: filter 'pprint' is not supported"},
      {"{{ [1] | random }}", "line 1: filter 'random' is not supported"},
      {"{{ x | urlize }}", "line 1: filter 'urlize' is not supported"},
      {"{{ x | wordwrap(3) }}", "line 1: filter 'wordwrap' is not supported"},
      {"{{ x | striptags }}", "line 1: filter 'striptags' is not supported"},
      {"{{ x | map('shuffle') }}", "line 1: filter 'shuffle' is not supported"},
      {"{{ x | selectattr('a', 'odder') }}", "line 1: test 'odder' is not supported"},
      {"{{ x is odder }}", "line 1: test 'odder' is not supported"},
      {"{{ lipsum() }}", "line 1: 'lipsum' is not supported"},
      {"{{ self.b() }}", "line 1: 'self' is not supported"},
      {"{{ 'a'.encode('utf-8') }}", "line 1: method 'encode' is not supported"},
      {"{{ x | tojson(sort=true) }}", "line 1: filter 'tojson' has no argument 'sort'"},
      {"{{ x | replace('a') }}", "line 1: filter 'replace' expects an argument 'new'"},
      {"{{ x | trim('a', 'b') }}", "line 1: filter 'trim': 2 arguments, expected at most 1"},
      {"{{ x is divisibleby }}", "line 1: test 'divisibleby' expects an argument 'num'"},
      {"{% autoescape true %}{% endautoescape %}", "tag 'autoescape' other than with false is not supported"},
  };
  for (const auto& test_case : kCases) {
    const absl::Status status = ChatTemplate::Parse(test_case.source).status();
    EXPECT_FALSE(status.ok()) << test_case.source;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test_case.message)) << test_case.source;
  }
}

TEST(JinjaGoldenTest, BoundsWhatFormatsMake) {
  for (const char* source :
       {"{{ '%999999999999d' % 1 }}", "{{ '{:>99999999999}'.format(1) }}", "{{ 'a'.center(99999999999999) }}",
        "{{ 'a' | center(99999999999) }}", "{{ 'a'.zfill(9999999999999) }}",
        "{{ '\\t'.expandtabs(99999999999) }}", "{{ [1] | batch(99999999999999, 1) | list }}",
        "{{ [] | slice(9999999999999) | list }}", "{{ '{:099999999999,}'.format(1) }}",
        "{{ '{:{w}}'.format(1, w='9' * 12) }}",
        "{% set ns = namespace(l='x') %}{% for i in range(99) %}{% set ns.l = ns.l.replace('', ns.l) %}{% "
        "endfor %}",
        "{% for i in range(30) recursive %}{{ loop(range(30)) if loop.depth < 20 }}{% endfor %}",
        "{% set ns = namespace(l=['\"']) %}{% for i in range(40) %}{% set ns.l = [ns.l | "
        "tojson(ensure_ascii=true)] %}"
        "{% endfor %}"}) {
    const absl::StatusOr<ChatTemplate> parsed = ChatTemplate::Parse(source);
    ASSERT_TRUE(parsed.ok()) << source << ": " << parsed.status();
    const absl::Status status = parsed->Render({{"user", "Hi"}}, {}, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << source << ": " << status;
  }
  // What is nested too deeply is an error of the template.
  for (const char* source :
       {"{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% macro m() %}{% call m() %}{% endcall %}{{ caller() }}{% endmacro %}{{ m() }}"}) {
    const absl::Status status = ChatTemplate::Parse(source)->Render({{"user", "Hi"}}, {}, {}).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("deeply")) << source;
  }
}

}  // namespace
}  // namespace tandem
