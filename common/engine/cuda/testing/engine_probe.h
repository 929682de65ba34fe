#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "common/base/token.h"
#include "common/engine/engine.h"
#include "common/speculation/target_sampler.h"
#include "gtest/gtest.h"

// Checks of the engine that tests run on an emulated and on a real GPU.
namespace tandem {

using Logits = std::vector<float>;

// Logits after each of `tokens`, computed `chunk` at a time in blocks 0, 1, ...
inline std::vector<Logits> ComputeAll(Engine* engine, const TokenIds& tokens, uint32_t chunk) {
  std::vector<BlockId> blocks(engine->num_blocks());
  for (BlockId block = 0; block < blocks.size(); ++block) blocks[block] = block;
  std::vector<Logits> logits(tokens.size(), Logits(static_cast<size_t>(engine->config().vocab_size)));
  for (uint32_t begin = 0; begin < tokens.size(); begin += chunk) {
    std::vector<StepRow> rows;
    for (uint32_t i = begin; i < std::min<size_t>(begin + chunk, tokens.size()); ++i) {
      rows.push_back({.token = tokens[i],
                      .context = {.blocks = blocks, .num_committed = i + 1},
                      .logits = logits[i].data()});
    }
    const absl::Status status = engine->Step(rows);
    EXPECT_TRUE(status.ok()) << status;
  }
  return logits;
}

inline TokenIds SomeTokens(size_t count, int32_t vocab_size) {
  TokenIds tokens;
  for (size_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<TokenId>(i * 7919 % static_cast<size_t>(vocab_size)));
  }
  return tokens;
}

