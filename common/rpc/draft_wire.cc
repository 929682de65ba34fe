#include "common/rpc/draft_wire.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/checked_math.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/rpc/sampling_wire.h"
#include "google/protobuf/repeated_field.h"

namespace tandem {
namespace {

using ProtoIds = google::protobuf::RepeatedField<uint32_t>;

constexpr size_t kMaxLogText = 1024;
constexpr size_t kMaxModelName = 256;
constexpr size_t kMaxRequestId = 128;
// A tracestate may come with members that are not passed on.
constexpr size_t kMaxTraceHeader = 4096;

template <class... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::StatusOr<TokenIds> TokensFromProto(absl::string_view field, const ProtoIds& ids) {
  TokenIds tokens;
  tokens.reserve(ids.size());
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] > static_cast<uint32_t>(std::numeric_limits<TokenId>::max())) {
      return Invalid(field, "[", i, "]: token id ", ids[i], ", expected one below 2^31");
    }
    tokens.push_back(static_cast<TokenId>(ids[i]));
  }
  return tokens;
}

void TokensToProto(absl::Span<const TokenId> tokens, ProtoIds* ids) {
  ids->Reserve(static_cast<int>(tokens.size()));
  for (TokenId token : tokens) ids->Add(static_cast<uint32_t>(token));
}

TreeShape ShapeFromProto(v1::TreeShape shape) {
  switch (shape) {
    case v1::TREE_SHAPE_CHAIN:
      return TreeShape::kChain;
    case v1::TREE_SHAPE_EAGLE2:
      return TreeShape::kEagle2;
    default:  // Also what a newer verifier may know.
      return TreeShape::kBestFirst;
  }
}

v1::TreeShape ShapeToProto(TreeShape shape) {
  switch (shape) {
    case TreeShape::kChain:
      return v1::TREE_SHAPE_CHAIN;
    case TreeShape::kEagle2:
      return v1::TREE_SHAPE_EAGLE2;
    case TreeShape::kBestFirst:
      break;
  }
  return v1::TREE_SHAPE_BEST_FIRST;
}

absl::StatusOr<DraftBudget> BudgetFromProto(absl::string_view field, const v1::DraftBudget& proto) {
  if (proto.depth() > kMaxTreeDepth) {
    return Invalid(field, ".depth: ", proto.depth(), ", expected at most ", kMaxTreeDepth);
  }
  if (proto.nodes() > kMaxTreeNodes) {
    return Invalid(field, ".nodes: ", proto.nodes(), ", expected at most ", kMaxTreeNodes);
  }
  if (proto.branching() > kMaxTreeNodes) {
    return Invalid(field, ".branching: ", proto.branching(), ", expected at most ", kMaxTreeNodes);
  }
  if (proto.lookahead() > kMaxTreeDepth) {
    return Invalid(field, ".lookahead: ", proto.lookahead(), ", expected at most ", kMaxTreeDepth);
  }
  if (proto.ahead_nodes() > kMaxTreeNodes) {
    return Invalid(field, ".ahead_nodes: ", proto.ahead_nodes(), ", expected at most ", kMaxTreeNodes);
  }
  if (proto.ahead_branching() > kMaxTreeNodes) {
    return Invalid(field, ".ahead_branching: ", proto.ahead_branching(), ", expected at most ",
                   kMaxTreeNodes);
  }
  return DraftBudget{.depth = proto.depth(),
                     .nodes = proto.nodes(),
                     .branching = proto.branching(),
                     .lookahead = proto.lookahead(),
                     .shape = ShapeFromProto(proto.shape()),
                     .ahead_nodes = proto.ahead_nodes(),
                     .ahead_branching = proto.ahead_branching()};
}

void BudgetToProto(const DraftBudget& budget, v1::DraftBudget* proto) {
  proto->set_depth(budget.depth);
  proto->set_nodes(budget.nodes);
  proto->set_branching(budget.branching);
  proto->set_lookahead(budget.lookahead);
  proto->set_shape(ShapeToProto(budget.shape));
  proto->set_ahead_nodes(budget.ahead_nodes);
  proto->set_ahead_branching(budget.ahead_branching);
}

