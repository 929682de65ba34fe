#include "common/rpc/sampling_wire.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

constexpr int kMaxLogitBias = 1024;
constexpr int kMaxListedTokens = 4096;
constexpr int kMaxSequences = 1024;
constexpr int kMaxSequenceTokens = 64;

// In ascending order; of values only what a TokenId cannot hold is looked at.
absl::StatusOr<std::vector<TokenId>> ListedTokens(absl::string_view field,
                                                  const google::protobuf::RepeatedField<uint32_t>& proto) {
  if (proto.size() > kMaxListedTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.", field, ": ", proto.size(), " tokens, expected at most ", kMaxListedTokens));
  }
  std::vector<TokenId> tokens;
  tokens.reserve(static_cast<size_t>(proto.size()));
  for (const uint32_t token : proto) {
    if (token > static_cast<uint32_t>(std::numeric_limits<TokenId>::max())) {
      return absl::InvalidArgumentError(
          absl::StrCat("sampling.", field, ": token id ", token, ", expected one below 2^31"));
    }
    tokens.push_back(static_cast<TokenId>(token));
  }
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

// Of sizes only what would cost memory is looked at.
absl::StatusOr<std::vector<TokenIds>> ListedSequences(
    const google::protobuf::RepeatedPtrField<v1::TokenIds>& proto) {
  if (proto.size() > kMaxSequences) {
    return absl::InvalidArgumentError(absl::StrCat("sampling.banned_sequences: ", proto.size(),
                                                   " of them, expected at most ", kMaxSequences));
  }
  std::vector<TokenIds> sequences;
  sequences.reserve(static_cast<size_t>(proto.size()));
  for (int i = 0; i < proto.size(); ++i) {
    const auto invalid = [i](const auto&... parts) {
      return absl::InvalidArgumentError(absl::StrCat("sampling.banned_sequences[", i, "]: ", parts...));
    };
    if (proto[i].ids().empty() || proto[i].ids_size() > kMaxSequenceTokens)
      return invalid(proto[i].ids_size(), " tokens, expected 1 to ", kMaxSequenceTokens);
    TokenIds& sequence = sequences.emplace_back();
    for (const uint32_t token : proto[i].ids()) {
      if (token > static_cast<uint32_t>(std::numeric_limits<TokenId>::max()))
        return invalid("token id ", token, ", expected one below 2^31");
      sequence.push_back(static_cast<TokenId>(token));
    }
  }
  return sequences;
}

}  // namespace

absl::StatusOr<SamplingParameters> DecodeSampling(const v1::SamplingParameters& proto,
                                                  const GenerationDefaults& defaults) {
  if (proto.logit_bias_size() > kMaxLogitBias) {
    return absl::InvalidArgumentError(absl::StrCat("sampling.logit_bias: ", proto.logit_bias_size(),
                                                   " entries, expected at most ", kMaxLogitBias));
  }
  if (!proto.bad_words().empty())
    return absl::InvalidArgumentError(
        "sampling.bad_words: expected none; a router makes banned_sequences of them");
  SamplingParameters sampling;
  if (proto.has_temperature()) {
    sampling.temperature = proto.temperature();
  } else if (defaults.temperature.has_value()) {
    sampling.temperature = static_cast<float>(*defaults.temperature);
  }
  if (proto.has_top_k()) {
    sampling.top_k = proto.top_k();
  } else if (defaults.top_k.has_value()) {
    sampling.top_k = static_cast<uint32_t>(std::max(*defaults.top_k, 0));
  }
  if (proto.has_top_p()) {
    sampling.top_p = proto.top_p();
  } else if (defaults.top_p.has_value()) {
    sampling.top_p = static_cast<float>(*defaults.top_p);
  }
  if (proto.has_repetition_penalty()) {
    sampling.repetition_penalty = proto.repetition_penalty();
  } else if (defaults.repetition_penalty.has_value()) {
    sampling.repetition_penalty = static_cast<float>(*defaults.repetition_penalty);
  }
  if (proto.has_min_p()) {
    sampling.min_p = proto.min_p();
  } else if (defaults.min_p.has_value()) {
    sampling.min_p = static_cast<float>(*defaults.min_p);
  }
  if (proto.has_presence_penalty()) sampling.presence_penalty = proto.presence_penalty();
  if (proto.has_frequency_penalty()) sampling.frequency_penalty = proto.frequency_penalty();
  if (proto.has_seed()) sampling.seed = proto.seed();
  for (const auto& [token, bias] : proto.logit_bias()) {
    if (token > static_cast<uint32_t>(std::numeric_limits<TokenId>::max())) {
      return absl::InvalidArgumentError(
          absl::StrCat("sampling.logit_bias: token id ", token, ", expected one below 2^31"));
    }
    sampling.logit_bias.emplace_back(static_cast<TokenId>(token), bias);
  }
  std::sort(sampling.logit_bias.begin(), sampling.logit_bias.end());
  TANDEM_ASSIGN_OR_RETURN(sampling.allowed_tokens, ListedTokens("allowed_tokens", proto.allowed_tokens()));
  TANDEM_ASSIGN_OR_RETURN(sampling.banned_tokens, ListedTokens("banned_tokens", proto.banned_tokens()));
  TANDEM_ASSIGN_OR_RETURN(sampling.banned_sequences, ListedSequences(proto.banned_sequences()));
  // The likeliest token alone, however likely.
  if (sampling.top_p == 0.0f) {
    sampling.top_k = 1;
    sampling.top_p = 1.0f;
  }
  return sampling;
}

absl::StatusOr<SamplingParameters> SamplingFromProto(const v1::SamplingParameters& proto,
                                                     const GenerationDefaults& defaults, int32_t vocab_size) {
  TANDEM_ASSIGN_OR_RETURN(SamplingParameters sampling, DecodeSampling(proto, defaults));
  TANDEM_RETURN_IF_ERROR(Validate(sampling, vocab_size));
  return sampling;
}

v1::SamplingParameters SamplingToProto(const SamplingParameters& sampling) {
  v1::SamplingParameters proto;
  proto.set_temperature(sampling.temperature);
  proto.set_top_k(sampling.top_k);
  proto.set_top_p(sampling.top_p);
  proto.set_min_p(sampling.min_p);
  proto.set_repetition_penalty(sampling.repetition_penalty);
  proto.set_presence_penalty(sampling.presence_penalty);
  proto.set_frequency_penalty(sampling.frequency_penalty);
  for (const auto& [token, bias] : sampling.logit_bias) {
    (*proto.mutable_logit_bias())[static_cast<uint32_t>(token)] = bias;
  }
  proto.set_seed(sampling.seed);
  for (const TokenId token : sampling.allowed_tokens) proto.add_allowed_tokens(static_cast<uint32_t>(token));
  for (const TokenId token : sampling.banned_tokens) proto.add_banned_tokens(static_cast<uint32_t>(token));
  for (const TokenIds& sequence : sampling.banned_sequences)
    proto.add_banned_sequences()->mutable_ids()->Add(sequence.begin(), sequence.end());
  return proto;
}

}  // namespace tandem
