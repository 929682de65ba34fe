#include "router/live/live_json.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "nlohmann/json.hpp"
#include "router/drafters/source_kind.h"

namespace tandem::router {
namespace {

using Json = nlohmann::ordered_json;

std::string Line(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// The first `limit` bytes, less what would be half a character.
std::string Head(absl::string_view text, size_t limit) {
  if (text.size() > limit) {
    while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xc0) == 0x80) --limit;
    text = text.substr(0, limit);
  }
  return std::string(text.data(), text.size());
}

std::string Tail(absl::string_view text, size_t limit) {
  if (text.size() > limit) {
    size_t begin = text.size() - limit;
    while (begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) ++begin;
    text = text.substr(begin);
  }
  return std::string(text.data(), text.size());
}

const char* KindName(v1::RoundKind kind) {
  switch (kind) {
    case v1::ROUND_KIND_HIT:
      return "hit";
    case v1::ROUND_KIND_MISS:
      return "miss";
    default:
      return "undrafted";
  }
}

const char* EndName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP_TOKEN:
      return "stop token";
    case v1::FINISH_REASON_STOP_STRING:
      return "stop string";
    case v1::FINISH_REASON_MAX_TOKENS:
      return "max tokens";
    default:
      return "";
  }
}

const char* PolicyName(v1::DrafterPolicy policy) {
  switch (policy) {
    case v1::DRAFTER_POLICY_AUTO:
      return "auto";
    case v1::DRAFTER_POLICY_PINNED:
      return "pinned";
    case v1::DRAFTER_POLICY_CANARY:
      return "canary";
    case v1::DRAFTER_POLICY_OFF:
      return "off";
    default:
      return "";
  }
}

Json CandidateOf(const v1::CandidateExplanation& candidate, bool chosen) {
  Json json = {{"drafter", Head(candidate.drafter(), kMaxLiveTokenText)}, {"chosen", chosen}};
  if (candidate.has_acceptance()) {
    json["acceptance"] = candidate.acceptance().mean();
    json["low"] = candidate.acceptance().low();
    json["high"] = candidate.acceptance().high();
    json["samples"] = candidate.samples();
    json["measured"] = candidate.costs_measured();
  }
  json["window"] = candidate.window();
  json["tokens_per_second"] = candidate.tokens_per_second();
  return json;
}

// Who guessed: 0: a drafter, 1: the verifier by itself, 2: the constraint, which leaves no choice.
int SourceNumber(v1::DraftSource source) {
  return static_cast<int>(KindOf(source));
}

// The chunk's text, token by token: [{"t": text, "a": 1 if accepted, "l": who guessed it}].
// Returns whether all of it is there.
bool AddTokens(const v1::GenerationChunk& chunk, Json& tokens) {
  const absl::string_view text = chunk.text();
  const int count = std::min(chunk.tokens_size(), kMaxLiveTokens);
  size_t begin = 0;
  for (int i = 0; i < count; ++i) {
    const bool last = i + 1 == chunk.tokens_size();
    const bool has_detail = i < chunk.details_size();
    const size_t left = text.size() - begin;
    // The last token takes what details leave, so that nothing of the text is lost.
    const size_t bytes = last ? left : std::min<size_t>(has_detail ? chunk.details(i).text_bytes() : 0, left);
    const size_t room = kMaxLiveText - std::min(begin, kMaxLiveText);
    const bool accepted = has_detail && chunk.details(i).source() == v1::TOKEN_SOURCE_ACCEPTED;
    tokens.push_back({{"t", Head(text.substr(begin, bytes), std::min(bytes, room))},
                      {"a", accepted ? 1 : 0},
                      {"l", has_detail ? SourceNumber(chunk.details(i).draft_source()) : 0}});
    begin += bytes;
  }
  return count == chunk.tokens_size() && text.size() <= kMaxLiveText;
}

