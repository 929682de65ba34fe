#include "common/rpc/draft_wire.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::DraftRequest ValidOpen() {
  DraftRequest request;
  request.session = 7;
  OpenSession open;
  open.epoch = 3;
  open.draft_model = "small";
  open.vocabulary_fingerprint = ~uint64_t{0};
  open.commit_no = 5;
  open.tokens = {1, 2, 2147483647};
  open.prefix_hash = 11;
  open.sampling.temperature = 0.0f;
  open.sampling.top_k = 40;
  open.sampling.logit_bias = {{3, -1.0f}, {9, 2.5f}};
  open.sampling.seed = 99;
  open.prompt_length = 2;
  open.cache_salt = 13;
  open.budget = {.depth = 4,
                 .nodes = 16,
                 .branching = 3,
                 .lookahead = 2,
                 .shape = TreeShape::kEagle2,
                 .ahead_nodes = 40,
                 .ahead_branching = 8};
  open.traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  open.tracestate = "v=1";
  open.request_id = "req-1";
  open.predict_acceptance = true;
  open.text_drafting = true;
  open.target_hidden_size = 384;
  open.target_layers = 8;
  open.target_fingerprint = ~uint64_t{1};
  request.event = open;
  return DraftRequestToProto(request);
}

v1::DraftRequest ValidCommit() {
  DraftRequest request;
  request.session = 7;
  request.event = Commit{.epoch = 3,
                         .commit_no = 6,
                         .tokens = {5, 6},
                         .new_root = 12,
                         .committed_len = 5,
                         .prefix_hash = 17,
                         .budget = {.depth = 1, .nodes = 2, .branching = 1, .lookahead = 0}};
  return DraftRequestToProto(request);
}

v1::DraftResponse ValidGrow() {
  DraftResponse response;
  response.session = 7;
  response.event = Grow{.epoch = 3,
                        .seen_commit = 6,
                        .prefix_hash = 17,
                        .first_id = 20,
                        .parents = {0, 20, 12},
                        .tokens = {4, 5, 6},
                        .scores = {0.5f, 0.25f, 1.0f},
                        .exhausted = true,
                        .step_seconds = 0.01f,
                        .distributions = {{.parent = 0, .tokens = {4, 9}, .probabilities = {0.75f, 0.25f}},
                                          {.parent = 20, .tokens = {5}, .probabilities = {1.0f}}},
                        .predictions = {{.node = 12, .acceptance = 0.75f}, {.node = 4, .acceptance = 0.5f}}};
  return DraftResponseToProto(response);
}

TEST(DraftWireTest, OpenRoundTrips) {
  const auto request = DraftRequestFromProto(ValidOpen());
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->session, 7u);
  const auto& open = std::get<OpenSession>(request->event);
  EXPECT_EQ(open.epoch, 3u);
  EXPECT_EQ(open.draft_model, "small");
  EXPECT_EQ(open.target_hidden_size, 384u);
  EXPECT_EQ(open.target_layers, 8u);
  EXPECT_EQ(open.target_fingerprint, ~uint64_t{1});
  EXPECT_EQ(open.vocabulary_fingerprint, ~uint64_t{0});
  EXPECT_EQ(open.commit_no, 5u);
  EXPECT_THAT(open.tokens, ElementsAre(1, 2, 2147483647));
  EXPECT_EQ(open.prefix_hash, 11u);
  EXPECT_EQ(open.sampling.temperature, 0.0f);
  EXPECT_EQ(open.sampling.top_k, 40u);
  EXPECT_EQ(open.sampling.seed, 99u);
  EXPECT_THAT(open.sampling.logit_bias, ElementsAre(std::pair(3, -1.0f), std::pair(9, 2.5f)));
  EXPECT_EQ(open.prompt_length, 2u);
  EXPECT_EQ(open.cache_salt, 13u);
  EXPECT_EQ(open.budget, (DraftBudget{.depth = 4,
                                      .nodes = 16,
                                      .branching = 3,
                                      .lookahead = 2,
                                      .shape = TreeShape::kEagle2,
                                      .ahead_nodes = 40,
                                      .ahead_branching = 8}));
  EXPECT_EQ(open.traceparent, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  EXPECT_EQ(open.tracestate, "v=1");
  EXPECT_EQ(open.request_id, "req-1");
  EXPECT_TRUE(open.predict_acceptance);
  EXPECT_TRUE(open.text_drafting);
}

