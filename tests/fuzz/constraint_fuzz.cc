// Constraints of every form, made up from the input, and what is generated under them: by a target that
// chooses by chance, with drafts and without. The outputs are judged by other means than the compiler's
// (constraint_case.h).

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/base/node_index.h"
#include "common/base/status_macros.h"
#include "common/grammar/compiled.h"
#include "common/grammar/constraint.h"
#include "common/grammar/token_mask.h"
#include "common/speculation/round_tree.h"
#include "tests/fuzz/constraint_case.h"
#include "tests/fuzz/fuzz_target.h"
#include "verifier/session/session_constraint.h"

namespace tandem::fuzz {
namespace {

constexpr int kMostTokens = 48;
constexpr uint64_t kMostSteps = 1'000'000;

// All bytes, and some texts that span the borders of what grammars are made of.
const std::shared_ptr<const GrammarVocabulary>& Vocabulary() {
  static const auto* const vocabulary = [] {
    std::vector<std::string> bytes;
    for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
    for (const char* text : {"ab",   "aa",       "xx",       "aaa",      "abx",   "0F",    "01",
                             "\"}",  "\": ",     ", ",       ", \"",     "{\"",   "[{",    "]}",
                             "true", "null",     "false",    "\\\"",     "\\n",   "\\u00", "\n\n",
                             "  ",   "\xc3\xa9", "\xf0\x9f", "\x98\x80", "a\xc3", "\"a\"", "-1",
                             "10",   ".5",       "e+",       "}}",       "[]",    "{}",    "\"b\": "}) {
      bytes.emplace_back(text);
    }
    bytes.emplace_back("<end>");
    const auto end = static_cast<TokenId>(bytes.size() - 1);
    return new std::shared_ptr<const GrammarVocabulary>(
        GrammarVocabulary::Create(std::move(bytes), {end}).value());
  }();
  return *vocabulary;
}
TokenId End() {
  return Vocabulary()->end_tokens()[0];
}

// What the target thinks of the tokens at a position: a function of the seed alone. It likes to end.
std::vector<float> LogitsAt(uint64_t seed, size_t position) {
  // Of a generator whose beginning costs nothing, because each token has one.
  uint64_t random = Mix64(seed + 7919 * position);
  std::vector<float> logits(static_cast<size_t>(Vocabulary()->size()));
  for (float& logit : logits) logit = static_cast<float>(Mix64(++random) % 100'000);
  logits[static_cast<size_t>(End())] += 50'000.0f;
  return logits;
}

TokenId Best(const std::vector<float>& logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

class Trial {
 public:
  Trial(const ConstraintCase& constraint_case, std::shared_ptr<const CompiledConstraint> constraint,
        uint64_t seed)
      : case_(constraint_case), constraint_(std::move(constraint)), seed_(seed), random_(seed) {}

  // Internal says what is wrong.
  absl::Status Run() {
    TANDEM_ASSIGN_OR_RETURN(const TokenIds plain, Generate({}));
    TANDEM_ASSIGN_OR_RETURN(const TokenIds drafted, Generate(plain));
    if (plain != drafted) return Fault("another output with drafts");
    if (plain.empty() || plain.back() != End()) return absl::OkStatus();  // It did not come to its end.
    const std::string text = TextOf(plain);
    if (case_.matches(text)) return absl::OkStatus();
    return Fault(absl::StrCat("an output that does not satisfy it: \"", absl::CHexEscape(text), "\""));
  }

  // That texts of the constraint can be generated.
  absl::Status TakeTexts() const {
    for (const std::string& text : case_.texts) {
      const std::unique_ptr<ConstraintState> state = CompiledConstraint::Begin(constraint_);
      bool taken = true;
      for (const char c : text) taken = taken && state->Accept(static_cast<unsigned char>(c));
      if (!taken || !state->Accept(End())) {
        return Fault(absl::StrCat("one of its texts is not allowed: \"", absl::CHexEscape(text), "\""));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Fault(absl::string_view what) const {
    return absl::InternalError(absl::StrCat(what, "\nconstraint ", case_.source.text));
  }

  static std::string TextOf(absl::Span<const TokenId> tokens) {
    std::string text;
    for (const TokenId token : tokens) {
      if (token != End()) text += Vocabulary()->bytes()[static_cast<size_t>(token)];
    }
    return text;
  }

  // With drafts out of `hints`, the output as it should be, or without.
  absl::StatusOr<TokenIds> Generate(absl::Span<const TokenId> hints) {
    SessionConstraint session(CompiledConstraint::Begin(constraint_), nullptr, Vocabulary()->size());
    TokenIds output;
    while (output.size() < kMostTokens && (output.empty() || output.back() != End())) {
      RoundTree tree = hints.empty() ? RoundTree() : Draft(hints, output.size());
      session.DropForbidden(&tree);
      if (!hints.empty() && random_() % 2 == 0) session.MaskAhead(tree.nodes());
      session.BeginWalk(tree.nodes());
      TokenIds chosen;
      for (uint32_t node = kRootNode; chosen.empty() || node != kRootNode;) {
        std::vector<float> logits = LogitsAt(seed_, output.size() + chosen.size());
        session.Mask(node, absl::MakeSpan(logits));
        const TokenId token = Best(logits);
        if (logits[static_cast<size_t>(token)] < 0.0f) {
          if (session.gave_up()) return output;  // What has too many readings ends with an error.
          return Fault(absl::StrCat("no way to go on after \"", absl::CHexEscape(TextOf(output)), "\""));
        }
        chosen.push_back(token);
        if (token == End()) break;
        node = FindChild(tree.nodes(), node, token).value_or(kRootNode);
      }
      session.EndWalk();
      for (const TokenId token : chosen) {
        if (!session.Commit(token)) {
          if (session.gave_up()) return output;
          return Fault("what the mask allows is not taken");
        }
        output.push_back(token);
        if (output.size() == kMostTokens) break;
      }
      if (hints.empty()) TANDEM_RETURN_IF_ERROR(CheckForced(output));
    }
    return output;
  }

  // A few candidates, some of them right.
  RoundTree Draft(absl::Span<const TokenId> hints, size_t position) {
    RoundTree tree;
    const size_t count = random_() % 7;
    for (size_t i = 0; i < count; ++i) {
      const auto place = static_cast<uint32_t>(random_() % (tree.size() + 1));
      const uint32_t parent = place == 0 ? kRootNode : place - 1;
      const uint32_t depth = place == 0 ? 1 : tree[parent].depth + 1;
      const size_t at = position + depth - 1;
      const bool right = at < hints.size() && random_() % 4 > 0;
      const auto token =
          right ? hints[at] : static_cast<TokenId>(random_() % static_cast<size_t>(Vocabulary()->size()));
      tree.Add({.parent = parent, .token = token, .depth = depth, .score = 0.5f});
    }
    return tree;
  }

  // What is forced is what all allowed tokens begin with, or go on from.
  absl::Status CheckForced(absl::Span<const TokenId> output) {
    if (output.back() == End() || random_() % 8 > 0) return absl::OkStatus();
    const std::unique_ptr<ConstraintState> state = CompiledConstraint::Begin(constraint_);
    for (const TokenId token : output) {
      if (!state->Accept(token)) return Fault("the output is not taken again");
    }
    const std::string forced = state->ForcedBytes();
    if (forced.size() > 4096) return Fault("too much is forced at once");
    if (state->steps() > kMostSteps * output.size()) return Fault("too many steps");
    if (forced.empty()) return absl::OkStatus();
    std::vector<uint32_t> mask(MaskWords(Vocabulary()->size()));
    state->FillMask(absl::MakeSpan(mask));
    for (TokenId token = 0; token < Vocabulary()->size(); ++token) {
      if (!IsAllowed(mask, token)) continue;
      const std::string& bytes = Vocabulary()->bytes()[static_cast<size_t>(token)];
      if (token == End() || (!absl::StartsWith(bytes, forced) && !absl::StartsWith(forced, bytes))) {
        return Fault(absl::StrCat("not forced: \"", absl::CHexEscape(forced), "\""));
      }
    }
    return absl::OkStatus();
  }

  const ConstraintCase& case_;
  const std::shared_ptr<const CompiledConstraint> constraint_;
  const uint64_t seed_;
  std::mt19937_64 random_;
};

bool RunConstraint(absl::string_view input) {
  const absl::StatusOr<bool> taken = TryConstraint(input);
  Require(taken.ok(), taken.status().message());
  return *taken;
}

// Bytes by chance are as good as any others: everything is a constraint.
std::vector<std::string> Seeds() {
  std::mt19937_64 random(11);
  std::vector<std::string> seeds(200);
  for (std::string& seed : seeds) {
    for (size_t i = 40 + random() % 200; i > 0; --i) seed.push_back(static_cast<char>(random()));
  }
  return seeds;
}

const Registration kConstraint({.name = "constraint", .run = RunConstraint, .seeds = Seeds, .spoilt = 1000});

}  // namespace

absl::StatusOr<bool> TryConstraint(absl::string_view input) {
  constexpr ConstraintCase (*kMakers[])(InputReader&) = {MakeChoicesCase, MakeGrammarCase, MakeRegexCase,
                                                         MakeSchemaCase};
  InputReader reader(input);
  const ConstraintCase made = kMakers[reader.Below(std::size(kMakers))](reader);
  const auto fault = [&](absl::string_view what) {
    return absl::InternalError(absl::StrCat(what, "\nconstraint ", made.source.text));
  };
  const absl::Status checked = CheckConstraint(made.source, {});
  if (!checked.ok()) return Refused(checked, "");
  const absl::StatusOr<std::string> compiled = CompileConstraint(made.source, *Vocabulary());
  if (!compiled.ok()) {
    const bool must_compile =
        made.source.form == ConstraintSource::Form::kGrammar && made.has_texts.value_or(false);
    if (!absl::IsInvalidArgument(compiled.status()) || must_compile) {
      return fault(absl::StrCat("a constraint with texts is refused: ", compiled.status().ToString()));
    }
    return Refused(compiled.status(), "");
  }
  if (!made.has_texts.value_or(true)) return fault("a constraint without texts is taken");
  const auto constraint = LoadConstraint(*compiled, Vocabulary()).value();
  uint64_t seed = reader.Word();
  TANDEM_RETURN_IF_ERROR(Trial(made, constraint, seed).TakeTexts());
  for (int i = 0; i < 3; ++i) TANDEM_RETURN_IF_ERROR(Trial(made, constraint, seed++).Run());
  return true;
}

}  // namespace tandem::fuzz
