// The stream classes against one another, over a real in-process server.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/barrier.h"
#include "absl/synchronization/mutex.h"
#include "common/base/mailbox.h"
#include "common/rpc/channel.h"
#include "common/rpc/client_bidi.h"
#include "common/rpc/client_stream_reader.h"
#include "common/rpc/server_bidi.h"
#include "common/rpc/server_stream.h"
#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "tandem/v1/drafter.grpc.pb.h"
#include "tandem/v1/verifier.grpc.pb.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;
using ServerStreamT = ServerStream<v1::GenerateResponse>;
using ServerBidiT = ServerBidi<v1::DraftRequest, v1::DraftResponse>;
using ClientBidiT = ClientBidi<v1::DraftRequest, v1::DraftResponse>;
using ReaderT = ClientStreamReader<v1::VerifierGenerateRequest, v1::GenerateResponse>;

constexpr absl::Duration kLong = absl::Seconds(60);

// What happened at one end of a call, in order, to be waited for. Events are waited for by their beginning.
class EventLog {
 public:
  // By now the server has run every reaction, but by atomics inside gRPC that ThreadSanitizer does not see.
  // It sees the mutex.
  ~EventLog() { absl::MutexLock lock(&mutex_); }

  void Add(std::string event) {
    absl::MutexLock lock(&mutex_);
    events_.push_back(std::move(event));
  }
  std::vector<std::string> All() {
    absl::MutexLock lock(&mutex_);
    return events_;
  }
  std::vector<std::string> Take() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(events_, {});
  }
  int Count(absl::string_view prefix) {
    absl::MutexLock lock(&mutex_);
    return CountLocked(prefix);
  }
  [[nodiscard]] bool Await(const std::string& prefix) { return AwaitEither(prefix, prefix); }
  [[nodiscard]] bool AwaitEither(const std::string& a, const std::string& b) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&] { return CountLocked(a) > 0 || CountLocked(b) > 0; };
    return mutex_.AwaitWithTimeout(absl::Condition(&there), kLong);
  }

 private:
  int CountLocked(absl::string_view prefix) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return static_cast<int>(std::count_if(events_.begin(), events_.end(), [&](const std::string& event) {
      return absl::StartsWith(event, prefix);
    }));
  }

  absl::Mutex mutex_;
  std::vector<std::string> events_ ABSL_GUARDED_BY(mutex_);
};

std::string Name(const absl::Status& status) {
  return absl::StatusCodeToString(status.code());
}

v1::GenerateResponse Chunk(uint32_t offset, size_t text_bytes = 0) {
  v1::GenerateResponse response;
  response.mutable_chunk()->set_offset(offset);
  response.mutable_chunk()->set_text(std::string(text_bytes, 'x'));
  return response;
}

v1::DraftRequest Ping(uint64_t session, size_t bytes = 0) {
  v1::DraftRequest request;
  request.set_session(session);
  request.mutable_open()->set_draft_model(std::string(bytes, 'x'));
  return request;
}

v1::DraftResponse Pong(uint64_t session, size_t bytes = 0) {
  v1::DraftResponse response;
  response.set_session(session);
  response.mutable_refused()->set_message(std::string(bytes, 'x'));
  return response;
}

// Hands every call to the test.
class VerifierService final : public v1::Verifier::CallbackService {
 public:
  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext*,
                                                           const v1::VerifierGenerateRequest*) override {
    auto stream = ServerStreamT::Create(limits);
    auto* reactor =
        stream->Start({.on_cancelled = [this](absl::Status s) { log.Add("cancelled " + Name(s)); },
                       .on_done = [this](absl::Status s) { log.Add("done " + Name(s)); }});
    calls.Push(std::move(stream));
    return reactor;
  }

  std::shared_ptr<ServerStreamT> NextCall() {
    std::vector<std::shared_ptr<ServerStreamT>> taken;
    calls.WaitUntil(absl::Now() + kLong, &taken);
    return taken.size() == 1 ? taken[0] : nullptr;
  }

  StreamLimits limits;
  EventLog log;
  Mailbox<std::shared_ptr<ServerStreamT>> calls;
};

