#include "common/engine/sequence_kv.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

constexpr uint32_t kAllSlots = (1u << kBlockTokens) - 1;

// Written so that no length overflows.
constexpr size_t NumBlocksFor(uint32_t length) {
  return length / kBlockTokens + (length % kBlockTokens != 0);
}

}  // namespace

SequenceKv::SequenceKv(BlockPool* pool, PrefixSpace space) : pool_(pool), space_(space) {}

SequenceKv::~SequenceKv() {
  ReleaseAll();
}

SequenceKv::SequenceKv(SequenceKv&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      space_(other.space_),
      tokens_(std::move(other.tokens_)),
      blocks_(std::move(other.blocks_)),
      parents_(std::move(other.parents_)),
      scratch_(std::move(other.scratch_)),
      num_computed_(other.num_computed_),
      num_cached_(other.num_cached_) {}

SequenceKv& SequenceKv::operator=(SequenceKv&& other) noexcept {
  if (this == &other) return *this;
  ReleaseAll();
  pool_ = std::exchange(other.pool_, nullptr);
  space_ = other.space_;
  tokens_ = std::move(other.tokens_);
  blocks_ = std::move(other.blocks_);
  parents_ = std::move(other.parents_);
  scratch_ = std::move(other.scratch_);
  num_computed_ = other.num_computed_;
  num_cached_ = other.num_cached_;
  return *this;
}

void SequenceKv::Start(absl::Span<const TokenId> tokens) {
  assert(tokens_.empty() && blocks_.empty());
  tokens_.assign(tokens.begin(), tokens.end());
  Resume();
}

void SequenceKv::Suspend() {
  ReleaseAll();
  parents_.clear();
  num_computed_ = 0;
  num_cached_ = 0;
}

void SequenceKv::Resume() {
  assert(blocks_.empty() && scratch_.empty());
  if (tokens_.empty()) return;
  BlockPool::Match match = pool_->MatchPrefix(space_, absl::MakeConstSpan(tokens_).first(tokens_.size() - 1));
  blocks_.assign(match.blocks.begin(), match.blocks.end());
  parents_ = std::move(match.parents);
  num_computed_ = static_cast<uint32_t>(blocks_.size()) * kBlockTokens;
  num_cached_ = num_computed_;
}

void SequenceKv::ExpectLength(uint32_t length) {
  blocks_.reserve(NumBlocksFor(length));
}

absl::Status SequenceKv::Reserve(uint32_t length, uint32_t blocks_to_spare) {
  const size_t wanted = NumBlocksFor(length);
  if (wanted <= blocks_.size()) return absl::OkStatus();
  const size_t missing = wanted - blocks_.size();
  if (missing + blocks_to_spare > pool_->num_available()) {
    return absl::ResourceExhaustedError(absl::StrCat("a sequence of ", length, " tokens needs ", missing,
                                                     " more blocks of keys and values; ",
                                                     pool_->num_available(), " are available"));
  }
  for (size_t i = 0; i < missing; ++i) blocks_.push_back(*pool_->Allocate());
  return absl::OkStatus();
}

void SequenceKv::ReleaseUnused() {
  ReleaseBlocksFrom(NumBlocksFor(static_cast<uint32_t>(tokens_.size())));
}

void SequenceKv::ListBlocks(std::vector<BlockId>* held) const {
  held->insert(held->end(), blocks_.begin(), blocks_.end());
  for (const ScratchBlock& scratch : scratch_) held->push_back(scratch.block);
}

RowContext SequenceKv::CommittedRow(uint32_t position) const {
  assert(position < blocks_.size() * kBlockTokens);
  return RowContext{.blocks = blocks_, .num_committed = position + 1, .tail = {}};
}

SlotId SequenceKv::CommittedSlot(uint32_t position) const {
  assert(position < blocks_.size() * kBlockTokens);
  return blocks_[position / kBlockTokens] * kBlockTokens + position % kBlockTokens;
}

void SequenceKv::MarkComputed(uint32_t length) {
  assert(num_computed_ <= length && length <= tokens_.size() && length <= blocks_.size() * kBlockTokens);
  num_computed_ = length;
  while ((parents_.size() + 1) * kBlockTokens <= length) {
    const size_t block = parents_.size();
    const uint64_t parent = block == 0 ? 0 : parents_.back();
    parents_.push_back(
        pool_->Publish(blocks_[block], space_, parent,
                       absl::MakeConstSpan(tokens_).subspan(block * kBlockTokens, kBlockTokens)));
  }
}

void SequenceKv::Append(absl::Span<const TokenId> tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

void SequenceKv::Truncate(uint32_t length) {
  if (length >= tokens_.size()) return;
  tokens_.resize(length);
  const size_t complete = length / kBlockTokens;
  if (complete < parents_.size()) {
    // The cut lies inside, or before, a block that may be shared.
    parents_.resize(complete);
    ReleaseBlocksFrom(complete);
    num_computed_ = static_cast<uint32_t>(complete) * kBlockTokens;
  } else {
    ReleaseBlocksFrom(NumBlocksFor(length));
    num_computed_ = std::min(num_computed_, length);
  }
  num_cached_ = std::min(num_cached_, num_computed_);
}

absl::StatusOr<SlotId> SequenceKv::AllocateScratch() {
  auto scratch =
      std::find_if(scratch_.begin(), scratch_.end(), [](const auto& s) { return s.used != kAllSlots; });
  if (scratch == scratch_.end()) {
    const std::optional<BlockId> block = pool_->Allocate();
    if (!block.has_value()) {
      return absl::ResourceExhaustedError("no block of keys and values is left for the candidate tree");
    }
    scratch = scratch_.insert(scratch_.end(), ScratchBlock{.block = *block});
  }
  const uint32_t offset = static_cast<uint32_t>(std::countr_one(scratch->used));
  scratch->used |= 1u << offset;
  return scratch->block * kBlockTokens + offset;
}

void SequenceKv::FreeScratch(SlotId slot) {
  const auto scratch = std::find_if(scratch_.begin(), scratch_.end(),
                                    [slot](const auto& s) { return s.block == slot / kBlockTokens; });
  const uint32_t bit = 1u << (slot % kBlockTokens);
  assert(scratch != scratch_.end() && (scratch->used & bit) != 0);
  scratch->used &= ~bit;
  if (scratch->used != 0) return;
  pool_->Release(scratch->block);
  scratch_.erase(scratch);
}

void SequenceKv::FreeAllScratch() {
  for (const ScratchBlock& scratch : scratch_) pool_->Release(scratch.block);
  scratch_.clear();
}

void SequenceKv::ReleaseBlocksFrom(size_t first) {
  while (blocks_.size() > first) {
    pool_->Release(blocks_.back());
    blocks_.pop_back();
  }
}

void SequenceKv::ReleaseAll() {
  if (pool_ == nullptr) return;
  FreeAllScratch();
  ReleaseBlocksFrom(0);
}

}  // namespace tandem
