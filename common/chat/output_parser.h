#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/chat/json_scanner.h"
#include "common/chat/output_format.h"

namespace tandem {

// A piece of a parsed output.
struct OutputDelta {
  enum class Kind { kContent, kReasoning, kCall };
  Kind kind = Kind::kContent;
  std::string text;   // Of a call: part of its arguments.
  uint32_t call = 0;  // Of a call: which one of the output.
  std::string name;   // Of a call's first piece: the function's.

  bool operator==(const OutputDelta&) const = default;
};

// Splits a target's output into content, reasoning and calls, as it arrives.
//
//            .-- <think> --> reasoning -- </think> --.
//            |                                       |
//   content <------------------------------------------
//     |  ^ ^
//     |  | '-- what was held back is content: it was no call
//     |  '-- the call's end -----------------------.
//     '-- mark --> head: held back -- name and '{' --> arguments
//
// The pieces depend only on the text, not on how it was cut, because the parser decides after each byte what
// is certain. It holds back text that may become a mark, white space that may be next to one, and a call
// until its function is known and its arguments begin. A call that is malformed before that is content, byte
// for byte; after that, everything up to the end of the call is its arguments. White space next to marks is
// layout and is dropped. In formats without marks, an output that begins like a call is a call if it names
// one of the `tools`.
//
// It holds back at most `max_held_bytes`; longer text is content. Each byte costs constant time. Not
// thread-safe.
class OutputParser {
 public:
  struct Options {
    OutputFormat format;
    // Names of the functions that may be called. If empty, only reasoning is parsed.
    std::vector<std::string> tools;
    // The prompt ends with an open <think>, so the output begins with reasoning.
    bool in_reasoning = false;
    size_t max_held_bytes = size_t{64} << 10;
  };
  explicit OutputParser(Options options);

  // Takes the next part of the output, and returns the pieces that are certain now.
  std::vector<OutputDelta> Push(absl::string_view text);
  // Ends the output: returns the text that was held back.
  std::vector<OutputDelta> Finish();

  // Calls that have begun.
  uint32_t num_calls() const { return num_calls_; }

 private:
  enum class State : uint8_t {
    kText,
    kReasoning,
    kObjectBegin,  // Of a call: '{' has to come, or what else the format has.
    kObject,       // Within the JSON object of a call.
    kName,         // Of a call in Mistral's and DeepSeek's way.
    kLine,         // DeepSeek's name behind "function".
    kNextCall,     // DeepSeek's: another call has to begin, or the end of all comes.
    kBeforeArguments,
    kArguments,  // That stand by themselves.
    kBroken,     // Arguments that are no JSON, up to the call's end.
    kClose,      // Behind a call.
  };
  // What a mark, as far as it has come, is to those that are looked for.
  enum class Match { kNone, kBeginning, kWhole };

  void Take(char byte);
  void TakeText(char byte);
  void TakeReasoning(char byte);
  void TakeObjectBegin(char byte);
  void TakeObject(char byte);
  void TakeName(char byte);
  void TakeMistralName(char byte);
  void TakeLine(char byte);
  void TakeNextCall(char byte);
  void TakeBeforeArguments(char byte);
  void TakeArguments(char byte);
  void TakeBroken(char byte);
  void TakeClose(char byte);
  void TakeCloseOfDeepSeek(char byte);

  Match MatchMark(absl::string_view mark) const;
  // Whether one of the literals is what mark_ begins; with kWhole `which` is set.
  Match MatchAny(std::initializer_list<absl::string_view> literals, absl::string_view* which = nullptr) const;
  bool MayBeginUnmarked(char byte) const;

  void Say(char byte);
  void Think(char byte);
  void OnMark(absl::string_view mark);
  void BeginObject();
  void OnMemberName();
  // What stood until now was a member's value.
  void OnMemberValue();
  void Commit(const std::string& name);
  void EndCall();
  // The held-back text is no call; it is content, and the rest is parsed again.
  void Fail(char byte);
  void FailWhole();
  // Returns to content; text held back since the call's end is parsed again.
  void LeaveCalls(char byte);
  void ReadAgain(const std::string& text);
  // After the last mark of a call.
  void LeaveToText();

  void Emit(OutputDelta::Kind kind, absl::string_view text);

  Options options_;
  std::set<std::string, std::less<>> tools_;
  State state_ = State::kText;
  std::vector<OutputDelta> out_;
  uint32_t num_calls_ = 0;

  std::string mark_;        // What may become a mark, or another literal.
  std::string space_;       // White space that may stand beside a mark.
  bool fresh_ = true;       // There is no content yet but white space.
  bool layout_ = false;     // A mark came last: white space is layout.
  bool thought_ = false;    // There was reasoning, or content.
  std::string held_;        // Of a call that is none yet: all of it. Behind one: all since its end.
  bool marked_ = false;     // The call that is read began with a mark.
  bool listed_ = false;     // It stands in a list.
  bool committed_ = false;  // It is certain.

  // Of the call's JSON object, or of its arguments alone.
  JsonScanner scanner_;
  JsonScanner::Place place_ = JsonScanner::Place::kFrame;
  enum class Member : uint8_t { kOther, kName, kArguments } member_ = Member::kOther;
  std::string member_name_;  // Or DeepSeek's line with a function's name.
  std::string name_;         // As JSON has it, then as it is.
  std::string arguments_;    // Those that came before the name.
  bool has_name_ = false;
  bool has_arguments_ = false;
};

}  // namespace tandem
