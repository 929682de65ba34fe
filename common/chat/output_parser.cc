#include "common/chat/output_parser.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

// White space in a row that is held back.
constexpr size_t kMostSpace = 256;
// Of a name that no JSON string has around it.
constexpr size_t kMostNameBytes = 256;

constexpr absl::string_view kHermesEnd = "</tool_call>";
constexpr absl::string_view kMistralMark = "[TOOL_CALLS]";
constexpr absl::string_view kMistralArguments = "[ARGS]";
constexpr absl::string_view kMistralId = "[CALL_ID]";
constexpr absl::string_view kDeepSeekCallsBegin = "<｜tool▁calls▁begin｜>";
constexpr absl::string_view kDeepSeekCallBegin = "<｜tool▁call▁begin｜>";
constexpr absl::string_view kDeepSeekSeparator = "<｜tool▁sep｜>";
constexpr absl::string_view kDeepSeekCallEnd = "<｜tool▁call▁end｜>";
constexpr absl::string_view kDeepSeekCallsEnd = "<｜tool▁calls▁end｜>";
constexpr absl::string_view kDeepSeekFence = "```json";
constexpr absl::string_view kDeepSeekFenceEnd = "```";

bool IsSpace(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '.' || c == '/' || c == ':';
}

}  // namespace

OutputParser::OutputParser(Options options)
    : options_(std::move(options)), tools_(options_.tools.begin(), options_.tools.end()) {
  if (options_.in_reasoning && options_.format.reasons) {
    state_ = State::kReasoning;
    layout_ = true;
  }
}

std::vector<OutputDelta> OutputParser::Push(absl::string_view text) {
  if (tools_.empty() && !options_.format.reasons) {
    // There is nothing to look for.
    Emit(OutputDelta::Kind::kContent, text);
  } else {
    for (const char byte : text) Take(byte);
  }
  return std::exchange(out_, {});
}

std::vector<OutputDelta> OutputParser::Finish() {
  switch (state_) {
    case State::kText:
      for (const char byte : std::exchange(mark_, {})) Say(byte);
      if (state_ != State::kText) {
        // A bracket that would have begun a call.
        Emit(OutputDelta::Kind::kContent, held_);
      } else if (!layout_) {
        Emit(OutputDelta::Kind::kContent, space_);
      }
      break;
    case State::kReasoning:
      for (const char byte : std::exchange(mark_, {})) Think(byte);
      if (!layout_) Emit(OutputDelta::Kind::kReasoning, space_);
      break;
    case State::kBroken:
      Emit(OutputDelta::Kind::kCall, mark_);
      break;
    default: {
      // Of a call that is certain there is its layout at most.
      const std::string rest = held_ + mark_;
      if (!committed_ && rest.find_first_not_of(" \n\t\r") != std::string::npos)
        Emit(OutputDelta::Kind::kContent, rest);
    }
  }
  return std::exchange(out_, {});
}

void OutputParser::Take(char byte) {
  switch (state_) {
    case State::kText:
      return TakeText(byte);
    case State::kReasoning:
      return TakeReasoning(byte);
    case State::kObjectBegin:
      return TakeObjectBegin(byte);
    case State::kObject:
      return TakeObject(byte);
    case State::kName:
      return TakeName(byte);
    case State::kLine:
      return TakeLine(byte);
    case State::kNextCall:
      return TakeNextCall(byte);
    case State::kBeforeArguments:
      return TakeBeforeArguments(byte);
    case State::kArguments:
      return TakeArguments(byte);
    case State::kBroken:
      return TakeBroken(byte);
    case State::kClose:
      return TakeClose(byte);
  }
}

void OutputParser::Emit(OutputDelta::Kind kind, absl::string_view text) {
  if (text.empty()) return;
  const uint32_t call = kind == OutputDelta::Kind::kCall ? num_calls_ - 1 : 0;
  if (out_.empty() || out_.back().kind != kind || out_.back().call != call)
    out_.push_back({.kind = kind, .text = {}, .call = call, .name = {}});
  out_.back().text.append(text.data(), text.size());
}

// --- Content and reasoning.