inline bool SameBits(const Logits& a, const Logits& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Trees of several sessions, each below a computed prompt.
class ChoiceProbe {
 public:
  // Takes 6 blocks for each session.
  ChoiceProbe(Engine* engine, uint32_t num_sessions, uint64_t seed) : engine_(engine), random_(seed) {
    for (uint32_t i = 0; i < num_sessions; ++i) sessions_.push_back(MakeSession(i));
  }

  // A tree of up to `most_nodes` nodes for each session, in a step for logits and in one where rows ask for
  // logits, choices or nothing. The choices have to be TargetSampler's from the logits, bit for bit.
  void ExpectTheSamplersChoices(uint32_t most_nodes) {
    std::vector<Row> rows;
    for (Session& session : sessions_) GrowTree(&session, most_nodes, &rows);
    std::vector<StepRow> step;
    for (Row& row : rows) step.push_back(AsStepRow(row));
    for (size_t i = 0; i < rows.size(); ++i) step[i].logits = rows[i].logits.data();
    ASSERT_TRUE(engine_->Step(step).ok());
    std::vector<Logits> logits(rows.size(), Logits(Width()));
    for (size_t i = 0; i < rows.size(); ++i) {
      const uint32_t kind = Below(4);
      step[i].logits = kind == 0 ? logits[i].data() : nullptr;
      step[i].choice = kind > 1 ? &rows[i].choice : nullptr;
    }
    const absl::Status status = engine_->Step(step);
    ASSERT_TRUE(status.ok()) << status;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (step[i].logits != nullptr) {
        ASSERT_TRUE(SameBits(logits[i], rows[i].logits)) << "row " << i;
      }
      if (step[i].choice == nullptr) continue;
      const uint32_t position = rows[i].choice.position;
      ASSERT_EQ(rows[i].token, rows[i].sampler.Choose(absl::MakeSpan(rows[i].logits), position).token)
          << "row " << i << ", temperature " << rows[i].choice.sampling->temperature;
      ++num_choices_;
    }
  }
  uint32_t num_choices() const { return num_choices_; }

 private:
  struct Session {
    TokenIds prompt;
    std::vector<BlockId> blocks;
    SamplingParameters sampling;
    std::unique_ptr<TargetSampler> sampler;
    std::vector<TokenCount> counts;
  };
  struct Row {
    const Session* session = nullptr;
    TokenId input = 0;
    std::vector<SlotId> tail;
    TargetSampler sampler;  // All tokens up to this row's.
    std::vector<TokenCount> own_counts;
    Logits logits;
    SeededChoice choice;
    TokenId token = -1;
  };

  uint32_t Below(uint64_t limit) { return static_cast<uint32_t>(random_() % limit); }
  TokenId AnyToken() { return static_cast<TokenId>(Below(Width())); }
  size_t Width() const { return static_cast<size_t>(engine_->config().vocab_size); }

  SamplingParameters AnySampling() {
    SamplingParameters sampling;
    sampling.temperature = Below(3) == 0 ? 0.0f : 0.3f * static_cast<float>(1 + Below(5));
    if (Below(2) == 0) sampling.top_k = 1 + Below(Width());
    if (Below(2) == 0) sampling.top_p = static_cast<float>(1 + Below(100)) / 100;
    if (Below(3) == 0) sampling.min_p = static_cast<float>(Below(60)) / 100;
    if (Below(2) == 0) sampling.repetition_penalty = 0.5f + static_cast<float>(Below(20)) / 10;
    if (Below(2) == 0) sampling.presence_penalty = static_cast<float>(Below(5)) / 4;
    if (Below(2) == 0) sampling.frequency_penalty = static_cast<float>(Below(5)) / 4;
    for (uint32_t i = Below(5); i > 0; --i) {
      sampling.logit_bias.emplace_back(AnyToken(),
                                       Below(3) == 0 ? -100.0f : static_cast<float>(Below(9)) / 4);
    }
    sampling.seed = random_();
    return sampling;
  }

  Session MakeSession(uint32_t index) {
    Session session;
    for (uint32_t i = 0; i < 6; ++i) session.blocks.push_back(index * 6 + i);
    for (uint32_t i = 2 + Below(28); i > 0; --i) session.prompt.push_back(AnyToken());
    session.sampling = AnySampling();
    // A part of the tokens is output, which some penalties count and others do not.
    const size_t output = Below(session.prompt.size());
    const auto prompt = absl::MakeConstSpan(session.prompt);
    session.sampler = std::make_unique<TargetSampler>(session.sampling, engine_->config().vocab_size,
                                                      prompt.first(prompt.size() - output));
    for (const TokenId token : prompt.last(output)) session.sampler->Append(token);
    session.counts = session.sampler->Counts();
    std::vector<StepRow> rows;
    for (uint32_t i = 0; i < prompt.size(); ++i) {
      rows.push_back({.token = prompt[i], .context = {.blocks = session.blocks, .num_committed = i + 1}});
    }
    EXPECT_TRUE(engine_->Step(rows).ok());
    return session;
  }

  // The root is computed again; nodes use the blocks after the prompt's.
  void GrowTree(Session* session, uint32_t most_nodes, std::vector<Row>* rows) {
    struct Node {
      TokenIds path;
      std::vector<SlotId> tail;
    };
    std::vector<Node> nodes(1);
    const uint32_t count = Below(most_nodes + 1);
    for (uint32_t i = 0; i < count; ++i) {
      Node node = nodes[Below(nodes.size())];
      node.path.push_back(AnyToken());
      node.tail.push_back(session->blocks[2] * kBlockTokens + i);
      nodes.push_back(std::move(node));
    }
    for (const Node& node : nodes) {
      Row row{.session = session,
              .input = node.path.empty() ? session->prompt.back() : node.path.back(),
              .tail = node.tail,
              .sampler = *session->sampler,
              .own_counts = session->sampler->CountsAfter(node.path),
              .logits = Logits(Width()),
              .choice = {}};
      for (const TokenId token : node.path) row.sampler.Append(token);
      row.choice.position = static_cast<uint32_t>(session->prompt.size() + node.path.size());
      rows->push_back(std::move(row));
    }
  }

  static StepRow AsStepRow(Row& row) {
    const Session& session = *row.session;
    row.choice = {.sampling = &session.sampling,
                  .position = row.choice.position,
                  .counts = session.counts,
                  .own_counts = row.own_counts,
                  .token = &row.token};
    return {.token = row.input,
            .context = {.blocks = session.blocks,
                        .num_committed = static_cast<uint32_t>(session.prompt.size()),
                        .tail = row.tail}};
  }

  Engine* const engine_;
  std::mt19937_64 random_;
  std::vector<Session> sessions_;
  uint32_t num_choices_ = 0;
};

}  // namespace tandem
