#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/base/token.h"
#include "common/tokenizer/bpe_model.h"
#include "common/tokenizer/json_view.h"
#include "common/tokenizer/unigram_model.h"

namespace tandem {

// The model of a tokenizer.json, of any kind that is supported: words to tokens.
class TokenModel {
 public:
  struct Scratch {
    BpeModel::Scratch bpe;
    UnigramModel::Scratch unigram;
  };

  // `json`: the member "model". Unimplemented, with its name, for other types; otherwise errors of the
  // models.
  static absl::StatusOr<TokenModel> Parse(const JsonView& json) {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<JsonView> type, json.Find("type"));
    std::string name = "BPE";
    if (type.has_value()) {
      TANDEM_ASSIGN_OR_RETURN(name, type->String());
    }
    if (name == "Unigram") {
      TANDEM_ASSIGN_OR_RETURN(UnigramModel model, UnigramModel::Parse(json));
      return TokenModel(std::move(model));
    }
    if (name == "BPE") {
      TANDEM_ASSIGN_OR_RETURN(BpeModel model, BpeModel::Parse(json));
      return TokenModel(std::move(model));
    }
    return type->Unsupported(absl::StrCat("model type '", name, "' is not supported; BPE and Unigram are"));
  }

  // As the models' function of this name.
  absl::Status Tokenize(absl::string_view word, size_t max_tokens, Scratch& scratch, TokenIds& out) const {
    if (const auto* unigram = std::get_if<UnigramModel>(&model_)) {
      return unigram->Tokenize(word, max_tokens, scratch.unigram, out);
    }
    return std::get<BpeModel>(model_).Tokenize(word, max_tokens, scratch.bpe, out);
  }
  std::optional<TokenId> Find(absl::string_view content) const {
    return std::visit([content](const auto& model) { return model.Find(content); }, model_);
  }
  const absl::flat_hash_map<std::string, TokenId>& vocabulary() const {
    return std::visit(
        [](const auto& model) -> const absl::flat_hash_map<std::string, TokenId>& {
          return model.vocabulary();
        },
        model_);
  }

 private:
  explicit TokenModel(std::variant<BpeModel, UnigramModel> model) : model_(std::move(model)) {}

  std::variant<BpeModel, UnigramModel> model_;
};

}  // namespace tandem