OutputParser::Match OutputParser::MatchMark(absl::string_view mark) const {
  if (!absl::StartsWith(mark, mark_)) return Match::kNone;
  return mark.size() == mark_.size() ? Match::kWhole : Match::kBeginning;
}

OutputParser::Match OutputParser::MatchAny(std::initializer_list<absl::string_view> literals,
                                           absl::string_view* which) const {
  Match best = Match::kNone;
  for (const absl::string_view literal : literals) {
    const Match match = MatchMark(literal);
    if (match == Match::kWhole) {
      if (which != nullptr) *which = literal;
      return match;
    }
    if (match == Match::kBeginning) best = match;
  }
  return best;
}

bool OutputParser::MayBeginUnmarked(char byte) const {
  if (!fresh_ || tools_.empty()) return false;
  const CallSyntax syntax = options_.format.calls;
  return (byte == '{' && (syntax == CallSyntax::kLlama || syntax == CallSyntax::kJson)) ||
         (byte == '[' && syntax == CallSyntax::kJson);
}

void OutputParser::TakeText(char byte) {
  mark_.push_back(byte);
  while (!mark_.empty() && state_ == State::kText) {
    Match best = Match::kNone;
    if (options_.format.reasons && !thought_) best = MatchMark(kReasoningBegin);
    if (best == Match::kWhole) {
      mark_.clear();
      space_.clear();
      state_ = State::kReasoning;
      layout_ = true;
      return;
    }
    if (!tools_.empty()) {
      for (const absl::string_view mark : CallMarks(options_.format.calls)) {
        const Match match = MatchMark(mark);
        if (match == Match::kWhole) return OnMark(mark);
        if (match == Match::kBeginning) best = match;
      }
    }
    if (best == Match::kBeginning) return;
    const char first = mark_.front();
    mark_.erase(0, 1);
    Say(first);
  }
}

void OutputParser::Say(char byte) {
  if (IsSpace(byte)) {
    space_.push_back(byte);
    if (space_.size() < kMostSpace) return;
    layout_ = false;
    return Emit(OutputDelta::Kind::kContent, std::exchange(space_, {}));
  }
  if (MayBeginUnmarked(byte)) {
    held_ = std::exchange(space_, {});
    held_.push_back(byte);
    marked_ = committed_ = false;
    listed_ = byte == '[';
    if (listed_) {
      state_ = State::kObjectBegin;
    } else {
      BeginObject();
    }
    return;
  }
  if (!layout_) Emit(OutputDelta::Kind::kContent, space_);
  space_.clear();
  layout_ = fresh_ = false;
  thought_ = true;
  Emit(OutputDelta::Kind::kContent, absl::string_view(&byte, 1));
}

void OutputParser::TakeReasoning(char byte) {
  mark_.push_back(byte);
  while (!mark_.empty()) {
    switch (MatchMark(kReasoningEnd)) {
      case Match::kWhole:
        mark_.clear();
        space_.clear();
        state_ = State::kText;
        thought_ = layout_ = fresh_ = true;
        return;
      case Match::kBeginning:
        return;
      case Match::kNone:
        break;
    }
    const char first = mark_.front();
    mark_.erase(0, 1);
    Think(first);
  }
}

void OutputParser::Think(char byte) {
  if (IsSpace(byte) && space_.size() + 1 < kMostSpace) return space_.push_back(byte);
  if (!layout_) Emit(OutputDelta::Kind::kReasoning, space_);
  space_.clear();
  layout_ = false;
  Emit(OutputDelta::Kind::kReasoning, absl::string_view(&byte, 1));
}

// --- Calls.

void OutputParser::OnMark(absl::string_view mark) {
  held_ = absl::StrCat(std::exchange(space_, {}), mark);
  mark_.clear();
  marked_ = true;
  committed_ = listed_ = false;
  name_.clear();
  state_ = mark == kDeepSeekCallsBegin  ? State::kNextCall
           : mark == kDeepSeekCallBegin ? State::kName
                                        : State::kObjectBegin;
}

