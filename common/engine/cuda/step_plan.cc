#include "common/engine/cuda/step_plan.h"

#include <algorithm>
#include <limits>

#include "common/engine/cuda/choice_words.h"
#include "common/engine/cuda/kernels/attention_kernels.h"
#include "common/engine/cuda/kernels/splits.h"

namespace tandem {
namespace {

static_assert(kKvBlockTokens == kBlockTokens);

uint32_t NumBlocks(const RowContext& context) {
  return (context.num_committed + kBlockTokens - 1) / kBlockTokens;
}

// Whether one of the two lists of blocks is a beginning of the other.
bool SharesBlocks(const RowContext& a, const RowContext& b) {
  if (a.blocks.data() == b.blocks.data()) return true;
  const uint32_t count = std::min(NumBlocks(a), NumBlocks(b));
  return std::equal(a.blocks.begin(), a.blocks.begin() + count, b.blocks.begin());
}

class Writer {
 public:
  Writer(absl::Span<const StepRow> rows, const StepPlanOptions& options, std::vector<uint32_t>* words)
      : rows_(rows), options_(options), words_(*words) {}

  void Write() {
    words_.assign(FixedStepWords(options_.max_rows), 0);
    words_[StepWords::kNumRows] = static_cast<uint32_t>(rows_.size());
    for (uint32_t i = 0; i < rows_.size(); ++i) {
      const RowContext& context = rows_[i].context;
      Set(0, i, static_cast<uint32_t>(rows_[i].token));
      Set(1, i, context.length() - 1);
      Set(2, i, SlotWritten(context));
    }
    WriteWanted();
    WriteContexts();
    WriteFeatures();
    WriteStates();
    WriteAdapters();
    words_[StepWords::kItemsAt] = static_cast<uint32_t>(words_.size());
    for (uint32_t begin = 0; begin < rows_.size();) {
      // Every list of a group is a beginning of the group's longest list.
      uint32_t longest = begin;
      uint32_t end = begin + 1;
      while (end < rows_.size() && end - begin < options_.rows_per_item && end % kAttendRows != 0 &&
             SharesBlocks(rows_[longest].context, rows_[end].context)) {
        if (NumBlocks(rows_[end].context) > NumBlocks(rows_[longest].context)) longest = end;
        ++end;
      }
      WriteItems(begin, end);
      begin = end;
    }
    words_[StepWords::kNumWords] = static_cast<uint32_t>(words_.size());
  }

 private:
  void Set(uint32_t part, uint32_t index, uint32_t value) {
    words_[StepWords::kHeaderWords + size_t{part} * options_.max_rows + index] = value;
  }
  uint32_t& Row(uint32_t index, uint32_t field) {
    return words_[StepWords::kHeaderWords + size_t{StepWords::kNumColumns} * options_.max_rows +
                  size_t{index} * StepWords::kRowWords + field];
  }
  uint32_t FirstPosition(const RowContext& context) const {
    const uint32_t window = options_.sliding_window;
    return window > 0 && context.length() > window ? context.length() - window : 0;
  }