class DrafterService final : public v1::Drafter::CallbackService {
 public:
  grpc::ServerBidiReactor<v1::DraftRequest, v1::DraftResponse>* Draft(
      grpc::CallbackServerContext* context) override {
    auto stream = ServerBidiT::Create(context, limits, max_unacknowledged);
    calls.Push(stream);
    return stream->Start({.on_message =
                              [this, stream](v1::DraftRequest request) {
                                log.Add(absl::StrCat("message ", request.session()));
                                if (echo) stream->Write(Pong(request.session()));
                              },
                          .on_closed = [this](absl::Status s) { log.Add("closed " + Name(s)); }});
  }

  std::shared_ptr<ServerBidiT> NextCall() {
    std::vector<std::shared_ptr<ServerBidiT>> taken;
    calls.WaitUntil(absl::Now() + kLong, &taken);
    return taken.size() == 1 ? taken[0] : nullptr;
  }

  StreamLimits limits;
  size_t max_unacknowledged = 0;
  bool echo = false;
  EventLog log;
  Mailbox<std::shared_ptr<ServerBidiT>> calls;
};

class StreamsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&verifier_);
    builder.RegisterService(&drafter_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    auto channel = CreateChannel(absl::StrCat("127.0.0.1:", port));
    verifier_stub_ = v1::Verifier::NewStub(channel);
    drafter_stub_ = v1::Drafter::NewStub(channel);
  }

  void TearDown() override {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  std::shared_ptr<ReaderT> Generate(size_t max_unacknowledged = 0) {
    auto call = ReaderT::Create(max_unacknowledged);
    call->Start(
        v1::VerifierGenerateRequest(),
        [this](grpc::ClientContext* context, const v1::VerifierGenerateRequest* request,
               grpc::ClientReadReactor<v1::GenerateResponse>* reactor) {
          verifier_stub_->async()->Generate(context, request, reactor);
        },
        {.on_message =
             [this](v1::GenerateResponse m) { client_log_.Add(absl::StrCat("chunk ", m.chunk().offset())); },
         .on_done = [this](absl::Status s) { client_log_.Add("done " + Name(s)); }});
    return call;
  }

  std::shared_ptr<ClientBidiT> Draft(const StreamLimits& limits = {}, size_t max_unacknowledged = 0) {
    auto stream = ClientBidiT::Create(limits, max_unacknowledged);
    stream->Start(
        [this](grpc::ClientContext* context,
               grpc::ClientBidiReactor<v1::DraftRequest, v1::DraftResponse>* reactor) {
          drafter_stub_->async()->Draft(context, reactor);
        },
        {.on_message = [this,
                        stream](v1::DraftResponse m) { client_log_.Add(absl::StrCat("pong ", m.session())); },
         .on_closed = [this](absl::Status s) { client_log_.Add("closed " + Name(s)); }});
    return stream;
  }

  VerifierService verifier_;
  DrafterService drafter_;
  EventLog client_log_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Verifier::Stub> verifier_stub_;
  std::unique_ptr<v1::Drafter::Stub> drafter_stub_;
};

TEST_F(StreamsTest, ServerStreamDeliversEverythingThenTheStatus) {
  auto call = Generate();
  auto stream = verifier_.NextCall();
  ASSERT_NE(stream, nullptr);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(stream->Write(Chunk(i)));
  stream->Finish(absl::NotFoundError("no such model"));
  stream->Finish(absl::OkStatus());
  EXPECT_FALSE(stream->Write(Chunk(3)));
  ASSERT_TRUE(client_log_.Await("done NOT_FOUND"));
  EXPECT_THAT(client_log_.All(), ElementsAre("chunk 0", "chunk 1", "chunk 2", "done NOT_FOUND"));
  ASSERT_TRUE(verifier_.log.Await("done NOT_FOUND"));
  EXPECT_THAT(verifier_.log.All(), ElementsAre("done NOT_FOUND"));
}

TEST_F(StreamsTest, ServerStreamReportsACancelOnceAndFinishesItself) {
  auto call = Generate();
  auto stream = verifier_.NextCall();
  ASSERT_NE(stream, nullptr);
  EXPECT_TRUE(stream->Write(Chunk(0)));
  ASSERT_TRUE(client_log_.Await("chunk 0"));
  call->TryCancel();
  ASSERT_TRUE(client_log_.Await("done CANCELLED"));
  ASSERT_TRUE(verifier_.log.Await("done CANCELLED"));
  EXPECT_THAT(verifier_.log.All(), ElementsAre("cancelled CANCELLED", "done CANCELLED"));
  EXPECT_FALSE(stream->Write(Chunk(1)));
  stream->Finish(absl::OkStatus());
}

