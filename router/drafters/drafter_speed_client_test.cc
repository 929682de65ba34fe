#include "router/drafters/drafter_speed_client.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/server.h"
#include "gtest/gtest.h"
#include "router/state/routing_state.h"
#include "router/testing/test_router.h"
#include "tandem/v1/admin.pb.h"

namespace tandem::router {
namespace {

constexpr absl::Duration kSpeedPatience = absl::Seconds(30);

// A drafter that says nothing but how fast it is.
class TellingDrafter {
 public:
  explicit TellingDrafter(double level_seconds) : level_seconds_(level_seconds) {
    const auto info = [this] {
      v1::ServerInfo told;
      v1::ModelInfo& model = *told.add_models();
      model.set_name("m");
      model.set_level_seconds(level_seconds_);
      // That of MakeChooser's model, which it drafts for by text.
      model.set_vocabulary_fingerprint(0x77);
      v1::BridgedVocabulary& other = *model.add_bridged_vocabularies();
      other.set_fingerprint(5);
      other.set_by_text(true);
      ++num_asked_;
      return told;
    };
    server_ = ServerRunner::Start({.listen_address = "127.0.0.1:0"}, {}, {.server_info = info}).value();
    server_->SetServing(true);
  }
  const std::string& address() const { return server_->address(); }
  void set_level_seconds(double seconds) { level_seconds_ = seconds; }
  int num_asked() const { return num_asked_; }

 private:
  std::atomic<double> level_seconds_;
  std::atomic<int> num_asked_ = 0;
  std::unique_ptr<ServerRunner> server_;
};

v1::RouterConfig ConfigOf(const std::vector<std::string>& endpoints) {
  v1::RouterConfig config = testing::LettersConfig({"127.0.0.1:1"});
  config.clear_drafters();
  config.clear_tenants();
  for (size_t i = 0; i < endpoints.size(); ++i) {
    v1::DrafterConfig& drafter = *config.add_drafters();
    drafter.set_name(absl::StrCat("d", i));
    drafter.set_endpoint(endpoints[i]);
    drafter.set_draft_model("m");
  }
  v1::TenantConfig& tenant = *config.add_tenants();
  tenant.set_name("acme");
  tenant.set_token("secret");
  return config;
}

// What a level of the drafter is taken to cost.
double LevelSeconds(const DrafterChooser& chooser, const std::string& drafter) {
  return chooser.Explain(0, TokenIds{1, 2, 3}, "acme", {drafter}).candidates(1).hidden_level_seconds();
}

template <class Condition>
bool Soon(const Condition& condition) {
  const absl::Time end = absl::Now() + kSpeedPatience;
  while (!condition()) {
    if (absl::Now() > end) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

DrafterChooser MakeChooser() {
  return DrafterChooser({}, {{.name = "letters", .vocab_size = 60, .vocabulary_fingerprint = 5}});
}

TEST(DrafterSpeedClientTest, TellsTheChooserWhatDraftersSay) {
  TellingDrafter fast(0.0005);
  TellingDrafter slow(0.040);
  const auto state =
      RoutingState::InMemory(ConfigOf({slow.address(), fast.address(), "127.0.0.1:1"})).value();
  DrafterChooser chooser = MakeChooser();
  const DrafterSpeedClient speeds(
      {.period = absl::Milliseconds(1), .retry = absl::Milliseconds(1)}, [&] { return state->snapshot(); },
      &chooser);
  EXPECT_TRUE(
      Soon([&] { return LevelSeconds(chooser, "d0") == 0.040 && LevelSeconds(chooser, "d1") == 0.0005; }));
  EXPECT_EQ(LevelSeconds(chooser, "d2"), 0.0) << "nobody is there to say anything";
  EXPECT_TRUE(Soon([&] { return chooser.FitOf(0, "d0") == VocabularyFit::kText; }));
  EXPECT_EQ(chooser.FitOf(0, "d2"), VocabularyFit::kIds);
  // It has come back on a better machine.
  slow.set_level_seconds(0.002);
  EXPECT_TRUE(Soon([&] { return LevelSeconds(chooser, "d0") == 0.002; }));
}

TEST(DrafterSpeedClientTest, EndsWhileADrafterDoesNotAnswer) {
  // Takes connections and says nothing.
  std::atomic<bool> stop = false;
  const auto info = [&stop] {
    while (!stop) absl::SleepFor(absl::Milliseconds(1));
    return v1::ServerInfo();
  };
  const auto server =
      ServerRunner::Start({.listen_address = "127.0.0.1:0"}, {}, {.server_info = info}).value();
  const auto state = RoutingState::InMemory(ConfigOf({server->address()})).value();
  DrafterChooser chooser = MakeChooser();
  const absl::Time begin = absl::Now();
  {
    const DrafterSpeedClient speeds(
        {.patience = absl::Hours(1)}, [&] { return state->snapshot(); }, &chooser);
  }
  EXPECT_LT(absl::Now() - begin, kSpeedPatience);
  stop = true;
}

}  // namespace
}  // namespace tandem::router
