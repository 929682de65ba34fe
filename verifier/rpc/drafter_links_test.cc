#include "verifier/rpc/drafter_links.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/temporary_folder.h"
#include "common/rpc/listener.h"
#include "common/rpc/local_sockets.h"
#include "common/rpc/server.h"
#include "common/rpc/server_bidi.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tandem/v1/drafter.grpc.pb.h"

namespace tandem {
namespace {

// Far beyond what a test takes.
constexpr absl::Duration kPatience = absl::Seconds(60);

// What the links said, to be waited for.
class Record {
 public:
  DrafterLinks::Callbacks Callbacks() {
    return {.on_up = [this](LinkId) { Count(&ups_); },
            .on_down = [this](LinkId, absl::Status) { Count(&downs_); },
            .on_response = [this](LinkId, DraftResponse, size_t) { Count(&responses_); },
            .on_malformed = [this](LinkId, absl::Status) { Count(&malformed_); },
            .on_gone = [this](LinkId, const std::string&) { Count(&gone_); },
            .on_room = [this](LinkId) { Count(&rooms_); }};
  }
  bool WaitForDowns(int count) { return WaitFor(&downs_, count); }
  bool WaitForResponses(int count) { return WaitFor(&responses_, count); }
  bool WaitForMalformed(int count) { return WaitFor(&malformed_, count); }
  bool WaitForGone(int count) { return WaitFor(&gone_, count); }
  bool WaitForUps(int count) { return WaitFor(&ups_, count); }
  bool WaitForRooms(int count) { return WaitFor(&rooms_, count); }

 private:
  void Count(int* counter) {
    absl::MutexLock lock(&mutex_);
    ++*counter;
  }
  bool WaitFor(int* counter, int count) {
    const auto reached = [counter, count] { return *counter >= count; };
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&reached), kPatience);
  }

  absl::Mutex mutex_;
  int ups_ = 0;
  int downs_ = 0;
  int responses_ = 0;
  int malformed_ = 0;
  int gone_ = 0;
  int rooms_ = 0;
};

// A drafter that answers every request with `answers`, then, if told to, ends the stream.
class StubDrafter final : public v1::Drafter::CallbackService {
 public:
  using Stream = ServerBidi<v1::DraftRequest, v1::DraftResponse>;

  // With a folder it listens at a socket there too, whose id it tells.
  StubDrafter(std::vector<v1::DraftResponse> answers, bool hang_up, const std::string& local_sockets = "")
      : answers_(std::move(answers)), hang_up_(hang_up) {
    ServerOptions options{.listen_address = "127.0.0.1:0"};
    v1::ServerInfo info;
    if (!local_sockets.empty()) {
      info.set_local_socket(DrawSocketId());
      options.local_socket = LocalSocketPath(local_sockets, info.local_socket()).value();
    }
    server_ = ServerRunner::Start(options, {{v1::Drafter::service_full_name(), this}},
                                  {.server_info = [info] { return info; }})
                  .value();
  }

  std::string address() const { return server_->address(); }
  // Streams.
  int num_over_socket() const { return num_over_socket_.load(); }
  int num_over_tcp() const { return num_over_tcp_.load(); }

  grpc::ServerBidiReactor<v1::DraftRequest, v1::DraftResponse>* Draft(
      grpc::CallbackServerContext* context) override {
    (absl::StartsWith(context->peer(), "unix:") ? num_over_socket_ : num_over_tcp_).fetch_add(1);
    auto stream = Stream::Create(context);
    return stream->Start({.on_message = [this, stream](v1::DraftRequest) {
      for (const v1::DraftResponse& answer : answers_) stream->Write(answer);
      if (hang_up_) stream->Disconnect(absl::OkStatus());
    }});
  }

 private:
  const std::vector<v1::DraftResponse> answers_;
  const bool hang_up_;
  std::atomic<int> num_over_socket_{0};
  std::atomic<int> num_over_tcp_{0};
  std::unique_ptr<ServerRunner> server_;
};

const DraftRequest kClose{.session = 1, .event = CloseSession{}};

TEST(DrafterLinksTest, TriesADeadEndpointAgainUntilDestroyed) {
  const SystemClock clock;
  Record record;
  DrafterLinks links(record.Callbacks(), &clock, {});
  const LinkId link = links.Acquire("127.0.0.1:1").value();
  EXPECT_EQ(links.Acquire("127.0.0.1:1").value(), link);
  EXPECT_NE(links.Acquire("127.0.0.1:2").value(), link);
  EXPECT_EQ(links.EndpointOf(link), "127.0.0.1:1");
  links.Send(link, kClose);
  EXPECT_TRUE(record.WaitForDowns(6));
  EXPECT_TRUE(record.WaitForUps(6));
}

