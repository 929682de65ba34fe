#include "common/config/yaml_proto.h"

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/struct.pb.h"
#include "gtest/gtest.h"
#include "tandem/v1/admin.pb.h"
#include "tandem/v1/config.pb.h"
#include "tandem/v1/drafter.pb.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/types.pb.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class Message>
std::string ErrorOf(absl::string_view text) {
  Message message;
  const absl::Status status = ParseYaml(text, "f.yaml", &message);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(status.message());
}

TEST(YamlProtoTest, ReadsARouterConfiguration) {
  v1::RouterConfig config;
  ASSERT_EQ(ParseYaml(R"(# Everything a router needs.
models:
  - name: big
    folder: /models/big
    verifiers: [verifier-0:7002, "verifier-1:7002"]
drafters:
  - {name: code, endpoint: "drafter:7003", draft_model: small}
tenants:
  - &acme
    name: acme
    token: "1234"
    models: &all
      - big
  - name: other
    models: *all
allow_anonymous: true
max_concurrent_requests: 12
)",
                      "router.yaml", &config),
            absl::OkStatus());
  ASSERT_EQ(config.models_size(), 1);
  EXPECT_EQ(config.models(0).folder(), "/models/big");
  EXPECT_THAT(config.models(0).verifiers(), ElementsAre("verifier-0:7002", "verifier-1:7002"));
  EXPECT_EQ(config.drafters(0).draft_model(), "small");
  ASSERT_EQ(config.tenants_size(), 2);
  EXPECT_EQ(config.tenants(0).token(), "1234");
  EXPECT_THAT(config.tenants(1).models(), ElementsAre("big"));
  EXPECT_TRUE(config.allow_anonymous());
  EXPECT_EQ(config.max_concurrent_requests(), 12u);
}

TEST(YamlProtoTest, ReadsEveryScalarKind) {
  v1::SamplingParameters sampling;
  ASSERT_EQ(
      ParseYaml("temperature: 0\ntop_p: 9.5e-1\nseed: 18446744073709551615\nlogit_bias: {3: -1.5, 4: 2}\n",
                "f", &sampling),
      absl::OkStatus());
  EXPECT_TRUE(sampling.has_temperature());
  EXPECT_EQ(sampling.temperature(), 0.0f);
  EXPECT_EQ(sampling.top_p(), 0.95f);
  EXPECT_FALSE(sampling.has_top_k());
  EXPECT_EQ(sampling.seed(), ~uint64_t{0});
  EXPECT_EQ(sampling.logit_bias().at(3), -1.5f);
  EXPECT_EQ(sampling.logit_bias_size(), 2);
  v1::SessionRefused refused;
  ASSERT_EQ(ParseYaml("code: -2147483648\nmessage: yes\n", "f", &refused), absl::OkStatus());
  EXPECT_EQ(refused.code(), -2147483648);
  EXPECT_EQ(refused.message(), "yes");
  v1::ServerInfo info;
  ASSERT_EQ(ParseYaml("role: verifier\nuptime_seconds: 1e300\nmodels: [{vocabulary_fingerprint: 0xff}]\n",
                      "f", &info),
            absl::OkStatus());
  EXPECT_EQ(info.role(), v1::SERVER_ROLE_VERIFIER);
  EXPECT_EQ(info.uptime_seconds(), 1e300);
  EXPECT_EQ(info.models(0).vocabulary_fingerprint(), 255u);
  ASSERT_EQ(ParseYaml("role: SERVER_ROLE_DRAFTER", "f", &info), absl::OkStatus());
  EXPECT_EQ(info.role(), v1::SERVER_ROLE_DRAFTER);
  EXPECT_EQ(info.models_size(), 0);  // Cleared first.
}

