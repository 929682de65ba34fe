#pragma once

#include <cstdint>

#include "common/engine/cuda/kernels/block.h"
#include "common/engine/cuda/kernels/product_kernels.h"
#include "common/engine/cuda/kernels/step_words.h"

// Mixtures of experts (common/model/config/architecture.h, ExpertsDescription, has the equations). Everything
// happens on the device, in launches whose shapes depend only on the bucket:
//
//   RouteKernel           r = router * x, in float32
//   ChooseExpertsKernel   chooses a row's experts and their weights: its choices
//   GroupExpertsKernel    sorts choices by expert and cuts them into items of one expert each
//   products              gate and up, then down, of every item; experts without choices are not read
//   SumExpertsKernel      adds up the outputs of a row's experts, in the order of their numbers
//
// Choice c of row r has number r * num_chosen + c. Its results are stored in the row of that number, whatever
// item it is in and whatever else that item contains. So grouping only decides which rows are multiplied
// together. Law 1 therefore rests on the products, whose sums have one order whatever rows are beside them
// (product_kernels.h). CPU reference: cpu/expert_stage.cc.

namespace tandem {

// outputs = inputs * weights^T + bias, in float32. One warp computes an output for kRows rows: for each sum
// every lane adds up its inputs (modulo 32, ascending), and the warp adds up the lanes. Grid (ceil(outputs /
// warps), ceil(rows / kRows)).
struct RouteKernel {
  static constexpr uint32_t kRows = 8;

  StepWords step;
  DeviceSpan<const float> inputs;   // [rows, hidden]
  DeviceSpan<const float> weights;  // [outputs, hidden]
  DeviceSpan<const float> bias;     // For the first outputs, or empty.
  DeviceSpan<float> outputs;        // [rows, outputs]
  uint32_t hidden_size = 0;
  uint32_t num_outputs = 0;

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint32_t lane = block.thread() % kWarpThreads;
    const uint32_t output =
        block.index_x() * (block.num_threads() / kWarpThreads) + block.thread() / kWarpThreads;
    const uint32_t first_row = block.index_y() * kRows;
    if (output >= num_outputs || first_row >= step.num_rows()) return;
    const uint32_t count = Least(kRows, step.num_rows() - first_row);
    float sums[kRows] = {};
    for (uint32_t i = lane; i < hidden_size; i += kWarpThreads) {
      const float weight = weights[uint64_t{output} * hidden_size + i];
      TANDEM_UNROLL
      for (uint32_t r = 0; r < kRows; ++r) {
        if (r < count) sums[r] = Fma(inputs[uint64_t{first_row + r} * hidden_size + i], weight, sums[r]);
      }
    }
    TANDEM_UNROLL
    for (uint32_t r = 0; r < kRows; ++r) {
      if (r >= count) break;
      const float sum = WarpSum(block, sums[r]);
      if (lane != 0) continue;
      outputs[uint64_t{first_row + r} * num_outputs + output] = output < bias.size ? sum + bias[output] : sum;
    }
  }
};

