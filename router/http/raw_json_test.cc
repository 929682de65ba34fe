#include "router/http/raw_json.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/http/openai_json.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(RawJsonTest, MembersAreAsTheyAreWritten) {
  const std::string text =
      R"( { "a" : 12345678901234567890123 , "b":{"x":"},\"]{" , "y":[1,{}]},"c": "}", "d" :-1.50e+3})";
  EXPECT_EQ(RawMember(text, "a"), "12345678901234567890123");
  EXPECT_EQ(RawMember(text, "b"), R"({"x":"},\"]{" , "y":[1,{}]})");
  EXPECT_EQ(RawMember(RawMember(text, "b"), "y"), "[1,{}]");
  EXPECT_EQ(RawMember(text, "c"), R"("}")");
  EXPECT_EQ(RawMember(text, "d"), "-1.50e+3");
  EXPECT_EQ(RawMember(text, "x"), "");
  EXPECT_EQ(RawMember(text, "}"), "");
}

TEST(RawJsonTest, NamesMayHaveEscapes) {
  EXPECT_EQ(RawMember(R"({"\u0061\/\\":1,"a\"":2})", "a/\\"), "1");
  EXPECT_EQ(RawMember(R"({"\u0061\/\\":1,"a\"":2})", "a\""), "2");
  EXPECT_EQ(RawMember(R"({"":3})", ""), "3");
}

TEST(RawJsonTest, ElementsAreAsTheyAreWritten) {
  EXPECT_THAT(RawElements(R"([ 1.0,"a]" ,[2,3], {"b":[]},null ])"),
              ElementsAre("1.0", R"("a]")", "[2,3]", R"({"b":[]})", "null"));
  EXPECT_THAT(RawElements("[]"), IsEmpty());
  EXPECT_THAT(RawElements(" [ ] "), IsEmpty());
}

TEST(RawJsonTest, AByteOrderMarkMayStandInFront) {
  EXPECT_EQ(RawMember("\xef\xbb\xbf {\"a\":1}", "a"), "1");
  EXPECT_THAT(RawElements("\xef\xbb\xbf[1,2]"), ElementsAre("1", "2"));
}

TEST(RawJsonTest, OtherValuesHaveNeither) {
  for (const char* text : {"", "1", "\"{\\\"a\\\":1}\"", "null", "[1]"}) EXPECT_EQ(RawMember(text, "a"), "");
  for (const char* text : {"", "1", "{}", R"({"a":1})"}) EXPECT_THAT(RawElements(text), IsEmpty()) << text;
}

TEST(RawJsonTest, CompactHasNoSpaceBetweenTokens) {
  EXPECT_EQ(CompactJson("{ \"a b\" :\r\n\t[ 1 , \" \\\" \" ] }"), R"({"a b":[1," \" "]})");
}

TEST(RawJsonTest, WhatKeepsAnOrderIsBounded) {
  std::string body = "{";
  for (int i = 0; i < 20'000; ++i) body += "\"" + std::to_string(i) + "\":1,";
  body += "\"a\":1}";
  EXPECT_FALSE(ParseBody(body).ok());
  EXPECT_FALSE(ParseBody("{\"tools\":[" + body + "]}").ok());
  EXPECT_TRUE(ParseBody("{\"a\":[1,2,3],\"b\":{\"c\":{}}}").ok());
}

}  // namespace
}  // namespace tandem::router
