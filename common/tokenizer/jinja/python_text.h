#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem {

// Python's string methods, on well-formed UTF-8.

enum class StripSide { kLeft, kRight, kBoth };

// Without `characters`, strips white space.
absl::string_view PythonStrip(absl::string_view text, std::optional<absl::string_view> characters,
                              StripSide side);

// Without `separator`, splits at runs of white space and drops empty parts. `separator` must not be empty.
// At most `max_splits` splits, any number when that is negative.
std::vector<std::string> PythonSplit(absl::string_view text, std::optional<absl::string_view> separator,
                                     int64_t max_splits);
// The same from the right.
std::vector<std::string> PythonRightSplit(absl::string_view text, std::optional<absl::string_view> separator,
                                          int64_t max_splits);
std::vector<std::string> PythonSplitLines(absl::string_view text, bool keep_ends);

std::string PythonUpper(absl::string_view text);
std::string PythonLower(absl::string_view text);
// The first letter of every run of letters upper case, the others lower case.
std::string PythonTitle(absl::string_view text);
// The first character upper case, the others lower case.
std::string PythonCapitalize(absl::string_view text);
std::string PythonCaseFold(absl::string_view text);
std::string PythonSwapCase(absl::string_view text);

// str.isalnum() and the others.
bool PythonIsAlnum(absl::string_view text);
bool PythonIsAlpha(absl::string_view text);
bool PythonIsAscii(absl::string_view text);
bool PythonIsDecimal(absl::string_view text);
bool PythonIsDigit(absl::string_view text);
bool PythonIsIdentifier(absl::string_view text);
bool PythonIsLower(absl::string_view text);
bool PythonIsNumeric(absl::string_view text);
bool PythonIsPrintable(absl::string_view text);
bool PythonIsSpace(absl::string_view text);
bool PythonIsTitle(absl::string_view text);
bool PythonIsUpper(absl::string_view text);

// Whether Python's repr shows the character as it is.
bool IsPythonPrintable(uint32_t code_point);

// The text of a number without the underscores that Python allows between digits.
std::string PythonDigits(absl::string_view text);

// Python's float(text); nullopt if it is no number.
std::optional<double> PythonFloat(absl::string_view text);

// The bytes of the characters from `begin` on, `count` of them; both must lie within the text.
absl::string_view CharacterRange(absl::string_view text, size_t begin, size_t count);

}  // namespace tandem