// Chooses the experts with the greatest numbers (the lower one among equals) and computes their weights: a
// softmax over the chosen experts or over all, with the bits of cpu/expert_stage.cc. A NaN counts as less
// than all numbers. A warp for each row: grid (rows); shared: ChooseExpertsShape.
struct ChooseExpertsKernel {
  StepWords step;
  DeviceSpan<const float> routed;  // [rows, num_routed]
  DeviceSpan<uint32_t> experts;    // [rows, num_chosen], ascending
  DeviceSpan<float> weights;       // [rows, num_chosen]
  uint32_t num_experts = 0;
  uint32_t num_routed = 0;  // Numbers in a row, at least num_experts.
  uint32_t num_chosen = 0;
  bool over_chosen = true;

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint64_t row = block.index_x();
    if (row >= step.num_rows()) return;
    const uint32_t lane = block.thread();
    const auto numbers = block.template Shared<float>(0, num_experts);
    const auto chosen = block.template Shared<uint32_t>(uint64_t{num_experts} * 4, num_chosen);
    for (uint32_t i = lane; i < num_experts; i += kWarpThreads) numbers[i] = routed[row * num_routed + i];
    block.SyncWarp();
    // Keys are unique, so the next greatest is the greatest one below the previous.
    uint64_t before = ~uint64_t{0};
    for (uint32_t i = 0; i < num_chosen; ++i) {
      uint64_t greatest = 0;
      for (uint32_t expert = lane; expert < num_experts; expert += kWarpThreads) {
        const uint64_t key = KeyOf(numbers[expert], expert);
        if (key < before && key > greatest) greatest = key;
      }
      for (uint32_t mask = kWarpThreads / 2; mask > 0; mask /= 2) {
        const uint64_t other = block.ShuffleXor(greatest, mask);
        if (other > greatest) greatest = other;
      }
      if (lane == 0) chosen[i] = ~static_cast<uint32_t>(greatest);
      before = greatest;
    }
    block.SyncWarp();
    const float greatest = numbers[chosen[0]];
    block.SyncWarp();
    for (uint32_t i = lane; i < num_experts; i += kWarpThreads) {
      numbers[i] = Exponential(numbers[i] - greatest);
    }
    for (uint32_t i = lane; i < num_chosen; i += kWarpThreads) {
      uint32_t place = 0;
      for (uint32_t j = 0; j < num_chosen; ++j) place += chosen[j] < chosen[i] ? 1 : 0;
      experts[row * num_chosen + place] = chosen[i];
    }
    block.SyncWarp();
    // Every lane computes the total by itself, in one order, without waiting for the others.
    float total = 0.0f;
    const uint32_t size = over_chosen ? num_chosen : num_experts;
    for (uint32_t i = 0; i < size; ++i) total += numbers[over_chosen ? experts[row * num_chosen + i] : i];
    for (uint32_t i = lane; i < num_chosen; i += kWarpThreads) {
      weights[row * num_chosen + i] = numbers[experts[row * num_chosen + i]] / total;
    }
  }

 private:
  // A greater number gives a greater key. Of equal numbers, the lower expert has the greater key. Never 0.
  static TANDEM_DEVICE uint64_t KeyOf(float number, uint32_t expert) {
    // Adding 0 turns -0 into 0, which is equal to it.
    const uint32_t bits = BitsAs<uint32_t>(number + 0.0f);
    uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    if ((bits & 0x7fffffffu) > 0x7f800000u) ordered = 0;
    return uint64_t{ordered} << 32 | static_cast<uint32_t>(~expert);
  }
};

// A step's choices sorted by expert, and then by row, and the items that products work on. An item is at most
// rows_per_item choices of one expert.
struct ExpertPlan {
  static constexpr uint32_t kExpert = 0;
  static constexpr uint32_t kBegin = 1;  // An index into the sorted choices.
  static constexpr uint32_t kCount = 2;
  static constexpr uint32_t kItemWords = 3;

  DeviceSpan<uint32_t> items;    // The number of items, then kItemWords for each.
  DeviceSpan<uint32_t> choices;  // [rows * num_chosen]: their numbers.
  DeviceSpan<uint32_t> rows;     // [rows * num_chosen]: their rows.

  TANDEM_DEVICE uint32_t num_items() const { return items[0]; }
  TANDEM_DEVICE uint32_t item(uint32_t index, uint32_t field) const {
    return items[1 + uint64_t{index} * kItemWords + field];
  }
};