  void WriteWanted() {
    uint32_t num_wanted = 0;
    for (uint32_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].logits != nullptr) Set(3, num_wanted++, i);
    }
    words_[StepWords::kNumLogits] = num_wanted;
    ChoiceWriter choices(&words_);
    for (uint32_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].choice == nullptr) continue;
      Set(3, num_wanted, i);
      Set(4, num_wanted++, choices.Write(*rows_[i].choice));
    }
    words_[StepWords::kNumWanted] = num_wanted;
  }

  // If several rows in a row name the same list of blocks, it is written once.
  void WriteContexts() {
    const BlockId* written = nullptr;
    uint32_t written_at = 0;
    uint32_t written_count = 0;
    for (uint32_t i = 0; i < rows_.size(); ++i) {
      const RowContext& context = rows_[i].context;
      const uint32_t count = NumBlocks(context);
      if (context.blocks.data() != written || count > written_count) {
        written = context.blocks.data();
        written_at = static_cast<uint32_t>(words_.size());
        written_count = count;
        words_.insert(words_.end(), context.blocks.begin(), context.blocks.begin() + count);
      }
      Row(i, StepWords::kBlocksAt) = written_at;
      Row(i, StepWords::kNumCommitted) = context.num_committed;
      Row(i, StepWords::kTailAt) = static_cast<uint32_t>(words_.size());
      words_.insert(words_.end(), context.tail.begin(), context.tail.end());
      Row(i, StepWords::kLength) = context.length();
      Row(i, StepWords::kFirstPosition) = FirstPosition(context);
    }
  }

  void WriteFeatures() {
    uint32_t num_states = 0;
    bool has_final_features = false;
    for (uint32_t i = 0; i < rows_.size(); ++i) {
      const FeatureRequest* const request = rows_[i].features;
      if (request == nullptr) continue;
      Row(i, StepWords::kFeaturesAt) = static_cast<uint32_t>(words_.size());
      words_.push_back(num_states);
      words_.push_back(static_cast<uint32_t>(request->layers.size()));
      words_.push_back(request->final_norm ? 1 : 0);
      words_.insert(words_.end(), request->layers.begin(), request->layers.end());
      num_states += request->num_states();
      has_final_features |= request->final_norm || request->layers.back() == options_.num_layers;
    }
    words_[StepWords::kNumStates] = num_states;
    words_[StepWords::kHasFinalFeatures] = has_final_features ? 1 : 0;
  }

  void WriteStates() {
    for (uint32_t i = 0; i < rows_.size(); ++i) {
      const InputState* const state = rows_[i].state;
      if (state == nullptr) continue;
      const bool is_float = options_.float_states == FloatStates::kAll ||
                            (options_.float_states == FloatStates::kOwn && state->own);
      const size_t at = words_.size();
      Row(i, StepWords::kStateAt) = static_cast<uint32_t>(at);
      Row(i, StepWords::kStateIsFloat) = is_float ? 1 : 0;
      const absl::Span<const float> values = state->values;
      words_.resize(at + (is_float ? values.size() : (values.size() + 1) / 2));
      for (size_t j = 0; j < values.size(); ++j) {
        if (is_float) {
          words_[at + j] = BitsAs<uint32_t>(values[j]);
        } else {
          words_[at + j / 2] |= uint32_t{ToBf16(values[j]).bits} << (j % 2 * 16);
        }
      }
    }
  }

  void WriteAdapters() {
    for (uint32_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].adapter == kNoAdapter) continue;
      Row(i, StepWords::kAdapter) = options_.adapters->at(rows_[i].adapter) + 1;
      words_[StepWords::kHasAdapters] = 1;
    }
  }

  // Writes one item for each split that any of the rows has, with the rows that have it.
  void WriteItems(uint32_t begin, uint32_t end) {
    uint32_t first_split = std::numeric_limits<uint32_t>::max();
    uint32_t last_split = 0;
    for (uint32_t i = begin; i < end; ++i) {
      first_split = std::min(first_split, SplitOf(FirstPosition(rows_[i].context)));
      last_split = std::max(last_split, SplitOf(rows_[i].context.length() - 1));
    }
    for (uint32_t split = first_split; split <= last_split; ++split) {
      const size_t at = words_.size();
      words_.resize(at + StepWords::kItemWords);
      uint32_t num_rows = 0;
      uint32_t shared_end = std::numeric_limits<uint32_t>::max();
      for (uint32_t i = begin; i < end; ++i) {
        const RowContext& context = rows_[i].context;
        if (split < SplitOf(FirstPosition(context)) || split > SplitOf(context.length() - 1)) continue;
        words_[at + StepWords::kItemRows + num_rows++] = i;
        shared_end = std::min(shared_end, context.num_committed);
      }
      if (num_rows == 0) {
        words_.resize(at);
        continue;
      }
      // A single row shares everything with itself. Several share whole blocks, because kernels add up the
      // values of 16 neighbours at once.
      shared_end =
          num_rows == 1 ? std::numeric_limits<uint32_t>::max() : shared_end / kBlockTokens * kBlockTokens;
      words_[at + StepWords::kItemSplit] = split;
      words_[at + StepWords::kItemSharedEnd] = shared_end;
      words_[at + StepWords::kItemNumRows] = num_rows;
      ++words_[StepWords::kNumItems];
    }
  }

  const absl::Span<const StepRow> rows_;
  const StepPlanOptions options_;
  std::vector<uint32_t>& words_;
};

}  // namespace

SlotId SlotWritten(const RowContext& context) {
  if (!context.tail.empty()) return context.tail.back();
  const uint32_t position = context.num_committed - 1;
  return context.blocks[position / kBlockTokens] * kBlockTokens + position % kBlockTokens;
}

uint64_t FixedStepWords(uint32_t max_rows) {
  return StepWords::kHeaderWords + uint64_t{max_rows} * (StepWords::kNumColumns + StepWords::kRowWords);
}

void WriteStepWords(absl::Span<const StepRow> rows, const StepPlanOptions& options,
                    std::vector<uint32_t>* words) {
  Writer(rows, options, words).Write();
}

}  // namespace tandem
