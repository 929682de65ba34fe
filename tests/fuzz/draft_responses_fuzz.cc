// Whatever drafters send, through the wire, the mirror, the session and the scheduler: outputs stay what they
// are (DESIGN laws 2 and 3), every request ends once, and no block is lost.

#include "common/rpc/draft_wire.h"
#include "tests/fuzz/fuzz_target.h"
#include "verifier/testing/scheduler_test_fixture.h"

namespace tandem::fuzz {
namespace {

constexpr SessionId kMostSessions = 4;
constexpr int kMostResponses = 80;

// Of sessions 1, 2, ...: greedy, drawn, and with a stop string.
const std::vector<Ask>& Asks() {
  static const auto* const asks = new std::vector<Ask>{
      {.drafted = true},
      {.prompt = {7, 8, 9},
       .sampling = {.temperature = 0.8f, .seed = 5},
       .rules = {.max_tokens = 12},
       .drafted = true},
      {.prompt = {1, 2, 3, 4, 5, 6}, .rules = {.stop = {"e"}, .max_tokens = 15}, .drafted = true},
      {.prompt = {30},
       .sampling = {.temperature = 1.2f, .seed = 9},
       .rules = {.max_tokens = 10},
       .drafted = true}};
  return *asks;
}
const Ask& AskOf(SessionId id) {
  return Asks()[(id - 1) % Asks().size()];
}

class DraftedWorld final : public SchedulerTest {
 public:
  // Whether a drafter's candidates were verified.
  bool Run(absl::string_view input) {
    InputReader reader(input);
    Make({.window_policy = reader.Below(2) == 0 ? "fixed" : "goodput",
          .max_draft_wait = absl::Milliseconds(1)},
         {.num_blocks = 32});
    scheduler_->OnLinkUp(kLink);
    StartNext();
    scheduler_->Step();
    for (int i = 0; i < kMostResponses && !reader.empty(); ++i) {
      Happen(reader);
      const absl::Status blocks = scheduler_->CheckBlocks();
      Require(blocks.ok(), blocks.message());
    }
    RunToTheEnd();
    bool verified = false;
    for (SessionId id = 1; id < next_session_; ++id) {
      if (!cancelled_.contains(id)) ExpectReference(id, AskOf(id));
      verified |= records_[id].summary.draft_tokens > 0;
    }
    TearDown();
    return verified;
  }

 private:
  void TestBody() override {}

  void StartNext() {
    if (next_session_ > kMostSessions) return;
    const absl::Status status = Submit(next_session_, AskOf(next_session_));
    Require(status.ok(), status.message());
    ++next_session_;
  }

  // What the session comes to, whatever drafts for it.
  const TokenIds& OutputOf(SessionId id) const {
    static auto* const outputs = new std::map<SessionId, TokenIds>();
    const auto [found, is_new] = outputs->try_emplace((id - 1) % Asks().size());
    if (is_new) found->second = Reference(AskOf(id)).tokens;
    return found->second;
  }

  void Respond(DraftResponse response) { scheduler_->OnDraftResponse(kLink, response); }

  // What the session's drafter would send if it were honest, then changed.
  void SendChanged(InputReader& reader) {
    const SessionId id = 1 + reader.Below(static_cast<int>(kMostSessions));
    if (!drafts_.contains(id)) return;
    TokenIds tokens;
    for (int count = 1 + reader.Below(5); count > 0; --count) tokens.push_back(reader.Below(kVocabSize));
    Grow grow = Chain(id, tokens, /*exhausted=*/reader.Below(2) == 0);
    for (int changes = reader.Below(4); changes > 0; --changes) {
      const size_t at = reader.Below(static_cast<int>(tokens.size()));
      switch (reader.Below(10)) {
        case 0:
          grow.epoch = reader.Word();
          break;
        case 1:
          grow.seen_commit += static_cast<uint32_t>(static_cast<int8_t>(reader.Byte()));
          break;
        case 2:
          grow.prefix_hash ^= reader.Byte();
          break;
        case 3:
          grow.first_id += static_cast<uint32_t>(static_cast<int8_t>(reader.Byte()));
          break;
        case 4:
          grow.parents[at] = reader.Word();
          break;
        case 5:
          grow.tokens[at] = static_cast<TokenId>(reader.Word());
          break;
        case 6: {
          const uint32_t bits = reader.Word();
          std::memcpy(&grow.scores[at], &bits, sizeof(bits));
          break;
        }
        case 7:
          grow.predictions.push_back({.node = grow.first_id + reader.Byte() - 3,
                                      .acceptance = static_cast<float>(reader.Byte()) / 200});
          break;
        case 8:
          grow.distributions.push_back(
              {.parent = reader.Byte(), .tokens = {reader.Byte(), 1}, .probabilities = {0.5f, 0.5f}});
          break;
        case 9:
          grow.step_seconds = static_cast<float>(reader.Byte()) - 3;
          break;
      }
    }
    Respond({.session = id, .event = std::move(grow)});
  }

