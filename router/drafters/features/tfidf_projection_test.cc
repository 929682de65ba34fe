#include "router/drafters/features/tfidf_projection.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;

using Vector = std::vector<double>;

Vector Project(const TfidfProjection& model, const TokenIds& tokens) {
  Vector out(model.num_dimensions(), 0.0);
  model.Project(tokens, absl::MakeSpan(out));
  return out;
}

double Distance(const Vector& a, const Vector& b) {
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares);
}

TfidfProjection Fit(const std::vector<TokenIds>& texts, uint32_t dimensions, uint32_t vocabulary) {
  std::vector<absl::Span<const TokenId>> spans(texts.begin(), texts.end());
  return TfidfProjection::Fit(spans, dimensions, vocabulary);
}

// Two kinds of texts with a token of their own each; token 0 is in all.
std::vector<TokenIds> TwoKinds() {
  return {{0, 1, 1, 2}, {0, 1, 3}, {1, 2, 3, 0}, {0, 5, 5, 6}, {7, 5, 0}, {5, 6, 7, 0}};
}

TEST(TfidfProjectionTest, KeepsKindsApart) {
  const TfidfProjection model = Fit(TwoKinds(), 2, 10);
  const Vector one = Project(model, {0, 1, 2, 3});
  const Vector same = Project(model, {0, 3, 2, 1, 1});
  const Vector other = Project(model, {0, 5, 6, 7});
  EXPECT_GT(Distance(one, other), 5 * Distance(one, same));
}

// With as many directions as there are texts, nothing of them is lost: lengths are 1.
TEST(TfidfProjectionTest, DirectionsAreOrthonormal) {
  const std::vector<TokenIds> texts = {{1, 2}, {2, 3, 3}, {4, 1}};
  const TfidfProjection model = Fit(texts, 3, 10);
  for (const TokenIds& text : texts) EXPECT_NEAR(Distance(Project(model, text), {0, 0, 0}), 1.0, 1e-4);
}

TEST(TfidfProjectionTest, OrderDoesNotMatterAndNothingIsNothing) {
  const TfidfProjection model = Fit(TwoKinds(), 4, 10);
  EXPECT_LT(Distance(Project(model, {1, 2, 5, 1}), Project(model, {1, 1, 5, 2})), 1e-6);
  EXPECT_EQ(Project(model, {}), Vector(4, 0.0));
  EXPECT_EQ(Project(model, {8, 9}), Vector(4, 0.0)) << "terms that never occurred say nothing";
}

TEST(TfidfProjectionTest, RandomWhereNothingWasLearned) {
  const TfidfProjection random(14, 100000);
  EXPECT_GT(Distance(Project(random, {1, 2, 3}), Project(random, {4, 5, 6})), 0.3);
  // Ids beyond the buckets are hashed; hostile ones as well.
  EXPECT_GT(Distance(Project(random, {99999}), Project(random, {50000})), 0.1);
  Project(random, {std::numeric_limits<TokenId>::min(), std::numeric_limits<TokenId>::max()});
}

TEST(TfidfProjectionTest, SavedAndLoadedIsTheSame) {
  const TfidfProjection model = Fit(TwoKinds(), 3, 10);
  v1::FeatureModelState state;
  model.Save(&state);
  const absl::StatusOr<TfidfProjection> loaded = TfidfProjection::Load(state, 3);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(Project(*loaded, {0, 1, 5, 7, 9}), Project(model, {0, 1, 5, 7, 9}));
}

TEST(TfidfProjectionTest, StatesThatCannotBeAreRefused) {
  v1::FeatureModelState good;
  Fit(TwoKinds(), 3, 10).Save(&good);
  const auto error = [](const v1::FeatureModelState& state, uint32_t dimensions = 3) {
    const absl::Status status = TfidfProjection::Load(state, dimensions).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  v1::FeatureModelState state = good;
  state.set_num_buckets(0xFFFFFFFF);
  EXPECT_THAT(error(state), HasSubstr("features.num_buckets: 4294967295"));
  state = good;
  state.set_buckets(1, 4000);
  EXPECT_THAT(error(state), HasSubstr("features.buckets[1]: 4000"));
  state = good;
  state.set_projection(4, std::numeric_limits<float>::infinity());
  EXPECT_THAT(error(state), HasSubstr("features.projection[4]"));
  EXPECT_THAT(error(good, 4), HasSubstr("expected 4 a bucket"));
}

}  // namespace
}  // namespace tandem::router