FeatureType FeatureTypeFromProto(v1::FeatureType type) {
  return type == v1::FEATURE_TYPE_INT8 ? FeatureType::kInt8 : FeatureType::kBf16;
}

v1::FeatureType FeatureTypeToProto(FeatureType type) {
  return type == FeatureType::kInt8 ? v1::FEATURE_TYPE_INT8 : v1::FEATURE_TYPE_BFLOAT16;
}

absl::StatusOr<Features> FeaturesFromProto(absl::string_view field, v1::Features proto) {
  if (proto.type() < v1::FEATURE_TYPE_UNSPECIFIED || proto.type() > v1::FEATURE_TYPE_INT8) {
    return Invalid(field, ".type: ", static_cast<int>(proto.type()), ", expected BFLOAT16 or INT8");
  }
  if (proto.states().empty() || proto.states().size() > kMaxFeatureBytes) {
    return Invalid(field, ".states: ", proto.states().size(), " bytes, expected 1 to ", kMaxFeatureBytes);
  }
  return Features{.epoch = proto.epoch(),
                  .first_position = proto.first_position(),
                  .type = FeatureTypeFromProto(proto.type()),
                  .states = std::move(*proto.mutable_states())};
}

void FeaturesToProto(Features features, v1::Features* proto) {
  proto->set_epoch(features.epoch);
  proto->set_first_position(features.first_position);
  proto->set_type(FeatureTypeToProto(features.type));
  proto->set_states(std::move(features.states));
}

absl::StatusOr<FeatureNeeds> NeedsFromProto(const v1::FeatureNeeds& proto) {
  if (proto.layers_size() > static_cast<int>(kMaxFeatureLayers) ||
      (proto.layers().empty() && !proto.final_norm())) {
    return Invalid("opened.features: ", proto.layers_size(), " layers, expected at most ", kMaxFeatureLayers,
                   ", and at least one state");
  }
  for (int i = 1; i < proto.layers_size(); ++i) {
    if (proto.layers(i) > proto.layers(i - 1)) continue;
    return Invalid("opened.features.layers[", i, "]: ", proto.layers(i), " after ", proto.layers(i - 1),
                   ", expected ascending ones");
  }
  if (proto.type() < v1::FEATURE_TYPE_UNSPECIFIED || proto.type() > v1::FEATURE_TYPE_INT8) {
    return Invalid("opened.features.type: ", static_cast<int>(proto.type()), ", expected BFLOAT16 or INT8");
  }
  return FeatureNeeds{.layers = {proto.layers().begin(), proto.layers().end()},
                      .final_norm = proto.final_norm(),
                      .type = FeatureTypeFromProto(proto.type()),
                      .first_position = proto.first_position(),
                      .window = proto.window()};
}

void NeedsToProto(const FeatureNeeds& needs, v1::FeatureNeeds* proto) {
  proto->mutable_layers()->Add(needs.layers.begin(), needs.layers.end());
  proto->set_final_norm(needs.final_norm);
  proto->set_type(FeatureTypeToProto(needs.type));
  proto->set_first_position(needs.first_position);
  proto->set_window(needs.window);
}