void OutputParser::BeginObject() {
  state_ = State::kObject;
  scanner_ = JsonScanner();
  scanner_.Push('{');
  place_ = JsonScanner::Place::kFrame;
  member_ = Member::kOther;
  committed_ = has_name_ = has_arguments_ = false;
  member_name_.clear();
  name_.clear();
  arguments_.clear();
}

void OutputParser::Fail(char byte) {
  FailWhole();
  ReadAgain(std::exchange(mark_, {}) + byte);
}

void OutputParser::FailWhole() {
  Emit(OutputDelta::Kind::kContent, std::exchange(held_, {}));
  layout_ = fresh_ = false;
  thought_ = true;
  state_ = State::kText;
}

void OutputParser::LeaveCalls(char byte) {
  state_ = State::kText;
  committed_ = false;
  layout_ = true;
  fresh_ = false;
  ReadAgain(std::exchange(held_, {}) + std::exchange(mark_, {}) + byte);
}

void OutputParser::ReadAgain(const std::string& text) {
  for (const char byte : text) Take(byte);
}

void OutputParser::Commit(const std::string& name) {
  held_.clear();
  committed_ = true;
  fresh_ = false;
  thought_ = true;
  out_.push_back({.kind = OutputDelta::Kind::kCall, .text = {}, .call = num_calls_++, .name = name});
}

void OutputParser::EndCall() {
  held_.clear();
  mark_.clear();
  state_ = State::kClose;
}

void OutputParser::TakeObjectBegin(char byte) {
  const bool mistral = options_.format.calls == CallSyntax::kMistral;
  if (IsSpace(byte) && held_.size() < options_.max_held_bytes) return held_.push_back(byte);
  if (mistral && marked_ && !listed_ && !committed_) {
    if (byte == '[') {
      listed_ = true;
      return held_.push_back(byte);
    }
    if (IsNameByte(byte)) {
      name_.assign(1, byte);
      held_.push_back(byte);
      state_ = State::kName;
      return;
    }
  }
  if (byte != '{') return Fail(byte);
  held_.push_back(byte);
  BeginObject();
}

void OutputParser::OnMemberName() {
  member_ = member_name_ == "\"name\""                                            ? Member::kName
            : member_name_ == "\"arguments\"" || member_name_ == "\"parameters\"" ? Member::kArguments
                                                                                  : Member::kOther;
  // A second one is not looked at.
  if ((member_ == Member::kName && has_name_) || (member_ == Member::kArguments && has_arguments_))
    member_ = Member::kOther;
}

void OutputParser::OnMemberValue() {
  if (member_ == Member::kName) {
    const nlohmann::json name = nlohmann::json::parse(name_, nullptr, /*allow_exceptions=*/false);
    has_name_ = name.is_string() && !name.get_ref<const std::string&>().empty();
    name_ = has_name_ ? name.get<std::string>() : "";
  } else if (member_ == Member::kArguments) {
    has_arguments_ = true;
  }
  member_ = Member::kOther;
}

void OutputParser::TakeObject(char byte) {
  using Place = JsonScanner::Place;
  const JsonScanner::Step step = scanner_.Push(byte);
  if (step == JsonScanner::Step::kInvalid) {
    if (!committed_) return Fail(byte);
    if (member_ == Member::kArguments) {
      state_ = State::kBroken;
      mark_.clear();
      return TakeBroken(byte);
    }
    EndCall();
    return LeaveCalls(byte);
  }
  if (!committed_) held_.push_back(byte);
  const Place before = std::exchange(place_, scanner_.place());
  if (before == Place::kName && place_ != Place::kName) {
    OnMemberName();
    // An answer in JSON is not to wait for its end.
    const bool of_call =
        member_ != Member::kOther || has_name_ || member_name_ == "\"type\"" || member_name_ == "\"id\"";
    if (!marked_ && !committed_ && !of_call) return FailWhole();
  } else if (before == Place::kValue && place_ != Place::kValue) {
    const bool was_name = member_ == Member::kName;
    OnMemberValue();
    if (was_name && !committed_ && (!has_name_ || (!marked_ && !tools_.contains(name_)))) return FailWhole();
  }
  if (place_ == Place::kName) {
    if (before != Place::kName) member_name_.clear();
    if (member_name_.size() <= kMostNameBytes) member_name_.push_back(byte);
  } else if (place_ == Place::kValue) {
    if (member_ == Member::kName) name_.push_back(byte);
    if (member_ == Member::kArguments) {
      if (has_name_ && !committed_) Commit(name_);
      if (committed_) {
        Emit(OutputDelta::Kind::kCall, absl::string_view(&byte, 1));
      } else {
        arguments_.push_back(byte);
      }
    }
  }
  if (step == JsonScanner::Step::kEnd) {
    if (!committed_) {
      if (!has_name_) return FailWhole();
      Commit(name_);
      Emit(OutputDelta::Kind::kCall, has_arguments_ ? arguments_ : "{}");
    }
    return EndCall();
  }
  if (!committed_ && held_.size() > options_.max_held_bytes) FailWhole();
}

