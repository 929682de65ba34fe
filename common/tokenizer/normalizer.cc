#include "common/tokenizer/normalizer.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/text_pattern.h"
#include "common/tokenizer/unicode/unicode.h"

namespace tandem {
namespace {

// The most by which a Prepend or Replace may lengthen its text. No sensible one comes near.
constexpr size_t kMaxNormalizedBytes = size_t{512} << 20;

class UnicodeNormalizer final : public Normalizer {
 public:
  explicit UnicodeNormalizer(NormalizationForm form) : form_(form) {}
  absl::Status Apply(std::string& text) const override {
    TANDEM_ASSIGN_OR_RETURN(text, NormalizeUnicode(text, form_));
    return absl::OkStatus();
  }

 private:
  NormalizationForm form_;
};

class LowercaseNormalizer final : public Normalizer {
 public:
  absl::Status Apply(std::string& text) const override {
    text = LowercaseUnicode(text);
    return absl::OkStatus();
  }
};

class PrependNormalizer final : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  absl::Status Apply(std::string& text) const override {
    if (!text.empty()) text.insert(0, prefix_);
    return absl::OkStatus();
  }

 private:
  std::string prefix_;
};

class ReplaceNormalizer final : public Normalizer {
 public:
  ReplaceNormalizer(TextPattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  absl::Status Apply(std::string& text) const override {
    TANDEM_ASSIGN_OR_RETURN(text, pattern_.Replace(text, content_));
    return absl::OkStatus();
  }

 private:
  TextPattern pattern_;
  std::string content_;
};

class StripNormalizer final : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  absl::Status Apply(std::string& text) const override {
    size_t begin = text.size();
    size_t end = 0;
    for (size_t at = 0; at < text.size();) {
      const Utf8Unit unit = ReadUtf8(absl::string_view(text).substr(at));
      if (!IsWhiteSpace(unit.code_point)) {
        if (begin == text.size()) begin = at;
        end = at + unit.length;
      }
      at += unit.length;
    }
    if (right_) text.resize(end);
    if (left_) text.erase(0, begin);
    return absl::OkStatus();
  }

 private:
  bool left_;
  bool right_;
};

class SequenceNormalizer final : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<const Normalizer>> steps)
      : steps_(std::move(steps)) {}
  absl::Status Apply(std::string& text) const override {
    for (const auto& step : steps_) {
      TANDEM_RETURN_IF_ERROR(step->Apply(text));
      if (text.size() > kMaxNormalizedBytes) {
        return absl::ResourceExhaustedError("the normalizer makes the text too long");
      }
    }
    return absl::OkStatus();
  }

 private:
  std::vector<std::unique_ptr<const Normalizer>> steps_;
};

absl::StatusOr<std::unique_ptr<const Normalizer>> ParseSequence(const JsonView& json) {
  TANDEM_ASSIGN_OR_RETURN(const JsonView list, json.Member("normalizers"));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<JsonView> elements, list.Elements());
  std::vector<std::unique_ptr<const Normalizer>> steps;
  for (const JsonView& element : elements) {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<const Normalizer> step, ParseNormalizer(element));
    steps.push_back(std::move(step));
  }
  return std::make_unique<SequenceNormalizer>(std::move(steps));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Normalizer>> ParseNormalizer(const JsonView& json) {
  TANDEM_ASSIGN_OR_RETURN(const std::string type, json.StringMember("type"));
  if (type == "Sequence") return ParseSequence(json);
  if (type == "NFC") return std::make_unique<UnicodeNormalizer>(NormalizationForm::kNfc);
  if (type == "NFD") return std::make_unique<UnicodeNormalizer>(NormalizationForm::kNfd);
  if (type == "NFKC") return std::make_unique<UnicodeNormalizer>(NormalizationForm::kNfkc);
  if (type == "NFKD") return std::make_unique<UnicodeNormalizer>(NormalizationForm::kNfkd);
  if (type == "Lowercase") return std::make_unique<LowercaseNormalizer>();
  if (type == "Prepend") {
    TANDEM_ASSIGN_OR_RETURN(std::string prefix, json.StringMember("prepend"));
    return std::make_unique<PrependNormalizer>(std::move(prefix));
  }
  if (type == "Replace") {
    TANDEM_ASSIGN_OR_RETURN(const JsonView pattern_json, json.Member("pattern"));
    TANDEM_ASSIGN_OR_RETURN(TextPattern pattern, TextPattern::Parse(pattern_json));
    TANDEM_ASSIGN_OR_RETURN(std::string content, json.StringMember("content"));
    return std::make_unique<ReplaceNormalizer>(std::move(pattern), std::move(content));
  }
  if (type == "Strip") {
    TANDEM_ASSIGN_OR_RETURN(const bool left, json.BoolMember("strip_left", true));
    TANDEM_ASSIGN_OR_RETURN(const bool right, json.BoolMember("strip_right", true));
    return std::make_unique<StripNormalizer>(left, right);
  }
  return json.Unsupported(absl::StrCat("normalizer type '", type, "' is not supported"));
}

}  // namespace tandem