TEST(DrafterLinksTest, OpensAStreamAgainThatTheDrafterEnds) {
  v1::DraftResponse opened;
  opened.set_session(1);
  opened.mutable_opened()->set_epoch(1);
  StubDrafter drafter({opened}, /*hang_up=*/true);
  const SystemClock clock;
  Record record;
  DrafterLinks links(record.Callbacks(), &clock, {});
  const LinkId link = links.Acquire(drafter.address()).value();
  for (int round = 1; round <= 3; ++round) {
    links.Send(link, kClose);
    EXPECT_TRUE(record.WaitForResponses(round));
    links.Acknowledge(link);
    EXPECT_TRUE(record.WaitForDowns(round));
    EXPECT_TRUE(record.WaitForUps(round + 1));
  }
}

TEST(DrafterLinksTest, TellsOfMessagesThatCannotBeDecoded) {
  v1::DraftResponse empty;  // Without an event.
  empty.set_session(1);
  StubDrafter drafter({empty}, /*hang_up=*/false);
  const SystemClock clock;
  Record record;
  DrafterLinks links(record.Callbacks(), &clock, {});
  links.Send(links.Acquire(drafter.address()).value(), kClose);
  EXPECT_TRUE(record.WaitForMalformed(1));
}

TEST(DrafterLinksTest, FeaturesAreCountedUntilTheyHaveLeft) {
  v1::DraftResponse opened;
  opened.set_session(1);
  opened.mutable_opened()->set_epoch(1);
  StubDrafter drafter({opened}, /*hang_up=*/false);
  const SystemClock clock;
  Record record;
  DrafterLinks links(record.Callbacks(), &clock, {});
  const LinkId link = links.Acquire(drafter.address()).value();
  const DraftRequest features{.session = 1,
                              .event = Features{.epoch = 1, .states = std::string(size_t{300} << 10, 's')}};
  for (int i = 1; i <= 3; ++i) {
    EXPECT_GT(links.Send(link, features), size_t{300} << 10);
    EXPECT_TRUE(record.WaitForRooms(i));
    EXPECT_TRUE(record.WaitForResponses(i)) << "it has arrived";
    links.Acknowledge(link);
    EXPECT_EQ(links.BacklogOf(link).feature_messages, 0u);
    EXPECT_EQ(links.BacklogOf(link).feature_bytes, 0u);
  }
  const LinkId dead = links.Acquire("127.0.0.1:1").value();
  EXPECT_TRUE(record.WaitForDowns(1));
  EXPECT_EQ(links.BacklogOf(dead).feature_bytes, 0u);
}

TEST(DrafterLinksTest, ADrafterOfThisMachineIsSpokenWithOverItsSocket) {
  v1::DraftResponse opened;
  opened.set_session(1);
  opened.mutable_opened()->set_epoch(1);
  const TemporaryFolder folder;
  StubDrafter local({opened}, /*hang_up=*/true, folder.path());
  StubDrafter remote({opened}, /*hang_up=*/true);
  const SystemClock clock;
  Record record;
  DrafterLinks links(record.Callbacks(), &clock, {.local_sockets = folder.path()});
  const LinkId to_local = links.Acquire(local.address()).value();
  const LinkId to_remote = links.Acquire(remote.address()).value();
  // What is sent at once waits for the search, and every stream that is opened anew is searched for again.
  for (int round = 1; round <= 3; ++round) {
    EXPECT_GT(links.Send(to_local, kClose), 0u);
    EXPECT_GT(links.Send(to_remote, kClose), 0u);
    EXPECT_TRUE(record.WaitForResponses(2 * round));
    links.Acknowledge(to_local);
    links.Acknowledge(to_remote);
    EXPECT_TRUE(record.WaitForDowns(2 * round));
    EXPECT_TRUE(record.WaitForUps(2 * (round + 1)));
    EXPECT_GE(local.num_over_socket(), round);
    EXPECT_GE(remote.num_over_tcp(), round);
  }
  EXPECT_EQ(local.num_over_tcp(), 0);
  EXPECT_EQ(remote.num_over_socket(), 0);
}

