#include "common/rpc/arithmetic.h"

#include "gtest/gtest.h"

namespace tandem {
namespace {

// Routers and verifiers of different versions compare these.
TEST(ArithmeticTest, IsTheSameInEveryVersion) {
  v1::ServerInfo info;
  info.set_arithmetic("cpu (avx2), seeded");
  info.add_end_tokens(2);
  info.add_end_tokens(5);
  v1::ModelInfo model;
  EXPECT_EQ(ComputesInWords(info, model), "") << "it does not say what it holds";
  model.set_vocabulary_fingerprint(7);
  model.set_vocabulary_size(256);
  model.set_context_length(2048);
  model.set_parameters(1000);
  model.set_weight_type("bf16");
  model.set_architecture("LlamaForCausalLM");
  model.set_target_fingerprint(9);
  const std::string words = ComputesInWords(info, model);
  EXPECT_EQ(
      words,
      "vocabulary 7 256, context 2048, 1000 bf16 of LlamaForCausalLM 9, cpu (avx2), seeded, ends with 2 5");
  EXPECT_EQ(ArithmeticOf(words), 17467691118419546166u);
  EXPECT_EQ(ArithmeticWithAdapter(ArithmeticOf(words), 11), 4409027876207657664u);
  EXPECT_EQ(ArithmeticOf(""), 0u);
  EXPECT_EQ(ArithmeticWithAdapter(0, 11), 0u) << "with an adapter no more is known than without";
}

}  // namespace
}  // namespace tandem