TEST_F(StreamsTest, ServerStreamNoticesTheClientsDeadline) {
  auto call = ReaderT::Create();
  // After the call has reached the server, which connects first.
  call->context().set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(3));
  call->Start(v1::VerifierGenerateRequest(),
              [this](auto* context, const auto* request, auto* reactor) {
                verifier_stub_->async()->Generate(context, request, reactor);
              },
              {.on_message = {}, .on_done = [this](absl::Status s) { client_log_.Add("done " + Name(s)); }});
  ASSERT_TRUE(client_log_.Await("done DEADLINE_EXCEEDED"));
  ASSERT_TRUE(verifier_.log.Await("done CANCELLED"));
}

TEST_F(StreamsTest, ServerStreamOverflowCancelsWithResourceExhausted) {
  verifier_.limits = {.max_queued_messages = 4, .max_queued_bytes = size_t{64} << 20};
  // The client reads nothing until told, so the transport's windows fill up and then the queue.
  auto call = Generate(/*max_unacknowledged=*/1);
  auto stream = verifier_.NextCall();
  ASSERT_NE(stream, nullptr);
  uint32_t written = 0;
  while (written < 1000 && stream->Write(Chunk(written, size_t{1} << 20))) ++written;
  ASSERT_LT(written, 1000u);
  EXPECT_EQ(verifier_.log.All().front(), "cancelled RESOURCE_EXHAUSTED");
  EXPECT_FALSE(stream->Write(Chunk(0)));
  // The client goes on reading: it gets what was under way, then the status.
  for (uint32_t i = 0; client_log_.Count("done") == 0; ++i) {
    ASSERT_TRUE(client_log_.AwaitEither(absl::StrCat("chunk ", i), "done"));
    call->Acknowledge(1);
  }
  EXPECT_EQ(client_log_.Count("done RESOURCE_EXHAUSTED"), 1);
  ASSERT_TRUE(verifier_.log.Await("done"));
  EXPECT_THAT(verifier_.log.All(), ElementsAre("cancelled RESOURCE_EXHAUSTED", "done RESOURCE_EXHAUSTED"));
}

TEST_F(StreamsTest, ReaderReadsOnlyWhenTold) {
  auto call = Generate(/*max_unacknowledged=*/2);
  auto stream = verifier_.NextCall();
  ASSERT_NE(stream, nullptr);
  for (uint32_t i = 0; i < 5; ++i) stream->Write(Chunk(i));
  stream->Finish(absl::OkStatus());
  ASSERT_TRUE(verifier_.log.Await("done OK"));  // Everything is at the client's transport.
  ASSERT_TRUE(client_log_.Await("chunk 1"));
  EXPECT_EQ(client_log_.All().size(), 2u);
  call->Acknowledge(1);
  ASSERT_TRUE(client_log_.Await("chunk 2"));
  EXPECT_EQ(client_log_.All().size(), 3u);
  call->Acknowledge(2);
  ASSERT_TRUE(client_log_.Await("chunk 4"));
  call->Acknowledge(2);
  ASSERT_TRUE(client_log_.Await("done OK"));
  EXPECT_EQ(client_log_.All().size(), 6u);
}

TEST_F(StreamsTest, PausedReaderCanBeCancelled) {
  auto call = Generate(/*max_unacknowledged=*/1);
  auto stream = verifier_.NextCall();
  ASSERT_NE(stream, nullptr);
  for (uint32_t i = 0; i < 5; ++i) stream->Write(Chunk(i));
  ASSERT_TRUE(client_log_.Await("chunk 0"));
  call->TryCancel();
  ASSERT_TRUE(client_log_.Await("done CANCELLED"));
  EXPECT_THAT(client_log_.All(), ElementsAre("chunk 0", "done CANCELLED"));
}

