#include "tests/e2e/generation_fixture.h"

#include <map>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/file.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "nlohmann/json.hpp"

namespace tandem::e2e {
namespace {

// No test should ever come near it; without one a lost event would hang the test.
constexpr absl::Duration kCallTimeout = absl::Seconds(120);
constexpr size_t kMaxGoldenBytes = size_t{4} << 20;

std::vector<GoldenCase> ReadGolden() {
  const std::string path = std::string(TANDEM_SOURCE_DIR) + "/tests/golden/tandem-target-15m.json";
  std::vector<GoldenCase> cases;
  const nlohmann::json document = nlohmann::json::parse(ReadFile(path, kMaxGoldenBytes).value());
  for (const auto& entry : document["cases"]) {
    std::vector<double> logprobs;
    for (const auto& logprob : entry["prompt_logprobs"])
      logprobs.push_back(logprob.is_null() ? 0.0 : logprob.get<double>());
    cases.push_back({.label = entry["label"],
                     .prompt = entry["prompt_ids"],
                     .greedy = entry["greedy_ids"],
                     .margin = entry["min_top1_top2_margin"],
                     .prompt_logprobs = std::move(logprobs)});
  }
  return cases;
}

template <class Stub, class Request>
absl::StatusOr<RecordedOutput> Record(Stub& stub, const Request& request, uint32_t first_offset) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kCallTimeout));
  const auto reader = stub.Generate(&context, request);
  OutputRecorder recorder(first_offset);
  v1::GenerateResponse event;
  while (reader->Read(&event)) recorder.Add(event);
  return recorder.End(FromGrpcStatus(reader->Finish()));
}

const char* YardstickOf(absl::string_view model) {
  if (absl::EndsWith(model, "-int8")) return kPlainInt8;
  return absl::EndsWith(model, "-int4") ? kPlainInt4 : kPlain;
}

const std::shared_ptr<grpc::Channel>& RouterChannel(const InProcessStack& stack) {
  static const auto* const channel = new std::shared_ptr(CreateChannel(stack.router_endpoint()));
  return *channel;
}

std::unique_ptr<InProcessStack>& SharedStack() {
  static auto* const stack = new std::unique_ptr<InProcessStack>;
  return *stack;
}

// Ends the stack's threads after the last test, before static objects go away.
class StackEnvironment final : public ::testing::Environment {
 public:
  void TearDown() override { SharedStack().reset(); }
};

const ::testing::Environment* const stack_environment =
    ::testing::AddGlobalTestEnvironment(new StackEnvironment);

}  // namespace

void GenerationTest::SetUpTestSuite() {
  if (SharedStack() != nullptr) return;
  SharedStack() = std::make_unique<InProcessStack>(std::vector<VerifierSetup>{
      {.name = kPlain, .prefix_cache = false},
      {.name = kLookahead, .prefill_chunk = 32},
      {.name = kSynchronous, .prefill_chunk = 7, .lookahead = 0, .prefix_cache = false, .threads = 2},
      {.name = kEagle2, .shape = TreeShape::kEagle2, .local_drafter = "suffix:min=1"},
      {.name = kChain, .lookahead = 0, .shape = TreeShape::kChain, .local_drafter = "ngram:min=1"},
      {.name = kPlainInt8, .prefix_cache = false, .weight_type = WeightType::kInt8},
      {.name = kLookaheadInt8, .prefill_chunk = 32, .weight_type = WeightType::kInt8},
      {.name = kPlainInt4, .prefix_cache = false, .weight_type = WeightType::kInt4},
      {.name = kSynchronousInt4,
       .prefill_chunk = 7,
       .lookahead = 0,
       .prefix_cache = false,
       .threads = 2,
       .weight_type = WeightType::kInt4}});
}

const std::vector<GoldenCase>& GenerationTest::golden() {
  static const auto* const cases = new std::vector<GoldenCase>(ReadGolden());
  return *cases;
}

const InProcessStack& GenerationTest::stack() {
  return *SharedStack();
}

