// The live page: what it tells of a generation, whatever verifiers say.

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "nlohmann/json.hpp"
#include "router/live/live_json.h"
#include "router/testing/letter_encoder.h"
#include "tandem/v1/routing.pb.h"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

// More than any line has, by live_json.h's bounds.
constexpr size_t kMostLineBytes = size_t{1} << 20;

void RequireLine(const std::string& line) {
  Require(!absl::StrContains(line, "\n") && !absl::StrContains(line, "\r"), "one line");
  Require(nlohmann::json::accept(line), "valid JSON");
  Require(line.size() <= kMostLineBytes, "a line of bounded size");
}

bool RunLiveJson(absl::string_view input) {
  InputReader reader(input);
  static const router::ServedModel letters = router::testing::LetterModel();
  const uint8_t kind = reader.Below(2);
  const absl::string_view bytes = reader.Rest();
  const int size = static_cast<int>(bytes.size());
  RequireLine(router::NoteJson(1, bytes));
  RequireLine(router::EndJson(1, absl::UnknownError(bytes), {}));
  if (kind == 0) {
    v1::GenerateResponse event;
    if (!event.ParseFromArray(bytes.data(), size)) return false;
    RequireLine(router::StartedJson(1, event.started()));
    RequireLine(router::RoundJson(1, 2, event.chunk(), *letters.encoder));
    RequireLine(router::EndJson(1, absl::OkStatus(), event.finished()));
    return event.has_chunk() || event.has_finished();
  }
  router::LiveStart start{.request_id = std::string(bytes.substr(0, 40)),
                          .tenant = std::string(bytes.substr(0, 20)),
                          .has_prompt = true,
                          .prompt = std::string(bytes)};
  const bool parsed = start.explanation.ParseFromArray(bytes.data(), size);
  RequireLine(router::StartJson(1, start));
  return parsed;
}

std::vector<std::string> LiveJsonSeeds() {
  v1::GenerateResponse event;
  Require(google::protobuf::TextFormat::ParseFromString(
              R"pb(
                chunk {
                  offset: 5
                  tokens: [ 97, 98, 300 ]
                  text: "ab\n"
                  kind: ROUND_KIND_HIT
                  window: 3
                  details { source: TOKEN_SOURCE_ACCEPTED text_bytes: 1 draft_source: DRAFT_SOURCE_DRAFTER }
                  details { source: TOKEN_SOURCE_TARGET text_bytes: 1 }
                  shares {
                    source: DRAFT_SOURCE_DRAFTER
                    drafter: "d"
                    draft_tokens: 4
                    accepted_tokens: 1
                    wait_seconds: 0.5
                  }
                  round {
                    depth: 2
                    nodes: 3
                    verify_seconds: 0.01
                    growth { received: 1.5 nodes: 3 step_seconds: 0.1 }
                    tree { parent: 0 token: 97 score: 0.75 accepted: true source: DRAFT_SOURCE_DRAFTER }
                    tree { parent: 1 token: 98 score: 0.5 }
                    masked_nodes: 1
                    masked { parent: 1 token: 99 score: 0.1 }
                  }
                })pb",
              &event),
          "a chunk");
  v1::GenerateResponse finished;
  Require(google::protobuf::TextFormat::ParseFromString(
              R"pb(finished {
                     reason: FINISH_REASON_MAX_TOKENS
                     text: "x"
                     usage { prompt_tokens: 3 completion_tokens: 5 }
                     speculation {
                       drafter: "d"
                       rounds: 4
                       accepted_tokens: 2
                       by_source { source: DRAFT_SOURCE_LOCAL }
                     }
                   })pb",
              &finished),
          "an end");
  v1::ChoiceExplanation choice;
  Require(google::protobuf::TextFormat::ParseFromString(
              R"pb(model: "m"
                   prompt_tokens: 5
                   features: [ 0.5, nan ]
                   verify_seconds: 0.1
                   candidates {
                     drafter: "d"
                     acceptance { mean: 0.5 low: 0.1 high: inf }
                     window: 3
                     tokens_per_second: 99
                   }
                   drafter: "d"
                   reason: "fastest")pb",
              &choice),
          "a choice");
  return {std::string(1, '\0') + event.SerializeAsString(),
          std::string(1, '\0') + finished.SerializeAsString(), "\1" + choice.SerializeAsString()};
}

const Registration kLiveJson(
    {.name = "live_json", .run = RunLiveJson, .seeds = LiveJsonSeeds, .spoilt = 15'000});

}  // namespace
}  // namespace tandem::fuzz