  void SendWire(absl::string_view bytes) {
    v1::DraftResponse proto;
    if (!proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
      return scheduler_->OnMalformedResponse(kLink, "no message");
    }
    absl::StatusOr<DraftResponse> response = DraftResponseFromProto(proto);
    if (!response.ok()) return scheduler_->OnMalformedResponse(kLink, response.status().message());
    Respond(*std::move(response));
  }

  void Happen(InputReader& reader) {
    const uint8_t what = reader.Below(16);
    const SessionId id = 1 + reader.Below(static_cast<int>(kMostSessions));
    const uint32_t epoch = drafts_.contains(id) ? drafts_.at(id).epoch : reader.Byte();
    switch (what) {
      case 0:
      case 1:
        scheduler_->Step();
        break;
      case 2:
        AnswerOpens();
        break;
      case 3:
      case 4: {
        const uint32_t right = reader.Below(6), wrong = reader.Below(3);
        if (id < next_session_) DraftOutput(id, AskOf(id).prompt, OutputOf(id), right, wrong);
        break;
      }
      case 5:
      case 6:
        SendChanged(reader);
        break;
      case 7:
        SendWire(reader.Bytes());
        break;
      case 8: {
        SessionOpened opened{
            .epoch = epoch, .context_length = reader.Word(), .predicts_acceptance = reader.Below(2) == 0};
        if (reader.Below(2) == 0) {
          opened.features =
              FeatureNeeds{.layers = {reader.Below(8), reader.Below(8)},
                           .final_norm = reader.Below(2) == 0,
                           .type = reader.Below(2) == 0 ? FeatureType::kBf16 : FeatureType::kInt8,
                           .first_position = reader.Byte(),
                           .window = reader.Byte()};
        }
        Respond({.session = id, .event = std::move(opened)});
        break;
      }
      case 9:
        Respond({.session = id, .event = FeaturesUsed{.epoch = epoch, .position = reader.Word()}});
        break;
      case 10:
        Respond(
            {.session = id, .event = ResyncNeeded{.epoch = epoch, .reason = std::string(reader.Bytes())}});
        break;
      case 11:
        Respond({.session = id,
                 .event = SessionRefused{
                     .epoch = epoch,
                     .status = absl::Status(static_cast<absl::StatusCode>(1 + reader.Below(16)), "no")}});
        break;
      case 12:
        clock_.Advance(absl::Milliseconds(reader.Byte()));
        break;
      case 13:
        if (reader.Below(2) == 0) {
          scheduler_->OnLinkDown(kLink, absl::UnavailableError("gone"));
        } else {
          scheduler_->OnLinkUp(kLink);
        }
        break;
      case 14:
        StartNext();
        break;
      case 15:
        if (id < next_session_ && records_[id].ends.empty()) {
          cancelled_.insert(id);
          scheduler_->Cancel(id, absl::CancelledError("the client is gone"));
        }
        break;
    }
  }

  SessionId next_session_ = 1;
  std::set<SessionId> cancelled_;
};

bool RunDraftResponses(absl::string_view input) {
  return DraftedWorld().Run(input);
}

std::vector<std::string> DraftResponsesSeeds() {
  v1::DraftResponse proto =
      DraftResponseToProto({.session = 1, .event = ResyncNeeded{.epoch = 1, .reason = "lost"}});
  const std::string wire = std::string("\7\0\1", 3) + WithLength(proto.SerializeAsString());
  const std::string open("\2\0\1", 3), step("\0\0\1\0\0\1", 6), right("\3\0\1\5\1", 5), other("\16\0\1", 3);
  const std::string changed("\5\0\0\3\1\2\3\4\0\1\1\0\2\1\5\1\1", 17);
  const std::string features("\10\0\144\0\0\0\0\0\1\2\0\0\0\4", 14);
  const std::string turn = open + right + step;
  std::vector<std::string> seeds;
  for (const char policy : {'\0', '\1'}) {
    const std::string begin(1, policy);
    seeds.push_back(begin + turn + turn + right + step + right + step);
    seeds.push_back(begin + other + step + turn + changed + step + turn + wire + step + turn);
    seeds.push_back(begin + features + right + step + right + std::string("\11\0\3\0\0\0", 6) + step + right +
                    step);
    seeds.push_back(begin + turn + std::string("\15\0\1\0\15\0\1\1", 8) + turn + std::string("\13\0\1\7", 4) +
                    step);
    seeds.push_back(begin + turn + changed + changed + changed + step + other + turn);
  }
  return seeds;
}

const Registration kDraftResponses(
    {.name = "draft_responses", .run = RunDraftResponses, .seeds = DraftResponsesSeeds, .spoilt = 1500});

}  // namespace
}  // namespace tandem::fuzz
