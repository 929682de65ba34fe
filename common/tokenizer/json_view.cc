#include "common/tokenizer/json_view.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

constexpr int kMaxJsonDepth = 64;

// nlohmann::json has no depth limit of its own, and its consumers recurse.
bool IsTooDeep(absl::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<JsonView> JsonView::Parse(absl::string_view text, std::string file) {
  if (IsTooDeep(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": JSON nested deeper than ", kMaxJsonDepth, " levels"));
  }
  // The parser would take a zero byte for the end, and ignore what follows.
  if (const size_t nul = text.find('\0'); nul != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": not JSON: byte ", nul, " is zero"));
  }
  try {
    auto document = std::make_shared<const nlohmann::json>(nlohmann::json::parse(text.begin(), text.end()));
    const nlohmann::json* root = document.get();
    return JsonView(std::move(document), root, std::move(file), "$");
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": not JSON: ", e.what()));
  }
}

JsonView JsonView::Of(nlohmann::json document, std::string file) {
  auto shared = std::make_shared<const nlohmann::json>(std::move(document));
  const nlohmann::json* root = shared.get();
  return JsonView(std::move(shared), root, std::move(file), "$");
}

absl::Status JsonView::Invalid(absl::string_view message) const {
  return absl::InvalidArgumentError(absl::StrCat(file_, ": ", path_, ": ", message));
}

absl::Status JsonView::Unsupported(absl::string_view message) const {
  return absl::UnimplementedError(absl::StrCat(file_, ": ", path_, ": ", message));
}

JsonView JsonView::At(const nlohmann::json& value, absl::string_view step) const {
  return JsonView(document_, &value, file_, absl::StrCat(path_, step));
}

absl::StatusOr<JsonView> JsonView::Member(const std::string& name) const {
  TANDEM_ASSIGN_OR_RETURN(std::optional<JsonView> member, Find(name));
  if (!member.has_value()) return Invalid(absl::StrCat("member '", name, "' is missing"));
  return *std::move(member);
}

absl::StatusOr<std::optional<JsonView>> JsonView::Find(const std::string& name) const {
  if (!value_->is_object()) return Invalid(absl::StrCat("expected an object, found ", value_->type_name()));
  const auto it = value_->find(name);
  if (it == value_->end() || it->is_null()) return std::optional<JsonView>();
  return std::optional<JsonView>(At(*it, absl::StrCat(".", name)));
}

absl::StatusOr<std::vector<JsonView>> JsonView::Elements() const {
  if (!value_->is_array()) return Invalid(absl::StrCat("expected an array, found ", value_->type_name()));
  std::vector<JsonView> elements;
  elements.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) {
    elements.push_back(At((*value_)[i], absl::StrCat("[", i, "]")));
  }
  return elements;
}

absl::StatusOr<std::string> JsonView::String() const {
  if (!value_->is_string()) return Invalid(absl::StrCat("expected a string, found ", value_->type_name()));
  return value_->get<std::string>();
}

absl::StatusOr<bool> JsonView::Bool() const {
  if (!value_->is_boolean()) return Invalid(absl::StrCat("expected a boolean, found ", value_->type_name()));
  return value_->get<bool>();
}

absl::StatusOr<int64_t> JsonView::Integer(int64_t low, int64_t high) const {
  const bool fits = value_->is_number_integer() &&
                    (!value_->is_number_unsigned() || value_->get<uint64_t>() <= uint64_t{INT64_MAX});
  if (!fits || value_->get<int64_t>() < low || value_->get<int64_t>() > high) {
    return Invalid(absl::StrCat("expected an integer between ", low, " and ", high));
  }
  return value_->get<int64_t>();
}

absl::StatusOr<std::string> JsonView::StringMember(const std::string& name) const {
  TANDEM_ASSIGN_OR_RETURN(const JsonView member, Member(name));
  return member.String();
}

absl::StatusOr<bool> JsonView::BoolMember(const std::string& name, bool if_absent) const {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<JsonView> member, Find(name));
  if (!member.has_value()) return if_absent;
  return member->Bool();
}

}  // namespace tandem
