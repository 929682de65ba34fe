#include "common/chat/json_scanner.h"

namespace tandem {
namespace {

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

bool IsHexadecimal(char c) {
  return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

bool IsBlank(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

bool IsEscaped(char c) {
  return c == '"' || c == '\\' || c == '/' || c == 'b' || c == 'f' || c == 'n' || c == 'r' || c == 't';
}

}  // namespace

JsonScanner::Step JsonScanner::Push(char byte) {
  if (state_ == State::kNumber) {
    if (NumberTakes(byte)) return Step::kMore;
    if (!NumberIsWhole()) return Step::kInvalid;
    state_ = State::kAfterValue;
  }
  const size_t depth = nesting_.size();
  // Below the object's own level all is of one of its values; on it, what Take finds.
  place_ = depth > 1                            ? Place::kValue
           : depth == 0                         ? Place::kFrame
           : state_ < State::kString            ? Place::kFrame
           : is_name_ && state_ != State::kWord ? Place::kName
                                                : Place::kValue;
  return Take(byte);
}

JsonScanner::Step JsonScanner::Take(char byte) {
  switch (state_) {
    case State::kString:
    case State::kEscape:
    case State::kHexadecimal:
      return InString(byte);
    case State::kWord:
      if (byte != *word_) return Step::kInvalid;
      if (*++word_ == '\0') state_ = State::kAfterValue;
      return Step::kMore;
    case State::kNumber:
    case State::kEnded:
      return Step::kInvalid;
    default:
      break;
  }
  if (state_ != State::kBegin && IsBlank(byte)) return Step::kMore;
  switch (state_) {
    case State::kBegin:
      return byte == '{' ? BeginNested('{', State::kFirstName) : Step::kInvalid;
    case State::kFirstName:
      if (byte == '}') return Close('{');
      [[fallthrough]];
    case State::kNextName:
      if (byte != '"') return Step::kInvalid;
      state_ = State::kString;
      is_name_ = true;
      if (nesting_.size() == 1) place_ = Place::kName;
      return Step::kMore;
    case State::kColon:
      if (byte != ':') return Step::kInvalid;
      state_ = State::kValue;
      return Step::kMore;
    case State::kFirstValue:
      if (byte == ']') return Close('[');
      return BeginValue(byte);
    case State::kValue:
      return BeginValue(byte);
    default:
      break;
  }
  if (byte == ',') {
    state_ = nesting_.back() == '{' ? State::kNextName : State::kValue;
    return Step::kMore;
  }
  if (byte == '}') return Close('{');
  return byte == ']' ? Close('[') : Step::kInvalid;
}

JsonScanner::Step JsonScanner::BeginValue(char byte) {
  place_ = Place::kValue;
  switch (byte) {
    case '{':
      return BeginNested('{', State::kFirstName);
    case '[':
      return BeginNested('[', State::kFirstValue);
    case '"':
      state_ = State::kString;
      is_name_ = false;
      return Step::kMore;
    case 't':
    case 'f':
    case 'n':
      state_ = State::kWord;
      word_ = byte == 't' ? "rue" : byte == 'f' ? "alse" : "ull";
      return Step::kMore;
    default:
      break;
  }
  if (byte != '-' && !IsDigit(byte)) return Step::kInvalid;
  state_ = State::kNumber;
  number_ = byte == '-' ? Number::kMinus : byte == '0' ? Number::kZero : Number::kInteger;
  return Step::kMore;
}

JsonScanner::Step JsonScanner::BeginNested(char bracket, State next) {
  if (nesting_.size() >= kMaxDepth) return Step::kInvalid;
  nesting_.push_back(bracket);
  state_ = next;
  return Step::kMore;
}

JsonScanner::Step JsonScanner::Close(char bracket) {
  if (nesting_.back() != bracket) return Step::kInvalid;
  nesting_.pop_back();
  state_ = nesting_.empty() ? State::kEnded : State::kAfterValue;
  return nesting_.empty() ? Step::kEnd : Step::kMore;
}

JsonScanner::Step JsonScanner::InString(char byte) {
  if (state_ == State::kHexadecimal) {
    if (!IsHexadecimal(byte)) return Step::kInvalid;
    if (--hexadecimals_left_ == 0) state_ = State::kString;
  } else if (state_ == State::kEscape) {
    if (byte != 'u' && !IsEscaped(byte)) return Step::kInvalid;
    state_ = byte == 'u' ? State::kHexadecimal : State::kString;
    hexadecimals_left_ = 4;
  } else if (byte == '\\') {
    state_ = State::kEscape;
  } else if (byte == '"') {
    state_ = is_name_ ? State::kColon : State::kAfterValue;
  }
  return Step::kMore;
}

bool JsonScanner::NumberTakes(char byte) {
  const bool digit = IsDigit(byte);
  switch (number_) {
    case Number::kMinus:
      if (!digit) return false;
      number_ = byte == '0' ? Number::kZero : Number::kInteger;
      return true;
    case Number::kInteger:
      if (digit) return true;
      [[fallthrough]];
    case Number::kZero:
      if (byte != '.' && byte != 'e' && byte != 'E') return false;
      number_ = byte == '.' ? Number::kPoint : Number::kExponent;
      return true;
    case Number::kPoint:
      if (digit) number_ = Number::kFraction;
      return digit;
    case Number::kFraction:
      if (!digit && byte != 'e' && byte != 'E') return false;
      if (!digit) number_ = Number::kExponent;
      return true;
    case Number::kExponent:
      if (!digit && byte != '+' && byte != '-') return false;
      number_ = digit ? Number::kPower : Number::kSign;
      return true;
    case Number::kSign:
    case Number::kPower:
      if (digit) number_ = Number::kPower;
      return digit;
  }
  return false;
}

bool JsonScanner::NumberIsWhole() const {
  return number_ == Number::kZero || number_ == Number::kInteger || number_ == Number::kFraction ||
         number_ == Number::kPower;
}

}  // namespace tandem