absl::StatusOr<OpenSession> OpenFromProto(const v1::OpenSession& proto) {
  if (proto.draft_model().size() > kMaxModelName) {
    return Invalid("open.draft_model: ", proto.draft_model().size(), " bytes, expected at most ",
                   kMaxModelName);
  }
  if (proto.tokens().empty()) return Invalid("open.tokens: empty, expected at least the root");
  if (proto.prompt_length() > static_cast<uint32_t>(proto.tokens_size())) {
    return Invalid("open.prompt_length: ", proto.prompt_length(), ", expected at most the ",
                   proto.tokens_size(), " tokens");
  }
  OpenSession open;
  open.epoch = proto.epoch();
  open.draft_model = proto.draft_model();
  open.vocabulary_fingerprint = proto.vocabulary_fingerprint();
  open.commit_no = proto.commit_no();
  TANDEM_ASSIGN_OR_RETURN(open.tokens, TokensFromProto("open.tokens", proto.tokens()));
  open.prefix_hash = proto.prefix_hash();
  // The verifier has applied the model's defaults already.
  TANDEM_ASSIGN_OR_RETURN(open.sampling, DecodeSampling(proto.sampling(), GenerationDefaults()));
  TANDEM_ASSIGN_OR_RETURN(open.sampling.early_banned_tokens,
                          TokensFromProto("open.early_banned_tokens", proto.early_banned_tokens()));
  open.sampling.early_ban_end = proto.early_ban_end();
  open.prompt_length = proto.prompt_length();
  open.cache_salt = proto.cache_salt();
  TANDEM_ASSIGN_OR_RETURN(open.budget, BudgetFromProto("open.budget", proto.budget()));
  open.sampled_drafts = proto.sampled_drafts();
  open.predict_acceptance = proto.predict_acceptance();
  open.text_drafting = proto.text_drafting();
  if (proto.traceparent().size() <= kMaxTraceHeader) open.traceparent = proto.traceparent();
  if (proto.tracestate().size() <= kMaxTraceHeader) open.tracestate = proto.tracestate();
  open.request_id = CleanUtf8(proto.request_id(), kMaxRequestId);
  open.target_hidden_size = proto.target_hidden_size();
  open.target_layers = proto.target_layers();
  open.target_fingerprint = proto.target_fingerprint();
  if (proto.has_constraint() && proto.constraint().ByteSizeLong() <= kMaxOpenConstraintBytes) {
    open.constraint = std::make_shared<const std::string>(proto.constraint().SerializeAsString());
  }
  return open;
}

void OpenToProto(const OpenSession& open, v1::OpenSession* proto) {
  proto->set_epoch(open.epoch);
  proto->set_draft_model(open.draft_model);
  proto->set_vocabulary_fingerprint(open.vocabulary_fingerprint);
  proto->set_commit_no(open.commit_no);
  TokensToProto(open.tokens, proto->mutable_tokens());
  proto->set_prefix_hash(open.prefix_hash);
  *proto->mutable_sampling() = SamplingToProto(open.sampling);
  TokensToProto(open.sampling.early_banned_tokens, proto->mutable_early_banned_tokens());
  proto->set_early_ban_end(open.sampling.early_ban_end);
  proto->set_prompt_length(open.prompt_length);
  proto->set_cache_salt(open.cache_salt);
  BudgetToProto(open.budget, proto->mutable_budget());
  proto->set_sampled_drafts(open.sampled_drafts);
  proto->set_predict_acceptance(open.predict_acceptance);
  proto->set_text_drafting(open.text_drafting);
  proto->set_traceparent(open.traceparent);
  proto->set_tracestate(open.tracestate);
  proto->set_request_id(open.request_id);
  // Of an encoded message, always: whoever makes an Open has encoded it.
  if (open.constraint != nullptr) (void)proto->mutable_constraint()->ParseFromString(*open.constraint);
  proto->set_target_hidden_size(open.target_hidden_size);
  proto->set_target_layers(open.target_layers);
  proto->set_target_fingerprint(open.target_fingerprint);
}

absl::StatusOr<Commit> CommitFromProto(const v1::Commit& proto) {
  if (proto.tokens().empty()) return Invalid("commit.tokens: empty, expected at least the bonus token");
  if (proto.tokens_size() > static_cast<int>(kMaxTreeDepth) + 1) {
    return Invalid("commit.tokens: ", proto.tokens_size(), ", expected at most ", kMaxTreeDepth + 1);
  }
  if (proto.committed_len() <= static_cast<uint32_t>(proto.tokens_size())) {
    return Invalid("commit.committed_len: ", proto.committed_len(), ", expected more than the ",
                   proto.tokens_size(), " tokens of this commit");
  }
  Commit commit;
  commit.epoch = proto.epoch();
  commit.commit_no = proto.commit_no();
  TANDEM_ASSIGN_OR_RETURN(commit.tokens, TokensFromProto("commit.tokens", proto.tokens()));
  if (proto.has_new_root()) {
    if (proto.new_root() == 0) return Invalid("commit.new_root: 0, expected a node's id");
    commit.new_root = proto.new_root();
  }
  commit.committed_len = proto.committed_len();
  commit.prefix_hash = proto.prefix_hash();
  TANDEM_ASSIGN_OR_RETURN(commit.budget, BudgetFromProto("commit.budget", proto.budget()));
  if (proto.has_features()) {
    TANDEM_ASSIGN_OR_RETURN(commit.features, FeaturesFromProto("commit.features", proto.features()));
  }
  return commit;
}

