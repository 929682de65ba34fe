#include "common/grammar/schema/references.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/grammar/schema/json_value.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

// Section 5.4 of RFC 3986, without fragments.
TEST(ReferencesTest, AddressesAreResolvedAsTheRfcHasIt) {
  const struct {
    const char* reference;
    const char* whole;
  } cases[] = {
      {"g:h", "g:h"},
      {"g", "http://a/b/c/g"},
      {"./g", "http://a/b/c/g"},
      {"g/", "http://a/b/c/g/"},
      {"/g", "http://a/g"},
      {"//g", "http://g"},
      {"?y", "http://a/b/c/d;p?y"},
      {"g?y", "http://a/b/c/g?y"},
      {";x", "http://a/b/c/;x"},
      {"", "http://a/b/c/d;p?q"},
      {".", "http://a/b/c/"},
      {"./", "http://a/b/c/"},
      {"..", "http://a/b/"},
      {"../g", "http://a/b/g"},
      {"../..", "http://a/"},
      {"../../g", "http://a/g"},
      {"../../../g", "http://a/g"},
      {"/./g", "http://a/g"},
      {"/../g", "http://a/g"},
      {"g.", "http://a/b/c/g."},
      {"..g", "http://a/b/c/..g"},
      {"./g/.", "http://a/b/c/g/"},
      {"g/./h", "http://a/b/c/g/h"},
      {"g/../h", "http://a/b/c/h"},
      {"g;x=1/../y", "http://a/b/c/y"},
      {"g?y/../x", "http://a/b/c/g?y/../x"},
      {"HTTP://A/x", "http://a/x"},
  };
  for (const auto& test : cases) {
    EXPECT_EQ(ResolvedUri("http://a/b/c/d;p?q", test.reference), test.whole) << test.reference;
  }
  EXPECT_EQ(ResolvedUri("http://a", "b"), "http://a/b");
  EXPECT_EQ(ResolvedUri("", "./a/../b.json"), "b.json");
  EXPECT_EQ(ResolvedUri("a/b.json", "../c.json"), "c.json");
  EXPECT_EQ(ResolvedUri("urn:x:y", "urn:x:z"), "urn:x:z");
}

// Where the `$ref` at `path` of a schema leads, or why nowhere.
std::string Leads(absl::string_view schema, const std::vector<std::string>& path) {
  const JsonValue root = ParseJsonValue(schema, 64).value();
  const JsonValue* reference = &root;
  for (const std::string& name : path) reference = reference->Find(name);
  const absl::StatusOr<SchemaPlace> place = SchemaReferences(&root).Follow(*reference->Find("$ref"));
  return place.ok() ? place->pointer : std::string(place.status().message());
}

TEST(ReferencesTest, LeadToResourcesPlacesAndAnchorsOfTheDocument) {
  EXPECT_EQ(Leads(R"({"$id":"https://x.y/z.json","$ref":"z.json#/$defs/a","$defs":{"a":{}}})", {}),
            "#/$defs/a");
  EXPECT_EQ(Leads(R"({"$id":"https://x.y/z.json","$ref":"/z.json","$defs":{"a":{}}})", {}), "#");
  EXPECT_EQ(Leads(R"({"$ref":"a.json","$defs":{"b":{"$id":"a.json"}}})", {}), "#/$defs/b");
  EXPECT_EQ(
      Leads(
          R"({"$id":"https://x.y/z","$ref":"https://x.y/d/a#/$defs/c","$defs":{"b":{"$id":"d/a","$defs":{"c":{}}}}})",
          {}),
      "#/$defs/b/$defs/c");
  // Below an $id, places and anchors are its own.
  constexpr char kNested[] = R"({"$defs":{"c":{"$anchor":"n"},"b":{"$id":"b","$defs":{"c":{"$anchor":"n"}},
      "p":{"$ref":"#/$defs/c"},"q":{"$ref":"#n"},"r":{"$ref":"#"}},"s":{"$ref":"#n"},"t":{"$ref":"b#n"}}})";
  EXPECT_EQ(Leads(kNested, {"$defs", "b", "p"}), "#/$defs/b/$defs/c");
  EXPECT_EQ(Leads(kNested, {"$defs", "b", "q"}), "#/$defs/b/$defs/c");
  EXPECT_EQ(Leads(kNested, {"$defs", "b", "r"}), "#/$defs/b");
  EXPECT_EQ(Leads(kNested, {"$defs", "s"}), "#/$defs/c");
  EXPECT_EQ(Leads(kNested, {"$defs", "t"}), "#/$defs/b/$defs/c");
  // Names as older drafts give them.
  EXPECT_EQ(Leads(R"({"$ref":"#n","definitions":{"a":{"$id":"#n"}}})", {}), "#/definitions/a");
  EXPECT_EQ(
      Leads(
          R"({"$schema":"http://json-schema.org/draft-04/schema#","id":"http://x/y#","$ref":"z#","definitions":{"a":{"id":"z"}}})",
          {}),
      "#/definitions/a");
  // A property may have the name of a keyword.
  EXPECT_EQ(
      Leads(R"({"$id":"r","properties":{"enum":{"$id":"s","items":{"$ref":"#/items"}},"$id":{"const":1}}})",
            {"properties", "enum", "items"}),
      "#/properties/enum/items");
  EXPECT_EQ(Leads(R"({"$ref":"#d","$defs":{"a":{"$dynamicAnchor":"d"}}})", {}), "#/$defs/a");
}

TEST(ReferencesTest, LeadNowhereElse) {
  EXPECT_THAT(Leads(R"({"$ref":"other.json"})", {}), HasSubstr("expected a place in this schema"));
  EXPECT_THAT(Leads(R"({"$id":"https://x.y/z","$ref":"https://x.y/a/z"})", {}),
              HasSubstr("expected a place"));
  // Without draft 4 an `id` is no address.
  EXPECT_THAT(Leads(R"({"$ref":"a","$defs":{"a":{"id":"a"}}})", {}), HasSubstr("expected a place"));
  EXPECT_THAT(Leads(R"({"$ref":"a","$defs":{"a":{"$id":"a"},"b":{"$id":"./a"}}})", {}),
              HasSubstr("two schemas have the $id a"));
  EXPECT_THAT(Leads(R"({"$ref":"#a","enum":[{"$anchor":"a"}]})", {}), HasSubstr("does not exist"));
  EXPECT_THAT(Leads(absl::StrCat(R"({"$ref":")", std::string(3'000, 'a'), "\"}"), {}),
              HasSubstr("2048 bytes"));
}

// Addresses below one another do not add up.
TEST(ReferencesTest, LongAddressesTakeNoMemory) {
  std::string schema = R"({"$ref":"#n","$defs":{"x":{"$anchor":"n"}}})";
  for (int i = 0; i < 50; ++i) {
    schema = absl::StrCat(R"({"$id":")", std::string(1'000, 'a'), "/", R"(","items":)", schema, "}");
  }
  std::vector<std::string> path(50, "items");
  EXPECT_THAT(Leads(schema, path), HasSubstr("/$defs/x"));
}

}  // namespace
}  // namespace tandem
