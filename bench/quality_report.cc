#include "bench/quality_report.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/cpu/cpu_weights.h"
#include "common/engine/kv_type.h"
#include "common/engine/sequence_kv.h"
#include "common/model/model.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

constexpr uint64_t kMaxTextBytes = uint64_t{64} << 20;
// Of one step: logits of all engines are in memory for so many rows.
constexpr uint32_t kRowsAtOnce = 32;

using Logits = absl::Span<const float>;

double LogSumOfExponentials(Logits logits) {
  const double greatest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(logit - greatest);
  return greatest + std::log(sum);
}

size_t MostLikely(Logits logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// sum p log(p / q) for the distributions of two logits, which are exp(logit - log_sum).
double Divergence(Logits p, double log_sum_p, Logits q, double log_sum_q) {
  double sum = 0.0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = p[i] - log_sum_p;
    sum += std::exp(log_p) * (log_p - (q[i] - log_sum_q));
  }
  return sum;
}

struct Types {
  WeightType weights = WeightType::kAsInFile;
  KvType kv = KvType::kF32;
};

// A model in certain types, that goes through one context after the other.
class Predictor {
 public:
  static absl::StatusOr<Predictor> Create(const std::shared_ptr<const Model>& model, const Types& types,
                                          const QualityOptions& options) {
    Predictor predictor;
    CpuEngineOptions engine_options;
    engine_options.num_blocks = (options.window + 1) / kBlockTokens + 2;
    engine_options.max_rows = kRowsAtOnce;
    engine_options.num_threads = options.threads;
    engine_options.instruction_set = options.instruction_set;
    engine_options.weight_type = types.weights;
    engine_options.kv_type = types.kv;
    TANDEM_ASSIGN_OR_RETURN(predictor.engine_, CreateCpuEngine(model, engine_options));
    for (BlockId block = 0; block < engine_options.num_blocks; ++block) predictor.blocks_.push_back(block);
    predictor.logits_.resize(size_t{kRowsAtOnce} * static_cast<size_t>(model->config().vocab_size));
    return predictor;
  }

  // Computes tokens [begin, end) of a context, the ones before it having been computed.
  absl::Status Compute(absl::Span<const TokenId> context, uint32_t begin, uint32_t end) {
    std::vector<StepRow> rows;
    for (uint32_t position = begin; position < end; ++position) {
      rows.push_back({.token = context[position],
                      .context = {.blocks = blocks_, .num_committed = position + 1},
                      .logits = &logits_[(position - begin) * vocab_size()]});
    }
    return engine_->Step(rows);
  }
  // Of the last Compute.
  Logits logits(uint32_t row) const {
    return absl::MakeConstSpan(logits_).subspan(row * vocab_size(), vocab_size());
  }

 private:
  size_t vocab_size() const { return static_cast<size_t>(engine_->config().vocab_size); }

  std::unique_ptr<Engine> engine_;
  std::vector<BlockId> blocks_;
  std::vector<float> logits_;
};

// Sums over predicted tokens; divided at the end.
void AddPrediction(const std::vector<Predictor>& predictors, uint32_t row, TokenId next,
                   QualityReport* report) {
  const Logits reference = predictors.front().logits(row);
  const double reference_sum = LogSumOfExponentials(reference);
  const size_t reference_token = MostLikely(reference);
  for (size_t i = 0; i < predictors.size(); ++i) {
    TypeQuality& quality = report->types[i];
    const Logits logits = predictors[i].logits(row);
    const double log_sum = LogSumOfExponentials(logits);
    quality.cross_entropy += log_sum - logits[static_cast<size_t>(next)];
    quality.mean_kl += Divergence(reference, reference_sum, logits, log_sum);
    quality.top_agreement += MostLikely(logits) == reference_token ? 1.0 : 0.0;
  }
  ++report->num_predicted;
}