void CommitToProto(Commit commit, v1::Commit* proto) {
  proto->set_epoch(commit.epoch);
  proto->set_commit_no(commit.commit_no);
  TokensToProto(commit.tokens, proto->mutable_tokens());
  if (commit.new_root.has_value()) proto->set_new_root(*commit.new_root);
  proto->set_committed_len(commit.committed_len);
  proto->set_prefix_hash(commit.prefix_hash);
  BudgetToProto(commit.budget, proto->mutable_budget());
  if (commit.features.has_value()) FeaturesToProto(*std::move(commit.features), proto->mutable_features());
}

absl::Status CheckGrow(const v1::Grow& proto) {
  const int count = proto.parents_size();
  if (proto.tokens_size() != count || proto.scores_size() != count) {
    return Invalid("grow: ", count, " parents, ", proto.tokens_size(), " tokens and ", proto.scores_size(),
                   " scores, expected as many of each");
  }
  if ((count == 0 && !proto.exhausted() && proto.predictions().empty()) ||
      count > static_cast<int>(kMaxGrowNodes)) {
    return Invalid("grow: ", count, " nodes, expected 1 to ", kMaxGrowNodes,
                   ", or none when exhausted or with predictions");
  }
  if (proto.predictions_size() > static_cast<int>(kMaxGrowNodes)) {
    return Invalid("grow.predictions: ", proto.predictions_size(), ", expected at most ", kMaxGrowNodes);
  }
  if (proto.first_id() == 0) return Invalid("grow.first_id: 0, expected at least 1: 0 is the root");
  if (!CheckedAdd(proto.first_id(), static_cast<uint32_t>(std::max(count, 1) - 1)).has_value()) {
    return Invalid("grow.first_id: ", proto.first_id(), " + ", count, " nodes, expected ids below 2^32");
  }
  for (int i = 0; i < count; ++i) {
    const uint32_t id = proto.first_id() + static_cast<uint32_t>(i);
    if (proto.parents(i) >= id) {
      return Invalid("grow.parents[", i, "]: ", proto.parents(i), ", expected an id below the node's own, ",
                     id);
    }
  }
  if (!std::isfinite(proto.step_seconds()) || proto.step_seconds() < 0.0f) {
    return Invalid("grow.step_seconds: ", proto.step_seconds(), ", expected a time of at least 0");
  }
  return absl::OkStatus();
}

