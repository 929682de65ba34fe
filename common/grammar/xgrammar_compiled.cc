#include <xgrammar/compiler.h>
#include <xgrammar/grammar.h>
#include <xgrammar/matcher.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/grammar/call_marks.h"
#include "common/grammar/compiled.h"
#include "common/grammar/finite_texts.h"
#include "common/grammar/lark_string.h"
#include "common/grammar/mask_cache.h"
#include "common/grammar/schema_source.h"
#include "common/grammar/token_mask.h"
#include "common/grammar/xgrammar_log.h"
#include "common/grammar/xgrammar_vocabulary.h"

namespace tandem {
namespace {

// Of a message of XGrammar, which may quote the source.
constexpr size_t kMostMessageBytes = 400;
// Steps to take a token, to make a mask or to find what is forced, before others would notice
// (xgrammar_bounds.inc). Within a long string of bounded length each token of the vocabulary may take some.
constexpr int64_t kMostSteps = 200'000;
constexpr int64_t kMostStepsEachToken = 40;
// Steps to make the masks of all states, some seconds, and the bytes of these. A large vocabulary takes more
// of both for each state.
constexpr int64_t kMostCompileSteps = 200'000'000;
constexpr int64_t kMostMaskBytes = int64_t{48} << 20;
// What a state may remember of its output, and how much of it is not worth looking through.
constexpr size_t kMostHistoryBytes = size_t{32} << 20;
constexpr size_t kLeastSettledBytes = size_t{1} << 18;

int64_t MostSteps(int32_t vocab_size) {
  return std::max(kMostSteps, kMostStepsEachToken * vocab_size);
}

absl::Status Invalid(absl::string_view message) {
  return absl::InvalidArgumentError(message.substr(0, kMostMessageBytes));
}

// Without the beginning of a character at its end.
absl::string_view WholeCharacters(absl::string_view text) {
  size_t end = text.size();
  while (end > 0 && text.size() - end < 3 && (text[end - 1] & 0xc0) == 0x80) --end;
  if (end == 0) return text;
  const auto lead = static_cast<unsigned char>(text[end - 1]);
  const size_t length = lead >= 0xf8 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
  return text.size() - (end - 1) < length ? text.substr(0, end - 1) : text;
}

xgrammar::Grammar MakeGrammar(const ConstraintSource& source, const xgrammar::TokenizerInfo& info) {
  switch (source.form) {
    case ConstraintSource::Form::kJsonSchema:
    case ConstraintSource::Form::kRegex:
      throw std::logic_error("a constraint has become no grammar");
    case ConstraintSource::Form::kGrammar:
      // Every rule of EBNF has this mark, which Lark has not.
      return absl::StrContains(source.text, "::=") ? xgrammar::Grammar::FromEBNF(source.text)
                                                   : xgrammar::Grammar::FromLark(source.text);
    case ConstraintSource::Form::kLarkString:
    case ConstraintSource::Form::kStructuralTags:
      break;
  }
  auto made = xgrammar::Grammar::FromStructuralTag(source.text, info);
  if (std::holds_alternative<xgrammar::Grammar>(made)) return std::get<xgrammar::Grammar>(std::move(made));
  throw std::runtime_error(
      std::visit([](const auto& error) { return std::string(error.what()); }, std::get<1>(made)));
}

// Rules may have budgets of tokens or characters. Then a state would depend on more than the accepted tokens:
// on whether masks were requested in between. Masks cannot express temperatures and lazy rules.
absl::Status CheckRules(const nlohmann::json& grammar) {
  // name, body, lookahead and two words on it, token budget, character budget, capture, lazy, temperature.
  constexpr size_t kTokenBudget = 4;
  constexpr size_t kCharacterBudget = 5;
  constexpr size_t kCapture = 6;
  constexpr size_t kLazy = 7;
  constexpr size_t kTemperature = 8;
  for (const nlohmann::json& rule : grammar.at("rules")) {
    if (rule.size() != kTemperature + 1) {
      return absl::InternalError("XGrammar's rules have an unexpected form");
    }
    const std::string& name = rule.at(0).get_ref<const std::string&>();
    if (rule.at(kTokenBudget) != -1 || rule.at(kCharacterBudget) != -1 || rule.at(kLazy) != false ||
        !rule.at(kCapture).get_ref<const std::string&>().empty() || !rule.at(kTemperature).is_null()) {
      return Invalid(absl::StrCat("rule ", name, ": attributes are not supported"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<xgrammar::Grammar> ReadGrammar(const std::string& json) {
  auto read = xgrammar::Grammar::DeserializeJSON(json);
  if (std::holds_alternative<xgrammar::Grammar>(read)) return std::get<xgrammar::Grammar>(std::move(read));
  return absl::InternalError("a grammar of XGrammar's cannot be read back");
}

class Mask {
 public:
  explicit Mask(absl::Span<uint32_t> words)
      : size_(static_cast<int64_t>(words.size())),
        tensor_{.data = words.data(),
                .device = {.device_type = kDLCPU, .device_id = 0},
                .ndim = 1,
                .dtype = xgrammar::GetBitmaskDLType(),
                .shape = &size_,
                .strides = nullptr,
                .byte_offset = 0} {}
  Mask(const Mask&) = delete;
  Mask& operator=(const Mask&) = delete;

  DLTensor* tensor() { return &tensor_; }

 private:
  int64_t size_;
  DLTensor tensor_;
};

class XGrammarConstraint final : public CompiledConstraint {
 public:
  XGrammarConstraint(xgrammar::CompiledGrammar grammar, std::shared_ptr<const GrammarVocabulary> vocabulary,
                     size_t masks_kept)
      : grammar_(std::move(grammar)),
        vocabulary_(std::move(vocabulary)),
        masks_(masks_kept, MaskWords(vocabulary_->size())) {}

  size_t memory_bytes() const override { return grammar_.MemorySizeBytes() + masks_.max_bytes(); }
  const xgrammar::CompiledGrammar& grammar() const { return grammar_; }
  uint64_t masks_found() const override { return masks_.num_found(); }
  MaskCache& masks() const { return masks_; }
  int64_t most_steps() const { return MostSteps(vocabulary_->size()); }

 private:
  const xgrammar::CompiledGrammar grammar_;
  const std::shared_ptr<const GrammarVocabulary> vocabulary_;
  mutable MaskCache masks_;
};

// XGrammar throws where it meets what it did not expect. Such a state takes no more tokens.
class XGrammarState final : public ConstraintState {
 public:
  explicit XGrammarState(std::shared_ptr<const XGrammarConstraint> constraint)
      : constraint_(std::move(constraint)), matcher_(constraint_->grammar()) {}

  bool Accept(TokenId token) override {
    if (broken_ || matcher_.IsTerminated() || stuck_at_ == num_accepted_) return false;
    bool accepted = false;
    gave_up_ = !Try([&] { accepted = matcher_.AcceptToken(token); });
    if (!accepted || gave_up_) return false;
    ++num_accepted_;
    gave_up_ = matcher_.HistoryBytes() > kMostHistoryBytes;
    if (gave_up_) Rollback(1);
    return !gave_up_;
  }

  void Rollback(uint32_t count) override {
    if (broken_ || count == 0) return;
    num_accepted_ -= count;
    if (stuck_at_ > num_accepted_) stuck_at_.reset();
    try {
      matcher_.Rollback(static_cast<int>(count));
    } catch (const std::exception&) {
      broken_ = true;
    }
  }

  void Settle() override {
    // Each time as much has come as was left the last time, so that all this takes as long as the output is
    // long.
    if (broken_ || matcher_.HistoryBytes() < settle_at_) return;
    matcher_.Forget();
    settle_at_ = std::max(kLeastSettledBytes, 2 * matcher_.HistoryBytes());
  }

  void FillMask(absl::Span<uint32_t> mask) override {
    if (!broken_ && !matcher_.IsTerminated()) {
      if (TryFillMask(mask)) return;
      // Nothing may come where it is not known what may.
      stuck_at_ = num_accepted_;
      gave_up_ = true;
    }
    std::fill(mask.begin(), mask.end(), 0u);
  }

  std::string ForcedBytes() override {
    std::string forced;
    if (broken_ || matcher_.IsTerminated()) return forced;
    Try([&] { forced = matcher_.FindJumpForwardString(); });
    // The last character may have been cut.
    return std::string(WholeCharacters(forced));
  }

  bool gave_up() const override { return gave_up_; }
  uint64_t steps() const override { return static_cast<uint64_t>(matcher_.StepsTaken()); }

 private:
  // False, without a change, if that takes too long.
  bool Try(const std::function<void()>& call) {
    try {
      return matcher_.WithinSteps(constraint_->most_steps(), call);
    } catch (const std::exception&) {
      broken_ = true;
      return false;
    }
  }

  bool TryFillMask(absl::Span<uint32_t> mask) {
    // By our patch the name of the state (xgrammar_state_key.inc), empty if it has none.
    const std::string state = matcher_._DebugPrintInternalState();
    if (!state.empty() && constraint_->masks().Find(state, mask)) return true;
    if (!Try([&] { matcher_.FillNextTokenBitmask(Mask(mask).tensor()); })) return false;
    if (!state.empty()) constraint_->masks().Put(state, mask);
    return true;
  }

  const std::shared_ptr<const XGrammarConstraint> constraint_;  // Goes after what refers to it.
  xgrammar::GrammarMatcher matcher_;
  size_t settle_at_ = kLeastSettledBytes;
  uint64_t num_accepted_ = 0;
  std::optional<uint64_t> stuck_at_;  // After so many tokens the mask would have taken too many steps.
  bool gave_up_ = false;
  bool broken_ = false;
};

// Whether there is any output at all. Every request under the constraint takes the steps of its beginning.
absl::StatusOr<bool> AllowsAnything(const xgrammar::CompiledGrammar& grammar, int32_t vocab_size) {
  std::vector<uint32_t> mask(static_cast<size_t>(xgrammar::GetBitmaskSize(vocab_size)));
  xgrammar::GrammarMatcher matcher(grammar);
  const bool is_bounded = matcher.WithinSteps(MostSteps(vocab_size), [&] {
    matcher.Reset();
    matcher.FillNextTokenBitmask(Mask(absl::MakeSpan(mask)).tensor());
  });
  if (!is_bounded) return Invalid("too many branches would have to be followed at its beginning");
  return std::any_of(mask.begin(), mask.end(), [](uint32_t word) { return word != 0; });
}

absl::StatusOr<std::string> CompileMasks(const xgrammar::Grammar& grammar,
                                         const xgrammar::TokenizerInfo& info, int32_t vocab_size) {
  xgrammar::GrammarCompiler compiler(info, /*max_threads=*/1, /*cache_enabled=*/false);
  std::optional<xgrammar::CompiledGrammar> compiled;
  const bool is_bounded = xgrammar::GrammarMatcher::CompileWithin(
      kMostCompileSteps, kMostMaskBytes, [&] { compiled = compiler.CompileGrammar(grammar); });
  if (!is_bounded) {
    return Invalid(absl::StrCat("too large: the masks of its states take more than ", kMostCompileSteps,
                                " steps or ", kMostMaskBytes >> 20, " MiB"));
  }
  TANDEM_ASSIGN_OR_RETURN(const bool allows_anything, AllowsAnything(*compiled, vocab_size));
  if (!allows_anything) return Invalid("no text of the model's tokens satisfies it");
  std::string encoded = compiled->SerializeJSON();
  if (encoded.size() > kMostCompiledBytes) {
    return Invalid(absl::StrCat("too large: compiled it has ", encoded.size(), " bytes, expected at most ",
                                kMostCompiledBytes));
  }
  return encoded;
}

}  // namespace

std::unique_ptr<ConstraintState> CompiledConstraint::Begin(
    std::shared_ptr<const CompiledConstraint> constraint) {
  return std::make_unique<XGrammarState>(
      std::static_pointer_cast<const XGrammarConstraint>(std::move(constraint)));
}

absl::StatusOr<std::string> CompileConstraint(const ConstraintSource& source,
                                              const GrammarVocabulary& vocabulary) {
  const xgrammar::TokenizerInfo& info = XGrammarVocabulary::InfoOf(vocabulary);
  const XGrammarWarnings warnings;
  try {
    ConstraintSource whole = source;
    if (source.form == ConstraintSource::Form::kLarkString) {
      TANDEM_ASSIGN_OR_RETURN(whole.text, JsonStringsOfLark(source.text));
      whole.form = ConstraintSource::Form::kGrammar;
    } else if (source.form == ConstraintSource::Form::kStructuralTags) {
      TANDEM_ASSIGN_OR_RETURN(whole.text, WithLarkStrings(source.text));
    }
    TANDEM_ASSIGN_OR_RETURN(whole, WithGrammars(whole));
    ConstraintSource spelled = whole;
    if (whole.form == ConstraintSource::Form::kStructuralTags) {
      TANDEM_ASSIGN_OR_RETURN(spelled.text, WithCallMarks(whole.text, vocabulary));
    }
    xgrammar::Grammar grammar = MakeGrammar(spelled, info);
    // What it warns of it takes no notice of, and then outputs may break the constraint.
    if (!warnings.texts().empty()) return Invalid(warnings.texts().front());
    nlohmann::json json = nlohmann::json::parse(grammar.SerializeJSON());
    TANDEM_RETURN_IF_ERROR(CheckRules(json));
    TANDEM_ASSIGN_OR_RETURN(const bool pruned, KeepFiniteTexts(whole.text, &json));
    TANDEM_ASSIGN_OR_RETURN(const bool dropped, DropSurrogates(&json));
    if (pruned || dropped) {
      TANDEM_ASSIGN_OR_RETURN(grammar, ReadGrammar(json.dump()));
    }
    if (spelled.text != whole.text) {
      TANDEM_ASSIGN_OR_RETURN(const std::string marked, WithMarkBytes(grammar.SerializeJSON()));
      TANDEM_ASSIGN_OR_RETURN(grammar, ReadGrammar(marked));
    }
    return CompileMasks(grammar, info, vocabulary.size());
  } catch (const std::bad_alloc&) {
    return absl::InvalidArgumentError("its compilation takes too much memory");
  } catch (const std::exception& error) {
    return Invalid(error.what());
  }
}

absl::StatusOr<std::shared_ptr<const CompiledConstraint>> LoadConstraint(
    absl::string_view compiled, std::shared_ptr<const GrammarVocabulary> vocabulary, size_t masks_kept) {
  try {
    auto loaded = xgrammar::CompiledGrammar::DeserializeJSON(std::string(compiled),
                                                             XGrammarVocabulary::InfoOf(*vocabulary));
    if (!std::holds_alternative<xgrammar::CompiledGrammar>(loaded)) {
      return absl::InternalError(absl::StrCat(
          "a compiled constraint cannot be read: ",
          std::visit([](const auto& error) { return std::string(error.what()); }, std::get<1>(loaded))));
    }
    return std::make_shared<const XGrammarConstraint>(std::get<xgrammar::CompiledGrammar>(std::move(loaded)),
                                                      std::move(vocabulary), masks_kept);
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("a compiled constraint cannot be read: ", error.what()));
  }
}

}  // namespace tandem
