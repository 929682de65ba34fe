#include "common/speculation/sampling_parameters.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tandem {
namespace {

constexpr size_t kMaxBiases = 1024;
constexpr size_t kMaxListedTokens = 4096;
constexpr size_t kMaxSequences = 1024;
constexpr size_t kMaxSequenceTokens = 64;

absl::Status OutOfRange(absl::string_view field, float value, absl::string_view range) {
  return absl::InvalidArgumentError(absl::StrCat("sampling.", field, ": ", value, ", expected ", range));
}

absl::Status ValidateBiases(const SamplingParameters& sampling, int32_t vocab_size) {
  if (sampling.logit_bias.size() > kMaxBiases) {
    return absl::InvalidArgumentError(absl::StrCat("sampling.logit_bias: ", sampling.logit_bias.size(),
                                                   " entries, expected at most ", kMaxBiases));
  }
  for (const auto& [token, bias] : sampling.logit_bias) {
    if (token < 0 || token >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("sampling.logit_bias: token ", token, ", expected [0, ", vocab_size, ")"));
    }
    // Written so that NaN fails, here and below.
    if (!(bias >= -1000.0f && bias <= 1000.0f)) {
      return OutOfRange(absl::StrCat("logit_bias[", token, "]"), bias, "[-1000, 1000]");
    }
  }
  return absl::OkStatus();
}

// A list in ascending order.
absl::Status ValidateTokens(absl::string_view field, const std::vector<TokenId>& tokens, int32_t vocab_size) {
  const auto invalid = [field](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat("sampling.", field, ": ", parts...));
  };
  if (tokens.size() > kMaxListedTokens)
    return invalid(tokens.size(), " tokens, expected at most ", kMaxListedTokens);
  for (const TokenId token : tokens) {
    if (token < 0 || token >= vocab_size) return invalid("token ", token, ", expected [0, ", vocab_size, ")");
  }
  const auto twice = std::adjacent_find(tokens.begin(), tokens.end());
  if (twice != tokens.end()) return invalid("token ", *twice, " twice, expected each once");
  return absl::OkStatus();
}

absl::Status ValidateSequences(const std::vector<TokenIds>& sequences, int32_t vocab_size) {
  if (sequences.size() > kMaxSequences) {
    return absl::InvalidArgumentError(absl::StrCat("sampling.banned_sequences: ", sequences.size(),
                                                   " of them, expected at most ", kMaxSequences));
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto invalid = [i](const auto&... parts) {
      return absl::InvalidArgumentError(absl::StrCat("sampling.banned_sequences[", i, "]: ", parts...));
    };
    if (sequences[i].empty() || sequences[i].size() > kMaxSequenceTokens)
      return invalid(sequences[i].size(), " tokens, expected 1 to ", kMaxSequenceTokens);
    for (const TokenId token : sequences[i]) {
      if (token < 0 || token >= vocab_size)
        return invalid("token ", token, ", expected [0, ", vocab_size, ")");
    }
  }
  return absl::OkStatus();
}

// All lists are valid by themselves.
absl::Status CheckSomeAreLeft(const SamplingParameters& sampling, int32_t vocab_size) {
  std::vector<TokenId> banned = sampling.banned_tokens;
  for (const TokenIds& sequence : sampling.banned_sequences) {
    if (sequence.size() == 1) banned.push_back(sequence.front());
  }
  std::sort(banned.begin(), banned.end());
  banned.erase(std::unique(banned.begin(), banned.end()), banned.end());
  bool any = sampling.allowed_tokens.empty() && banned.size() < static_cast<size_t>(vocab_size);
  for (const TokenId token : sampling.allowed_tokens)
    any = any || !std::binary_search(banned.begin(), banned.end(), token);
  if (any) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("sampling.banned_tokens: every token of ",
                   sampling.allowed_tokens.empty() ? "the vocabulary" : "allowed_tokens",
                   ", expected at least one token to remain"));
}

}  // namespace

bool EndsBeforeLast(const TokenIds& sequence, absl::Span<const TokenId> before,
                    absl::Span<const TokenId> path) {
  const size_t length = sequence.size() - 1;
  if (length > before.size() + path.size()) return false;
  for (size_t back = 1; back <= length; ++back) {
    const TokenId token =
        back <= path.size() ? path[path.size() - back] : before[before.size() - (back - path.size())];
    if (token != sequence[length - back]) return false;
  }
  return true;
}

bool CompletesAny(const std::vector<TokenIds>& sequences, absl::Span<const TokenId> before,
                  absl::Span<const TokenId> path, TokenId token) {
  return std::any_of(sequences.begin(), sequences.end(), [&](const TokenIds& sequence) {
    return sequence.back() == token && EndsBeforeLast(sequence, before, path);
  });
}

absl::Status Validate(const SamplingParameters& sampling, int32_t vocab_size) {
  const auto within = [](float value, float low, float high) { return value >= low && value <= high; };
  if (!within(sampling.temperature, 0.0f, 100.0f)) {
    return OutOfRange("temperature", sampling.temperature, "[0, 100]");
  }
  if (!(sampling.top_p > 0.0f && sampling.top_p <= 1.0f))
    return OutOfRange("top_p", sampling.top_p, "(0, 1]");
  if (!within(sampling.min_p, 0.0f, 1.0f)) return OutOfRange("min_p", sampling.min_p, "[0, 1]");
  if (!(sampling.repetition_penalty > 0.0f && sampling.repetition_penalty <= 10.0f)) {
    return OutOfRange("repetition_penalty", sampling.repetition_penalty, "(0, 10]");
  }
  if (!within(sampling.presence_penalty, -2.0f, 2.0f)) {
    return OutOfRange("presence_penalty", sampling.presence_penalty, "[-2, 2]");
  }
  if (!within(sampling.frequency_penalty, -2.0f, 2.0f)) {
    return OutOfRange("frequency_penalty", sampling.frequency_penalty, "[-2, 2]");
  }
  if (absl::Status status = ValidateTokens("allowed_tokens", sampling.allowed_tokens, vocab_size);
      !status.ok()) {
    return status;
  }
  if (absl::Status status = ValidateTokens("banned_tokens", sampling.banned_tokens, vocab_size);
      !status.ok()) {
    return status;
  }
  if (absl::Status status = ValidateSequences(sampling.banned_sequences, vocab_size); !status.ok())
    return status;
  // Unsorted ones do no harm.
  for (const TokenId token : sampling.early_banned_tokens) {
    if (token < 0 || token >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("early_banned_tokens: token ", token, ", expected [0, ", vocab_size, ")"));
    }
  }
  if (absl::Status status = CheckSomeAreLeft(sampling, vocab_size); !status.ok()) return status;
  return ValidateBiases(sampling, vocab_size);
}

}  // namespace tandem