void OutputParser::TakeName(char byte) {
  if (options_.format.calls == CallSyntax::kMistral) return TakeMistralName(byte);
  held_.push_back(byte);
  name_.push_back(byte);
  if (absl::EndsWith(name_, kDeepSeekSeparator)) {
    name_.resize(name_.size() - kDeepSeekSeparator.size());
    name_ = std::string(absl::StripAsciiWhitespace(name_));
    if (name_.empty()) return FailWhole();
    state_ = name_ == "function" ? State::kLine : State::kBeforeArguments;
    member_name_.clear();
  } else if (name_.size() > kMostNameBytes) {
    FailWhole();
  }
}

void OutputParser::TakeMistralName(char byte) {
  const bool in_id = !held_.empty() && absl::EndsWith(held_, kMistralId);
  if (mark_.empty() && IsNameByte(byte) && name_.size() <= kMostNameBytes) {
    held_.push_back(byte);
    if (!listed_) name_.push_back(byte);
    return;
  }
  if (mark_.empty() && byte == '{' && !in_id) {
    state_ = State::kBeforeArguments;
    return TakeBeforeArguments(byte);
  }
  if (mark_.empty() && byte != '[') return Fail(byte);
  mark_.push_back(byte);
  absl::string_view which;
  switch (MatchAny({kMistralArguments, kMistralId}, &which)) {
    case Match::kNone:
      mark_.pop_back();
      return Fail(byte);
    case Match::kBeginning:
      return;
    case Match::kWhole:
      break;
  }
  held_ += std::exchange(mark_, {});
  // The call's id follows, which is not used and is not a part of its name.
  listed_ = true;
  if (which == kMistralArguments) state_ = State::kBeforeArguments;
}

void OutputParser::TakeLine(char byte) {
  // The name of a function that is called "function", without a fence.
  if (member_name_.empty() && byte == '{') {
    state_ = State::kBeforeArguments;
    return TakeBeforeArguments(byte);
  }
  held_.push_back(byte);
  if (byte != '\n') {
    member_name_.push_back(byte);
    if (member_name_.size() > kMostNameBytes) FailWhole();
    return;
  }
  name_ = std::string(absl::StripAsciiWhitespace(member_name_));
  if (name_.empty()) return FailWhole();
  state_ = State::kBeforeArguments;
}

void OutputParser::TakeBeforeArguments(char byte) {
  if (mark_.empty() && IsSpace(byte) && held_.size() < options_.max_held_bytes) return held_.push_back(byte);
  if (mark_.empty() && byte == '{') {
    listed_ = false;
    Commit(name_);
    scanner_ = JsonScanner();
    state_ = State::kArguments;
    return TakeArguments(byte);
  }
  if (options_.format.calls != CallSyntax::kDeepSeek || absl::EndsWith(held_, kDeepSeekFence))
    return Fail(byte);
  mark_.push_back(byte);
  switch (MatchMark(kDeepSeekFence)) {
    case Match::kWhole:
      held_ += std::exchange(mark_, {});
      return;
    case Match::kBeginning:
      return;
    case Match::kNone:
      break;
  }
  mark_.pop_back();
  Fail(byte);
}

