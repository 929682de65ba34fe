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

// The source of a constraint.
struct ConstraintSource {
  enum class Form : uint8_t {
    kJsonSchema,      // A JSON schema, for JSON text.
    kRegex,           // A regular expression for the whole output.
    kGrammar,         // An EBNF grammar, its first rule `root`.
    kLarkString,      // A Lark grammar, for the values of JSON strings.
    kStructuralTags,  // A structural tag in XGrammar's JSON: free text with constrained parts.
  };
  Form form = Form::kJsonSchema;
  std::string text;
  // kJsonSchema: the free layout, with blanks, line ends and indentations between tokens; otherwise one blank
  // after commas and colons (JsonLayout).
  bool any_whitespace = false;

  friend bool operator==(const ConstraintSource&, const ConstraintSource&) = default;
};

// Whether this build can compile constraints (-DTANDEM_GRAMMAR).
bool HasGrammars();

// A model's tokens for constraints: their bytes, and which of them end a text. Immutable.
class GrammarVocabulary {
 public:
  // `bytes`: of every token id; empty for tokens that spell no text. `end_tokens`: at least one, each with an
  // entry in `bytes`. They end the output, and constraints ignore their bytes.
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

// The position of an output in its constraint: a function of the accepted tokens. Not thread-safe.
class ConstraintState {
 public:
  virtual ~ConstraintState() = default;

  // Accepts one more token. False, without a change, if it is not allowed here, or if the text has so many
  // readings that following them takes more than a bounded number of steps or bytes. An end-of-text token is
  // allowed where the constraint may end; nothing is allowed after it.
  virtual bool Accept(TokenId token) = 0;
  // Removes the last `count` accepted tokens, none of which has been settled.
  virtual void Rollback(uint32_t count) = 0;
  // The tokens that have been accepted stay, so that what only their Rollback would need can go.
  virtual void Settle() {}
  // Sets bit t % 32 of word t / 32 for every token t that Accept would take, and clears the others; all if
  // that takes too many steps. `mask` [MaskWords(vocabulary)].
  virtual void FillMask(absl::Span<uint32_t> mask) = 0;
  // Bytes that must come next in any case, up to a bounded number of them. Empty if the output may end or
  // continue in two ways.
  virtual std::string ForcedBytes() = 0;
  // Whether nothing may come, or a token was refused, because finding out takes too many steps or bytes.
  virtual bool gave_up() const { return false; }
  // Steps that all these took so far: a measure of time that is the same on all machines.
  virtual uint64_t steps() const { return 0; }
};

// A compiled constraint for one vocabulary. Immutable except for cached masks. Any number of outputs share
// it, on any threads.
class CompiledConstraint {
 public:
  virtual ~CompiledConstraint() = default;
  // At the beginning of `constraint`, which LoadConstraint made and the state keeps.
  static std::unique_ptr<ConstraintState> Begin(std::shared_ptr<const CompiledConstraint> constraint);
  // Its approximate memory, with a full cache of masks.
  virtual size_t memory_bytes() const = 0;
  // The number of hits in the cache of masks.
  virtual uint64_t masks_found() const = 0;
};

// Most bytes of what LoadConstraint reads, which takes a few times as much memory meanwhile.
inline constexpr size_t kMostCompiledBytes = size_t{32} << 20;
// Compiles a source into the input of LoadConstraint. Time, memory and stack are unbounded, so hostile
// sources are compiled in a separate process (compile_process.h). InvalidArgument says what cannot be
// compiled, or not exactly, or has no finite text; Unimplemented without HasGrammars.
absl::StatusOr<std::string> CompileConstraint(const ConstraintSource& source,
                                              const GrammarVocabulary& vocabulary);
// Cached masks of a constraint, for states that recur.
inline constexpr size_t kMasksKept = 128;
// `compiled`: from CompileConstraint of the same build, for the same vocabulary. Its states share up to
// `masks_kept` cached masks. The cache changes no mask; among the states within a string, only the first one
// has to compute it.
absl::StatusOr<std::shared_ptr<const CompiledConstraint>> LoadConstraint(
    absl::string_view compiled, std::shared_ptr<const GrammarVocabulary> vocabulary,
    size_t masks_kept = kMasksKept);

}  // namespace tandem
