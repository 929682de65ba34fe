// Whatever a verifier sends, through the wire to the drafter's core: another verifier's sessions are drafted
// for as before, and nothing is left of a link that is closed.

#include "common/rpc/draft_wire.h"
#include "drafter/rpc/score_wire.h"
#include "drafter/testing/draft_test_peer.h"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

using testing_peer::Drafter;
using testing_peer::Peer;

constexpr LinkId kHostileLink = 99;
constexpr int kMostRequests = 60;

class RequestedWorld {
 public:
  // Whether the hostile link's sessions were drafted for.
  bool Run(absl::string_view input) {
    InputReader reader(input);
    honest_.Open(testing_peer::Prompt(6), {.depth = 3, .nodes = 8, .branching = 2, .lookahead = 1});
    for (int i = 0; i < kMostRequests && !reader.empty(); ++i) {
      Happen(reader);
      const absl::Status blocks = drafter_.core.CheckBlocks();
      Require(blocks.ok(), blocks.message());
    }
    Require(drafter_.RunDry() <= 10'000, "an end of the work");
    Collect();
    honest_.Deliver();
    drafter_.core.OnLinkClosed(kHostileLink);
    drafter_.core.CancelScores(absl::CancelledError("the end"));
    drafter_.core.OnLinkClosed(testing_peer::kLink);
    Require(drafter_.core.stats().num_sessions == 0 && drafter_.core.stats().kv_tokens_used == 0,
            "nothing left");
    return drafted_;
  }

 private:
  // What is said to either side can be read there.
  void Collect() {
    std::vector<std::pair<LinkId, DraftResponse>> responses = drafter_.core.TakeResponses();
    for (const auto& [link, response] : responses) {
      const auto read = DraftResponseFromProto(DraftResponseToProto(response));
      Require(read.ok(), read.status().message());
      drafted_ |= link == kHostileLink && std::holds_alternative<Grow>(response.event);
    }
    honest_.Collect(responses);
    drafter_.core.TakeScores();
  }

  DraftBudget ReadBudget(InputReader& reader) {
    return {.depth = reader.Below(130),
            .nodes = static_cast<uint32_t>(reader.Below(40)),
            .branching = static_cast<uint32_t>(reader.Below(8)),
            .lookahead = static_cast<uint32_t>(reader.Below(8)),
            .shape = static_cast<TreeShape>(reader.Below(3)),
            .ahead_nodes = static_cast<uint32_t>(reader.Below(20)),
            .ahead_branching = static_cast<uint32_t>(reader.Below(4))};
  }

  struct Known {
    uint32_t epoch = 0;
    uint32_t commit_no = 0;
    TokenIds tokens;
  };

  void SendOpen(SessionId session, InputReader& reader) {
    Known& known = known_[session];
    ++known.epoch;
    known.tokens = testing_peer::Prompt(1 + reader.Below(40), reader.Below(60));
    const uint8_t flags = reader.Byte();
    OpenSession open{.epoch = known.epoch,
                     .draft_model = (flags & 1) != 0   ? "draft"
                                    : (flags & 2) != 0 ? "plain"
                                                       : "none",
                     .vocabulary_fingerprint = testing_peer::kFingerprint,
                     .commit_no = known.commit_no,
                     .tokens = known.tokens,
                     .prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, known.tokens),
                     .sampling = {.temperature = static_cast<float>(reader.Below(3)) / 2},
                     .prompt_length = static_cast<uint32_t>(known.tokens.size()),
                     .cache_salt = static_cast<uint64_t>(flags >> 6),
                     .budget = ReadBudget(reader),
                     .sampled_drafts = (flags & 4) != 0,
                     .predict_acceptance = (flags & 8) != 0};
    if ((flags & 16) != 0) open.prompt_length = reader.Word();
    if ((flags & 32) != 0) open.constraint = std::make_shared<const std::string>("fake");
    Send({session, std::move(open)});
  }