TEST(DraftWireTest, WhatTracesAndLogsSayFailsNoOpenAndIsBounded) {
  v1::DraftRequest request = ValidOpen();
  request.mutable_open()->set_traceparent(std::string(1 << 20, 'x'));
  request.mutable_open()->set_tracestate(std::string(1 << 20, 'x'));
  request.mutable_open()->set_request_id(std::string(1000, 'x'));
  const auto read = DraftRequestFromProto(request);
  ASSERT_TRUE(read.ok()) << read.status();
  const auto& open = std::get<OpenSession>(read->event);
  EXPECT_EQ(open.traceparent, "");
  EXPECT_EQ(open.tracestate, "");
  EXPECT_EQ(open.request_id, std::string(128, 'x'));
}

TEST(DraftWireTest, ShapesOfANewerVerifierCountAsBestFirst) {
  v1::DraftRequest request = ValidOpen();
  for (const auto& [wire, shape] : {std::pair(3, TreeShape::kEagle2), std::pair(2, TreeShape::kChain),
                                    std::pair(1, TreeShape::kBestFirst), std::pair(0, TreeShape::kBestFirst),
                                    std::pair(77, TreeShape::kBestFirst)}) {
    request.mutable_open()->mutable_budget()->set_shape(static_cast<v1::TreeShape>(wire));
    const auto read = DraftRequestFromProto(request);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(std::get<OpenSession>(read->event).budget.shape, shape);
  }
}

TEST(DraftWireTest, GrowthMayBeEmptyOnlyToSayThatItIsTheLast) {
  v1::DraftResponse response = ValidGrow();
  response.mutable_grow()->clear_parents();
  response.mutable_grow()->clear_tokens();
  response.mutable_grow()->clear_scores();
  response.mutable_grow()->clear_distributions();
  const auto read = DraftResponseFromProto(response);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(std::get<Grow>(read->event).exhausted);
  EXPECT_TRUE(std::get<Grow>(read->event).tokens.empty());
  response.mutable_grow()->set_exhausted(false);
  // Or what a stop head says of nodes that have been sent.
  EXPECT_TRUE(DraftResponseFromProto(response).ok());
  response.mutable_grow()->clear_predictions();
  EXPECT_FALSE(DraftResponseFromProto(response).ok());
}

TEST(DraftWireTest, PredictionsRoundTripAndAreBounded) {
  v1::DraftResponse response = ValidGrow();
  const auto read = DraftResponseFromProto(response);
  ASSERT_TRUE(read.ok()) << read.status();
  const std::vector<NodePrediction>& predictions = std::get<Grow>(read->event).predictions;
  ASSERT_EQ(predictions.size(), 2u);
  EXPECT_EQ(predictions[0].node, 12u);
  EXPECT_EQ(predictions[0].acceptance, 0.75f);
  EXPECT_EQ(predictions[1].node, 4u);
  while (response.grow().predictions_size() < static_cast<int>(kMaxGrowNodes)) {
    response.mutable_grow()->add_predictions()->set_node(3);
  }
  EXPECT_TRUE(DraftResponseFromProto(response).ok());
  response.mutable_grow()->add_predictions()->set_node(3);
  EXPECT_THAT(std::string(DraftResponseFromProto(response).status().message()),
              HasSubstr("grow.predictions: 257, expected at most 256"));

  DraftResponse opened;
  opened.event = SessionOpened{.epoch = 4, .context_length = 5, .predicts_acceptance = true};
  const auto known = DraftResponseFromProto(DraftResponseToProto(opened));
  ASSERT_TRUE(known.ok());
  EXPECT_TRUE(std::get<SessionOpened>(known->event).predicts_acceptance);
}

