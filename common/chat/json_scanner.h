#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tandem {

// Scans a JSON object byte by byte as it arrives: finds its end, and the places of its members' names and
// values. Follows RFC 8259, except that it allows control characters in strings, because targets write them.
// Takes constant time per byte, and memory only for the nesting.
class JsonScanner {
 public:
  enum class Step {
    kMore,     // The object continues.
    kEnd,      // The byte ends it.
    kInvalid,  // No object has the byte there; nothing may follow.
  };
  // The role of the last byte in the object.
  enum class Place {
    kFrame,  // A bracket of its own, or between its names and values.
    kName,   // Of a member's name, its quotes included.
    kValue,  // Of a member's value.
  };
  static constexpr size_t kMaxDepth = 64;

  // Takes the next byte. The first one must be '{'.
  Step Push(char byte);
  Place place() const { return place_; }

 private:
  enum class State : uint8_t {
    kBegin,        // Of the object.
    kFirstName,    // Behind '{'.
    kNextName,     // Behind ',' in an object.
    kColon,        // Behind a name.
    kFirstValue,   // Behind '['.
    kValue,        // Where a value has to stand.
    kAfterValue,   // Where ',' or a closing bracket has to stand.
    kString,       // Within one.
    kEscape,       // Behind its backslash,
    kHexadecimal,  // and within \uXXXX.
    kNumber,
    kWord,  // true, false or null.
    kEnded,
  };
  // The parts of a number so far.
  enum class Number : uint8_t { kMinus, kZero, kInteger, kPoint, kFraction, kExponent, kSign, kPower };

  Step Take(char byte);
  Step BeginValue(char byte);
  Step BeginNested(char bracket, State next);
  Step Close(char bracket);
  Step InString(char byte);
  bool NumberTakes(char byte);
  bool NumberIsWhole() const;

  std::string nesting_;  // An opening bracket for each level.
  State state_ = State::kBegin;
  Number number_ = Number::kMinus;
  Place place_ = Place::kFrame;
  bool is_name_ = false;        // The string that we are in.
  int hexadecimals_left_ = 0;   // Of an escape.
  const char* word_ = nullptr;  // What is left of it.
};

}  // namespace tandem