// One block. A warp for each expert counts its choices, and then gives them places. Grid (1); shared:
// GroupExpertsShape.
struct GroupExpertsKernel {
  StepWords step;
  DeviceSpan<const uint32_t> experts;  // [rows, num_chosen]
  ExpertPlan plan;
  DeviceSpan<uint64_t> num_read;  // [1]: experts that the step has read so far, over its layers.
  bool is_first = false;          // Whether this layer is the first one with experts.
  uint32_t num_experts = 0;
  uint32_t num_chosen = 0;
  uint32_t rows_per_item = 0;

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint32_t lane = block.thread() % kWarpThreads;
    const uint32_t first_expert = block.thread() / kWarpThreads;
    const uint32_t num_warps = block.num_threads() / kWarpThreads;
    const uint32_t num_choices = step.num_rows() * num_chosen;
    const auto counts = block.template Shared<uint32_t>(0, num_experts);
    const auto begins = block.template Shared<uint32_t>(uint64_t{num_experts} * 4, num_experts);
    const auto first_items = block.template Shared<uint32_t>(uint64_t{num_experts} * 8, num_experts);
    for (uint32_t expert = first_expert; expert < num_experts; expert += num_warps) {
      uint32_t count = 0;
      for (uint32_t first = 0; first < num_choices; first += kWarpThreads) {
        count += CountBits(ChoicesOf(block, expert, first + lane, num_choices));
      }
      if (lane == 0) counts[expert] = count;
    }
    block.Sync();
    if (block.thread() == 0) {
      uint32_t num_ordered = 0;
      uint32_t num_items = 0;
      uint64_t num_taken = is_first ? 0 : num_read[0];
      for (uint32_t expert = 0; expert < num_experts; ++expert) {
        begins[expert] = num_ordered;
        first_items[expert] = num_items;
        num_ordered += counts[expert];
        num_items += NumItems(counts[expert]);
        num_taken += counts[expert] > 0 ? 1 : 0;
      }
      plan.items[0] = num_items;
      num_read[0] = num_taken;
    }
    block.Sync();
    for (uint32_t expert = first_expert; expert < num_experts; expert += num_warps) {
      uint32_t place = begins[expert];
      for (uint32_t first = 0; first < num_choices; first += kWarpThreads) {
        const uint32_t choice = first + lane;
        const uint32_t taken = ChoicesOf(block, expert, choice, num_choices);
        if ((taken >> lane & 1u) != 0) {
          const uint32_t own = place + CountBits(taken & ((1u << lane) - 1u));
          plan.choices[own] = choice;
          plan.rows[own] = choice / num_chosen;
        }
        place += CountBits(taken);
      }
      for (uint32_t i = lane; i < NumItems(counts[expert]); i += kWarpThreads) {
        const uint64_t at = 1 + uint64_t{first_items[expert] + i} * ExpertPlan::kItemWords;
        plan.items[at + ExpertPlan::kExpert] = expert;
        plan.items[at + ExpertPlan::kBegin] = begins[expert] + i * rows_per_item;
        plan.items[at + ExpertPlan::kCount] = Least(rows_per_item, counts[expert] - i * rows_per_item);
      }
    }
  }

 private:
  TANDEM_DEVICE uint32_t NumItems(uint32_t count) const {
    return (count + rows_per_item - 1) / rows_per_item;
  }

  // The lanes whose choice is this expert.
  template <typename Block>
  TANDEM_DEVICE uint32_t ChoicesOf(Block& block, uint32_t expert, uint32_t choice,
                                   uint32_t num_choices) const {
    return block.Ballot(choice < num_choices && experts[choice] == expert);
  }
};

// The rows for products with experts (in place of StepRows): each block along y takes one item, or nothing.
// Grid and shared memory: MultiplyExpertsShape.
struct ExpertRows {
  struct Part {
    uint32_t count = 0;
    uint32_t expert = 0;
    uint32_t begin = 0;
    DeviceSpan<const uint32_t> inputs;
    DeviceSpan<const uint32_t> outputs;

    TANDEM_DEVICE uint64_t matrix() const { return expert; }
    TANDEM_DEVICE bool Has(uint32_t row) const { return row < count; }
    TANDEM_DEVICE uint64_t InputOf(uint32_t row) const { return inputs[begin + row]; }
    TANDEM_DEVICE uint64_t OutputOf(uint32_t row) const { return outputs[begin + row]; }
  };

  ExpertPlan plan;
  bool reads_rows = true;  // Whether inputs are per row; otherwise per choice.

  template <typename Block>
  TANDEM_DEVICE Part Of(Block& block, const ProductGrid& /*grid*/) const {
    const uint32_t index = block.index_y();
    if (index >= plan.num_items()) return {};
    return {plan.item(index, ExpertPlan::kCount), plan.item(index, ExpertPlan::kExpert),
            plan.item(index, ExpertPlan::kBegin), reads_rows ? plan.rows : plan.choices, plan.choices};
  }
};

using MultiplyInt8ExpertsKernel = MultiplyIntegersKernel<Int8Lane, ExpertRows>;
using MultiplyInt4ExpertsKernel = MultiplyIntegersKernel<Int4Lane, ExpertRows>;
using MultiplyFp8ExpertsKernel = MultiplyE4m3Kernel<ExpertRows>;