TEST(DraftWireTest, CommitAndCloseRoundTrip) {
  const auto request = DraftRequestFromProto(ValidCommit());
  ASSERT_TRUE(request.ok()) << request.status();
  const auto& commit = std::get<Commit>(request->event);
  EXPECT_EQ(commit.commit_no, 6u);
  EXPECT_THAT(commit.tokens, ElementsAre(5, 6));
  EXPECT_EQ(commit.new_root, 12u);
  EXPECT_EQ(commit.committed_len, 5u);
  EXPECT_EQ(commit.prefix_hash, 17u);
  v1::DraftRequest fresh = ValidCommit();
  fresh.mutable_commit()->clear_new_root();
  EXPECT_EQ(std::get<Commit>(DraftRequestFromProto(fresh)->event).new_root, std::nullopt);

  const auto close = DraftRequestFromProto(DraftRequestToProto({.session = 1, .event = CloseSession()}));
  ASSERT_TRUE(close.ok());
  EXPECT_TRUE(std::holds_alternative<CloseSession>(close->event));
}

TEST(DraftWireTest, ResponsesRoundTrip) {
  const auto response = DraftResponseFromProto(ValidGrow());
  ASSERT_TRUE(response.ok()) << response.status();
  const auto& grow = std::get<Grow>(response->event);
  EXPECT_EQ(grow.seen_commit, 6u);
  EXPECT_EQ(grow.first_id, 20u);
  EXPECT_THAT(grow.parents, ElementsAre(0, 20, 12));
  EXPECT_THAT(grow.tokens, ElementsAre(4, 5, 6));
  EXPECT_THAT(grow.scores, ElementsAre(0.5f, 0.25f, 1.0f));
  EXPECT_TRUE(grow.exhausted);
  EXPECT_EQ(grow.step_seconds, 0.01f);

  const auto opened = DraftResponseFromProto(
      DraftResponseToProto({.session = 1, .event = SessionOpened{.epoch = 2, .context_length = 2048}}));
  EXPECT_EQ(std::get<SessionOpened>(opened->event).context_length, 2048u);
  const auto resync = DraftResponseFromProto(
      DraftResponseToProto({.session = 1, .event = ResyncNeeded{.epoch = 2, .reason = "hash"}}));
  EXPECT_EQ(std::get<ResyncNeeded>(resync->event).reason, "hash");
  const auto refused = DraftResponseFromProto(DraftResponseToProto(
      {.session = 1, .event = SessionRefused{.epoch = 2, .status = absl::NotFoundError("no such model")}}));
  EXPECT_EQ(std::get<SessionRefused>(refused->event).status, absl::NotFoundError("no such model"));
}