void OutputParser::TakeArguments(char byte) {
  const JsonScanner::Step step = scanner_.Push(byte);
  if (step == JsonScanner::Step::kInvalid) {
    state_ = State::kBroken;
    mark_.clear();
    return TakeBroken(byte);
  }
  Emit(OutputDelta::Kind::kCall, absl::string_view(&byte, 1));
  if (step == JsonScanner::Step::kEnd) EndCall();
}

void OutputParser::TakeBroken(char byte) {
  const CallSyntax syntax = options_.format.calls;
  const absl::string_view end = syntax == CallSyntax::kHermes     ? kHermesEnd
                                : syntax == CallSyntax::kMistral  ? kMistralMark
                                : syntax == CallSyntax::kDeepSeek ? kDeepSeekCallEnd
                                                                  : "";
  mark_.push_back(byte);
  while (!mark_.empty()) {
    const Match match = end.empty() ? Match::kNone : MatchMark(end);
    if (match == Match::kBeginning) return;
    if (match == Match::kWhole) {
      mark_.clear();
      if (syntax == CallSyntax::kMistral) return OnMark(end);
      EndCall();
      if (syntax == CallSyntax::kDeepSeek) {
        state_ = State::kNextCall;
      } else {
        LeaveToText();
      }
      return;
    }
    Emit(OutputDelta::Kind::kCall, absl::string_view(mark_).substr(0, 1));
    mark_.erase(0, 1);
  }
}

void OutputParser::LeaveToText() {
  held_.clear();
  state_ = State::kText;
  committed_ = false;
  layout_ = true;
  fresh_ = false;
}

void OutputParser::TakeClose(char byte) {
  if (mark_.empty() && IsSpace(byte) && held_.size() < kMostSpace) return held_.push_back(byte);
  switch (options_.format.calls) {
    case CallSyntax::kDeepSeek:
      return TakeCloseOfDeepSeek(byte);
    case CallSyntax::kHermes: {
      mark_.push_back(byte);
      const Match match = MatchMark(kHermesEnd);
      if (match == Match::kBeginning) return;
      if (match == Match::kWhole) {
        mark_.clear();
        return LeaveToText();
      }
      mark_.pop_back();
      return LeaveCalls(byte);
    }
    default:
      break;
  }
  const bool another =
      byte == (listed_ ? ',' : ';') && (listed_ || options_.format.calls == CallSyntax::kLlama);
  if (another) {
    held_.push_back(byte);
    committed_ = false;
    state_ = State::kObjectBegin;
    return;
  }
  if (byte == ']' && listed_) return LeaveToText();
  // Llama's calls may follow one another on lines.
  if (byte == '{' && options_.format.calls == CallSyntax::kLlama) {
    held_.push_back(byte);
    return BeginObject();
  }
  LeaveCalls(byte);
}

void OutputParser::TakeCloseOfDeepSeek(char byte) {
  mark_.push_back(byte);
  absl::string_view which;
  switch (MatchAny({kDeepSeekFenceEnd, kDeepSeekCallEnd}, &which)) {
    case Match::kBeginning:
      return;
    case Match::kWhole:
      held_ += std::exchange(mark_, {});
      if (which == kDeepSeekFenceEnd) return;
      held_.clear();
      state_ = State::kNextCall;
      return;
    case Match::kNone:
      break;
  }
  mark_.pop_back();
  LeaveCalls(byte);
}

void OutputParser::TakeNextCall(char byte) {
  if (mark_.empty() && IsSpace(byte) && held_.size() < kMostSpace) return held_.push_back(byte);
  mark_.push_back(byte);
  absl::string_view which;
  switch (MatchAny({kDeepSeekCallBegin, kDeepSeekCallsEnd}, &which)) {
    case Match::kBeginning:
      return;
    case Match::kWhole:
      break;
    case Match::kNone:
      mark_.pop_back();
      return committed_ ? LeaveCalls(byte) : Fail(byte);
  }
  held_ += std::exchange(mark_, {});
  if (which == kDeepSeekCallBegin) {
    committed_ = false;
    name_.clear();
    state_ = State::kName;
  } else if (committed_) {
    LeaveToText();
  } else {
    FailWhole();
  }
}

}  // namespace tandem
