#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// The values of a chat template: Python's, as far as templates use them. Copies share their contents, which
// never change; only a namespace can be assigned to.
class JinjaValue;

struct JinjaUndefined {
  std::string name;  // what was looked for, for the error message
};
struct JinjaNone {};
struct JinjaList;
struct JinjaDict;
struct JinjaNamespace;
struct JinjaLoop;
struct JinjaCallable;
struct JinjaMacro;  // Syntax nodes, in jinja_syntax.h.
struct JinjaStatement;
struct JinjaFrame;  // In jinja_interpreter.h.

using JinjaString = std::shared_ptr<const std::string>;
// A text that counts as HTML: what the filters safe and escape make.
struct JinjaMarkup {
  JinjaString text;
};

// The remaining budget of a rendering. Templates come with models from elsewhere, so every step and every
// byte created or searched is counted.
class JinjaBudget {
 public:
  JinjaBudget(int64_t max_steps, int64_t max_bytes) : steps_left_(max_steps), bytes_left_(max_bytes) {}

  // ResourceExhausted if nothing is left.
  absl::Status Step();
  absl::Status Bytes(size_t count);

 private:
  int64_t steps_left_;
  int64_t bytes_left_;
};

class JinjaValue {
 public:
  using Variant = std::variant<JinjaUndefined, JinjaNone, bool, int64_t, double, JinjaString,
                               std::shared_ptr<const JinjaList>, std::shared_ptr<const JinjaDict>,
                               std::shared_ptr<JinjaNamespace>, std::shared_ptr<const JinjaLoop>,
                               std::shared_ptr<const JinjaCallable>, JinjaMarkup>;
  using Items = std::vector<JinjaValue>;
  // Keys are strings, numbers, bools, none, ranges, or tuples of these.
  using Members = std::vector<std::pair<JinjaValue, JinjaValue>>;

  JinjaValue() : value_(JinjaNone()) {}
  explicit JinjaValue(Variant value) : value_(std::move(value)) {}

  static JinjaValue Undefined(absl::string_view name) {
    return JinjaValue(Variant(JinjaUndefined{std::string(name)}));
  }
  static JinjaValue Bool(bool value) { return JinjaValue(Variant(value)); }
  static JinjaValue Int(int64_t value) { return JinjaValue(Variant(value)); }
  static JinjaValue Float(double value) { return JinjaValue(Variant(value)); }
  static JinjaValue String(std::string value) {
    return JinjaValue(Variant(std::make_shared<const std::string>(std::move(value))));
  }
  static JinjaValue Markup(std::string value) {
    return JinjaValue(Variant(JinjaMarkup{std::make_shared<const std::string>(std::move(value))}));
  }
  // InvalidArgument when they nest deeper than 64 levels: everything that walks values recurses.
  // `kind` says what else than a list it is: kTuple, kGroup (a tuple of groupby, with names), the name of a
  // dict's view ("dict_items"), or what Python prints a range as.
  static constexpr char kTuple[] = "tuple";
  static constexpr char kGroup[] = "group";
  static absl::StatusOr<JinjaValue> List(Items items, std::string kind = {});
  static absl::StatusOr<JinjaValue> Dict(Members members);

  template <typename T>
  const T* As() const {
    return std::get_if<T>(&value_);
  }
  bool IsUndefined() const { return As<JinjaUndefined>() != nullptr; }
  bool IsNone() const { return As<JinjaNone>() != nullptr; }
  const std::string* AsString() const;  // null unless it is a string; likewise below
  const Items* AsItems() const;
  const std::string& ListKind() const;  // Of what has items.
  bool IsTuple() const;
  bool IsRange() const;
  bool IsMarkup() const { return As<JinjaMarkup>() != nullptr; }
  const JinjaDict* AsDict() const;

  // Python's name of the type, for messages.
  absl::string_view TypeName() const;
  bool IsTrue() const;

 private:
  Variant value_;
};

struct JinjaList {
  JinjaValue::Items items;
  int depth;
  std::string kind;
};

struct JinjaDict {
  JinjaValue::Members members;  // in the order of insertion, keys unique
  int depth;
  // The value of the key that equals this one as Python has it, where 1, 1.0 and True are one key; null when
  // there is none.
  const JinjaValue* Find(const JinjaValue& key) const;
};

// What namespace(), cycler() and joiner() make.
struct JinjaNamespace {
  enum class Kind { kNamespace, kCycler, kJoiner };
  Kind kind = Kind::kNamespace;
  std::map<std::string, JinjaValue> members;
  // Of a cycler, and the separator of a joiner.
  JinjaValue::Items items;
  size_t position = 0;
};

// What the passes of a loop share.
struct JinjaLoopState {
  std::shared_ptr<const JinjaList> list;
  size_t depth = 0;  // Of recursion, from 0.
  // For a recursive loop: how to run it again.
  const JinjaStatement* recursive = nullptr;
  std::shared_ptr<JinjaFrame> frame;
  std::vector<JinjaValue> last_changed;  // What loop.changed() saw last.
  bool has_changed = false;
};

// The variable `loop`.
struct JinjaLoop {
  std::shared_ptr<JinjaLoopState> state;
  size_t index;
};

// A function, a macro, or a method together with the value it belongs to.
struct JinjaCallable {
  enum class Kind { kFunction, kMethod, kMacro };
  Kind kind;
  std::string name;
  JinjaValue self = {};
  const JinjaMacro* macro = nullptr;
  std::shared_ptr<JinjaFrame> frame = nullptr;  // Where the macro is defined.
};

// Python's str() and repr().
absl::StatusOr<std::string> JinjaToText(const JinjaValue& value, JinjaBudget& budget);
absl::StatusOr<std::string> JinjaToRepr(const JinjaValue& value, JinjaBudget& budget);
std::string JinjaFloatText(double value);

// Python's escape() of HTML.
std::string JinjaEscaped(absl::string_view text);

// Whether a dict may have the value as a key: InvalidArgument for what Python cannot hash.
absl::Status CheckJinjaKey(const JinjaValue& key);
// Whether two keys are one.
bool SameJinjaKey(const JinjaValue& a, const JinjaValue& b);

// Python's == and <; the latter is an error between types without an order.
absl::StatusOr<bool> JinjaEqual(const JinjaValue& a, const JinjaValue& b, JinjaBudget& budget);
absl::StatusOr<bool> JinjaLess(const JinjaValue& a, const JinjaValue& b, JinjaBudget& budget);
// Python's `needle in haystack`.
absl::StatusOr<bool> JinjaContains(const JinjaValue& haystack, const JinjaValue& needle, JinjaBudget& budget);
// The elements that a loop over the value visits: items, characters, keys; none for an undefined value.
absl::StatusOr<JinjaValue::Items> JinjaIterate(const JinjaValue& value, JinjaBudget& budget);

// The length in characters of well-formed UTF-8.
size_t CountCharacters(absl::string_view text);

}  // namespace tandem