TEST(DraftWireTest, RequestsThatBreakTheProtocolAreRefused) {
  struct Case {
    std::function<void(v1::DraftRequest*)> damage;
    std::string error;
  };
  const std::vector<Case> cases = {
      {[](auto* r) { r->Clear(); }, "event"},
      {[](auto* r) { r->mutable_open()->clear_tokens(); }, "open.tokens: empty"},
      {[](auto* r) { r->mutable_open()->set_tokens(1, 1u << 31); }, "open.tokens[1]: token id 2147483648"},
      {[](auto* r) { r->mutable_open()->set_prompt_length(4); }, "open.prompt_length: 4"},
      {[](auto* r) { r->mutable_open()->set_draft_model(std::string(300, 'x')); }, "open.draft_model"},
      {[](auto* r) { r->mutable_open()->mutable_budget()->set_depth(kMaxTreeDepth + 1); },
       "open.budget.depth"},
      {[](auto* r) { r->mutable_open()->mutable_budget()->set_nodes(~0u); }, "open.budget.nodes"},
      {[](auto* r) { r->mutable_open()->mutable_budget()->set_branching(~0u); }, "open.budget.branching"},
      {[](auto* r) { r->mutable_open()->mutable_budget()->set_lookahead(~0u); }, "open.budget.lookahead"},
      {[](auto* r) { r->mutable_open()->mutable_budget()->set_ahead_nodes(1025); },
       "open.budget.ahead_nodes: 1025"},
      {[](auto* r) { r->mutable_open()->mutable_budget()->set_ahead_branching(~0u); },
       "open.budget.ahead_branching"},
      {[](auto* r) { (*r->mutable_open()->mutable_sampling()->mutable_logit_bias())[1u << 31] = 1; },
       "sampling.logit_bias: token id 2147483648"},
      {[](auto* r) {
         for (uint32_t i = 0; i < 1025; ++i)
           (*r->mutable_open()->mutable_sampling()->mutable_logit_bias())[i] = 1;
       },
       "sampling.logit_bias: 1025"},
      {[](auto* r) { *r = ValidCommit(), r->mutable_commit()->clear_tokens(); }, "commit.tokens: empty"},
      {[](auto* r) { *r = ValidCommit(), r->mutable_commit()->mutable_tokens()->Resize(130, 1); },
       "commit.tokens: 130"},
      {[](auto* r) { *r = ValidCommit(), r->mutable_commit()->set_tokens(0, ~0u); }, "commit.tokens[0]"},
      {[](auto* r) { *r = ValidCommit(), r->mutable_commit()->set_committed_len(2); },
       "commit.committed_len: 2"},
      {[](auto* r) { *r = ValidCommit(), r->mutable_commit()->set_new_root(0); }, "commit.new_root: 0"},
      {[](auto* r) { *r = ValidCommit(), r->mutable_commit()->mutable_budget()->set_nodes(1025); },
       "commit.budget.nodes: 1025"},
      {[](auto* r) { *r = ValidCommit(), r->mutable_commit()->mutable_features(); },
       "commit.features.states: 0 bytes"},
      {[](auto* r) { r->mutable_features(); }, "features.states: 0 bytes"},
      {[](auto* r) { r->mutable_features()->set_states(std::string(kMaxFeatureBytes + 1, '\0')); },
       "features.states: 1048577 bytes"},
      {[](auto* r) {
         r->mutable_features()->set_states("x");
         r->mutable_features()->set_type(static_cast<v1::FeatureType>(7));
       },
       "features.type: 7"},
  };
  for (const Case& bad : cases) {
    v1::DraftRequest request = ValidOpen();
    bad.damage(&request);
    const auto result = DraftRequestFromProto(request);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << bad.error;
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(bad.error));
  }
}

