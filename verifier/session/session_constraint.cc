#include "verifier/session/session_constraint.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/node_index.h"
#include "common/grammar/forced_tokens.h"
#include "common/grammar/token_mask.h"

namespace tandem {
namespace {

constexpr size_t kLastTokens = 16;
// The score of a forced token: the bytes are known, but the target chooses their spelling. The last one may
// be spelled together with following bytes, which are unknown.
constexpr float kForcedScore = 0.95f;
constexpr float kLastForcedScore = 0.6f;
// Steps for the candidates of one round, and for their masks. Drafts only have to be fast, so that what would
// take longer has none; it depends on the output alone how long that takes, not on the machine.
constexpr uint64_t kMostTreeSteps = 200'000;

// The logit of `end` with the probabilities of all forbidden tokens, summed in their order.
float LogitOfEnd(absl::Span<const uint32_t> mask, absl::Span<const float> logits, TokenId end) {
  const auto counts = [&](size_t token) {
    return static_cast<TokenId>(token) == end || !IsAllowed(mask, static_cast<TokenId>(token));
  };
  float most = logits[static_cast<size_t>(end)];
  for (size_t token = 0; token < logits.size(); ++token) {
    if (counts(token)) most = std::max(most, logits[token]);
  }
  if (!std::isfinite(most)) return most;
  double sum = 0.0;
  for (size_t token = 0; token < logits.size(); ++token) {
    if (counts(token)) sum += std::exp(static_cast<double>(logits[token]) - static_cast<double>(most));
  }
  return most + static_cast<float>(std::log(sum));
}

}  // namespace

SessionConstraint::SessionConstraint(std::unique_ptr<ConstraintState> state,
                                     std::shared_ptr<const Tokenizer> tokenizer, int32_t vocab_size)
    : cursor_(std::move(state)), tokenizer_(std::move(tokenizer)), mask_(MaskWords(vocab_size)) {}

absl::Status SessionConstraint::Replay(absl::Span<const TokenId> emitted) {
  for (size_t i = 0; i < emitted.size(); ++i) {
    if (Commit(emitted[i])) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("emitted.ids[", i, "]: ", emitted[i], ", which the constraint does not allow there"));
  }
  return absl::OkStatus();
}

uint32_t SessionConstraint::most_masks() const {
  return static_cast<uint32_t>(kMostTreeSteps / std::max<uint64_t>(mask_steps_, 1));
}

bool SessionConstraint::HasStepsLeft(uint64_t start) const {
  return cursor_.steps() - start <= kMostTreeSteps;
}

uint32_t SessionConstraint::DropForbidden(RoundTree* tree, std::vector<ForbiddenNode>* forbidden) {
  const uint64_t start = cursor_.steps();
  const uint32_t most = most_masks();
  TokenIds path;
  const uint32_t dropped = tree->KeepIf([&](uint32_t index, const RoundNode& node) {
    if (index >= most || !HasStepsLeft(start)) return false;
    CollectPath(tree->nodes(), node.parent, &path);
    path.push_back(node.token);
    if (cursor_.MoveTo(path)) return true;
    if (forbidden != nullptr) {
      path.pop_back();
      forbidden->push_back({.above = path, .node = node});
    }
    return false;
  });
  num_dropped_ += dropped;
  return dropped;
}

std::vector<GrowthBranch<SessionConstraint::Spelled>> SessionConstraint::NextForced(absl::string_view forced,
                                                                                    const Spelled& spelled) {
  std::vector<GrowthBranch<Spelled>> branches;
  const absl::string_view left = forced.substr(std::min(spelled.bytes, forced.size()));
  if (left.empty()) return branches;
  const auto add = [&](TokenId token, float score, TokenIds rest) {
    TokenIds path = spelled.path;
    path.push_back(token);
    // What spells the bytes may not come where the constraint tells tokens of one text apart.
    if (!cursor_.MoveTo(path)) return;
    const size_t bytes = spelled.bytes + tokenizer_->TokenBytes(token).size();
    branches.push_back({.token = token,
                        .score = score,
                        .state = {.bytes = bytes, .path = std::move(path), .rest = std::move(rest)}});
  };
  if (spellings_ != nullptr) {
    for (const ForcedSpellings::Guess& guess : spellings_->Likely(salt_, left))
      add(guess.token, guess.score, {});
  }
  if (!branches.empty()) return branches;
  TokenIds tokens = spelled.rest;
  if (tokens.empty()) {
    TokenIds before = last_tokens_;
    before.insert(before.end(), spelled.path.begin(), spelled.path.end());
    tokens = SpellForced(*tokenizer_, before, left);
  }
  if (tokens.empty()) return branches;
  add(tokens.front(), tokens.size() == 1 ? kLastForcedScore : kForcedScore,
      {tokens.begin() + 1, tokens.end()});
  return branches;
}