// Sizes only, before anything is copied: the mirror judges the numbers.
absl::Status CheckDistributions(const v1::Grow& proto) {
  if (proto.distributions_size() > proto.parents_size()) {
    return Invalid("grow.distributions: ", proto.distributions_size(),
                   ", expected at most one for each of the ", proto.parents_size(), " nodes");
  }
  for (int i = 0; i < proto.distributions_size(); ++i) {
    const v1::DraftDistribution& distribution = proto.distributions(i);
    const int count = distribution.tokens_size();
    if (count == 0 || count > static_cast<int>(kMaxDraftSupport) ||
        distribution.probabilities_size() != count) {
      return Invalid("grow.distributions[", i, "]: ", count, " tokens and ",
                     distribution.probabilities_size(), " probabilities, expected as many of each, 1 to ",
                     kMaxDraftSupport);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Grow> GrowFromProto(const v1::Grow& proto) {
  TANDEM_RETURN_IF_ERROR(CheckGrow(proto));
  TANDEM_RETURN_IF_ERROR(CheckDistributions(proto));
  Grow grow;
  grow.epoch = proto.epoch();
  grow.seen_commit = proto.seen_commit();
  grow.prefix_hash = proto.prefix_hash();
  grow.first_id = proto.first_id();
  grow.parents.assign(proto.parents().begin(), proto.parents().end());
  TANDEM_ASSIGN_OR_RETURN(const TokenIds tokens, TokensFromProto("grow.tokens", proto.tokens()));
  grow.tokens.assign(tokens.begin(), tokens.end());
  grow.scores.assign(proto.scores().begin(), proto.scores().end());
  grow.exhausted = proto.exhausted();
  grow.step_seconds = proto.step_seconds();
  for (const v1::DraftDistribution& distribution : proto.distributions()) {
    DraftDistribution& read = grow.distributions.emplace_back();
    read.parent = distribution.parent();
    TANDEM_ASSIGN_OR_RETURN(read.tokens, TokensFromProto("grow.distributions.tokens", distribution.tokens()));
    read.probabilities.assign(distribution.probabilities().begin(), distribution.probabilities().end());
  }
  for (const v1::NodePrediction& prediction : proto.predictions()) {
    grow.predictions.push_back({.node = prediction.node(), .acceptance = prediction.acceptance()});
  }
  return grow;
}

void GrowToProto(const Grow& grow, v1::Grow* proto) {
  proto->set_epoch(grow.epoch);
  proto->set_seen_commit(grow.seen_commit);
  proto->set_prefix_hash(grow.prefix_hash);
  proto->set_first_id(grow.first_id);
  proto->mutable_parents()->Add(grow.parents.begin(), grow.parents.end());
  TokensToProto(grow.tokens, proto->mutable_tokens());
  proto->mutable_scores()->Add(grow.scores.begin(), grow.scores.end());
  proto->set_exhausted(grow.exhausted);
  proto->set_step_seconds(grow.step_seconds);
  for (const DraftDistribution& distribution : grow.distributions) {
    v1::DraftDistribution& written = *proto->add_distributions();
    written.set_parent(distribution.parent);
    TokensToProto(distribution.tokens, written.mutable_tokens());
    written.mutable_probabilities()->Add(distribution.probabilities.begin(),
                                         distribution.probabilities.end());
  }
  for (const NodePrediction& prediction : grow.predictions) {
    v1::NodePrediction& written = *proto->add_predictions();
    written.set_node(prediction.node);
    written.set_acceptance(prediction.acceptance);
  }
}

absl::StatusOr<SessionRefused> RefusedFromProto(const v1::SessionRefused& proto) {
  if (proto.code() < 1 || proto.code() > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return Invalid("refused.code: ", proto.code(), ", expected an error of google.rpc.Code, 1 to 16");
  }
  return SessionRefused{.epoch = proto.epoch(),
                        .status = absl::Status(static_cast<absl::StatusCode>(proto.code()),
                                               absl::string_view(proto.message()).substr(0, kMaxLogText))};
}

}  // namespace

absl::StatusOr<DraftRequest> DraftRequestFromProto(const v1::DraftRequest& proto) {
  DraftRequest request;
  request.session = proto.session();
  switch (proto.event_case()) {
    case v1::DraftRequest::kOpen: {
      TANDEM_ASSIGN_OR_RETURN(request.event, OpenFromProto(proto.open()));
      return request;
    }
    case v1::DraftRequest::kCommit: {
      TANDEM_ASSIGN_OR_RETURN(request.event, CommitFromProto(proto.commit()));
      return request;
    }
    case v1::DraftRequest::kClose:
      request.event = CloseSession();
      return request;
    case v1::DraftRequest::kLoadQuery:
      request.event = LoadQuery();
      return request;
    case v1::DraftRequest::kFeatures: {
      TANDEM_ASSIGN_OR_RETURN(request.event, FeaturesFromProto("features", proto.features()));
      return request;
    }
    case v1::DraftRequest::EVENT_NOT_SET:
      break;
  }
  return Invalid("event: none that is known, expected open, commit, close, load_query or features");
}

v1::DraftRequest DraftRequestToProto(DraftRequest request) {
  v1::DraftRequest proto;
  proto.set_session(request.session);
  if (const auto* open = std::get_if<OpenSession>(&request.event)) {
    OpenToProto(*open, proto.mutable_open());
  } else if (auto* commit = std::get_if<Commit>(&request.event)) {
    CommitToProto(std::move(*commit), proto.mutable_commit());
  } else if (std::holds_alternative<LoadQuery>(request.event)) {
    proto.mutable_load_query();
  } else if (auto* features = std::get_if<Features>(&request.event)) {
    FeaturesToProto(std::move(*features), proto.mutable_features());
  } else {
    proto.mutable_close();
  }
  return proto;
}

absl::StatusOr<DraftResponse> DraftResponseFromProto(const v1::DraftResponse& proto) {
  DraftResponse response;
  response.session = proto.session();
  if (proto.drafter_sessions() > 0) response.drafter_sessions = proto.drafter_sessions() - 1;
  switch (proto.event_case()) {
    case v1::DraftResponse::kOpened: {
      SessionOpened opened{.epoch = proto.opened().epoch(),
                           .context_length = proto.opened().context_length(),
                           .predicts_acceptance = proto.opened().predicts_acceptance()};
      if (proto.opened().has_features()) {
        TANDEM_ASSIGN_OR_RETURN(opened.features, NeedsFromProto(proto.opened().features()));
      }
      response.event = std::move(opened);
      return response;
    }
    case v1::DraftResponse::kGrow: {
      TANDEM_ASSIGN_OR_RETURN(response.event, GrowFromProto(proto.grow()));
      return response;
    }
    case v1::DraftResponse::kResyncNeeded:
      response.event = ResyncNeeded{.epoch = proto.resync_needed().epoch(),
                                    .reason = proto.resync_needed().reason().substr(0, kMaxLogText)};
      return response;
    case v1::DraftResponse::kRefused: {
      TANDEM_ASSIGN_OR_RETURN(response.event, RefusedFromProto(proto.refused()));
      return response;
    }
    case v1::DraftResponse::kLoadReport:
      response.event = LoadReport();
      return response;
    case v1::DraftResponse::kFeaturesUsed:
      response.event =
          FeaturesUsed{.epoch = proto.features_used().epoch(), .position = proto.features_used().position()};
      return response;
    case v1::DraftResponse::EVENT_NOT_SET:
      break;
  }
  return Invalid(
      "event: none that is known, expected opened, grow, resync_needed, refused, load_report or "
      "features_used");
}

v1::DraftResponse DraftResponseToProto(const DraftResponse& response) {
  v1::DraftResponse proto;
  proto.set_session(response.session);
  if (response.drafter_sessions.has_value()) {
    proto.set_drafter_sessions(std::min(*response.drafter_sessions, UINT32_MAX - 1) + 1);
  }
  if (const auto* opened = std::get_if<SessionOpened>(&response.event)) {
    proto.mutable_opened()->set_epoch(opened->epoch);
    proto.mutable_opened()->set_context_length(opened->context_length);
    proto.mutable_opened()->set_predicts_acceptance(opened->predicts_acceptance);
    if (opened->features.has_value())
      NeedsToProto(*opened->features, proto.mutable_opened()->mutable_features());
  } else if (const auto* grow = std::get_if<Grow>(&response.event)) {
    GrowToProto(*grow, proto.mutable_grow());
  } else if (const auto* resync = std::get_if<ResyncNeeded>(&response.event)) {
    proto.mutable_resync_needed()->set_epoch(resync->epoch);
    proto.mutable_resync_needed()->set_reason(resync->reason);
  } else if (const auto* refused = std::get_if<SessionRefused>(&response.event)) {
    proto.mutable_refused()->set_epoch(refused->epoch);
    proto.mutable_refused()->set_code(static_cast<int32_t>(refused->status.code()));
    proto.mutable_refused()->set_message(std::string(refused->status.message()));
  } else if (const auto* used = std::get_if<FeaturesUsed>(&response.event)) {
    proto.mutable_features_used()->set_epoch(used->epoch);
    proto.mutable_features_used()->set_position(used->position);
  } else {
    proto.mutable_load_report();
  }
  return proto;
}

}  // namespace tandem