TEST(DraftWireTest, ResponsesThatBreakTheProtocolAreRefused) {
  struct Case {
    std::function<void(v1::DraftResponse*)> damage;
    std::string error;
  };
  const std::vector<Case> cases = {
      {[](auto* r) { r->Clear(); }, "event"},
      {[](auto* r) { r->mutable_grow()->add_parents(0); }, "4 parents, 3 tokens and 3 scores"},
      {[](auto* r) { r->mutable_grow()->add_tokens(0); }, "3 parents, 4 tokens and 3 scores"},
      {[](auto* r) { r->mutable_grow()->clear_scores(); }, "3 parents, 3 tokens and 0 scores"},
      {[](auto* r) { r->mutable_grow()->Clear(); }, "grow: 0 nodes"},
      {[](auto* r) {
         r->mutable_grow()->mutable_parents()->Resize(257, 0);
         r->mutable_grow()->mutable_tokens()->Resize(257, 0);
         r->mutable_grow()->mutable_scores()->Resize(257, 0);
       },
       "grow: 257 nodes"},
      {[](auto* r) { r->mutable_grow()->set_first_id(0); }, "grow.first_id: 0"},
      {[](auto* r) { r->mutable_grow()->set_first_id(~0u - 1); }, "grow.first_id: 4294967294"},
      {[](auto* r) { r->mutable_grow()->set_parents(1, 21); }, "grow.parents[1]: 21"},
      {[](auto* r) { r->mutable_grow()->set_tokens(2, ~0u); }, "grow.tokens[2]"},
      {[](auto* r) { r->mutable_grow()->set_step_seconds(std::nanf("")); }, "grow.step_seconds"},
      {[](auto* r) { r->mutable_grow()->set_step_seconds(-1.0f); }, "grow.step_seconds"},
      {[](auto* r) { r->mutable_grow()->mutable_distributions(0)->clear_tokens(); },
       "grow.distributions[0]: 0 tokens and 2 probabilities"},
      {[](auto* r) { r->mutable_grow()->mutable_distributions(1)->clear_probabilities(); },
       "grow.distributions[1]: 1 tokens and 0 probabilities"},
      {[](auto* r) {
         auto* distribution = r->mutable_grow()->mutable_distributions(1);
         distribution->mutable_tokens()->Resize(kMaxDraftSupport + 1, 1);
         distribution->mutable_probabilities()->Resize(kMaxDraftSupport + 1, 0.1f);
       },
       "grow.distributions[1]: 129 tokens"},
      {[](auto* r) { r->mutable_grow()->mutable_distributions(0)->set_tokens(1, ~0u); },
       "grow.distributions.tokens[1]"},
      {[](auto* r) {
         for (int i = 0; i < 2; ++i) *r->mutable_grow()->add_distributions() = r->grow().distributions(0);
       },
       "grow.distributions: 4, expected at most one for each of the 3 nodes"},
      {[](auto* r) { r->mutable_opened()->mutable_features(); }, "opened.features: 0 layers"},
      {[](auto* r) {
         for (uint32_t i = 0; i <= kMaxFeatureLayers; ++i)
           r->mutable_opened()->mutable_features()->add_layers(i);
       },
       "opened.features: 9 layers"},
      {[](auto* r) {
         r->mutable_opened()->mutable_features()->add_layers(3);
         r->mutable_opened()->mutable_features()->add_layers(3);
       },
       "opened.features.layers[1]: 3 after 3"},
      {[](auto* r) {
         r->mutable_opened()->mutable_features()->set_final_norm(true);
         r->mutable_opened()->mutable_features()->set_type(static_cast<v1::FeatureType>(7));
       },
       "opened.features.type: 7"},
      {[](auto* r) { r->mutable_refused()->set_code(0); }, "refused.code: 0"},
      {[](auto* r) { r->mutable_refused()->set_code(17); }, "refused.code: 17"},
      {[](auto* r) { r->mutable_refused()->set_code(-1); }, "refused.code: -1"},
  };
  for (const Case& bad : cases) {
    v1::DraftResponse response = ValidGrow();
    bad.damage(&response);
    const auto result = DraftResponseFromProto(response);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << bad.error;
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(bad.error));
  }
}

TEST(DraftWireTest, DraftDistributionsRoundTrip) {
  const auto response = DraftResponseFromProto(ValidGrow());
  ASSERT_TRUE(response.ok()) << response.status();
  const auto& distributions = std::get<Grow>(response->event).distributions;
  ASSERT_EQ(distributions.size(), 2u);
  EXPECT_EQ(distributions[0].parent, 0u);
  EXPECT_THAT(distributions[0].tokens, ElementsAre(4, 9));
  EXPECT_THAT(distributions[0].probabilities, ElementsAre(0.75f, 0.25f));
  EXPECT_EQ(distributions[1].parent, 20u);
  for (const bool sampled : {false, true}) {
    v1::DraftRequest request = ValidOpen();
    request.mutable_open()->set_sampled_drafts(sampled);
    const auto open = DraftRequestFromProto(request);
    ASSERT_TRUE(open.ok());
    EXPECT_EQ(std::get<OpenSession>(open->event).sampled_drafts, sampled);
    EXPECT_EQ(DraftRequestToProto(*open).open().sampled_drafts(), sampled);
  }
}