std::vector<ProposedNode> SessionConstraint::Forced(const ProposalLimits& limits) {
  const uint64_t start = cursor_.steps();
  cursor_.MoveTo({});
  forced_ = cursor_.ForcedBytes();
  if (forced_.empty()) return {};
  return GrowBestFirst(Spelled{}, limits, [&](const Spelled& spelled) {
    return HasStepsLeft(start) ? NextForced(forced_, spelled) : std::vector<GrowthBranch<Spelled>>();
  });
}

// The bytes that must come are taken down when candidates are made, not at every token.
void SessionConstraint::LearnSpelling(TokenId token) {
  if (forced_.empty()) return;
  const absl::string_view bytes = tokenizer_->TokenBytes(token);
  const bool is_part = absl::StartsWith(forced_, bytes);
  // A token may go on beyond them.
  if (spellings_ != nullptr && !bytes.empty() && (is_part || absl::StartsWith(bytes, forced_))) {
    spellings_->Learn(salt_, forced_, token);
  }
  forced_.erase(0, is_part && !bytes.empty() ? bytes.size() : std::string::npos);
}

void SessionConstraint::FillMask(absl::Span<const RoundNode> nodes, uint32_t node,
                                 absl::Span<uint32_t> mask) {
  const uint64_t start = cursor_.steps();
  TokenIds path;
  CollectPath(nodes, node, &path);
  if (cursor_.MoveTo(path)) {
    cursor_.FillMask(mask);
    // Expensive ones tend to follow one another.
    mask_steps_ = std::max(cursor_.steps() - start, mask_steps_ / 2);
  } else {
    // Nothing is allowed after a forbidden node. Only rules with sampled drafts get here, and they reject the
    // node.
    std::fill(mask.begin(), mask.end(), 0u);
  }
}

void SessionConstraint::CountMasks(uint32_t masks, absl::Time start) {
  if (mask_work_.masks == 0) mask_work_.start = start;
  mask_work_.masks += masks;
  mask_work_.end = Now();
}

size_t SessionConstraint::MaskAhead(absl::Span<const RoundNode> nodes) {
  const absl::Time start = Now();
  const uint64_t start_steps = cursor_.steps();
  if (masks_ahead_.size() < 1 + nodes.size()) masks_ahead_.resize(1 + nodes.size());
  num_masks_ahead_ = 0;
  do {
    std::vector<uint32_t>& mask = masks_ahead_[num_masks_ahead_];
    mask.resize(mask_.size());
    const uint32_t node = num_masks_ahead_ == 0 ? kRootNode : static_cast<uint32_t>(num_masks_ahead_ - 1);
    FillMask(nodes, node, absl::MakeSpan(mask));
    ++num_masks_ahead_;
  } while (num_masks_ahead_ <= nodes.size() && HasStepsLeft(start_steps));
  CountMasks(static_cast<uint32_t>(num_masks_ahead_), start);
  mask_work_.time += mask_work_.end - start;
  return num_masks_ahead_;
}

void SessionConstraint::Mask(uint32_t node, absl::Span<float> logits) {
  const absl::Time start = Now();
  absl::Span<const uint32_t> mask = mask_;
  if (const size_t row = PlaceAfterRoot(node); row < num_masks_ahead_) {
    mask = masks_ahead_[row];
  } else {
    FillMask(walked_, node, absl::MakeSpan(mask_));
    CountMasks(1, start);
  }
  if (end_.has_value() && IsAllowed(mask, *end_))
    logits[static_cast<size_t>(*end_)] = LogitOfEnd(mask, logits, *end_);
  ApplyMask(mask, logits);
  mask_work_.time += Now() - start;
}

void SessionConstraint::EndWalk() {
  num_masks_ahead_ = 0;
  walked_ = {};
  round_steps_ = cursor_.steps() - std::exchange(round_start_, cursor_.steps());
}

bool SessionConstraint::Commit(TokenId token) {
  if (!cursor_.Commit(token)) return false;
  LearnSpelling(token);
  if (last_tokens_.size() == kLastTokens) last_tokens_.erase(last_tokens_.begin());
  last_tokens_.push_back(token);
  return true;
}

}  // namespace tandem