TEST(DrafterLinksTest, ALostSocketIsNoLostDrafter) {
  v1::DraftResponse opened;
  opened.set_session(1);
  opened.mutable_opened()->set_epoch(1);
  const TemporaryFolder folder;
  StubDrafter drafter({opened}, /*hang_up=*/true, folder.path());
  const SystemClock clock;
  Record record;
  DrafterLinks links(record.Callbacks(), &clock, {.local_sockets = folder.path()});
  const LinkId link = links.Acquire(drafter.address()).value();
  links.Send(link, kClose);
  EXPECT_TRUE(record.WaitForResponses(1));
  links.Acknowledge(link);
  EXPECT_TRUE(record.WaitForUps(2));
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) unlink(entry.path().c_str());
  // The stream that is open may have found it still.
  for (int round = 2; round <= 3; ++round) {
    links.Send(link, kClose);
    EXPECT_TRUE(record.WaitForResponses(round));
    links.Acknowledge(link);
    EXPECT_TRUE(record.WaitForDowns(round));
    EXPECT_TRUE(record.WaitForUps(round + 1));
  }
  links.Send(link, kClose);
  EXPECT_TRUE(record.WaitForResponses(4));
  EXPECT_FALSE(links.IsLocal(link));
}

TEST(DrafterLinksTest, LinksEndWhileTheyLookForASocket) {
  const TemporaryFolder folder;
  // Takes connections and never answers.
  const auto silent = Listener::Bind("127.0.0.1:0").value();
  const SystemClock clock;
  Record record;
  {
    DrafterLinks links(record.Callbacks(), &clock, {.local_sockets = folder.path()});
    ASSERT_TRUE(links.Acquire(absl::StrCat("127.0.0.1:", silent->port())).ok());
    ASSERT_TRUE(links.Acquire("127.0.0.1:1").ok());
  }
  EXPECT_TRUE(record.WaitForDowns(2));
}

TEST(DrafterLinksTest, EndpointsAreBoundedAndTheOneUsedLongestAgoGivesWay) {
  ManualClock clock;
  Record record;
  DrafterLinks links(record.Callbacks(), &clock, {});
  const auto endpoint = [](size_t i) { return absl::StrCat("127.0.0.1:", i + 1); };
  std::vector<LinkId> ids;
  for (size_t i = 0; i < DrafterLinks::kMostLinks; ++i) {
    ids.push_back(links.Acquire(endpoint(i)).value());
    clock.Advance(absl::Milliseconds(1));
  }
  EXPECT_EQ(links.Acquire(endpoint(0)).value(), ids[0]);
  clock.Advance(absl::Milliseconds(1));

  // Pods come and go: every new address finds a place.
  for (size_t i = DrafterLinks::kMostLinks; i < DrafterLinks::kMostLinks + 100; ++i) {
    const absl::StatusOr<LinkId> link = links.Acquire(endpoint(i));
    ASSERT_TRUE(link.ok()) << link.status();
    EXPECT_THAT(ids, testing::Not(testing::Contains(*link))) << "an id means one endpoint";
    clock.Advance(absl::Milliseconds(1));
  }
  EXPECT_EQ(links.EndpointOf(ids[0]), endpoint(0)) << "it was used since";
  EXPECT_EQ(links.EndpointOf(ids[1]), "");
  EXPECT_TRUE(record.WaitForGone(100));
  EXPECT_EQ(links.Send(ids[1], kClose), 0u) << "nobody is there";
}

TEST(DrafterLinksTest, ALinkWithSessionsKeepsItsPlace) {
  v1::DraftResponse opened;
  opened.set_session(1);
  opened.mutable_opened()->set_epoch(1);
  StubDrafter drafter({opened}, /*hang_up=*/false);
  const SystemClock clock;
  Record record;
  DrafterLinks links(record.Callbacks(), &clock, {});
  const LinkId link = links.Acquire(drafter.address()).value();
  links.Send(link, {.session = 1, .event = OpenSession{.epoch = 1, .draft_model = "m", .tokens = {1}}});
  ASSERT_TRUE(record.WaitForResponses(1));
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(links.Acquire(absl::StrCat("127.0.0.1:", i + 1)).ok());
  EXPECT_EQ(links.EndpointOf(link), drafter.address());
  links.Send(link, kClose);
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(links.Acquire(absl::StrCat("127.0.0.1:", 400 + i)).ok());
  EXPECT_EQ(links.EndpointOf(link), "") << "its only session is closed";
}

}  // namespace
}  // namespace tandem
