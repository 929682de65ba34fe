// Messages of the draft protocol, both ways, between the wire and protocol logic.

#include "absl/strings/str_cat.h"
#include "common/rpc/draft_wire.h"
#include "drafter/rpc/score_wire.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/message_lite.h"
#include "google/protobuf/text_format.h"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

// The same message gives the same bytes; a map's order is by chance otherwise.
std::string Bytes(const google::protobuf::MessageLite& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  Require(message.SerializeToCodedStream(&coded), "a message that can be written");
  coded.Trim();
  return bytes;
}

// A message that was accepted is written in a form that is accepted again, with the same content.
template <class Proto, class From, class To>
bool TakeTwice(absl::string_view bytes, From from, To to) {
  Proto proto;
  if (!proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return false;
  const auto message = from(proto);
  if (!message.ok()) return Refused(message.status(), "");
  const Proto written = to(*message);
  const auto again = from(written);
  Require(again.ok(), "what was taken can be taken again");
  Require(Bytes(to(*again)) == Bytes(written), "the same message again");
  return true;
}

bool RunDraftWire(absl::string_view input) {
  InputReader reader(input);
  switch (reader.Below(3)) {
    case 0:
      return TakeTwice<v1::DraftRequest>(reader.Rest(), DraftRequestFromProto, DraftRequestToProto);
    case 1:
      return TakeTwice<v1::DraftResponse>(reader.Rest(), DraftResponseFromProto, DraftResponseToProto);
    default: {
      v1::ScoreRequest proto;
      const absl::string_view bytes = reader.Rest();
      if (!proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return false;
      const absl::StatusOr<ScoreRequest> request = ScoreRequestFromProto(proto);
      return request.ok() || Refused(request.status(), "");
    }
  }
}

template <class Proto>
std::string WireSeed(char kind, const char* text) {
  Proto proto;
  Require(google::protobuf::TextFormat::ParseFromString(text, &proto), text);
  return absl::StrCat(std::string(1, kind), proto.SerializeAsString());
}

std::vector<std::string> DraftWireSeeds() {
  std::vector<std::string> seeds;
  for (const char* const request : {
           R"pb(session: 3
                open {
                  epoch: 1
                  draft_model: "draft"
                  vocabulary_fingerprint: 65261
                  commit_no: 0
                  tokens: [ 1, 2, 3 ]
                  prefix_hash: 77
                  sampling {
                    temperature: 0.8
                    top_k: 40
                    seed: 7
                    logit_bias { key: 5 value: -1.5 }
                  }
                  prompt_length: 3
                  cache_salt: 9
                  budget { depth: 4 nodes: 16 branching: 2 lookahead: 3 shape: TREE_SHAPE_EAGLE2 }
                  sampled_drafts: true
                  traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
                  tracestate: "a=1"
                  request_id: "r"
                  predict_acceptance: true
                  target_hidden_size: 4
                  target_layers: 6
                  constraint { regex: "a+" }
                  early_banned_tokens: [ 0 ]
                  early_ban_end: 9
                })pb",
           R"pb(session: 3
                commit {
                  epoch: 1
                  commit_no: 1
                  tokens: [ 4, 5 ]
                  new_root: 2
                  committed_len: 5
                  prefix_hash: 78
                  budget {
                    depth: 4
                    nodes: 16
                    branching: 2
                    shape: TREE_SHAPE_CHAIN
                    ahead_nodes: 3
                    ahead_branching: 1
                  }
                  features { epoch: 1 first_position: 2 type: FEATURE_TYPE_BFLOAT16 states: "12345678" }
                })pb",
           "session: 3 close {}", "session: 0 load_query {}",
           R"pb(session: 3
                features { epoch: 1 first_position: 0 type: FEATURE_TYPE_INT8 states: "12345678" })pb"}) {
    seeds.push_back(WireSeed<v1::DraftRequest>('\0', request));
  }
  for (const char* const response : {
           R"pb(session: 3
                drafter_sessions: 2
                opened {
                  epoch: 1
                  context_length: 100
                  predicts_acceptance: true
                  features {
                    layers: [ 1, 3 ]
                    final_norm: true
                    type: FEATURE_TYPE_INT8
                    first_position: 2
                    window: 8
                  }
                })pb",
           R"pb(session: 3
                grow {
                  epoch: 1
                  seen_commit: 2
                  prefix_hash: 77
                  first_id: 5
                  parents: [ 0, 5, 5 ]
                  tokens: [ 1, 2, 3 ]
                  scores: [ 0.5, 0.25, 1 ]
                  step_seconds: 0.001
                  distributions {
                    parent: 0
                    tokens: [ 1, 9 ]
                    probabilities: [ 0.75, 0.25 ]
                  }
                  predictions { node: 5 acceptance: 0.5 }
                })pb",
           R"pb(session: 3
                grow { epoch: 1 exhausted: true })pb",
           R"pb(session: 3
                resync_needed { epoch: 1 reason: "lost" })pb",
           R"pb(session: 3
                refused { epoch: 1 code: 8 message: "full" })pb",
           "session: 0 load_report {}", "session: 3 features_used { epoch: 1 position: 9 }"}) {
    seeds.push_back(WireSeed<v1::DraftResponse>('\1', response));
  }
  seeds.push_back(WireSeed<v1::ScoreRequest>('\2', R"pb(draft_model: "draft"
                                                        vocabulary_fingerprint: 65261
                                                        tokens: [ 1, 2, 3, 4 ]
                                                        prompt_length: 2
                                                        sampling { temperature: 0.5 seed: 1 }
                                                        cache_salt: 3)pb"));
  return seeds;
}

const Registration kDraftWire(
    {.name = "draft_wire", .run = RunDraftWire, .seeds = DraftWireSeeds, .spoilt = 30'000});

}  // namespace
}  // namespace tandem::fuzz
