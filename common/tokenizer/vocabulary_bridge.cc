#include "common/tokenizer/vocabulary_bridge.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

using Entries = std::vector<std::optional<Tokenizer::TokenEntry>>;

constexpr size_t kShownBytes = 40;

// The content as UTF-8, not normalised, cut to kShownBytes.
std::string ShownToken(absl::string_view content) {
  size_t end = std::min(content.size(), kShownBytes);
  while (end > 0 && end < content.size() && (content[end] & 0xc0) == 0x80) --end;
  return absl::StrCat("\"", absl::Utf8SafeCEscape(content.substr(0, end)), end < content.size() ? "..." : "",
                      "\"");
}

std::string ShownEntry(const Entries& entries, TokenId id) {
  const auto index = static_cast<size_t>(id);
  return index < entries.size() && entries[index].has_value() ? ShownToken(entries[index]->content)
                                                              : "no token";
}

// The tokens of one side that the other side does not have.
struct Unmatched {
  uint32_t added = 0;
  uint32_t ordinary = 0;
  uint32_t all_ordinary = 0;  // Matched or not.
  std::optional<TokenId> first;
};

void Count(const Tokenizer::TokenEntry& entry, TokenId id, bool is_matched, Unmatched* unmatched) {
  if (!entry.added) ++unmatched->all_ordinary;
  if (is_matched) return;
  if (entry.added) {
    ++unmatched->added;
    return;
  }
  ++unmatched->ordinary;
  if (!unmatched->first.has_value()) unmatched->first = id;
}

absl::Status OtherVocabulary(const Unmatched& target, const Entries& target_entries, const Unmatched& draft,
                             const Entries& draft_entries) {
  const TokenId first = target.first.has_value() ? *target.first : *draft.first;
  return absl::FailedPreconditionError(absl::StrCat(
      "the vocabularies differ in more than padding and added tokens: the draft model lacks ",
      target.ordinary, " of the target's ", target.all_ordinary, " ordinary tokens, the target lacks ",
      draft.ordinary, " of the draft model's ", draft.all_ordinary, "; the first token that differs has id ",
      first, ": the target's is ", ShownEntry(target_entries, first), ", the draft model's ",
      ShownEntry(draft_entries, first)));
}

}  // namespace

absl::StatusOr<VocabularyBridge> VocabularyBridge::Between(const Side& draft, const Side& target) {
  const Entries draft_entries = draft.tokenizer.Entries();
  const Entries target_entries = target.tokenizer.Entries();
  absl::flat_hash_map<absl::string_view, TokenId> by_content;
  for (TokenId id = 0; id < std::min(draft.width, draft.tokenizer.vocab_size()); ++id) {
    const auto& entry = draft_entries[static_cast<size_t>(id)];
    if (entry.has_value()) by_content.emplace(entry->content, id);
  }

  std::vector<TokenId> draft_ids(static_cast<size_t>(std::max(target.width, 0)), kNone);
  std::vector<bool> is_matched(draft_entries.size());
  Unmatched target_unmatched;
  for (TokenId id = 0; id < std::min(target.width, target.tokenizer.vocab_size()); ++id) {
    const auto& entry = target_entries[static_cast<size_t>(id)];
    if (!entry.has_value()) continue;
    const auto found = by_content.find(entry->content);
    // The decoder's result for the content is part of what a token means.
    const bool same = found != by_content.end() &&
                      draft.tokenizer.TokenBytes(found->second) == target.tokenizer.TokenBytes(id);
    if (same) {
      draft_ids[static_cast<size_t>(id)] = found->second;
      is_matched[static_cast<size_t>(found->second)] = true;
    }
    Count(*entry, id, same, &target_unmatched);
  }
  Unmatched draft_unmatched;
  for (TokenId id = 0; id < draft.tokenizer.vocab_size(); ++id) {
    const auto& entry = draft_entries[static_cast<size_t>(id)];
    if (entry.has_value()) Count(*entry, id, is_matched[static_cast<size_t>(id)], &draft_unmatched);
  }
  if (target_unmatched.ordinary > 0 || draft_unmatched.ordinary > 0) {
    return OtherVocabulary(target_unmatched, target_entries, draft_unmatched, draft_entries);
  }

  // The token that separates texts stands in for tokens that the draft model does not know. If there is none,
  // any token does.
  TokenId stand_in = draft.tokenizer.eos().value_or(draft.tokenizer.bos().value_or(0));
  if (stand_in >= draft.width) stand_in = 0;
  TANDEM_ASSIGN_OR_RETURN(VocabularyBridge bridge, FromMap(std::move(draft_ids), draft.width, stand_in));
  bridge.difference_.target_only = target_unmatched.added;
  bridge.difference_.draft_only = draft_unmatched.added;
  return bridge;
}

