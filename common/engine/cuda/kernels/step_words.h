#pragma once

#include <cstdint>

#include "common/engine/cuda/kernels/block.h"

namespace tandem {

// A step as kernels read it: 32-bit words in one buffer that is uploaded once a step. The first parts stand
// at fixed places, so that a captured graph finds them whatever the step is; the lists behind them are found
// through the header. Written by step_plan.h.
//
//   header                       kHeaderWords
//   tokens, positions, slots     [max_rows] each
//   wanted                       [max_rows]: the rows that are wanted, num_wanted of them: first those whose
//                                logits are, then those that ask for a choice
//   choices                      [max_rows]: for each wanted row the place of its choice, or 0
//   rows                         [max_rows][kRowWords]: contexts
//   lists                        block ids and tail slots of the contexts, features and states of rows, work
//                                items of attention, choices (choice_words.h)
struct StepWords {
  static constexpr uint32_t kNumRows = 0;
  static constexpr uint32_t kNumWanted = 1;
  static constexpr uint32_t kNumItems = 2;
  static constexpr uint32_t kItemsAt = 3;    // Place of the items.
  static constexpr uint32_t kNumWords = 4;   // Used, all together.
  static constexpr uint32_t kKind = 5;       // For the ranks of tensor parallelism: what to do.
  static constexpr uint32_t kNumLogits = 6;  // Of the wanted rows, how many come first.
  static constexpr uint32_t kNumStates = 7;  // That rows ask for as features, all together.
  // Whether some of them are of the stream behind the last layer, or normed.
  static constexpr uint32_t kHasFinalFeatures = 8;
  static constexpr uint32_t kHasAdapters = 9;  // Whether rows name any.
  static constexpr uint32_t kHeaderWords = 16;
  // What there is one of for each row, in front of the rows.
  static constexpr uint32_t kNumColumns = 5;

  // Of a row.
  static constexpr uint32_t kBlocksAt = 0;       // Place of its block ids.
  static constexpr uint32_t kNumCommitted = 1;   // Positions in blocks,
  static constexpr uint32_t kTailAt = 2;         // place of its tail's slots,
  static constexpr uint32_t kLength = 3;         // and positions altogether.
  static constexpr uint32_t kFirstPosition = 4;  // Positions before it are not attended to.
  static constexpr uint32_t kFeaturesAt = 5;     // Place of what it asks for as features, or 0.
  static constexpr uint32_t kStateAt = 6;        // Place of what a draft head's row reads,
  static constexpr uint32_t kStateIsFloat = 7;   // and whether in float32.
  static constexpr uint32_t kAdapter = 8;        // The place of its adapter plus 1, or 0.
  static constexpr uint32_t kRowWords = 9;

  // A row's features: its states are adjacent among those of the step. The normed final one, if requested,
  // comes after the others.
  static constexpr uint32_t kFirstState = 0;
  static constexpr uint32_t kNumFeatureLayers = 1;
  static constexpr uint32_t kHasNormedState = 2;
  static constexpr uint32_t kFeatureLayers = 3;  // [kNumFeatureLayers], ascending: after so many layers.
  static constexpr uint32_t kNoState = 0xffffffffu;

  // Of a work item of attention: rows that go through one split together.
  static constexpr uint32_t kItemSplit = 0;
  static constexpr uint32_t kItemSharedEnd = 1;  // Up to here the rows have the first row's slots.
  static constexpr uint32_t kItemNumRows = 2;
  static constexpr uint32_t kItemRows = 3;  // [kMaxItemRows]
  static constexpr uint32_t kMaxItemRows = 16;
  static constexpr uint32_t kItemWords = kItemRows + kMaxItemRows;

  // Of a choice: SamplingParameters, and pairs of a token and its count or the bits of its bias.
  static constexpr uint32_t kSeed = 0;  // Two words, the low one first.
  static constexpr uint32_t kPosition = 2;
  static constexpr uint32_t kTopK = 3;
  static constexpr uint32_t kTemperature = 4;
  static constexpr uint32_t kTopP = 5;
  static constexpr uint32_t kMostGap = 6;  // Of min-p; infinity without.
  static constexpr uint32_t kRepetitionPenalty = 7;
  static constexpr uint32_t kPresencePenalty = 8;
  static constexpr uint32_t kFrequencyPenalty = 9;
  static constexpr uint32_t kCountsAt = 10;  // Place of the counts that it may share with other choices,
  static constexpr uint32_t kNumCounts = 11;
  static constexpr uint32_t kOwnCountsAt = 12;  // and of those that hold in their stead.
  static constexpr uint32_t kNumOwnCounts = 13;
  static constexpr uint32_t kBiasesAt = 14;  // By token, those of one token in their order.
  static constexpr uint32_t kNumBiases = 15;
  static constexpr uint32_t kAllowedAt =
      16;  // Place of a bit for every token, whether it may be chosen; 0: any may.
  static constexpr uint32_t kChoiceWords = 17;

  DeviceSpan<const uint32_t> words;
  uint32_t max_rows = 0;

  TANDEM_DEVICE uint32_t num_rows() const { return words[kNumRows]; }
  TANDEM_DEVICE uint32_t num_wanted() const { return words[kNumWanted]; }
  TANDEM_DEVICE uint32_t num_items() const { return words[kNumItems]; }
  TANDEM_DEVICE uint32_t token(uint32_t row) const { return words[kHeaderWords + row]; }
  TANDEM_DEVICE uint32_t position(uint32_t row) const { return words[kHeaderWords + max_rows + row]; }
  TANDEM_DEVICE uint32_t slot(uint32_t row) const { return words[kHeaderWords + 2 * max_rows + row]; }
  TANDEM_DEVICE uint32_t wanted(uint32_t index) const { return words[kHeaderWords + 3 * max_rows + index]; }
  TANDEM_DEVICE uint32_t choice(uint32_t index) const { return words[kHeaderWords + 4 * max_rows + index]; }
  TANDEM_DEVICE uint32_t row(uint32_t index, uint32_t field) const {
    return words[kHeaderWords + kNumColumns * max_rows + index * kRowWords + field];
  }
  TANDEM_DEVICE uint32_t item(uint32_t index, uint32_t field) const {
    return words[words[kItemsAt] + index * kItemWords + field];
  }
  // The position, among the step's features, of the row's state after `num_layers` layers, or of the normed
  // final one; kNoState if it does not request it.
  TANDEM_DEVICE uint32_t StateAfter(uint32_t row_index, uint32_t num_layers) const {
    const uint32_t at = row(row_index, kFeaturesAt);
    if (at == 0) return kNoState;
    for (uint32_t i = 0; i < words[at + kNumFeatureLayers]; ++i) {
      if (words[at + kFeatureLayers + i] == num_layers) return words[at + kFirstState] + i;
    }
    return kNoState;
  }
  TANDEM_DEVICE uint32_t NormedState(uint32_t row_index) const {
    const uint32_t at = row(row_index, kFeaturesAt);
    if (at == 0 || words[at + kHasNormedState] == 0) return kNoState;
    return words[at + kFirstState] + words[at + kNumFeatureLayers];
  }
  // Number i of what a draft head's row reads: bfloat16, two to a word, or float32.
  TANDEM_DEVICE bool StateIsFloat(uint32_t row_index) const { return row(row_index, kStateIsFloat) != 0; }
  TANDEM_DEVICE Bf16 Bf16State(uint32_t row_index, uint32_t i) const {
    const uint32_t word = words[row(row_index, kStateAt) + i / 2];
    return {static_cast<uint16_t>(i % 2 == 0 ? word & 0xffffu : word >> 16)};
  }
  TANDEM_DEVICE float FloatState(uint32_t row_index, uint32_t i) const {
    return BitsAs<float>(words[row(row_index, kStateAt) + i]);
  }
  // Where the keys and values of a position of the row's context lie.
  TANDEM_DEVICE uint32_t SlotOf(uint32_t row_index, uint32_t at) const {
    const uint32_t num_committed = row(row_index, kNumCommitted);
    if (at >= num_committed) return words[row(row_index, kTailAt) + at - num_committed];
    return words[row(row_index, kBlocksAt) + at / 16] * 16 + at % 16;
  }
};

}  // namespace tandem
