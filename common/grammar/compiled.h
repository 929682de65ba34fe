#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/token.h"

namespace tandem {

// What a constraint is compiled from.
struct ConstraintSource {
  enum class Form : uint8_t {
    kJsonSchema,      // A JSON schema, for JSON text.
    kRegex,           // A regular expression for the whole output.
    kGrammar,         // An EBNF grammar, its first rule `root`.
    kStructuralTags,  // A structural tag in XGrammar's JSON: free text with constrained parts.
  };
  Form form = Form::kJsonSchema;
  std::string text;
  // kJsonSchema: blanks and line ends wherever JSON allows them; else one blank after commas and colons.
  bool any_whitespace = false;

  friend bool operator==(const ConstraintSource&, const ConstraintSource&) = default;
};

// Whether this build can compile constraints (-DTANDEM_GRAMMAR).
bool HasGrammars();

// What the tokens of a model are to a constraint: their bytes, and which of them end a text. Immutable.
class GrammarVocabulary {
 public:
  // `bytes` of every token id; none of one that no text is spelled with. `end_tokens`, at least one, each
  // with an entry in `bytes`, end the output, and no constraint sees their bytes.
  static absl::StatusOr<std::shared_ptr<const GrammarVocabulary>> Create(std::vector<std::string> bytes,
                                                                         std::vector<TokenId> end_tokens);
  virtual ~GrammarVocabulary() = default;

  const std::vector<std::string>& bytes() const { return bytes_; }
  const std::vector<TokenId>& end_tokens() const { return end_tokens_; }
  int32_t size() const { return static_cast<int32_t>(bytes_.size()); }

 protected:
  GrammarVocabulary(std::vector<std::string> bytes, std::vector<TokenId> end_tokens)
      : bytes_(std::move(bytes)), end_tokens_(std::move(end_tokens)) {}

 private:
  const std::vector<std::string> bytes_;
  const std::vector<TokenId> end_tokens_;
};

// Where an output stands in its constraint: a function of the tokens it has accepted. Not thread-safe.
class ConstraintState {
 public:
  virtual ~ConstraintState() = default;

  // Takes one more token. False, and nothing changes, if it may not come here. An end-of-text token may where
  // the constraint may end; nothing comes after it.
  virtual bool Accept(TokenId token) = 0;
  // Takes back the last `count` tokens that were accepted.
  virtual void Rollback(uint32_t count) = 0;
  // Sets bit t % 32 of word t / 32 for every token t that Accept would take, and clears the others. `mask`
  // [MaskWords(vocabulary)].
  virtual void FillMask(absl::Span<uint32_t> mask) = 0;
  // The bytes that must come next whatever is chosen. Empty where the output may end or go on in two ways.
  virtual std::string ForcedBytes() = 0;
};

// A constraint for one vocabulary. Immutable but for masks that it keeps; any number of outputs share it, on
// any threads.
class CompiledConstraint {
 public:
  virtual ~CompiledConstraint() = default;
  // At the beginning of `constraint`, which LoadConstraint made and the state keeps.
  static std::unique_ptr<ConstraintState> Begin(std::shared_ptr<const CompiledConstraint> constraint);
  // About what it takes, with as many masks as it keeps.
  virtual size_t memory_bytes() const = 0;
  // How many masks were found among those that it keeps.
  virtual uint64_t masks_found() const = 0;
};

// Compiles, and returns what LoadConstraint reads. There is no bound on the time, memory or stack that this
// takes: for hostile sources it runs in a process of its own (compile_process.h). InvalidArgument says what
// cannot be compiled, or not exactly; Unimplemented without HasGrammars.
absl::StatusOr<std::string> CompileConstraint(const ConstraintSource& source,
                                              const GrammarVocabulary& vocabulary);
// Masks that a constraint keeps for states that come again.
inline constexpr size_t kMasksKept = 128;
// `compiled` comes from CompileConstraint of the same build, for the same vocabulary. Its states share up to
// `masks_kept` masks, which change no mask: of a string's states only the first one costs what a mask costs.
absl::StatusOr<std::shared_ptr<const CompiledConstraint>> LoadConstraint(
    absl::string_view compiled, std::shared_ptr<const GrammarVocabulary> vocabulary,
    size_t masks_kept = kMasksKept);

}  // namespace tandem