absl::Status PredictContext(absl::Span<const TokenId> context, std::vector<Predictor>* predictors,
                            QualityReport* report) {
  const auto length = static_cast<uint32_t>(context.size());
  for (uint32_t begin = 0; begin + 1 < length; begin += kRowsAtOnce) {
    const uint32_t end = std::min(begin + kRowsAtOnce, length - 1);
    for (Predictor& predictor : *predictors) {
      TANDEM_RETURN_IF_ERROR(predictor.Compute(context, begin, end));
    }
    for (uint32_t position = begin; position < end; ++position) {
      AddPrediction(*predictors, position - begin, context[position + 1], report);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<QualityReport> ReportQuality(const QualityOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model, Model::Load(options.folder));
  const ModelConfig& config = model->config();
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> tokenizer,
                          Tokenizer::LoadForModel(options.folder, config.vocab_size));
  if (options.window < 2 || options.window + 1 > static_cast<uint32_t>(config.max_context)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--window: ", options.window, ", expected 2 to ", config.max_context - 1));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(options.text_file, kMaxTextBytes));
  TANDEM_ASSIGN_OR_RETURN(const TokenIds tokens,
                          tokenizer->Encode(text, {.parse_special = false, .add_special_tokens = false}));
  if (tokens.size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.text_file, ": ", tokens.size(), " tokens, expected at least 2"));
  }

  QualityReport report;
  TANDEM_ASSIGN_OR_RETURN(const KernelTable* kernels, SelectKernels(options.instruction_set));
  report.kernels = kernels->name;
  std::vector<Types> compared = {Types{.weights = WeightType::kExact}};
  for (const WeightType type : options.weight_types) compared.push_back({.weights = type});
  for (const KvType type : options.kv_types) compared.push_back({.kv = type});
  std::vector<Predictor> predictors;
  for (const Types& types : compared) {
    TANDEM_ASSIGN_OR_RETURN(Predictor predictor, Predictor::Create(model, types, options));
    predictors.push_back(std::move(predictor));
    report.types.push_back({.weight_type = std::string(KeptWeightType(*model, types.weights)),
                            .kv_type = std::string(KvTypeName(types.kv)),
                            .weight_bytes = BytesReadPerStep(*model, types.weights),
                            .top_agreement = 0.0});
  }
  for (size_t begin = 0; begin < tokens.size(); begin += options.window) {
    TokenIds context;
    if (tokenizer->bos().has_value()) context.push_back(*tokenizer->bos());
    const size_t end = std::min(begin + options.window, tokens.size());
    context.insert(context.end(), tokens.begin() + static_cast<ptrdiff_t>(begin),
                   tokens.begin() + static_cast<ptrdiff_t>(end));
    TANDEM_RETURN_IF_ERROR(PredictContext(context, &predictors, &report));
  }
  const auto count = static_cast<double>(report.num_predicted);
  for (TypeQuality& quality : report.types) {
    quality.cross_entropy /= count;
    quality.perplexity = std::exp(quality.cross_entropy);
    quality.mean_kl /= count;
    quality.top_agreement /= count;
  }
  return report;
}

std::string QualityTable(const QualityOptions& options, const QualityReport& report) {
  std::string table = absl::StrFormat("%s, %s kernels, %d tokens predicted\n", options.folder, report.kernels,
                                      report.num_predicted);
  absl::StrAppendFormat(&table, "%8s %12s %8s %14s %12s %9s %12s %10s\n", "weights", "MB per step", "kv",
                        "cross-entropy", "perplexity", "to first", "mean KL", "same top");
  for (const TypeQuality& type : report.types) {
    absl::StrAppendFormat(&table, "%8s %12.1f %8s %14.4f %12.3f %8.4fx %12.2e %9.2f%%\n", type.weight_type,
                          1e-6 * static_cast<double>(type.weight_bytes), type.kv_type, type.cross_entropy,
                          type.perplexity, type.perplexity / report.types.front().perplexity, type.mean_kl,
                          100.0 * type.top_agreement);
  }
  return table;
}

std::string QualityJson(const QualityOptions& options, const QualityReport& report) {
  nlohmann::json json = {{"folder", options.folder},
                         {"text", options.text_file},
                         {"window", options.window},
                         {"kernels", report.kernels},
                         {"num_predicted", report.num_predicted}};
  for (const TypeQuality& type : report.types) {
    json["weight_types"].push_back({{"weight_type", type.weight_type},
                                    {"kv_type", type.kv_type},
                                    {"weight_bytes", type.weight_bytes},
                                    {"cross_entropy", type.cross_entropy},
                                    {"perplexity", type.perplexity},
                                    {"mean_kl", type.mean_kl},
                                    {"top_agreement", type.top_agreement}});
  }
  return json.dump(2);
}

}  // namespace tandem
