#pragma once

#include <array>

#include "absl/strings/string_view.h"
#include "common/speculation/merged_tree.h"

namespace tandem {

// Names of spans' attributes, by SourceKind: "tandem.", a name of kSourceNames, and what is counted. Spans
// keep no copies, so they are constants.
inline constexpr std::array<absl::string_view, kNumSourceKinds> kDraftTokensAttributes = {
    "tandem.drafter.draft_tokens", "tandem.local.draft_tokens", "tandem.grammar.draft_tokens",
    "tandem.prediction.draft_tokens"};
inline constexpr std::array<absl::string_view, kNumSourceKinds> kAcceptedTokensAttributes = {
    "tandem.drafter.accepted_tokens", "tandem.local.accepted_tokens", "tandem.grammar.accepted_tokens",
    "tandem.prediction.accepted_tokens"};

}  // namespace tandem