absl::StatusOr<VocabularyBridge> VocabularyBridge::FromMap(std::vector<TokenId> draft_ids,
                                                           int32_t draft_width, TokenId stand_in) {
  if (draft_ids.empty() || draft_width <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("a vocabulary bridge from ", draft_width, " to ",
                                                   draft_ids.size(), " ids, expected some on both sides"));
  }
  if (stand_in < 0 || stand_in >= draft_width) {
    return absl::InvalidArgumentError(
        absl::StrCat("a vocabulary bridge's stand-in ", stand_in, ", expected [0, ", draft_width, ")"));
  }
  VocabularyBridge bridge;
  std::vector<bool> is_taken(static_cast<size_t>(draft_width));
  for (size_t target = 0; target < draft_ids.size(); ++target) {
    const TokenId id = draft_ids[target];
    if (id == kNone) continue;
    if (id < 0 || id >= draft_width) {
      return absl::InvalidArgumentError(absl::StrCat("a vocabulary bridge from id ", target, " to ", id,
                                                     ", expected [0, ", draft_width, ")"));
    }
    const auto draft = static_cast<size_t>(id);
    if (is_taken[draft]) {
      return absl::InvalidArgumentError(
          absl::StrCat("a vocabulary bridge from two ids, the second being ", target, ", to ", id));
    }
    is_taken[draft] = true;
    if (draft != target) ++bridge.difference_.moved;
    Run* const last = bridge.runs_.empty() ? nullptr : &bridge.runs_.back();
    if (last != nullptr && last->target + last->length == target && last->draft + last->length == draft) {
      ++last->length;
    } else {
      bridge.runs_.push_back({.target = target, .draft = draft, .length = 1});
    }
  }
  bridge.draft_width_ = draft_width;
  bridge.stand_in_ = stand_in;
  bridge.draft_ids_ = std::move(draft_ids);
  return bridge;
}

std::string VocabularyBridge::Describe() const {
  std::vector<std::string> parts;
  if (draft_width_ != target_width()) {
    parts.push_back(absl::StrCat("logits of ", draft_width_, " ids for ", target_width()));
  }
  const auto count = [&parts](uint32_t tokens, absl::string_view what) {
    if (tokens > 0) parts.push_back(absl::StrCat(tokens, tokens == 1 ? " token " : " tokens ", what));
  };
  count(difference_.moved, "under other ids");
  count(difference_.target_only, "of the target's alone");
  count(difference_.draft_only, "of the draft model's alone");
  // Fingerprints also tell special tokens from others.
  return parts.empty() ? "only in which tokens are special" : absl::StrJoin(parts, ", ");
}

void VocabularyBridge::ToTarget(absl::Span<const float> draft_logits, absl::Span<float> target_logits) const {
  assert(draft_logits.size() == static_cast<size_t>(draft_width_));
  assert(target_logits.size() == draft_ids_.size());
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  size_t at = 0;
  for (const Run& run : runs_) {
    std::fill(target_logits.begin() + static_cast<ptrdiff_t>(at),
              target_logits.begin() + static_cast<ptrdiff_t>(run.target), kNever);
    std::copy_n(draft_logits.begin() + static_cast<ptrdiff_t>(run.draft), run.length,
                target_logits.begin() + static_cast<ptrdiff_t>(run.target));
    at = run.target + run.length;
  }
  std::fill(target_logits.begin() + static_cast<ptrdiff_t>(at), target_logits.end(), kNever);
}

}  // namespace tandem
