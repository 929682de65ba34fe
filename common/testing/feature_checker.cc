#include "common/testing/feature_checker.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

// With eight significant bits, as bfloat16 has them; not for numbers that are too small to be normal.
float NearestBf16(float value) {
  int exponent = 0;
  const float fraction = std::frexp(value, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8);
}

float ReadBf16(const char* from) {
  uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof bits);
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

}  // namespace

SessionOpened FeatureChecker::Answer(uint32_t first_position) {
  needs_.first_position = first_position;
  answered_ = true;
  return {.epoch = epoch_, .context_length = 4096, .features = needs_};
}

FeaturesUsed FeatureChecker::Use(uint32_t position) {
  used_ = std::max(used_, position);
  return {.epoch = epoch_, .position = used_};
}

absl::Status FeatureChecker::OnRequest(const DraftRequest& request) {
  if (const auto* open = std::get_if<OpenSession>(&request.event)) {
    if (open->target_hidden_size != FakeEngine::kHiddenSize ||
        open->target_layers != FakeEngine::kNumLayers) {
      return absl::InternalError(absl::StrCat("an opening beside a target of ", open->target_layers,
                                              " layers of ", open->target_hidden_size));
    }
    if (open->epoch <= epoch_) return absl::OkStatus();
    epoch_ = open->epoch;
    commit_no_ = open->commit_no;
    answered_ = false;
    tokens_ = open->tokens;
    first_.reset();
    end_ = 0;
    used_ = 0;
  } else if (const auto* commit = std::get_if<Commit>(&request.event)) {
    if (commit->epoch < epoch_ || (commit->epoch == epoch_ && commit->commit_no <= commit_no_)) {
      return absl::OkStatus();
    }
    if (commit->epoch != epoch_ || commit->commit_no != commit_no_ + 1) {
      return absl::InternalError(absl::StrCat("commit ", commit->commit_no, " of epoch ", commit->epoch,
                                              " after ", commit_no_, " of epoch ", epoch_));
    }
    commit_no_ = commit->commit_no;
    const auto old_root = static_cast<uint32_t>(tokens_.size()) - 1;
    tokens_.insert(tokens_.end(), commit->tokens.begin(), commit->tokens.end());
    if (!commit->features.has_value()) return absl::OkStatus();
    ++num_in_commits_;
    if (commit->features->first_position < old_root) {
      return absl::InternalError(absl::StrCat("a commit below position ", old_root,
                                              " has features of position ",
                                              commit->features->first_position));
    }
    TANDEM_RETURN_IF_ERROR(OnFeatures(*commit->features));
    if (end_ + 1 != tokens_.size()) return absl::InternalError("a commit with a part of its features");
  } else if (const auto* features = std::get_if<Features>(&request.event)) {
    return OnFeatures(*features);
  }
  return absl::OkStatus();
}

absl::Status FeatureChecker::OnFeatures(const Features& features) {
  if (features.epoch < epoch_) return absl::OkStatus();
  if (features.epoch != epoch_ || !answered_) {
    return absl::InternalError(absl::StrCat("features of epoch ", features.epoch, " in epoch ", epoch_,
                                            answered_ ? "" : ", which was not answered"));
  }
  if (features.type != needs_.type) return absl::InternalError("features of another type");
  const uint64_t row_bytes = FeatureRowBytes(needs_.type, needs_.num_states(), FakeEngine::kHiddenSize);
  if (features.states.empty() || features.states.size() % row_bytes != 0 ||
      features.states.size() > kMaxFeatureBytes) {
    return absl::InternalError(
        absl::StrCat(features.states.size(), " bytes of features, in rows of ", row_bytes));
  }
  if (first_.has_value() && features.first_position + features.states.size() / row_bytes <= end_) {
    return absl::OkStatus();
  }
  if (!first_.has_value()) {
    if (features.first_position < needs_.first_position) {
      return absl::InternalError(absl::StrCat("features from position ", features.first_position,
                                              ", asked for from ", needs_.first_position));
    }
    first_ = features.first_position;
    end_ = features.first_position;
  }
  if (features.first_position != end_) {
    return absl::InternalError(
        absl::StrCat("features from position ", features.first_position, " after those up to ", end_));
  }
  const absl::Span<const char> states(features.states.data(), features.states.size());
  for (size_t at = 0; at < states.size(); at += row_bytes, ++end_, ++num_rows_) {
    TANDEM_RETURN_IF_ERROR(CheckRow(end_, states.subspan(at, row_bytes)));
  }
  if (needs_.window > 0 && end_ > std::max(used_, *first_) + needs_.window) {
    return absl::InternalError(absl::StrCat("features up to position ", end_, " while those before ",
                                            std::max(used_, *first_), " are used and the window is ",
                                            needs_.window));
  }
  return absl::OkStatus();
}

absl::Status FeatureChecker::CheckRow(uint32_t position, absl::Span<const char> row) const {
  constexpr size_t kWidth = FakeEngine::kHiddenSize;
  if (position + 1 >= tokens_.size()) {
    return absl::InternalError(absl::StrCat("features of position ", position, " of ", tokens_.size(),
                                            " tokens, the last not computed"));
  }
  std::vector<float> expected = target_->ReferenceFeatures(absl::MakeConstSpan(tokens_).first(position + 1),
                                                           needs_.layers, needs_.final_norm);
  for (float& value : expected) value = NearestBf16(value);
  for (uint32_t state = 0; state < needs_.num_states(); ++state) {
    const float* const values = expected.data() + state * kWidth;
    float scale = 0.0f;
    float largest = 0.0f;
    for (size_t i = 0; i < kWidth; ++i) largest = std::max(largest, std::abs(values[i]));
    const char* from = row.data() + state * (row.size() / needs_.num_states());
    if (needs_.type == FeatureType::kInt8) std::memcpy(&scale, from, sizeof scale);
    for (size_t i = 0; i < kWidth; ++i) {
      const bool right =
          needs_.type == FeatureType::kInt8
              ? scale == largest / 127.0f &&
                    std::abs(static_cast<float>(static_cast<int8_t>(from[sizeof scale + i])) * scale -
                             values[i]) <= 0.501f * scale
              : ReadBf16(from + 2 * i) == values[i];
      if (right) continue;
      return absl::InternalError(
          absl::StrCat("position ", position, ", state ", state, ", number ", i, " is not ", values[i]));
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem
