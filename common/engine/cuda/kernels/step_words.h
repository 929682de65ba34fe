#pragma once

#include <cstdint>

#include "common/engine/cuda/kernels/block.h"

namespace tandem {

// A step as kernels read it: 32-bit words in one buffer that is uploaded once for each step. The first parts
// have fixed places, so a captured graph finds them in every step. The header tells where the lists after
// them are. step_plan.h writes them.
//
//   header                       kHeaderWords
//   tokens, positions, slots     [max_rows] each
//   wanted                       [max_rows]: the num_wanted wanted rows, first those with wanted logits, then
//                                those that ask for a choice
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
  static constexpr uint32_t kKind = 5;       // The command to the other ranks of tensor parallelism.
  static constexpr uint32_t kNumLogits = 6;  // Wanted rows with logits, which come first.
  static constexpr uint32_t kNumStates = 7;  // All states that rows ask for as features.
  // Whether some of these are from after the last layer, or normed.
  static constexpr uint32_t kHasFinalFeatures = 8;
  static constexpr uint32_t kHasAdapters = 9;  // Whether rows name any.
  static constexpr uint32_t kHeaderWords = 16;
  // The number of arrays with one word for each row, which precede the rows.
  static constexpr uint32_t kNumColumns = 5;

  // The words of a row.
  static constexpr uint32_t kBlocksAt = 0;       // Place of its block ids.
  static constexpr uint32_t kNumCommitted = 1;   // Positions in its blocks.
  static constexpr uint32_t kTailAt = 2;         // Place of its tail's slots.
  static constexpr uint32_t kLength = 3;         // All positions of its context.
  static constexpr uint32_t kFirstPosition = 4;  // The first position that attention sees.
  static constexpr uint32_t kFeaturesAt = 5;     // Place of its requested features, or 0.
  static constexpr uint32_t kStateAt = 6;        // Place of the state that a draft head's row reads.
  static constexpr uint32_t kStateIsFloat = 7;   // Whether that state is in float32.
  static constexpr uint32_t kAdapter = 8;        // The place of its adapter plus 1, or 0.
  static constexpr uint32_t kRowWords = 9;

  // The words of a row's features. Its states are neighbours among those of the step. The normed final state,
  // if requested, comes last.
  static constexpr uint32_t kFirstState = 0;
  static constexpr uint32_t kNumFeatureLayers = 1;
  static constexpr uint32_t kHasNormedState = 2;
  static constexpr uint32_t kFeatureLayers = 3;  // [kNumFeatureLayers], ascending: the layers passed.
  static constexpr uint32_t kNoState = 0xffffffffu;

  // The words of a work item of attention: rows that go through one split together.
  static constexpr uint32_t kItemSplit = 0;
  // Up to here all rows have the first row's slots: a multiple of 16, or for one row 2^32 - 1.
  static constexpr uint32_t kItemSharedEnd = 1;
  static constexpr uint32_t kItemNumRows = 2;
  static constexpr uint32_t kItemRows = 3;  // [kMaxItemRows]
  static constexpr uint32_t kMaxItemRows = 16;
  static constexpr uint32_t kItemWords = kItemRows + kMaxItemRows;

  // The words of a choice: SamplingParameters, and pairs of a token and either its count or the bits of its
  // bias.
  static constexpr uint32_t kSeed = 0;  // Two words, the low one first.
  static constexpr uint32_t kPosition = 2;
  static constexpr uint32_t kTopK = 3;
  static constexpr uint32_t kTemperature = 4;
  static constexpr uint32_t kTopP = 5;
  static constexpr uint32_t kMostGap = 6;  // For min-p; infinity without it.
  static constexpr uint32_t kRepetitionPenalty = 7;
  static constexpr uint32_t kPresencePenalty = 8;
  static constexpr uint32_t kFrequencyPenalty = 9;
  static constexpr uint32_t kCountsAt = 10;  // Place of counts that choices may share.
  static constexpr uint32_t kNumCounts = 11;
  static constexpr uint32_t kOwnCountsAt = 12;  // Place of counts that replace shared ones.
  static constexpr uint32_t kNumOwnCounts = 13;
  static constexpr uint32_t kBiasesAt = 14;  // Sorted by token; biases of one token keep their order.
  static constexpr uint32_t kNumBiases = 15;
  // Place of a bit for every token that tells whether it is allowed; 0: all tokens are.
  static constexpr uint32_t kAllowedAt = 16;
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
  // The position, among the step's features, of the row's state after `num_layers` layers, or of its normed
  // final state (NormedState); kNoState if the row does not request it.
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
  // Number i of the state that a draft head's row reads: bfloat16, two to a word, or float32.
  TANDEM_DEVICE bool StateIsFloat(uint32_t row_index) const { return row(row_index, kStateIsFloat) != 0; }
  TANDEM_DEVICE Bf16 Bf16State(uint32_t row_index, uint32_t i) const {
    const uint32_t word = words[row(row_index, kStateAt) + i / 2];
    return {static_cast<uint16_t>(i % 2 == 0 ? word & 0xffffu : word >> 16)};
  }
  TANDEM_DEVICE float FloatState(uint32_t row_index, uint32_t i) const {
    return BitsAs<float>(words[row(row_index, kStateAt) + i]);
  }
  // The slot with the keys and values of a position of the row's context.
  TANDEM_DEVICE uint32_t SlotOf(uint32_t row_index, uint32_t at) const {
    const uint32_t num_committed = row(row_index, kNumCommitted);
    if (at >= num_committed) return words[row(row_index, kTailAt) + at - num_committed];
    return words[row(row_index, kBlocksAt) + at / 16] * 16 + at % 16;
  }
};

}  // namespace tandem