TEST(DraftWireTest, BordersAreAllowed) {
  v1::DraftResponse response = ValidGrow();
  response.mutable_grow()->set_first_id(~0u - 2);
  response.mutable_grow()->set_parents(1, ~0u - 2);
  // What a score is worth is for the mirror to judge.
  response.mutable_grow()->set_scores(0, std::nanf(""));
  EXPECT_TRUE(DraftResponseFromProto(response).ok());
  v1::DraftRequest request = ValidCommit();
  request.mutable_commit()->mutable_tokens()->Resize(kMaxTreeDepth + 1, 1);
  request.mutable_commit()->set_committed_len(kMaxTreeDepth + 2);
  EXPECT_TRUE(DraftRequestFromProto(request).ok());
}

TEST(DraftWireTest, LogTextsAreCut) {
  v1::DraftResponse response;
  response.mutable_resync_needed()->set_reason(std::string(5000, 'x'));
  EXPECT_EQ(std::get<ResyncNeeded>(DraftResponseFromProto(response)->event).reason.size(), 1024u);
}

TEST(DraftWireTest, LoadIsAskedForAndTold) {
  const auto query = DraftRequestFromProto(DraftRequestToProto({.session = 0, .event = LoadQuery{}}));
  ASSERT_TRUE(query.ok()) << query.status();
  EXPECT_TRUE(std::holds_alternative<LoadQuery>(query->event));

  // A drafter that has nothing to do is told from one that does not say.
  for (const std::optional<uint32_t> sessions :
       {std::optional<uint32_t>(), std::optional<uint32_t>(0), std::optional<uint32_t>(7)}) {
    DraftResponse report{.event = LoadReport{}};
    report.drafter_sessions = sessions;
    const auto response = DraftResponseFromProto(DraftResponseToProto(report));
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_TRUE(std::holds_alternative<LoadReport>(response->event));
    EXPECT_EQ(response->drafter_sessions, sessions);
  }
}

TEST(DraftWireTest, FeaturesAreAskedForAndSent) {
  const auto opened = DraftResponseFromProto(DraftResponseToProto(
      {.session = 7,
       .event = SessionOpened{
           .epoch = 3,
           .context_length = 64,
           .features = FeatureNeeds{
               .layers = {2, 4, 5}, .final_norm = true, .type = FeatureType::kInt8, .first_position = 48}}}));
  ASSERT_TRUE(opened.ok()) << opened.status();
  const std::optional<FeatureNeeds>& needs = std::get<SessionOpened>(opened->event).features;
  ASSERT_TRUE(needs.has_value());
  EXPECT_THAT(needs->layers, ElementsAre(2, 4, 5));
  EXPECT_TRUE(needs->final_norm);
  EXPECT_EQ(needs->type, FeatureType::kInt8);
  EXPECT_EQ(needs->first_position, 48u);
  EXPECT_EQ(needs->num_states(), 4u);
  EXPECT_EQ(FeatureRowBytes(FeatureType::kBf16, 4, 10), 80u);
  EXPECT_EQ(FeatureRowBytes(FeatureType::kInt8, 4, 10), 56u);

  const Features sent{.epoch = 3, .first_position = 48, .type = FeatureType::kInt8, .states = "states"};
  const auto expect_same = [&](const Features& received) {
    EXPECT_EQ(received.epoch, sent.epoch);
    EXPECT_EQ(received.first_position, sent.first_position);
    EXPECT_EQ(received.type, sent.type);
    EXPECT_EQ(received.states, sent.states);
  };
  const auto request = DraftRequestFromProto(DraftRequestToProto({.session = 7, .event = sent}));
  ASSERT_TRUE(request.ok()) << request.status();
  expect_same(std::get<Features>(request->event));

  EXPECT_FALSE(std::get<Commit>(DraftRequestFromProto(ValidCommit())->event).features.has_value());
  DraftRequest commit = *DraftRequestFromProto(ValidCommit());
  std::get<Commit>(commit.event).features = sent;
  const auto received = DraftRequestFromProto(DraftRequestToProto(commit));
  ASSERT_TRUE(received.ok()) << received.status();
  ASSERT_TRUE(std::get<Commit>(received->event).features.has_value());
  expect_same(*std::get<Commit>(received->event).features);
}

}  // namespace
}  // namespace tandem
