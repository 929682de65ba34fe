#include "router/verifiers/verifier_traits.h"

#include <vector>

#include "common/rpc/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;

v1::ServerInfo Info() {
  v1::ServerInfo info;
  info.set_arithmetic("cpu (avx2), seeded");
  info.add_end_tokens(2);
  info.mutable_capacity()->set_kv_tokens(512);
  v1::ModelInfo& model = *info.add_models();
  model.set_name("letters");
  model.set_vocabulary_fingerprint(7);
  model.set_vocabulary_size(256);
  model.set_context_length(2048);
  model.set_parameters(1000);
  model.set_weight_type("bf16");
  model.set_architecture("LlamaForCausalLM");
  return info;
}

TEST(VerifierTraitsTest, RoomIsTheLesserOfContextAndKeysAndValues) {
  v1::ServerInfo info = Info();
  EXPECT_EQ(TraitsOf(info, "letters").most_tokens, 512u);
  info.mutable_capacity()->set_kv_tokens(4096);
  EXPECT_EQ(TraitsOf(info, "letters").most_tokens, 2048u);
  info.clear_capacity();
  EXPECT_EQ(TraitsOf(info, "letters").most_tokens, 2048u) << "a verifier that does not tell";
  EXPECT_EQ(TraitsOf(info, "digits").most_tokens, std::nullopt) << "it does not hold that model";
}

TEST(VerifierTraitsTest, EverythingThatChangesOutputsTellsVerifiersApart) {
  const VerifierTraits began = TraitsOf(Info(), "letters");
  const VerifierNeeds needs{.tokens = 100, .arithmetic = began.arithmetic};
  EXPECT_TRUE(Suits(began, needs));
  v1::ServerInfo larger = Info();
  larger.mutable_capacity()->set_kv_tokens(99999);
  EXPECT_TRUE(Suits(TraitsOf(larger, "letters"), needs)) << "how much it holds changes no output";

  std::vector<v1::ServerInfo> others(7, Info());
  others[0].mutable_models(0)->set_weight_type("int8");
  others[1].add_end_tokens(3);
  others[2].mutable_models(0)->set_vocabulary_fingerprint(8);
  others[3].set_arithmetic("cuda, seeded");
  others[4].mutable_models(0)->set_parameters(1001);
  others[5].clear_models();
  others[6].mutable_models(0)->set_target_fingerprint(9);
  for (size_t i = 0; i < others.size(); ++i) {
    EXPECT_FALSE(Suits(TraitsOf(others[i], "letters"), needs)) << i;
    EXPECT_TRUE(Suits(TraitsOf(others[i], "letters"), {.tokens = 100})) << "nothing began yet, " << i;
  }
  const absl::Status none = CheckAnySuits({TraitsOf(others[0], "letters")}, needs);
  EXPECT_TRUE(absl::IsUnavailable(none)) << none;
  EXPECT_THAT(none.message(), HasSubstr("has the arithmetic of the one that began the output"));
}

TEST(VerifierTraitsTest, OnesThatAreTooSmallAreNotAsked) {
  const VerifierTraits small = TraitsOf(Info(), "letters");
  EXPECT_TRUE(Suits(small, {.tokens = 512}));
  EXPECT_FALSE(Suits(small, {.tokens = 513}));
  EXPECT_TRUE(CheckAnySuits({small, VerifierTraits()}, {.tokens = 513}).ok());
  EXPECT_TRUE(Suits(VerifierTraits(), {.tokens = 513})) << "it may have room";
  const absl::Status none = CheckAnySuits({small, small}, {.tokens = 513});
  EXPECT_TRUE(absl::IsInvalidArgument(none)) << none;
  EXPECT_THAT(none.message(),
              HasSubstr("stopping.max_tokens: 513 tokens with the prompt, expected at most 512"));
  EXPECT_EQ(ReasonOf(none), kContextLengthExceeded);
  // What began may go on when a large one is back.
  EXPECT_TRUE(absl::IsUnavailable(CheckAnySuits({small}, {.tokens = 513, .arithmetic = small.arithmetic})));
}

v1::ServerInfo WithAdapter(const std::string& name, uint64_t fingerprint) {
  v1::ServerInfo info = Info();
  v1::AdapterInfo& adapter = *info.mutable_models(0)->add_adapters();
  adapter.set_name(name);
  adapter.set_fingerprint(fingerprint);
  return info;
}

TEST(VerifierTraitsTest, RequestsGoWhereTheirAdapterIs) {
  const VerifierTraits bare = TraitsOf(Info(), "letters");
  const VerifierTraits holds = TraitsOf(WithAdapter("x", 5), "letters");
  EXPECT_TRUE(Suits(holds, {.tokens = 100, .adapter = "x"}));
  EXPECT_TRUE(Suits(holds, {.tokens = 100}));
  EXPECT_FALSE(Suits(bare, {.tokens = 100, .adapter = "x"}));
  EXPECT_FALSE(Suits(holds, {.tokens = 100, .adapter = "y"}));
  EXPECT_FALSE(Suits(VerifierTraits(), {.tokens = 100, .adapter = "x"})) << "nothing is known of it";
  const absl::Status none = CheckAnySuits({bare, holds}, {.tokens = 100, .adapter = "y"});
  EXPECT_TRUE(absl::IsNotFound(none)) << none;
  EXPECT_THAT(none.message(), HasSubstr("adapter: \"y\" is held by no verifier of the model"));
  // One that has not told yet may hold it.
  const absl::Status unknown = CheckAnySuits({bare, VerifierTraits()}, {.tokens = 100, .adapter = "y"});
  EXPECT_TRUE(absl::IsUnavailable(unknown)) << unknown;
}

TEST(VerifierTraitsTest, OutputsGoOnWithTheSameAdapterOnly) {
  const VerifierTraits bare = TraitsOf(Info(), "letters");
  const VerifierTraits began = TraitsOf(WithAdapter("x", 5), "letters");
  const VerifierTraits same = TraitsOf(WithAdapter("x", 5), "letters");
  const VerifierTraits other = TraitsOf(WithAdapter("x", 6), "letters");
  // Without an adapter, which ones there are makes no difference.
  EXPECT_EQ(began.ArithmeticWith(""), bare.ArithmeticWith(""));
  EXPECT_NE(began.ArithmeticWith("x"), began.ArithmeticWith(""));
  const VerifierNeeds needs{.tokens = 100, .arithmetic = began.ArithmeticWith("x"), .adapter = "x"};
  EXPECT_TRUE(Suits(same, needs));
  EXPECT_FALSE(Suits(other, needs));
  EXPECT_FALSE(Suits(bare, needs));
  const absl::Status none = CheckAnySuits({bare, other}, needs);
  EXPECT_TRUE(absl::IsUnavailable(none)) << none;
  EXPECT_THAT(none.message(), HasSubstr("holds the adapter \"x\""));
}

}  // namespace
}  // namespace tandem::router
