#include "common/tokenizer/unicode/unicode_tables.h"

#include <algorithm>
#include <iterator>

namespace tandem {
namespace {

struct Shift {
  uint32_t first;
  uint32_t last;
  int32_t by;
};

struct ScriptRun {
  uint32_t first;
  uint32_t last;
  int number;
};

#include "common/tokenizer/unicode/unicode_tables.inc"

// The run of a sorted table that contains the character, or null.
template <typename Run, size_t kSize>
const Run* FindRun(const Run (&table)[kSize], uint32_t code_point) {
  const auto holds_or_follows = [](const Run& run, uint32_t c) { return run.last < c; };
  const Run* run = std::lower_bound(std::begin(table), std::end(table), code_point, holds_or_follows);
  return run != std::end(table) && run->first <= code_point ? run : nullptr;
}

}  // namespace

absl::Span<const StandIn> StandIns() {
  return kStandIns;
}

absl::Span<const absl::string_view> ScriptsWithNewerCharacters() {
  return kScriptsWithNewer;
}

bool HasNoNormalForm(uint32_t code_point) {
  return code_point >= kWithoutNormalForm[0].first && FindRun(kWithoutNormalForm, code_point) != nullptr;
}

bool IsNewerWordCharacter(uint32_t code_point) {
  return FindRun(kNewerWord, code_point) != nullptr;
}

bool IsNewerNumeric(uint32_t code_point) {
  return FindRun(kNewerNumeric, code_point) != nullptr;
}

bool IsPunctuation(uint32_t code_point) {
  return FindRun(kPunctuation, code_point) != nullptr;
}

std::optional<uint32_t> FindNewerLowercase(uint32_t code_point) {
  const Shift* shift = FindRun(kNewerLowercase, code_point);
  if (shift == nullptr) return std::nullopt;
  return code_point + static_cast<uint32_t>(shift->by);
}

int WritingSystem(uint32_t code_point) {
  const ScriptRun* run = FindRun(kScripts, code_point);
  return run == nullptr ? kAnyWritingSystem : run->number;
}

}  // namespace tandem