TEST_F(StreamsTest, BidiEchoesInOrderAndEndsWithTheClient) {
  drafter_.echo = true;
  auto stream = Draft();
  for (uint64_t i = 0; i < 100; ++i) EXPECT_TRUE(stream->Write(Ping(i)));
  stream->Disconnect();
  stream->Disconnect();
  EXPECT_FALSE(stream->Write(Ping(100)));
  ASSERT_TRUE(drafter_.log.Await("closed OK"));
  ASSERT_TRUE(client_log_.Await("closed OK"));
  std::vector<std::string> pings, pongs;
  for (int i = 0; i < 100; ++i) {
    pings.push_back(absl::StrCat("message ", i));
    pongs.push_back(absl::StrCat("pong ", i));
  }
  pings.push_back("closed OK");
  pongs.push_back("closed OK");
  EXPECT_EQ(drafter_.log.All(), pings);
  EXPECT_EQ(client_log_.All(), pongs);
}

TEST_F(StreamsTest, ServerDisconnectsWithAStatusWhileAReadIsInFlight) {
  auto stream = Draft();
  auto served = drafter_.NextCall();
  ASSERT_NE(served, nullptr);
  EXPECT_TRUE(served->Write(Pong(1)));
  EXPECT_TRUE(served->Write(Pong(2)));
  served->Disconnect(absl::UnavailableError("draining"));
  served->Disconnect();
  EXPECT_FALSE(served->Write(Pong(3)));
  ASSERT_TRUE(client_log_.Await("closed UNAVAILABLE"));
  ASSERT_TRUE(drafter_.log.Await("closed UNAVAILABLE"));
  EXPECT_THAT(client_log_.All(), ElementsAre("pong 1", "pong 2", "closed UNAVAILABLE"));
  EXPECT_FALSE(stream->Write(Ping(1)));
}

TEST_F(StreamsTest, CancelledBidiClosesBothEnds) {
  auto stream = Draft();
  auto served = drafter_.NextCall();
  ASSERT_NE(served, nullptr);
  stream->Cancel();
  stream->Cancel();
  ASSERT_TRUE(client_log_.Await("closed CANCELLED"));
  ASSERT_TRUE(drafter_.log.Await("closed CANCELLED"));
  EXPECT_FALSE(served->Write(Pong(1)));
  EXPECT_EQ(drafter_.log.All().size(), 1u);
}

TEST_F(StreamsTest, ServerBidiOverflowCancelsTheCall) {
  drafter_.limits = {.max_queued_messages = 1000, .max_queued_bytes = size_t{4} << 20};
  auto stream = Draft({}, /*max_unacknowledged=*/1);
  auto served = drafter_.NextCall();
  ASSERT_NE(served, nullptr);
  int written = 0;
  while (written < 1000 && served->Write(Pong(written, size_t{1} << 20))) ++written;
  ASSERT_LT(written, 1000);
  EXPECT_GE(written,
            3);  // A message is a little more than its MiB; one more fits once the first is on its way.
  ASSERT_TRUE(drafter_.log.Await("closed RESOURCE_EXHAUSTED"));
  stream->Cancel();
  ASSERT_TRUE(client_log_.Await("closed CANCELLED"));
}

TEST_F(StreamsTest, ClientBidiOverflowCancelsTheCall) {
  drafter_.max_unacknowledged = 1;
  auto stream = Draft({.max_queued_messages = 8, .max_queued_bytes = size_t{64} << 20});
  int written = 0;
  while (written < 1000 && stream->Write(Ping(written, size_t{1} << 20))) ++written;
  ASSERT_LT(written, 1000);
  ASSERT_TRUE(client_log_.Await("closed RESOURCE_EXHAUSTED"));
  EXPECT_EQ(client_log_.All().size(), 1u);
}