  void SendCommit(SessionId session, InputReader& reader) {
    Known& known = known_[session];
    TokenIds tokens;
    for (int count = 1 + reader.Below(4); count > 0; --count) tokens.push_back(reader.Below(64));
    known.tokens.insert(known.tokens.end(), tokens.begin(), tokens.end());
    Commit commit{.epoch = known.epoch,
                  .commit_no = ++known.commit_no,
                  .tokens = std::move(tokens),
                  .committed_len = static_cast<uint32_t>(known.tokens.size()),
                  .prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, known.tokens),
                  .budget = ReadBudget(reader)};
    const uint8_t flags = reader.Byte();
    if ((flags & 1) != 0) commit.new_root = reader.Byte();
    if ((flags & 2) != 0) commit.committed_len = reader.Word();
    if ((flags & 4) != 0) commit.prefix_hash ^= reader.Byte();
    if ((flags & 8) != 0) commit.epoch += static_cast<uint32_t>(static_cast<int8_t>(reader.Byte()));
    if ((flags & 16) != 0) commit.commit_no = reader.Word();
    if ((flags & 32) != 0) commit.tokens[0] = static_cast<TokenId>(reader.Word());
    if ((flags & 64) != 0) commit.tokens.clear();
    Send({session, std::move(commit)});
  }

  // As a message of the wire, or the refusal that the service would give.
  void Send(DraftRequest request) { SendProto(DraftRequestToProto(std::move(request))); }
  void SendProto(const v1::DraftRequest& proto) {
    const absl::StatusOr<DraftRequest> request = DraftRequestFromProto(proto);
    if (!request.ok()) return drafter_.core.Reject(kHostileLink, proto.session(), 1, request.status());
    drafter_.core.OnRequest(kHostileLink, *request);
  }

  void SendScore(absl::string_view bytes) {
    v1::ScoreRequest proto;
    if (!proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
    absl::StatusOr<ScoreRequest> request = ScoreRequestFromProto(proto);
    if (request.ok())
      drafter_.core.OnScore(++num_scores_, *std::move(request), drafter_.clock.Now() + absl::Seconds(1));
  }

  void CommitHonest(InputReader& reader) {
    TokenIds tokens;
    NodeId at = 0;
    for (int steps = reader.Below(4); steps > 0; --steps) {
      for (const TreeNode& node : honest_.tree().nodes()) {
        if (node.parent != at) continue;
        tokens.push_back(node.token);
        at = node.id;
        break;
      }
    }
    tokens.push_back(reader.Below(64));
    if (!honest_.refusal().has_value()) honest_.CommitTokens(tokens);
  }

  void Happen(InputReader& reader) {
    const uint8_t what = reader.Below(13);
    const SessionId session = reader.Below(4);
    switch (what) {
      case 0:
      case 1:
        drafter_.core.Step();
        break;
      case 2:
      case 3:
        SendOpen(session, reader);
        break;
      case 4:
      case 5:
        SendCommit(session, reader);
        break;
      case 6: {
        v1::DraftRequest proto;
        const absl::string_view bytes = reader.Bytes();
        if (proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) SendProto(proto);
        break;
      }
      case 7:
        Send({session, CloseSession{}});
        break;
      case 8:
        Send({session, Features{.epoch = known_[session].epoch,
                                .first_position = reader.Word(),
                                .states = std::string(reader.Bytes())}});
        break;
      case 9:
        SendScore(reader.Bytes());
        break;
      case 10:
        CommitHonest(reader);
        break;
      case 11:
        Collect();
        honest_.Deliver(reader.Below(5));
        break;
      case 12:
        if (reader.Below(4) == 0) drafter_.core.OnLinkClosed(kHostileLink);
        drafter_.clock.Advance(absl::Milliseconds(reader.Byte()));
        break;
    }
  }

  Drafter drafter_{{}, {.max_context = 128, .num_blocks = 24}, true, "ngram:min=1"};
  Peer honest_{&drafter_, 1};
  std::map<SessionId, Known> known_;
  ScoreId num_scores_ = 0;
  bool drafted_ = false;
};

bool RunDraftRequests(absl::string_view input) {
  return RequestedWorld().Run(input);
}

std::vector<std::string> DraftRequestsSeeds() {
  const std::string open("\2\1\10\3\1\0\4\12\1\2\1\0\0\0", 14), plain("\2\2\24\5\2\2\6\20\2\2\2\1\3\1", 14);
  const std::string step("\0\0\0\0\0\0", 6), commit("\4\1\1\5\6\4\12\1\2\1\0\0\0\0", 14),
      odd("\4\1\0\7\4\12\1\2\1\0\0\0\13\3\200", 15);
  const std::string collect("\13\0\4", 3), honest("\12\0\2\7", 4), close("\7\1", 2);
  v1::ScoreRequest score;
  score.set_draft_model("plain");
  score.set_vocabulary_fingerprint(testing_peer::kFingerprint);
  for (uint32_t token : {1u, 2u, 3u, 4u, 5u}) score.add_tokens(token);
  score.set_prompt_length(2);
  const std::string scored = std::string("\11\0", 2) + WithLength(score.SerializeAsString());
  const std::string wire =
      std::string("\6\0", 2) +
      WithLength(DraftRequestToProto({.session = 1, .event = LoadQuery{}}).SerializeAsString());
  return {open + step + step + commit + step + collect,
          open + step + odd + step + collect + commit + honest + collect + step,
          plain + step + step + scored + step + wire + close + step + collect,
          open + plain + step + honest + step + collect + honest + step + commit + step + collect};
}

const Registration kDraftRequests(
    {.name = "draft_requests", .run = RunDraftRequests, .seeds = DraftRequestsSeeds, .spoilt = 1500});

}  // namespace
}  // namespace tandem::fuzz
