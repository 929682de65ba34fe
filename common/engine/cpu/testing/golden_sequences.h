#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/engine/engine.h"
#include "common/engine/sequence_kv.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

// For tests: an engine against the reference values of common/model/testdata.

namespace tandem {

// Relative to 1 + the logit's magnitude, in float32.
inline constexpr double kGoldenTolerance = 1e-4;

// One text on an engine of its own.
class GoldenText {
 public:
  explicit GoldenText(Engine* engine, AdapterId adapter = kNoAdapter)
      : engine_(engine),
        adapter_(adapter),
        pool_({.num_blocks = engine->num_blocks()}),
        sequence_(&pool_, PrefixSpace(0, adapter)) {}

  // Appends and computes `tokens` in one step. [tokens, vocab]
  std::vector<std::vector<float>> Add(const TokenIds& tokens) {
    const uint32_t begin = sequence_.num_computed();
    sequence_.Append(tokens);
    const auto length = static_cast<uint32_t>(sequence_.tokens().size());
    EXPECT_TRUE(sequence_.Reserve(length).ok());
    std::vector<std::vector<float>> logits(
        tokens.size(), std::vector<float>(static_cast<size_t>(engine_->config().vocab_size)));
    std::vector<StepRow> rows;
    for (uint32_t position = begin; position < length; ++position) {
      rows.push_back({.token = sequence_.tokens()[position],
                      .context = sequence_.CommittedRow(position),
                      .logits = logits[position - begin].data(),
                      .adapter = adapter_});
    }
    const absl::Status status = engine_->Step(rows);
    EXPECT_TRUE(status.ok()) << status;
    sequence_.MarkComputed(length);
    return logits;
  }

 private:
  Engine* engine_;
  const AdapterId adapter_;
  BlockPool pool_;
  SequenceKv sequence_;
};

// `sequence` is one of a golden file. Compares greedy tokens too if the tolerance is float32's.
inline void CompareSequence(Engine* engine, const nlohmann::json& sequence, double tolerance,
                            AdapterId adapter = kNoAdapter) {
  GoldenText text(engine, adapter);
  const auto tokens = sequence.at("tokens").get<TokenIds>();
  std::vector<std::vector<float>> logits = text.Add(tokens);
  const auto positions = sequence.at("positions").get<std::vector<size_t>>();
  const auto expected = sequence.at("logits").get<std::vector<std::vector<float>>>();
  ASSERT_FALSE(positions.empty());
  for (size_t i = 0; i < positions.size(); ++i) {
    ASSERT_EQ(expected[i].size(), logits[positions[i]].size());
    for (size_t token = 0; token < expected[i].size(); ++token) {
      const float want = expected[i][token];
      ASSERT_NEAR(logits[positions[i]][token], want, tolerance * (1 + std::abs(want)))
          << "position " << positions[i] << " of " << tokens.size() << ", token " << token;
    }
  }
  if (tolerance > kGoldenTolerance) return;
  TokenIds greedy;
  const auto expected_greedy = sequence.at("greedy").get<TokenIds>();
  std::vector<float> last = logits.back();
  while (greedy.size() < expected_greedy.size()) {
    greedy.push_back(static_cast<TokenId>(std::max_element(last.begin(), last.end()) - last.begin()));
    last = text.Add({greedy.back()}).back();
  }
  EXPECT_EQ(greedy, expected_greedy);
}

}  // namespace tandem