v1::GenerateRequest GenerationTest::Request(absl::string_view model, const std::vector<uint32_t>& prompt,
                                            uint32_t max_tokens) {
  v1::GenerateRequest request;
  request.set_model(std::string(model));
  request.mutable_token_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
  request.mutable_sampling()->set_temperature(0.0f);
  request.mutable_sampling()->set_top_p(1.0f);
  request.mutable_sampling()->set_seed(1);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.mutable_output()->set_logprobs(2);
  request.mutable_speculation()->set_mode(v1::SPECULATION_MODE_OFF);
  return request;
}

void GenerationTest::SetDrafter(v1::GenerateRequest& request, absl::string_view drafter,
                                absl::string_view window_policy) {
  request.mutable_speculation()->set_mode(v1::SPECULATION_MODE_ON);
  request.mutable_speculation()->set_drafter(std::string(drafter));
  request.mutable_speculation()->set_window_policy(std::string(window_policy));
}

absl::StatusOr<RecordedOutput> GenerationTest::Generate(const v1::GenerateRequest& request) {
  const auto stub = v1::Generation::NewStub(RouterChannel(stack()));
  return Record(*stub, request, /*first_offset=*/0);
}

absl::StatusOr<std::vector<RecordedOutput>> GenerationTest::GenerateOutputs(
    const v1::GenerateRequest& request) {
  const auto stub = v1::Generation::NewStub(RouterChannel(stack()));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kCallTimeout));
  const auto reader = stub->Generate(&context, request);
  std::vector<OutputRecorder> recorders(request.num_outputs());
  v1::GenerateResponse event;
  while (reader->Read(&event)) {
    if (event.output() >= recorders.size()) return absl::InternalError("an event of no output");
    recorders[event.output()].Add(event);
  }
  const absl::Status status = FromGrpcStatus(reader->Finish());
  std::vector<RecordedOutput> outputs;
  for (OutputRecorder& recorder : recorders) {
    absl::StatusOr<RecordedOutput> output = recorder.End(status);
    if (!output.ok()) return output.status();
    outputs.push_back(*std::move(output));
  }
  return outputs;
}

std::vector<absl::StatusOr<RecordedOutput>> GenerationTest::GenerateConcurrently(
    const std::vector<v1::GenerateRequest>& requests) {
  std::vector<absl::StatusOr<RecordedOutput>> results(requests.size(), absl::UnknownError("not called"));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < requests.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = Generate(requests[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

absl::StatusOr<RecordedOutput> GenerationTest::GenerateAtVerifier(
    absl::string_view verifier, const v1::VerifierGenerateRequest& request) {
  const auto stub = v1::Verifier::NewStub(CreateChannel(stack().verifier(verifier).endpoint()));
  return Record(*stub, request, static_cast<uint32_t>(request.emitted().ids_size()));
}

const Output& GenerationTest::Expected(const v1::GenerateRequest& request) {
  static auto* const known = new std::map<std::string, Output>;
  v1::GenerateRequest plain = request;
  plain.set_model(YardstickOf(request.model()));
  plain.clear_request_id();
  plain.mutable_speculation()->Clear();
  plain.mutable_speculation()->set_mode(v1::SPECULATION_MODE_OFF);
  const std::string key = plain.SerializeAsString();
  auto found = known->find(key);
  if (found == known->end()) {
    absl::StatusOr<RecordedOutput> result = Generate(plain);
    EXPECT_TRUE(result.ok()) << result.status();
    found = known->emplace(key, result.ok() ? result->output : Output{}).first;
  }
  return found->second;
}

void GenerationTest::ExpectSame(const v1::GenerateRequest& request,
                                const absl::StatusOr<RecordedOutput>& result) {
  ASSERT_TRUE(result.ok()) << result.status() << "\n" << request.ShortDebugString();
  EXPECT_EQ(result->output, Expected(request)) << request.ShortDebugString();
}

}  // namespace tandem::e2e