TEST_F(StreamsTest, ClientBidiLetsOthersPassWhatIsWrittenBehind) {
  auto stream =
      ClientBidiT::Create({.max_queued_bytes = 3000, .max_bytes_behind = 2000, .low_bytes_behind = 1000});
  for (uint64_t i = 1; i <= 3; ++i) EXPECT_TRUE(stream->WriteBehind(Ping(i, 600)));
  EXPECT_TRUE(stream->Write(Ping(4, 50)));
  EXPECT_TRUE(stream->Write(Ping(5, 50)));
  EXPECT_FALSE(stream->WriteBehind(Ping(6, 600))) << "there is no room; nothing else comes of it";
  const ClientBidiT::Backlog before = stream->backlog();
  EXPECT_EQ(before.bytes, 2 * Ping(4, 50).ByteSizeLong());
  EXPECT_EQ(before.num_behind, 3u);
  EXPECT_EQ(before.bytes_behind, 3 * Ping(1, 600).ByteSizeLong());
  stream->Start(
      [this](auto* context, auto* reactor) { drafter_stub_->async()->Draft(context, reactor); },
      {.on_message = {},
       .on_closed = [this](absl::Status s) { client_log_.Add("closed " + Name(s)); },
       .on_room = [this,
                   stream] { client_log_.Add(absl::StrCat("room, left ", stream->backlog().num_behind)); }});
  stream->Disconnect();
  auto served = drafter_.NextCall();
  ASSERT_NE(served, nullptr);
  ASSERT_TRUE(drafter_.log.Await("closed OK"));
  ASSERT_TRUE(client_log_.Await("closed OK"));
  EXPECT_THAT(drafter_.log.All(),
              ElementsAre("message 4", "message 5", "message 1", "message 2", "message 3", "closed OK"));
  EXPECT_EQ(client_log_.Count("room"), 1);
  const ClientBidiT::Backlog after = stream->backlog();
  EXPECT_EQ(after.bytes + after.num_behind + after.bytes_behind, 0u);
  EXPECT_FALSE(stream->WriteBehind(Ping(7)));
}

TEST_F(StreamsTest, ServerBidiPausesUntilMessagesAreAcknowledged) {
  drafter_.max_unacknowledged = 2;
  auto stream = Draft();
  auto served = drafter_.NextCall();
  ASSERT_NE(served, nullptr);
  for (int i = 0; i < 4; ++i) stream->Write(Ping(i));
  ASSERT_TRUE(drafter_.log.Await("message 1"));
  EXPECT_EQ(drafter_.log.All().size(), 2u);
  served->Acknowledge();
  ASSERT_TRUE(drafter_.log.Await("message 2"));
  EXPECT_EQ(drafter_.log.All().size(), 3u);
  served->Acknowledge(3);
  stream->Disconnect();
  ASSERT_TRUE(drafter_.log.Await("closed OK"));
  EXPECT_EQ(drafter_.log.All().size(), 5u);
}

TEST_F(StreamsTest, ClientBidiIsRefusedByAServerThatIsGone) {
  server_->Shutdown(std::chrono::system_clock::now());
  auto stream = Draft();
  stream->Write(Ping(1));
  ASSERT_TRUE(client_log_.Await("closed UNAVAILABLE"));
}

// Says on which thread it is destroyed.
class ThreadWitness {
 public:
  explicit ThreadWitness(Mailbox<std::thread::id>* destroyed_on) : destroyed_on_(destroyed_on) {}
  ~ThreadWitness() { destroyed_on_->Push(std::this_thread::get_id()); }

 private:
  Mailbox<std::thread::id>* const destroyed_on_;
};

std::thread::id Take(Mailbox<std::thread::id>* mailbox) {
  std::vector<std::thread::id> taken;
  mailbox->WaitUntil(absl::Now() + kLong, &taken);
  EXPECT_EQ(taken.size(), 1u);
  return taken.empty() ? std::thread::id() : taken[0];
}

// A call that nobody else holds any more, nor its channel, ends without gRPC being destroyed from within.
TEST_F(StreamsTest, ReadersAreNotDestroyedByReactions) {
  Mailbox<std::thread::id> done_on;
  Mailbox<std::thread::id> destroyed_on;
  {
    auto witness = std::make_shared<ThreadWitness>(&destroyed_on);
    auto call = ReaderT::Create();
    call->Start({},
                [this](auto* context, const auto* request, auto* reactor) {
                  verifier_stub_->async()->Generate(context, request, reactor);
                },
                {.on_message = {},
                 .on_done = [&done_on, witness](absl::Status) { done_on.Push(std::this_thread::get_id()); }});
  }
  auto stream = verifier_.NextCall();
  ASSERT_NE(stream, nullptr);
  verifier_stub_.reset();
  drafter_stub_.reset();
  stream->Finish(absl::OkStatus());
  EXPECT_NE(Take(&done_on), Take(&destroyed_on));
}

