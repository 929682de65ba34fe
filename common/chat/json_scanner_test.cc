#include "common/chat/json_scanner.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>

namespace tandem {
namespace {

using Step = JsonScanner::Step;
using Place = JsonScanner::Place;

// How many bytes the object takes, or -1 if it is none, or not whole.
int LengthOf(const std::string& text) {
  JsonScanner scanner;
  for (size_t i = 0; i < text.size(); ++i) {
    const Step step = scanner.Push(text[i]);
    if (step == Step::kInvalid) return -1;
    if (step == Step::kEnd) return static_cast<int>(i) + 1;
  }
  return -1;
}

// N, V and '.' for the places of the bytes.
std::string PlacesOf(const std::string& text) {
  JsonScanner scanner;
  std::string places;
  for (const char byte : text) {
    if (scanner.Push(byte) == Step::kInvalid) return places + "!";
    places.push_back(scanner.place() == Place::kName ? 'N' : scanner.place() == Place::kValue ? 'V' : '.');
  }
  return places;
}

TEST(JsonScannerTest, TellsNamesAndValuesApart) {
  EXPECT_EQ(PlacesOf(R"({"a": 12, "b":"x\"y"})"), ".NNN..VV..NNN.VVVVVV.");
  EXPECT_EQ(PlacesOf(R"({"a":{"b":[1]},"c":null})"), ".NNN.VVVVVVVVV.NNN.VVVV.");
  EXPECT_EQ(PlacesOf("{}"), "..");
  EXPECT_EQ(PlacesOf("[1]"), "!");
}

TEST(JsonScannerTest, EndsWhereTheObjectEnds) {
  EXPECT_EQ(LengthOf("{} }"), 2);
  EXPECT_EQ(LengthOf(R"({"a":"}"}})"), 9);
  EXPECT_EQ(LengthOf("{\"a\":\"line\nline\"}"), 17);
  EXPECT_EQ(LengthOf(std::string(R"({"a":)") + std::string(62, '[') + std::string(62, ']') + "}"), 130);
  EXPECT_EQ(LengthOf(std::string(R"({"a":)") + std::string(64, '[')), -1);
}

TEST(JsonScannerTest, AgreesWithAParser) {
  const std::string seeds[] = {R"({"a": [1, 0, 0.5, -2.5e+3], "b": {"c": "\u00e9\n"}, "d": true, "e": null})",
                               R"({"x": [[], {}, ""], "y": -0, "z": 1E9})"};
  std::mt19937 random(3);
  int num_valid = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = seeds[random() % 2];
    for (size_t edits = random() % 3; edits > 0; --edits) {
      const size_t at = random() % text.size();
      static const std::string kBytes = "{}[]\",:0123456789.eE+- \\truefalsn";
      const char byte = kBytes[random() % kBytes.size()];
      if (random() % 2 == 0) {
        text[at] = byte;
      } else {
        text.erase(at, 1);
      }
    }
    const int length = LengthOf(text);
    const bool valid = nlohmann::json::accept(text) && text.front() == '{';
    num_valid += valid ? 1 : 0;
    // The parser wants all of the text.
    if (valid) {
      EXPECT_NE(length, -1) << text;
    } else if (length != -1) {
      EXPECT_TRUE(nlohmann::json::accept(text.substr(0, static_cast<size_t>(length)))) << text;
    }
  }
  EXPECT_GT(num_valid, 5'000);
}

}  // namespace
}  // namespace tandem
