#include "common/model/config/strict_json.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxPrinted = 120;

// Receives the parser's events and builds the value, so that duplicate keys are seen: the library's own
// builder keeps the last one silently.
class StrictBuilder : public nlohmann::json_sax<Json> {
 public:
  explicit StrictBuilder(const JsonLimits& limits) : limits_(limits) {}

  Json& root() { return root_; }
  const std::string& error() const { return error_; }
  // The builder's own errors: the value that is wrong, such as "messages[0].content"; empty: all of it.
  std::string error_place() const { return PrintableText(error_place_); }
  // Where the error was, when the parser itself reported it; it knows no offset for the builder's own errors.
  size_t error_offset() const { return error_offset_; }
  bool has_offset() const { return has_offset_; }

  bool null() override { return Add(nullptr) != nullptr; }
  bool boolean(bool value) override { return Add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return Add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return Add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override { return Add(value) != nullptr; }
  bool string(string_t& value) override { return Add(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return Fail("expected no binary value"); }

  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    auto [position, inserted] = open_.back()->get_ref<Json::object_t&>().emplace(name, nullptr);
    names_.back() = &position->first;
    if (!inserted) {
      return Fail(
          absl::StrCat("key \"", PrintableText(name), "\" occurs twice in one object, expected once"));
    }
    slot_ = &position->second;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    // The library's text reads "[json.exception.parse_error.101] parse error at line 1, column 2: WHAT".
    const absl::string_view what = error.what();
    const size_t cut = what.find(": ");
    error_ = PrintableText(cut == absl::string_view::npos ? what : what.substr(cut + 2));
    error_offset_ = position > 0 ? position - 1 : 0;
    has_offset_ = true;
    return false;
  }

 private:
  bool Fail(std::string message) {
    error_ = std::move(message);
    for (size_t level = 0; level < open_.size(); ++level) {
      const Json& outer = *open_[level];
      if (outer.is_object()) {
        absl::StrAppend(&error_place_, level == 0 ? "" : ".", *names_[level]);
      } else {
        // The element that is open is there already.
        const size_t index = outer.size() - (level + 1 < open_.size() ? 1 : 0);
        absl::StrAppend(&error_place_, "[", index, "]");
      }
    }
    return false;
  }

  Json* Add(Json value) {
    if (++num_values_ > limits_.max_values) {
      Fail(absl::StrCat("expected at most ", limits_.max_values, " values"));
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      auto& elements = open_.back()->get_ref<Json::array_t&>();
      elements.push_back(std::move(value));
      return &elements.back();
    }
    *slot_ = std::move(value);
    return slot_;
  }

  bool Open(Json value) {
    if (open_.size() >= limits_.max_depth) {
      return Fail(absl::StrCat("nested too deep, expected at most ", limits_.max_depth, " levels"));
    }
    Json* const added = Add(std::move(value));
    if (added == nullptr) return false;
    open_.push_back(added);
    names_.push_back(nullptr);
    return true;
  }

  bool Close() {
    open_.pop_back();
    names_.pop_back();
    return true;
  }

  const JsonLimits limits_;
  Json root_;
  // The arrays and objects not closed yet, outermost first. An element's address is stable while it is open:
  // its array grows only after it was closed.
  std::vector<Json*> open_;
  std::vector<const std::string*> names_;  // The key read last in each of them that is an object.
  Json* slot_ = nullptr;                   // Where the value of the key read last goes.
  size_t num_values_ = 0;
  std::string error_;
  std::string error_place_;
  size_t error_offset_ = 0;
  bool has_offset_ = false;
};

}  // namespace

absl::StatusOr<Json> ParseStrictJson(absl::string_view text, absl::string_view path, size_t first_byte,
                                     const JsonLimits& limits) {
  // The parser would take it for the end, and not look at what follows.
  if (const size_t nul = text.find('\0'); nul != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": byte ", first_byte + nul, ": expected JSON: found a byte that is zero"));
  }
  StrictBuilder builder(limits);
  bool parsed = false;
  try {
    parsed = Json::sax_parse(text.data(), text.data() + text.size(), &builder);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not JSON: ", PrintableText(error.what())));
  }
  if (parsed) return std::move(builder.root());
  if (!builder.has_offset()) {
    const std::string place = builder.error_place();
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", place, place.empty() ? "" : ": ", builder.error()));
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ": byte ", first_byte + builder.error_offset(),
                                                 ": expected JSON: ", builder.error()));
}

std::string PrintableText(absl::string_view text) {
  std::string out;
  for (char c : text.substr(0, kMaxPrinted)) out.push_back(c >= 0x20 && c < 0x7f ? c : '?');
  if (text.size() > kMaxPrinted) out += "...";
  return out;
}

std::string PrintableValue(const Json& value) {
  if (value.is_object()) return absl::StrCat("an object of ", value.size(), " fields");
  if (value.is_array() && value.size() > 8) return absl::StrCat("a list of ", value.size());
  return PrintableText(value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace));
}

}  // namespace tandem
