#include "common/tokenizer/jinja/jinja_from_json.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace tandem {
namespace {

// The library's own values either lose the order of members or look through all of them for each new one.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Builder(const std::function<std::string(std::string)>& on_text) : on_text_(on_text) {}

  JinjaValue& root() { return root_; }
  const absl::Status& status() const { return status_; }

  bool null() override { return Add(JinjaValue()); }
  bool boolean(bool value) override { return Add(JinjaValue::Bool(value)); }
  bool number_integer(number_integer_t value) override { return Add(JinjaValue::Int(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > uint64_t{std::numeric_limits<int64_t>::max()})
      return Add(JinjaValue::Float(static_cast<double>(value)));
    return Add(JinjaValue::Int(static_cast<int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t&) override { return Add(JinjaValue::Float(value)); }
  bool string(string_t& value) override { return Add(JinjaValue::String(Seen(value))); }
  bool binary(binary_t&) override { return false; }

  bool start_object(size_t) override {
    open_.push_back({.is_object = true, .name = {}, .items = {}, .members = {}});
    return true;
  }
  bool start_array(size_t) override {
    open_.push_back({.is_object = false, .name = {}, .items = {}, .members = {}});
    return true;
  }
  bool key(string_t& name) override {
    open_.back().name = JinjaValue::String(Seen(name));
    return true;
  }
  bool end_object() override { return Close(JinjaValue::Dict(std::move(open_.back().members))); }
  bool end_array() override { return Close(JinjaValue::List(std::move(open_.back().items))); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  struct Open {
    bool is_object = false;
    JinjaValue name;  // Of the member that comes next.
    JinjaValue::Items items;
    JinjaValue::Members members;
  };

  std::string Seen(std::string& text) {
    return on_text_ == nullptr ? std::move(text) : on_text_(std::move(text));
  }

  bool Add(JinjaValue value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_object) {
      open_.back().members.emplace_back(open_.back().name, std::move(value));
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }

  bool Close(absl::StatusOr<JinjaValue> value) {
    open_.pop_back();
    if (value.ok()) return Add(*std::move(value));
    status_ = value.status();
    return false;
  }

  const std::function<std::string(std::string)>& on_text_;
  JinjaValue root_;
  std::vector<Open> open_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<JinjaValue> JinjaFromJson(absl::string_view json,
                                         const std::function<std::string(std::string)>& on_text) {
  Builder builder(on_text);
  if (nlohmann::json::sax_parse(json.data(), json.data() + json.size(), &builder))
    return std::move(builder.root());
  if (!builder.status().ok()) return builder.status();
  return absl::InternalError("a JSON text is read in two ways");
}

}  // namespace tandem
