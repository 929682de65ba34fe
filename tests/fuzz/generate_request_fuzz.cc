// What clients ask for, from the message's bytes to the verifier's session: by Tandem's protocol, and by
// vLLM's.

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/grammar/constraint.h"
#include "common/rpc/constraint_wire.h"
#include "common/rpc/status.h"
#include "google/protobuf/text_format.h"
#include "grpcpp/support/byte_buffer.h"
#include "router/models/served_model.h"
#include "router/serving/message_wire.h"
#include "router/serving/request.h"
#include "router/vllm/vllm_wire.h"
#include "tandem/v1/generation.grpc.pb.h"  // By which gRPC takes messages of protobuf.
#include "tests/fuzz/fuzz_target.h"
#include "verifier/rpc/request_wire.h"

namespace tandem::fuzz {
namespace {

constexpr char kTargetFolder[] = TANDEM_SOURCE_DIR "/deploy/demo-models/tandem-target-15m";

const router::ServedModel& RouterModel() {
  static const router::ServedModel* const model = [] {
    absl::StatusOr<router::ServedModel> loaded = router::LoadServedModel("demo", kTargetFolder);
    Require(loaded.ok(), loaded.status().message());
    return new router::ServedModel(*std::move(loaded));
  }();
  return *model;
}

const ServedTarget& VerifierModel() {
  static const ServedTarget* const target = [] {
    const std::string folder = "deploy/demo-models/tandem-target-15m/";
    auto* const served = new ServedTarget{.name = "demo"};
    served->config = ParseModelConfig(RepositoryFile(folder + "config.json"), "config.json").value();
    served->defaults =
        ParseGenerationDefaults(RepositoryFile(folder + "generation_config.json"), "generation_config.json")
            .value();
    served->tokenizer = Tokenizer::Load(kTargetFolder).value();
    served->max_window = 8;
    served->max_length = static_cast<uint32_t>(served->config.max_context);
    return served;
  }();
  return *target;
}

// What a client is told of an error is one that it can read.
bool RefusedToClient(const absl::Status& status) {
  Refused(status, "");
  Require(absl::IsInvalidArgument(status) || absl::IsOutOfRange(status) || absl::IsNotFound(status) ||
              absl::IsFailedPrecondition(status) || absl::IsUnimplemented(status),
          absl::StrCat("the client's mistake told as one: ", status.ToString()));
  Require(FromGrpcStatus(ToGrpcStatus(status)).code() == status.code(), "the same code on the wire");
  return false;
}

bool ReadVerifierRequest(const v1::VerifierGenerateRequest& request) {
  const absl::StatusOr<SessionRequest> session =
      SessionRequestFromProto(request, VerifierModel(), absl::InfiniteFuture());
  if (!session.ok()) return RefusedToClient(session.status());
  Require(!session->prompt.empty() && session->output != nullptr, "a prompt and an output");
  Require(session->prompt.size() + session->max_tokens <= VerifierModel().max_length,
          "what the context has room for");
  Require(Validate(session->sampling, VerifierModel().config.vocab_size).ok(),
          "sampling parameters that are valid");
  return true;
}

bool ReadGenerateRequest(const v1::GenerateRequest& request) {
  if (const absl::Status status = router::ValidateRequest(request); !status.ok())
    return RefusedToClient(status);
  uint64_t tokenized = 0;
  const absl::StatusOr<v1::VerifierGenerateRequest> prepared = router::PrepareRequest(
      request, RouterModel(), [] { return uint64_t{42}; }, tokenized);
  Require(tokenized <= static_cast<uint64_t>(RouterModel().context_length) + 1,
          "no more tokens than the context has");
  if (!prepared.ok()) return RefusedToClient(prepared.status());
  return ReadVerifierRequest(*prepared);
}

template <class Message>
absl::StatusOr<std::shared_ptr<const Message>> MessageOfBytes(absl::string_view bytes) {
  const grpc::Slice slice(bytes.data(), bytes.size());
  auto message = router::ParseMessage<Message>(grpc::ByteBuffer(&slice, 1));
  if (!message.ok()) RefusedToClient(message.status());
  return message;
}

bool RunGenerateRequest(absl::string_view input) {
  InputReader reader(input);
  const uint8_t kind = reader.Below(4);
  const absl::string_view bytes = reader.Rest();
  switch (kind) {
    case 0: {
      const auto request = MessageOfBytes<v1::GenerateRequest>(bytes);
      return request.ok() && ReadGenerateRequest(**request);
    }
    case 1: {
      const auto request = MessageOfBytes<v1::VerifierGenerateRequest>(bytes);
      return request.ok() && ReadVerifierRequest(**request);
    }
    case 2: {
      const auto asked = MessageOfBytes<router::engine::GenerateRequest>(bytes);
      if (!asked.ok()) return false;
      const absl::StatusOr<v1::GenerateRequest> request = router::RequestOf(**asked);
      if (!request.ok()) return RefusedToClient(router::WithVllmNames(request.status()));
      return ReadGenerateRequest(*request);
    }
    default: {
      const auto constraint = MessageOfBytes<v1::Constraint>(bytes);
      if (!constraint.ok()) return false;
      const absl::StatusOr<ConstraintSource> source =
          ConstraintFromProto(**constraint, {.max_bytes = 1 << 16, .max_depth = 32});
      if (!source.ok()) return RefusedToClient(source.status());
      Require(!KeyOf(*source).empty(), "a key of the constraint");
      return true;
    }
  }
}

template <class Message>
std::string MessageSeed(char kind, const char* text) {
  Message message;
  Require(google::protobuf::TextFormat::ParseFromString(text, &message), text);
  return absl::StrCat(std::string(1, kind), message.SerializeAsString());
}

std::vector<std::string> GenerateRequestSeeds() {
  std::vector<std::string> seeds;
  for (const char* const text : {
           R"pb(text: "Once upon a time"
                stopping { max_tokens: 5 stop: "x" stop_token_ids: 9 min_tokens: 2 }
                output { logprobs: 2 }
                speculation { max_window: 3 window_policy: "fixed" drafter: "d" mode: SPECULATION_MODE_ON }
                sampling {
                  temperature: 0.5
                  top_k: 5
                  top_p: 0.9
                  min_p: 0.1
                  repetition_penalty: 1.1
                  presence_penalty: 0.5
                  frequency_penalty: -0.5
                  seed: 3
                  logit_bias { key: 7 value: 2.5 }
                  banned_tokens: [ 1, 2 ]
                })pb",
           R"pb(request_id: "r-1"
                model: "demo"
                chat {
                  messages { role: "system" content: "You help." }
                  messages { role: "user" content: "Hi" }
                  tools { name: "f" description: "d" parameters: "{\"type\": \"object\"}" strict: true }
                  tool_choice { mode: MODE_REQUIRED }
                  parse_output: true
                  template_variables: "{\"a\": 1}"
                }
                priority: -3)pb",
           R"pb(token_ids { ids: [ 5, 6, 7 ] }
                num_outputs: 2
                prediction { text: "and then" }
                output { round_trace: true })pb",
           R"pb(text: "a"
                resume {
                  emitted { ids: [ 5, 6 ] }
                  arithmetic: 7
                }
                sampling { seed: 1 temperature: 0 })pb",
           R"pb(text: "a"
                constraint {
                  json_schema {
                    schema: "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}}"
                  }
                })pb",
           R"pb(text: "a"
                constraint {
                  structural_tags {
                    triggers: "<f"
                    tags {
                      begin: "<f>"
                      content { json_object {} }
                      end: "</f>"
                    }
                  }
                })pb"}) {
    seeds.push_back(MessageSeed<v1::GenerateRequest>('\0', text));
  }
  seeds.push_back(MessageSeed<v1::VerifierGenerateRequest>(
      '\1', R"pb(request_id: "r"
                 model: "demo"
                 prompt { ids: [ 5, 6, 7 ] }
                 emitted { ids: [ 8 ] }
                 sampling { temperature: 0.5 seed: 3 }
                 stopping { max_tokens: 9 stop: "ab" stop: "b" ignore_eos: true }
                 output { logprobs: 1 prompt_logprobs: 2 }
                 drafter { name: "d" endpoint: "127.0.0.1:7003" draft_model: "x" }
                 cache_salt: 9
                 tenant: "acme"
                 policy_state: "TQ"
                 prediction { ids: [ 9, 10 ] }
                 priority: 1)pb"));
  seeds.push_back(MessageSeed<router::engine::GenerateRequest>(
      '\2', R"pb(request_id: "r"
                 tokenized {
                   original_text: "ab"
                   input_ids: [ 5, 6, 7 ]
                 }
                 sampling_params { temperature: 0.5 top_p: 0.9 top_k: 7 max_tokens: 5 stop: "x" n: 1 seed: 4 }
                 stream: true)pb"));
  for (const char* const text :
       {R"pb(regex: "(a|b)+[0-9]{2,3}\\.")pb", R"pb(grammar: "root ::= \"a\" | root \"b\"")pb",
        R"pb(choices { choices: "yes" choices: "no" })pb",
        R"pb(json_schema {
               schema: "{\"$ref\": \"#/$defs/a\", \"$defs\": {\"a\": {\"enum\": [1, \"x\"]}}}"
               any_whitespace: true
             })pb"}) {
    seeds.push_back(MessageSeed<v1::Constraint>('\3', text));
  }
  return seeds;
}

const Registration kGenerateRequest(
    {.name = "generate_request", .run = RunGenerateRequest, .seeds = GenerateRequestSeeds, .spoilt = 8000});

}  // namespace
}  // namespace tandem::fuzz