TEST_F(StreamsTest, ClientBidisAreNotDestroyedByReactions) {
  Mailbox<std::thread::id> closed_on;
  Mailbox<std::thread::id> destroyed_on;
  {
    auto witness = std::make_shared<ThreadWitness>(&destroyed_on);
    auto stream = ClientBidiT::Create();
    stream->Start([this](auto* context, auto* reactor) { drafter_stub_->async()->Draft(context, reactor); },
                  {.on_message = {}, .on_closed = [&closed_on, witness](absl::Status) {
                     closed_on.Push(std::this_thread::get_id());
                   }});
  }
  auto served = drafter_.NextCall();
  ASSERT_NE(served, nullptr);
  verifier_stub_.reset();
  drafter_stub_.reset();
  served->Disconnect();
  EXPECT_NE(Take(&closed_on), Take(&destroyed_on));
}

// Starts threads as nearly at once as can be, and joins them.
void Race(std::vector<std::function<void()>> bodies) {
  auto* start = new absl::Barrier(static_cast<int>(bodies.size()));
  std::vector<std::thread> threads;
  for (std::function<void()>& body : bodies) {
    threads.emplace_back([start, &body] {
      if (start->Block()) delete start;
      body();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Writers, a finisher and a cancelling client race; whatever wins, each end closes exactly once, last.
TEST_F(StreamsTest, ServerStreamSurvivesRaces) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    auto call = Generate(random() % 3);
    auto stream = verifier_.NextCall();
    ASSERT_NE(stream, nullptr);
    const uint32_t writes = random() % 40;
    const uint32_t writes_before_finish = random() % 60;
    const uint32_t acknowledgements = random() % 60;
    Race({[&] {
            for (uint32_t i = 0; i < writes; ++i) stream->Write(Chunk(i, i * 100));
          },
          [&] {
            for (uint32_t i = 0; i < writes_before_finish; ++i) stream->Write(Chunk(1000 + i));
            stream->Finish(absl::OkStatus());
          },
          [&] {
            for (uint32_t i = 0; i < acknowledgements; ++i) call->Acknowledge(1);
            call->TryCancel();
          }});
    ASSERT_TRUE(verifier_.log.Await("done"));
    ASSERT_TRUE(client_log_.Await("done"));
    EXPECT_FALSE(stream->Write(Chunk(0)));
    const std::vector<std::string> served = verifier_.log.Take();
    EXPECT_LE(served.size(), 2u);
    EXPECT_THAT(served.back(), StartsWith("done"));
    EXPECT_EQ(client_log_.Count("done"), 1);
    EXPECT_THAT(client_log_.Take().back(), StartsWith("done"));
  }
}

// Both ends write, acknowledge, disconnect and cancel at once.
TEST_F(StreamsTest, BidiSurvivesRaces) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    drafter_.echo = random() % 2 == 0;
    drafter_.max_unacknowledged = random() % 3;
    drafter_.limits.max_queued_messages = 1 + random() % 64;
    auto stream = Draft({.max_queued_messages = static_cast<size_t>(1 + random() % 64)}, random() % 3);
    auto served = drafter_.NextCall();
    ASSERT_NE(served, nullptr);
    const uint32_t pings = random() % 40;
    const uint32_t pongs = random() % 40;
    const bool server_disconnects = random() % 2 == 0;
    const bool client_cancels = random() % 2 == 0;
    Race({[&] {
            for (uint32_t i = 0; i < pings; ++i) stream->Write(Ping(i, i * 50));
            stream->Disconnect();
          },
          [&] {
            for (uint32_t i = 0; i < pongs; ++i) served->Write(Pong(i, i * 50));
            if (server_disconnects) served->Disconnect(absl::AbortedError("enough"));
          },
          [&] {
            for (uint32_t i = 0; i < 100; ++i) {
              served->Acknowledge(1);
              stream->Acknowledge(1);
            }
            if (client_cancels) stream->Cancel();
          }});
    // A paused end goes on reading once everything it got is acknowledged.
    while (client_log_.Count("closed") == 0 || drafter_.log.Count("closed") == 0) {
      served->Acknowledge(1);
      stream->Acknowledge(1);
      std::this_thread::yield();
    }
    EXPECT_EQ(client_log_.Count("closed"), 1);
    EXPECT_EQ(drafter_.log.Count("closed"), 1);
    EXPECT_THAT(client_log_.Take().back(), StartsWith("closed"));
    EXPECT_THAT(drafter_.log.Take().back(), StartsWith("closed"));
    EXPECT_FALSE(served->Write(Pong(0)));
    EXPECT_FALSE(stream->Write(Ping(0)));
  }
}

}  // namespace
}  // namespace tandem
