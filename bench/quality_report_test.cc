#include "bench/quality_report.h"

#include <cmath>
#include <string>

#include "gtest/gtest.h"

namespace tandem {
namespace {

QualityOptions Demo(const std::string& model) {
  const std::string source = TANDEM_SOURCE_DIR;
  return {.folder = source + "/deploy/demo-models/" + model,
          .text_file = source + "/bench/testdata/held_out.txt",
          .threads = 2};
}

TEST(QualityReport, RoundedDemoModelsPredictNearlyAsWell) {
  for (const char* model : {"tandem-target-15m", "tandem-draft-general-1m"}) {
    SCOPED_TRACE(model);
    const absl::StatusOr<QualityReport> report = ReportQuality(Demo(model));
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_GT(report->num_predicted, 1500u);
    ASSERT_EQ(report->types.size(), 7u);
    const TypeQuality& bf16 = report->types[0];
    const TypeQuality& int8 = report->types[1];
    const TypeQuality& int4 = report->types[2];
    const TypeQuality& w8a8 = report->types[3];
    const TypeQuality& w4a8 = report->types[4];
    EXPECT_EQ(bf16.weight_type, "bf16");
    EXPECT_EQ(int8.weight_type, "int8");
    EXPECT_EQ(int4.weight_type, "int4");
    EXPECT_EQ(bf16.mean_kl, 0.0);
    EXPECT_EQ(bf16.top_agreement, 1.0);
    EXPECT_DOUBLE_EQ(bf16.perplexity, std::exp(bf16.cross_entropy));
    // English text, code and sums by a model that knows some of each.
    EXPECT_GT(bf16.cross_entropy, 2.0);
    EXPECT_LT(bf16.cross_entropy, 5.0);
    EXPECT_NEAR(int8.perplexity / bf16.perplexity, 1.0, 0.003);
    EXPECT_GT(int8.mean_kl, 0.0);
    EXPECT_LT(int8.mean_kl, 0.001);
    EXPECT_GT(int8.top_agreement, 0.98);
    EXPECT_LT(int4.perplexity / bf16.perplexity, 1.08);
    EXPECT_GT(int4.mean_kl, int8.mean_kl);
    EXPECT_LT(int4.mean_kl, 0.08);
    EXPECT_GT(int4.top_agreement, 0.8);
    EXPECT_LT(static_cast<double>(int8.weight_bytes), 0.52 * static_cast<double>(bf16.weight_bytes));
    EXPECT_LT(int4.weight_bytes, int8.weight_bytes);
    // Inputs of fewer bits cost something, and less than weights of fewer bits do.
    EXPECT_EQ(w8a8.weight_type, "w8a8");
    EXPECT_EQ(w8a8.weight_bytes, int8.weight_bytes);
    EXPECT_GT(w8a8.mean_kl, int8.mean_kl);
    EXPECT_LT(w8a8.mean_kl, 0.25 * int4.mean_kl);
    EXPECT_NEAR(w8a8.perplexity / bf16.perplexity, 1.0, 0.01);
    EXPECT_EQ(w4a8.weight_type, "w4a8");
    EXPECT_EQ(w4a8.weight_bytes, int4.weight_bytes);
    EXPECT_NEAR(w4a8.mean_kl / int4.mean_kl, 1.0, 0.2);
    // So do keys and values of fewer bits.
    const TypeQuality& bf16_kv = report->types[5];
    const TypeQuality& int8_kv = report->types[6];
    EXPECT_EQ(bf16.kv_type, "f32");
    EXPECT_EQ(bf16_kv.kv_type, "bf16");
    EXPECT_EQ(int8_kv.kv_type, "int8");
    for (const TypeQuality* type : {&bf16_kv, &int8_kv}) {
      EXPECT_EQ(type->weight_type, "bf16");
      EXPECT_GT(type->mean_kl, 0.0);
      EXPECT_LT(type->mean_kl, 0.001);
      EXPECT_NEAR(type->perplexity / bf16.perplexity, 1.0, 0.003);
      EXPECT_GT(type->top_agreement, 0.98);
    }
  }
}

TEST(QualityReport, RefusesWhatItCannotMeasure) {
  QualityOptions options = Demo("tandem-draft-general-1m");
  options.window = 1;
  EXPECT_EQ(ReportQuality(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.window = 2048;
  EXPECT_EQ(ReportQuality(options).status().code(), absl::StatusCode::kInvalidArgument);
  options = Demo("tandem-draft-general-1m");
  options.text_file = "/nonexistent/text";
  EXPECT_EQ(ReportQuality(options).status().code(), absl::StatusCode::kNotFound);
  options.text_file = "/dev/null";
  EXPECT_FALSE(ReportQuality(options).ok());
}

}  // namespace
}  // namespace tandem
