#include "common/config/yaml_document.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <optional>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "yaml-cpp/eventhandler.h"

namespace tandem {
namespace {

// Names longer than this get no suggestion: the distance takes time in their product.
constexpr size_t kMaxSuggestedName = 64;

std::string Place(absl::string_view path, const YAML::Mark& mark) {
  if (mark.is_null()) return std::string(path);
  return absl::StrCat(path, ":", mark.line + 1, ":", mark.column + 1);
}

// Levenshtein's distance.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

// Where documents begin, and nothing else.
class DocumentStarts final : public YAML::EventHandler {
 public:
  const std::optional<YAML::Mark>& last() const { return last_; }

  void OnDocumentStart(const YAML::Mark& mark) override { last_ = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
  }
  void OnMapEnd() override {}

 private:
  std::optional<YAML::Mark> last_;
};

}  // namespace

absl::StatusOr<YAML::Node> LoadYaml(absl::string_view text, absl::string_view path) {
  if (text.size() > kMaxYamlBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", text.size(), " bytes, expected at most ", kMaxYamlBytes));
  }
  try {
    // Not YAML::LoadAll: at what may begin no document, such as "&a,b", it makes documents without end.
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    DocumentStarts starts;
    if (!parser.HandleNextDocument(starts)) return YAML::Node();
    if (parser.HandleNextDocument(starts)) {
      return absl::InvalidArgumentError(
          absl::StrCat(Place(path, *starts.last()), ": a second document, expected one"));
    }
    return YAML::Load(std::string(text));
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(Place(path, error.mark), ": not YAML: ", error.msg));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not YAML: ", error.what()));
  }
}

absl::Status YamlError(absl::string_view path, const YAML::Node& node, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(Place(path, node.Mark()), ": ", what));
}

bool IsPlain(const YAML::Node& scalar) {
  return scalar.Tag() == "?" || scalar.Tag().empty();
}

std::string DidYouMean(absl::string_view name, const std::vector<std::string>& known) {
  if (name.size() > kMaxSuggestedName) return "";
  // A third of the letters wrong still looks like the same word.
  size_t nearest = std::max<size_t>(1, name.size() / 3) + 1;
  const std::string* suggestion = nullptr;
  for (const std::string& candidate : known) {
    if (candidate.size() > kMaxSuggestedName) continue;
    const size_t distance = EditDistance(name, candidate);
    if (distance >= nearest) continue;
    nearest = distance;
    suggestion = &candidate;
  }
  return suggestion == nullptr ? "" : absl::StrCat(", did you mean \"", *suggestion, "\"?");
}

}  // namespace tandem