Json NodeOf(const v1::TreeNodeTrace& node, const PromptEncoder& encoder) {
  return {{"p", node.parent()},
          {"t", Head(encoder.TokenBytes(static_cast<TokenId>(node.token())), kMaxLiveTokenText)},
          {"s", node.score()},
          {"a", node.accepted() ? 1 : 0},
          {"l", SourceNumber(node.source())}};
}

// What the constraint forbids, below nodes of the tree, of which `shown` are told.
Json MaskedOf(const v1::RoundTrace& round, size_t shown, const PromptEncoder& encoder) {
  Json masked = Json::array();
  for (int i = 0; i < std::min(round.masked_size(), kMaxLiveNodes); ++i) {
    if (round.masked(i).parent() <= shown) masked.push_back(NodeOf(round.masked(i), encoder));
  }
  return masked;
}

// Empty, with a word why, when it is no tree.
Json TreeOf(const v1::RoundTrace& round, const PromptEncoder& encoder, std::string* problem) {
  Json tree = Json::array();
  const int count = std::min(round.tree_size(), kMaxLiveNodes);
  for (int i = 0; i < count; ++i) {
    const v1::TreeNodeTrace& node = round.tree(i);
    // Parents stand before their children: what is cut off takes nobody's parent away.
    if (node.parent() > static_cast<uint32_t>(i)) {
      *problem = "the verifier sent a tree with a node before its parent";
      return Json::array();
    }
    tree.push_back(NodeOf(node, encoder));
  }
  return tree;
}

// What a round verified, by who guessed: {"nodes": [drafters', the verifier's, the constraint's, the
// prediction's], "accepted": [...]}.
Json SourcesOf(const v1::GenerationChunk& chunk) {
  std::array<uint64_t, kNumSourceKinds> nodes = {};
  std::array<uint64_t, kNumSourceKinds> accepted = {};
  for (const v1::RoundShare& share : chunk.shares()) {
    const auto source = static_cast<size_t>(SourceNumber(share.source()));
    nodes[source] += share.draft_tokens();
    accepted[source] += share.accepted_tokens();
  }
  return {{"nodes", nodes}, {"accepted", accepted}};
}

Json RowOf(const std::string& name, const TenantTally* tally) {
  static const TenantTally* const none = new TenantTally();
  if (tally == nullptr) tally = none;
  return {{"tenant", name},
          {"policy", ""},
          {"drafter", Head(tally->drafter, kMaxLiveTokenText)},
          {"running", tally->running},
          {"finished", tally->finished},
          {"failed", tally->failed},
          {"tokens", tally->tokens},
          {"drafted_rounds", tally->drafted_rounds},
          {"draft_tokens", tally->draft_tokens},
          {"accepted_tokens", tally->accepted_tokens}};
}

}  // namespace

std::string StartJson(uint64_t generation, const LiveStart& start) {
  const v1::ChoiceExplanation& explanation = start.explanation;
  Json candidates = Json::array();
  for (int i = 0; i < std::min(explanation.candidates_size(), kMaxLiveCandidates); ++i) {
    const v1::CandidateExplanation& candidate = explanation.candidates(i);
    candidates.push_back(CandidateOf(candidate, candidate.drafter() == start.drafter));
  }
  Json json = {{"g", generation},
               {"request_id", Head(start.request_id, 128)},
               {"tenant", start.tenant},
               {"model", start.model},
               {"drafter", start.drafter},
               {"reason", start.reason},
               {"window_policy", start.window_policy},
               {"prompt_tokens", explanation.prompt_tokens()},
               {"nats_per_token", explanation.nats_per_token()},
               {"features_fitted", explanation.features_fitted()},
               {"candidates", std::move(candidates)},
               {"cut", explanation.candidates_size() > kMaxLiveCandidates}};
  if (start.has_prompt) {
    json["prompt"] = Tail(start.prompt, kMaxLiveText);
    json["prompt_cut"] = start.prompt.size() > kMaxLiveText;
  }
  return Line(json);
}

