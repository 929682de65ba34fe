#include "drafter/rpc/score_wire.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/sampling_wire.h"

namespace tandem {
namespace {

constexpr size_t kMaxModelName = 256;

}  // namespace

absl::StatusOr<ScoreRequest> ScoreRequestFromProto(const v1::ScoreRequest& proto) {
  if (proto.draft_model().size() > kMaxModelName) {
    return absl::InvalidArgumentError(absl::StrCat("draft_model: ", proto.draft_model().size(),
                                                   " bytes, expected at most ", kMaxModelName));
  }
  ScoreRequest request{.draft_model = proto.draft_model(),
                       .vocabulary_fingerprint = proto.vocabulary_fingerprint(),
                       .tokens = {},
                       .prompt_length = proto.prompt_length(),
                       .sampling = {},
                       .cache_salt = proto.cache_salt()};
  request.tokens.reserve(static_cast<size_t>(proto.tokens_size()));
  for (int i = 0; i < proto.tokens_size(); ++i) {
    if (proto.tokens(i) > INT32_MAX) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokens[", i, "]: ", proto.tokens(i), ", expected less than 2^31"));
    }
    request.tokens.push_back(static_cast<TokenId>(proto.tokens(i)));
  }
  // Whoever asks has applied the model's defaults already.
  TANDEM_ASSIGN_OR_RETURN(request.sampling, DecodeSampling(proto.sampling(), GenerationDefaults()));
  return request;
}

v1::ScoreResponse ScoreResultToProto(const ScoreResult& result) {
  v1::ScoreResponse proto;
  proto.set_ranks(std::string(result.ranks.begin(), result.ranks.end()));
  proto.set_accepted_tokens(result.accepted_tokens);
  proto.set_prompt_negative_log_likelihood(result.prompt_negative_log_likelihood);
  proto.set_prompt_tokens(result.prompt_tokens);
  proto.set_remembers_outputs(result.remembers_outputs);
  return proto;
}

}  // namespace tandem