TEST(YamlProtoTest, NothingIsAnEmptyMessageListOrMap) {
  v1::RouterConfig config;
  EXPECT_EQ(ParseYaml("", "f", &config), absl::OkStatus());
  EXPECT_EQ(ParseYaml("# nothing\n", "f", &config), absl::OkStatus());
  EXPECT_EQ(ParseYaml("models:\ntenants: ~\n", "f", &config), absl::OkStatus());
  EXPECT_THAT(ErrorOf<v1::RouterConfig>("max_concurrent_requests:\n"),
              HasSubstr("nothing, expected a whole number"));
  EXPECT_THAT(ErrorOf<v1::RouterConfig>("tenants: [{name: }]"), HasSubstr("nothing, expected text"));
}

TEST(YamlProtoTest, ErrorsNameTheirPlaceAndWhatWasExpected) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"tenants:\n  - name: a\n    drafer: b\n",
       "f.yaml:3:5: tenants[0].drafer: unknown key, did you mean \"drafter\"?"},
      {"zebra: 1\n", "f.yaml:1:1: zebra: unknown key"},
      {"models: []\nmodels: []\n", "f.yaml:2:1: models: duplicate key"},
      {"max_concurrent_requests: -1\n",
       "f.yaml:1:26: max_concurrent_requests: \"-1\", expected a whole number from 0 to 4294967295"},
      {"max_concurrent_requests: 4294967296\n", "expected a whole number from 0 to 4294967295"},
      {"max_concurrent_requests: 1.5\n", "\"1.5\", expected a whole number"},
      {"max_concurrent_requests: \"5\"\n", "expected a whole number"},
      {"max_concurrent_requests: [5]\n", "a list, expected a whole number"},
      {"max_concurrent_requests: ten\n", "\"ten\", expected a whole number"},
      {"allow_anonymous: 1\n", "\"1\", expected true or false"},
      {"allow_anonymous: yes\n", "\"yes\", expected true or false"},
      {"allow_anonymous: \"true\"\n", "expected true or false"},
      {"models: {}\n", "f.yaml:1:9: models: a mapping, expected a list"},
      {"models: big\n", "\"big\", expected a list"},
      {"models: [big]\n", "f.yaml:1:10: models[0]: \"big\", expected a mapping"},
      {"models: [{name: 5}]\n", "f.yaml:1:17: models[0].name: not text but 5; put it in quotes"},
      {"models: [{name: true}]\n", "not text but true"},
      {"models: [{name: -1e5}]\n", "not text but -1e5"},
      {"models: [{name: [a]}]\n", "models[0].name: a list, expected text"},
      {"models: [{verifiers: [a, {}]}]\n", "models[0].verifiers[1]: a mapping, expected text"},
      {"? [a]\n: b\n", "a list as a key"},
      {"- a\n", "f.yaml:1:1: a list, expected a mapping"},
      {"models: [\n", "f.yaml:2:1: not YAML"},
      {"a: b: c\n", "f.yaml:1:5: not YAML"},
      {"models: *nowhere\n", "not YAML"},
      {"models: []\n---\nmodels: []\n", "f.yaml:2:1: a second document"},
      {"&a,b", "f.yaml:1:3: a second document"},
      {std::string("models: \x01\n"), "f.yaml"},
  };
  for (const auto& [text, error] : cases)
    EXPECT_THAT(ErrorOf<v1::RouterConfig>(text), HasSubstr(error)) << text;
  EXPECT_THAT(ErrorOf<v1::ServerInfo>("role: chef"),
              HasSubstr("\"chef\", expected router, verifier, drafter"));
  EXPECT_THAT(ErrorOf<v1::ServerInfo>("role: 1"), HasSubstr("expected router"));
  EXPECT_THAT(ErrorOf<v1::ServerInfo>("role: unspecified"), HasSubstr("expected router"));
  EXPECT_THAT(ErrorOf<v1::SessionRefused>("code: 2147483648"), HasSubstr("from -2147483648 to 2147483647"));
  EXPECT_THAT(ErrorOf<v1::SamplingParameters>("temperature: 1e39"), HasSubstr("expected a number"));
  EXPECT_THAT(ErrorOf<v1::SamplingParameters>("temperature: .nan"), HasSubstr("expected a number"));
  EXPECT_THAT(ErrorOf<v1::SamplingParameters>("temperature: .inf"), HasSubstr("expected a number"));
  EXPECT_THAT(ErrorOf<v1::SamplingParameters>("temperature: inf"), HasSubstr("expected a number"));
  EXPECT_THAT(ErrorOf<v1::SamplingParameters>("logit_bias: {a: 1}"),
              HasSubstr("logit_bias[a]: \"a\", expected a whole"));
  EXPECT_THAT(ErrorOf<v1::SamplingParameters>("logit_bias: {1: 1, 0x1: 2}"),
              HasSubstr("logit_bias[0x1]: duplicate"));
  EXPECT_THAT(ErrorOf<v1::GenerateRequest>("text: a\ntoken_ids: {}"),
              HasSubstr("f.yaml:2:1: token_ids: given together with text"));
}

