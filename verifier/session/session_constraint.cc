#include "verifier/session/session_constraint.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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

TokenIds SessionConstraint::PathTo(int32_t place) const {
  TokenIds path;
  for (; place != kRoot; place = links_[static_cast<size_t>(place)].parent) {
    path.push_back(links_[static_cast<size_t>(place)].token);
  }
  std::reverse(path.begin(), path.end());
  return path;
}

uint32_t SessionConstraint::most_masks() const {
  return static_cast<uint32_t>(kMostTreeSteps / std::max<uint64_t>(mask_steps_, 1));
}

bool SessionConstraint::HasStepsLeft(uint64_t start) const {
  return cursor_.steps() - start <= kMostTreeSteps;
}

std::vector<bool> SessionConstraint::Allowed() {
  const uint64_t start = cursor_.steps();
  const size_t most = std::min<size_t>(links_.size(), most_masks());
  std::vector<bool> allowed;
  while (allowed.size() < most && HasStepsLeft(start)) {
    const int32_t parent = links_[allowed.size()].parent;
    allowed.push_back((parent == kRoot || allowed[static_cast<size_t>(parent)]) &&
                      cursor_.MoveTo(PathTo(static_cast<int32_t>(allowed.size()))));
  }
  return allowed;
}

void SessionConstraint::SetLinks(absl::Span<const RoundNode> nodes) {
  links_.clear();
  for (const RoundNode& node : nodes) {
    links_.push_back({.parent = node.parent == RoundNode::kRoot ? kRoot : static_cast<int32_t>(node.parent),
                      .token = node.token});
  }
}

uint32_t SessionConstraint::DropForbidden(std::vector<TreeNode>* nodes,
                                          std::vector<ForbiddenNode>* forbidden) {
  links_.clear();
  for (const TreeNode& node : *nodes) {
    const size_t parent = PlaceOfId(absl::MakeConstSpan(*nodes).first(links_.size()), node.parent,
                                    [](const TreeNode& above) { return above.id; });
    links_.push_back({.parent = node.depth == 1 ? kRoot : static_cast<int32_t>(parent), .token = node.token});
  }
  const std::vector<bool> allowed = Allowed();
  size_t kept = 0;
  for (size_t i = 0; i < allowed.size(); ++i) {
    const int32_t parent = links_[i].parent;
    if (allowed[i]) {
      (*nodes)[kept++] = (*nodes)[i];
    } else if (forbidden != nullptr && (parent == kRoot || allowed[static_cast<size_t>(parent)])) {
      forbidden->push_back({.path = PathTo(static_cast<int32_t>(i)), .score = (*nodes)[i].score});
    }
  }
  const auto dropped = static_cast<uint32_t>(nodes->size() - kept);
  nodes->resize(kept);
  num_dropped_ += dropped;
  return dropped;
}

uint32_t SessionConstraint::DropForbidden(std::vector<ProposedNode>* nodes) {
  links_.clear();
  for (const ProposedNode& node : *nodes) links_.push_back({.parent = node.parent, .token = node.token});
  const std::vector<bool> allowed = Allowed();
  std::vector<int32_t> places(nodes->size(), kRoot);  // Of those that stay.
  size_t kept = 0;
  for (size_t i = 0; i < allowed.size(); ++i) {
    if (!allowed[i]) continue;
    ProposedNode node = (*nodes)[i];
    if (node.parent >= 0) node.parent = places[static_cast<size_t>(node.parent)];
    places[i] = static_cast<int32_t>(kept);
    (*nodes)[kept++] = node;
  }
  const auto dropped = static_cast<uint32_t>(nodes->size() - kept);
  nodes->resize(kept);
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

void SessionConstraint::BeginWalk(absl::Span<const RoundNode> nodes) {
  SetLinks(nodes);
}

void SessionConstraint::FillMask(int32_t place, absl::Span<uint32_t> mask) {
  const uint64_t start = cursor_.steps();
  if (cursor_.MoveTo(PathTo(place))) {
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
  SetLinks(nodes);
  if (masks_ahead_.size() < 1 + nodes.size()) masks_ahead_.resize(1 + nodes.size());
  num_masks_ahead_ = 0;
  do {
    std::vector<uint32_t>& mask = masks_ahead_[num_masks_ahead_];
    mask.resize(mask_.size());
    FillMask(static_cast<int32_t>(num_masks_ahead_) - 1, absl::MakeSpan(mask));
    ++num_masks_ahead_;
  } while (num_masks_ahead_ <= nodes.size() && HasStepsLeft(start_steps));
  CountMasks(static_cast<uint32_t>(num_masks_ahead_), start);
  mask_work_.time += mask_work_.end - start;
  return num_masks_ahead_;
}

void SessionConstraint::Mask(std::optional<uint32_t> node, absl::Span<float> logits) {
  const absl::Time start = Now();
  absl::Span<const uint32_t> mask = mask_;
  if (const size_t row = node.has_value() ? 1 + size_t{*node} : 0; row < num_masks_ahead_) {
    mask = masks_ahead_[row];
  } else {
    FillMask(node.has_value() ? static_cast<int32_t>(*node) : kRoot, absl::MakeSpan(mask_));
    CountMasks(1, start);
  }
  if (end_.has_value() && IsAllowed(mask, *end_))
    logits[static_cast<size_t>(*end_)] = LogitOfEnd(mask, logits, *end_);
  ApplyMask(mask, logits);
  mask_work_.time += Now() - start;
}

void SessionConstraint::EndWalk() {
  num_masks_ahead_ = 0;
  links_.clear();
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