// The same for bfloat16 weights as they are in files, [experts, outputs, depth]. Matrix units compute each
// group's sum; groups are added ascending. Reference: double precision; tolerance: the rounding of float32
// sums.
struct MultiplyBf16ExpertsKernel {
  static constexpr uint32_t kMostThreads = kProductThreads;
  using Sum = float;
  // Lane 4 g + t holds inputs 16 t to 16 t + 15 of a group, for outputs g and g + 8 of a tile.
  struct Weights {
    Words<8> outputs[2];
  };
  using Operand = Bf16Operand;
  using Part = ExpertRows::Part;

  DeviceSpan<const Bf16> weights;
  DeviceSpan<const Bf16> inputs;  // [rows, depth]
  DeviceSpan<float> outputs;
  ProductGrid grid;
  ExpertRows rows;

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    MultiplyTiles(*this, block);
  }

  TANDEM_DEVICE Weights Load(const Part& part, uint32_t tile, uint32_t group, uint32_t lane) const {
    Weights of_lane = {};
    TANDEM_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t output = tile * kPackedOutputs + lane / 4 + 8 * i;
      if (output >= grid.outputs) break;
      of_lane.outputs[i] = LoadSixteen(weights, part.matrix() * grid.outputs + output,
                                       group * kInputGroup + lane % 4 * 16, grid.depth);
    }
    return of_lane;
  }

  static TANDEM_DEVICE Operand Widen(const Weights& of_lane) {
    Operand operand;
    TANDEM_UNROLL
    for (uint32_t piece = 0; piece < 4; ++piece) {
      TANDEM_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        operand.pieces[piece][i] = of_lane.outputs[i % 2].word[2 * piece + i / 2];
      }
    }
    return operand;
  }

  template <typename Block>
  TANDEM_DEVICE void Multiply(Block& block, const Operand& operand, const Part& part, uint32_t group,
                              uint32_t row, float (&sums)[4]) const {
    operand.Multiply(block, inputs, grid.depth, part, group, row, sums);
  }
  TANDEM_DEVICE float Add(float total, float sum, const Part& /*part*/, uint32_t /*tile*/, uint32_t /*group*/,
                          uint32_t /*row*/, uint32_t /*output*/) const {
    return total + sum;
  }
  TANDEM_DEVICE float Finish(float total, const Part& /*part*/, uint64_t /*output*/) const { return total; }
};

// sums[row] = the sum of each chosen expert's output times its weight, in the order of the experts' numbers.
// With a shared expert, `sums` holds its output before, which is added after multiplication with the sigmoid
// of the router's last number. Grid (rows, ceil(hidden / threads)).
struct SumExpertsKernel {
  StepWords step;
  DeviceSpan<const float> outputs;      // [rows * num_chosen, hidden]
  DeviceSpan<const uint32_t> experts;   // [rows, num_chosen]
  DeviceSpan<const float> weights;      // [rows, num_chosen]
  DeviceSpan<const float> bias;         // [experts, hidden], or empty.
  DeviceSpan<const float> routed;       // [rows, num_experts + 1] with a shared expert, else empty.
  DeviceSpan<const float> shared_bias;  // [hidden], or empty.
  DeviceSpan<float> sums;               // [rows, hidden]
  uint32_t hidden_size = 0;
  uint32_t num_experts = 0;
  uint32_t num_chosen = 0;

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint64_t row = block.index_x();
    if (row >= step.num_rows()) return;
    const uint32_t i = block.index_y() * block.num_threads() + block.thread();
    if (i >= hidden_size) return;
    float sum = 0.0f;
    for (uint64_t choice = row * num_chosen; choice < (row + 1) * num_chosen; ++choice) {
      float output = outputs[choice * hidden_size + i];
      if (bias.size > 0) output += bias[uint64_t{experts[choice]} * hidden_size + i];
      sum += weights[choice] * output;
    }
    float& total = sums[row * hidden_size + i];
    if (routed.size > 0) {
      const float gate = routed[row * (num_experts + 1) + num_experts];
      float shared = total;
      if (shared_bias.size > 0) shared += shared_bias[i];
      sum += 1.0f / (1.0f + Exponential(0.0f - gate)) * shared;
    }
    total = sum;
  }
};

}  // namespace tandem
