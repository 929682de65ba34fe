#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/grammar/schema/language.h"
#include "common/grammar/schema/work_budget.h"

namespace tandem {

// A text of `least` to `most` characters, all out of `characters`.
struct CharacterRun {
  CodeRanges characters;
  size_t least = 0;
  size_t most = kNoLimit;
};

// A regular expression of ECMA-262, read as with its flag u: over code points, matching anywhere in a text.
// It has no back references, no look around except (?=...) and (?!...) at its very beginning, no \b and \B,
// and no \p{...}.
class Pattern {
 public:
  // InvalidArgument names the byte: "byte 3: ...".
  static absl::StatusOr<Pattern> Parse(absl::string_view text);

  // If it says no more than that: ^[a-z]{2,9}$.
  std::optional<CharacterRun> AsRun() const;
  // The texts that it matches.
  absl::StatusOr<Language> ToLanguage(WorkBudget* budget) const;

  struct Node {
    enum class Kind : uint8_t { kCharacter, kSequence, kChoice, kRepeat, kBegin, kEnd };
    Kind kind = Kind::kSequence;
    CodeRanges characters;       // kCharacter: one of these.
    std::vector<Node> children;  // kSequence, kChoice; of kRepeat one.
    size_t least = 0;            // kRepeat.
    size_t most = 0;
  };
  // Without what is looked ahead for.
  const Node& node() const { return node_; }

 private:
  struct LookAhead {
    Node node;
    bool negative = false;
  };

  Node node_;
  std::vector<LookAhead> look_aheads_;
};

}  // namespace tandem
