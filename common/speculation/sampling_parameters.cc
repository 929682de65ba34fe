#include "common/speculation/sampling_parameters.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tandem {
namespace {

constexpr size_t kMaxBiases = 1024;

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

}  // namespace

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
  return ValidateBiases(sampling, vocab_size);
}

}  // namespace tandem
