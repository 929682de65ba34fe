#include "common/model/target_fingerprint.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

TEST(TargetFingerprintTest, TellsTargetsApartAndStaysTheSame) {
  const auto of = [](absl::string_view name) {
    const auto model = Model::Load(absl::StrCat(TANDEM_SOURCE_DIR, "/deploy/demo-models/", name));
    EXPECT_TRUE(model.ok()) << model.status();
    return TargetFingerprint(**model);
  };
  const uint64_t target = of("tandem-target-15m");
  EXPECT_EQ(target, 0xd3bbed61b666add0ull);
  EXPECT_NE(target, of("tandem-draft-general-1m"));
  // The same sizes, other weights.
  EXPECT_NE(of("tandem-draft-code-1m"), of("tandem-draft-math-1m"));
}

}  // namespace
}  // namespace tandem
