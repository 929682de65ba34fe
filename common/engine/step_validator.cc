#include "common/engine/step_validator.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {

SlotId LastSlot(const RowContext& context) {
  if (!context.tail.empty()) return context.tail.back();
  const uint32_t position = context.num_committed - 1;
  return context.blocks[position / kBlockTokens] * kBlockTokens + position % kBlockTokens;
}

StepValidator::StepValidator(const Options& options)
    : options_(options), slot_step_(size_t{options.num_blocks} * kBlockTokens) {}

absl::Status StepValidator::CheckSlot(SlotId slot, absl::string_view what, size_t index) const {
  if (slot < slot_step_.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " ", index, " names slot ", slot, "; there are ", slot_step_.size()));
}

absl::Status StepValidator::CheckRow(const StepRow& row, size_t index) const {
  const RowContext& context = row.context;
  if (row.token < 0 || row.token >= options_.vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("row ", index, " has token ", row.token, "; expected 0 to ", options_.vocab_size - 1));
  }
  const uint64_t length = uint64_t{context.num_committed} + context.tail.size();
  if (length < 1 || length > options_.max_context) {
    return absl::InvalidArgumentError(absl::StrCat("row ", index, " has a context of ", length,
                                                   " tokens; expected 1 to ", options_.max_context));
  }
  const size_t num_used = (size_t{context.num_committed} + kBlockTokens - 1) / kBlockTokens;
  if (num_used > context.blocks.size()) {
    return absl::InvalidArgumentError(absl::StrCat("row ", index, " names ", context.blocks.size(),
                                                   " blocks; its ", context.num_committed,
                                                   " committed tokens need ", num_used));
  }
  for (BlockId block : context.blocks.first(num_used)) {
    if (block >= options_.num_blocks) {
      return absl::InvalidArgumentError(
          absl::StrCat("row ", index, " names block ", block, "; there are ", options_.num_blocks));
    }
  }
  for (SlotId slot : context.tail) TANDEM_RETURN_IF_ERROR(CheckSlot(slot, "row", index));
  if (row.adapter == kNoAdapter ||
      std::find(adapters_.begin(), adapters_.end(), row.adapter) != adapters_.end()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("row ", index, " names adapter ", row.adapter,
                                                 "; this engine holds ", adapters_.size(),
                                                 " adapters, not that one"));
}

absl::Status StepValidator::CheckCounts(absl::Span<const TokenCount> counts, size_t index) const {
  for (const TokenCount& entry : counts) {
    if (entry.token < 0 || entry.token >= options_.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat("row ", index, " counts token ", entry.token,
                                                     "; expected 0 to ", options_.vocab_size - 1));
    }
  }
  return absl::OkStatus();
}

// Blocks that the previous row has too are already checked.
absl::Status StepValidator::CheckChoice(const StepRow& row, const StepRow* before, size_t index) const {
  const SeededChoice& choice = *row.choice;
  if (!options_.chooses) {
    return absl::InvalidArgumentError(
        absl::StrCat("row ", index, " asks for a choice; this engine gives logits only"));
  }
  if (row.logits != nullptr || choice.sampling == nullptr || choice.token == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "row ", index, " asks for a choice; expected parameters, a place for the token and none for logits"));
  }
  const size_t words = (static_cast<size_t>(options_.vocab_size) + 31) / 32;
  if (!choice.allowed.empty() && choice.allowed.size() != words) {
    return absl::InvalidArgumentError(absl::StrCat("row ", index, " allows tokens by ", choice.allowed.size(),
                                                   " words; expected ", words, " or none"));
  }
  const SeededChoice* const known = before == nullptr ? nullptr : before->choice;
  if (known == nullptr || known->sampling != choice.sampling) {
    const absl::Status valid = Validate(*choice.sampling, options_.vocab_size);
    if (!valid.ok()) return absl::InvalidArgumentError(absl::StrCat("row ", index, ": ", valid.message()));
  }
  if (known == nullptr || known->counts.data() != choice.counts.data() ||
      known->counts.size() != choice.counts.size()) {
    TANDEM_RETURN_IF_ERROR(CheckCounts(choice.counts, index));
  }
  return CheckCounts(choice.own_counts, index);
}

absl::Status StepValidator::CheckFeatures(const FeatureRequest& request, size_t index) const {
  if (!options_.feature_layers.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("row ", index, " asks for features; this engine gives none"));
  }
  if (request.states == nullptr || request.num_states() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("row ", index, " asks for features; expected one state at least and a place for it"));
  }
  for (size_t i = 0; i < request.layers.size(); ++i) {
    if (request.layers[i] > *options_.feature_layers ||
        (i > 0 && request.layers[i] <= request.layers[i - 1])) {
      return absl::InvalidArgumentError(absl::StrCat("row ", index, " asks for the state after ",
                                                     request.layers[i], " layers; expected 0 to ",
                                                     *options_.feature_layers, " in ascending order"));
    }
  }
  return absl::OkStatus();
}

absl::Status StepValidator::CheckState(const StepRow& row, size_t index) const {
  if (!options_.target_state_size.has_value()) {
    if (row.state == nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("row ", index, " comes with a state; only a draft head reads one"));
  }
  const bool own = row.state != nullptr && row.state->own;
  const uint32_t size = own ? options_.own_state_size : *options_.target_state_size;
  if (row.state != nullptr && size > 0 && row.state->values.size() == size) return absl::OkStatus();
  std::string expected =
      absl::StrCat("; a draft head's rows each read ", *options_.target_state_size, " numbers of the target");
  if (options_.own_state_size > 0) {
    absl::StrAppend(&expected, " or ", options_.own_state_size, " of its own");
  }
  if (row.state == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("row ", index, " comes without a state", expected));
  }
  return absl::InvalidArgumentError(absl::StrCat("row ", index, " comes with a state of ",
                                                 row.state->values.size(), " numbers",
                                                 own ? " of its own" : " of the target", expected));
}

absl::Status StepValidator::CheckRows(absl::Span<const StepRow> rows) {
  if (rows.size() > options_.max_rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of ", rows.size(), " rows; this engine takes ", options_.max_rows, " at most"));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(CheckRow(rows[i], i));
    TANDEM_RETURN_IF_ERROR(CheckState(rows[i], i));
    if (rows[i].features != nullptr) TANDEM_RETURN_IF_ERROR(CheckFeatures(*rows[i].features, i));
    if (rows[i].choice == nullptr) continue;
    TANDEM_RETURN_IF_ERROR(CheckChoice(rows[i], i == 0 ? nullptr : &rows[i - 1], i));
  }
  if (++step_ == 0) {
    std::fill(slot_step_.begin(), slot_step_.end(), 0);
    step_ = 1;
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const SlotId slot = LastSlot(rows[i].context);
    if (std::exchange(slot_step_[slot], step_) == step_) {
      return absl::InvalidArgumentError(
          absl::StrCat("row ", i, " writes slot ", slot, ", as does an earlier row of the same step"));
    }
  }
  return absl::OkStatus();
}

absl::Status StepValidator::CheckCopies(absl::Span<const KvCopy> copies) const {
  for (size_t i = 0; i < copies.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(CheckSlot(copies[i].from, "copy", i));
    TANDEM_RETURN_IF_ERROR(CheckSlot(copies[i].to, "copy", i));
  }
  return absl::OkStatus();
}

}  // namespace tandem
