#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/cpu/kernels.h"
#include "common/engine/kv_type.h"
#include "common/engine/weight_type.h"

namespace tandem {

struct QualityOptions {
  std::string folder;     // Hugging Face model folder with its tokenizer.
  std::string text_file;  // UTF-8, in which each token is predicted from those before it.
  // Compared with the model as its files hold it.
  std::vector<WeightType> weight_types = {WeightType::kInt8, WeightType::kInt4, WeightType::kW8A8,
                                          WeightType::kW4A8};
  // Likewise, with the weights of the files.
  std::vector<KvType> kv_types = {KvType::kBf16, KvType::kInt8};
  // The text is cut into contexts of so many tokens, each with a BOS before it where the tokenizer has one.
  uint32_t window = 256;
  int threads = 1;
  InstructionSet instruction_set = InstructionSet::kAuto;
};

// How well a model predicts the text with its matrices, keys and values in certain types.
struct TypeQuality {
  std::string weight_type;
  std::string kv_type;
  uint64_t weight_bytes = 0;   // That a forward pass reads.
  double cross_entropy = 0.0;  // Nats per token.
  double perplexity = 0.0;     // Its exponential.
  // Over the predicted tokens, p being the distributions as the files hold the model: the mean of
  // sum p log(p / q) in nats, and the share of those with the same most likely token.
  double mean_kl = 0.0;
  double top_agreement = 1.0;
};

struct QualityReport {
  std::string kernels;
  uint64_t num_predicted = 0;
  std::vector<TypeQuality> types;  // First the model as its files hold it.
};

// Errors: InvalidArgument for options out of range and for a text of fewer than two tokens; and those of
// loading model and tokenizer, of reading the text and of CreateCpuEngine.
absl::StatusOr<QualityReport> ReportQuality(const QualityOptions& options);

// For people, with a line for each type; and for programs.
std::string QualityTable(const QualityOptions& options, const QualityReport& report);
std::string QualityJson(const QualityOptions& options, const QualityReport& report);

}  // namespace tandem