std::string StartedJson(uint64_t generation, const v1::GenerationStarted& started) {
  return Line({{"g", generation}, {"max_tokens", started.max_tokens()}});
}

std::string RoundJson(uint64_t generation, uint64_t round, const v1::GenerationChunk& chunk,
                      const PromptEncoder& encoder) {
  Json tokens = Json::array();
  const bool whole = AddTokens(chunk, tokens);
  Json json = {{"g", generation},
               {"n", round},
               {"offset", chunk.offset()},
               {"tokens", std::move(tokens)},
               {"kind", KindName(chunk.kind())},
               {"window", chunk.window()},
               {"nodes", chunk.draft_tokens()},
               {"sources", SourcesOf(chunk)}};
  bool cut = !whole;
  if (chunk.has_round()) {
    std::string problem;
    // When its tokens were there, in seconds by the verifier's clock.
    json["at"] = chunk.round().verify_start() + chunk.round().verify_seconds();
    json["wait_ms"] = 1e3 * chunk.round().wait_seconds();
    json["verify_ms"] = 1e3 * chunk.round().verify_seconds();
    json["tree"] = TreeOf(chunk.round(), encoder, &problem);
    if (chunk.round().masked_nodes() > 0) {
      json["masked"] = chunk.round().masked_nodes();
      json["masked_tree"] = MaskedOf(chunk.round(), json["tree"].size(), encoder);
    }
    if (!problem.empty()) json["problem"] = problem;
    cut = cut || chunk.round().tree_size() > kMaxLiveNodes;
  }
  json["cut"] = cut;
  return Line(json);
}

std::string NoteJson(uint64_t generation, absl::string_view note) {
  return Line({{"g", generation}, {"note", Head(note, kMaxLiveMessage)}});
}

std::string EndJson(uint64_t generation, const absl::Status& status, const v1::GenerationFinished& finished) {
  const v1::SpeculationStats& stats = finished.speculation();
  return Line({{"g", generation},
               {"code", absl::StatusCodeToString(status.code())},
               {"message",
                Head(absl::string_view(status.message().data(), status.message().size()), kMaxLiveMessage)},
               {"reason", EndName(finished.reason())},
               {"text", Head(finished.text(), kMaxLiveText)},
               {"tokens", finished.usage().completion_tokens()},
               {"cached_prompt_tokens", finished.usage().cached_prompt_tokens()},
               {"drafter", Head(stats.drafter(), kMaxLiveTokenText)},
               {"drafter_lost", Head(stats.drafter_lost(), kMaxLiveMessage)},
               {"cut", finished.text().size() > kMaxLiveText}});
}

std::string TenantsJson(const RoutingTable& table, const std::map<std::string, TenantTally>& tallies) {
  Json rows = Json::array();
  std::set<absl::string_view> known;
  size_t num_tenants = table.tenants.size();
  for (const Tenant& tenant : table.tenants) {
    known.insert(tenant.name);
    if (rows.size() >= kMaxLiveTenants) continue;
    const auto tally = tallies.find(tenant.name);
    Json row = RowOf(tenant.name, tally == tallies.end() ? nullptr : &tally->second);
    row["policy"] = PolicyName(tenant.policy);
    if (row["policy"] == "" && tenant.drafter.has_value()) row["policy"] = "pinned";
    rows.push_back(std::move(row));
  }
  for (const auto& [name, tally] : tallies) {
    if (known.contains(name)) continue;
    ++num_tenants;
    if (rows.size() < kMaxLiveTenants) rows.push_back(RowOf(name, &tally));
  }
  return Line({{"more", num_tenants - rows.size()}, {"tenants", std::move(rows)}});
}

std::string HelloJson(const LiveFeed::Options& options, const std::string& instance) {
  return Line({{"instance", instance}, {"all", options.all_requests}, {"prompts", options.prompts}});
}

std::string GapJson(uint64_t missed) {
  return Line({{"missed", missed}});
}

}  // namespace tandem::router