TEST(YamlProtoTest, LongValuesAreCutInMessages) {
  const std::string error =
      ErrorOf<v1::RouterConfig>(absl::StrCat("allow_anonymous: ", std::string(5000, 'x')));
  EXPECT_LT(error.size(), 200u);
}

TEST(YamlProtoTest, AliasBombsDeepNestingAndSizeAreBounded) {
  std::string bomb = "a: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  // google.protobuf.Value is a message that can hold any nesting.
  bomb = "list_value:\n  values:\n";
  bomb += "  - &a0 {list_value: {values: [{bool_value: true}, {bool_value: true}]}}\n";
  for (int i = 1; i < 12; ++i) {
    absl::StrAppend(&bomb, "  - &a", i, " {list_value: {values: [*a", i - 1, ", *a", i - 1, ", *a", i - 1,
                    ", *a", i - 1, "]}}\n");
  }
  EXPECT_THAT(ErrorOf<google::protobuf::Value>(bomb), HasSubstr("more than 100000 values"));

  std::string deep;
  for (int i = 0; i < 20; ++i) deep += "{list_value: {values: [";
  EXPECT_THAT(ErrorOf<google::protobuf::Value>(deep + "{}" +
                                               [] {
                                                 std::string close;
                                                 for (int i = 0; i < 20; ++i) close += "]}}";
                                                 return close;
                                               }()),
              HasSubstr("deeper than 32"));
  // The parser itself must not recurse without bound either.
  ErrorOf<v1::RouterConfig>(std::string(500'000, '['));
  ErrorOf<v1::RouterConfig>(std::string(500'000, '{'));
  std::string dashes;
  for (int i = 0; i < 100'000; ++i) dashes += "- ";
  ErrorOf<v1::RouterConfig>(dashes);
  EXPECT_THAT(ErrorOf<v1::RouterConfig>(std::string((1 << 20) + 1, ' ')),
              HasSubstr("expected at most 1048576"));
  // A node that contains itself.
  EXPECT_THAT(ErrorOf<google::protobuf::Value>("&a {list_value: {values: [*a]}}"),
              HasSubstr("deeper than 32"));
}

TEST(YamlProtoTest, DamagedTextsNeverCrash) {
  const std::string good =
      "models:\n  - &m {name: big, folder: \"/m\", verifiers: [a, 'b']}\n  - *m\ntenants: [{name: |\n  x\n "
      "}]\n";
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    std::mt19937_64 random(seed);
    std::string text = good;
    for (uint64_t change = 0, changes = 1 + random() % 4; change < changes; ++change) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.insert(at, 1, "{}[]:,-&*!|>'\"%@#?\n\t "[random() % 22]);
          break;
        default:
          text.erase(at, 1 + random() % 5);
          if (text.empty()) text = " ";
      }
    }
    v1::RouterConfig config;
    const absl::Status status = ParseYaml(text, "f.yaml", &config);
    if (!status.ok()) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << "seed " << seed;
      EXPECT_THAT(std::string(status.message()), HasSubstr("f.yaml")) << "seed " << seed;
    }
  }
}

TEST(YamlProtoTest, ReadsFiles) {
  v1::RouterConfig config;
  const absl::Status status = ReadYamlFile("/nonexistent/router.yaml", &config);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nonexistent/router.yaml"));
}

}  // namespace
}  // namespace tandem
