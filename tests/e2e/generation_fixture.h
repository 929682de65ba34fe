#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "tandem/v1/generation.grpc.pb.h"
#include "tandem/v1/verifier.grpc.pb.h"
#include "tests/e2e/in_process_stack.h"
#include "tests/e2e/recorded_output.h"

namespace tandem::e2e {

// The stack's verifiers. `plain` is the reference: one request at a time, undrafted, without a prefix cache.
inline constexpr char kPlain[] = "plain";
inline constexpr char kLookahead[] = "lookahead";      // Prefix cache, chunks of 32 tokens, drafts ahead.
inline constexpr char kSynchronous[] = "synchronous";  // No cache, chunks of 7, two threads, drafts in turns.
inline constexpr char kEagle2[] = "eagle2";            // EAGLE-2 trees; drafts locally where no drafter does.
inline constexpr char kChain[] = "chain";              // Chains, in turns; drafts locally too.
// The same with the target in int8 and in int4, each with its own reference.
inline constexpr char kPlainInt8[] = "plain-int8";
inline constexpr char kLookaheadInt8[] = "lookahead-int8";
inline constexpr char kPlainInt4[] = "plain-int4";
inline constexpr char kSynchronousInt4[] = "synchronous-int4";

// A prompt of tests/golden with the greedy continuation of a reference implementation.
struct GoldenCase {
  std::string label;
  std::vector<uint32_t> prompt;
  std::vector<uint32_t> greedy;
  // Distance between the two largest logits where it is smallest: below about 1e-3 another order of summation
  // may choose another token.
  double margin = 0.0;
  // Natural logarithms of the prompt's tokens' probabilities, each given those before it; the first has none.
  std::vector<double> prompt_logprobs;
};

// Tests that call the router of one stack, which all tests of the process share, as clients over TCP.
class GenerationTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite();

  static const std::vector<GoldenCase>& golden();
  static const InProcessStack& stack();

  // A request for `prompt` on `model` with log probabilities, greedy, undrafted.
  static v1::GenerateRequest Request(absl::string_view model, const std::vector<uint32_t>& prompt,
                                     uint32_t max_tokens);
  static void SetDrafter(v1::GenerateRequest& request, absl::string_view drafter,
                         absl::string_view window_policy);

  static absl::StatusOr<RecordedOutput> Generate(const v1::GenerateRequest& request);
  // One request's outputs (GenerateRequest.num_outputs), as if each had a stream of its own.
  static absl::StatusOr<std::vector<RecordedOutput>> GenerateOutputs(const v1::GenerateRequest& request);
  // All at once; the results are in the requests' order.
  static std::vector<absl::StatusOr<RecordedOutput>> GenerateConcurrently(
      const std::vector<v1::GenerateRequest>& requests);
  // Calls the verifier as a router would.
  static absl::StatusOr<RecordedOutput> GenerateAtVerifier(absl::string_view verifier,
                                                           const v1::VerifierGenerateRequest& request);

  // What `request` gives on the yardstick of its model's weight type. Remembered.
  static const Output& Expected(const v1::GenerateRequest& request);
  // Fails the test unless the call succeeded with the output that `request` gives on the yardstick.
  static void ExpectSame(const v1::GenerateRequest& request, const absl::StatusOr<RecordedOutput>& result);
};

}  // namespace tandem::e2e
