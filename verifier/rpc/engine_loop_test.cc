#include "verifier/rpc/engine_loop.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/testing/fake_engine.h"
#include "gtest/gtest.h"
#include "tandem/v1/verifier.grpc.pb.h"
#include "verifier/rpc/service.h"

namespace tandem {
namespace {

std::shared_ptr<const Tokenizer> TestTokenizer() {
  return Tokenizer::Load(std::string(TANDEM_SOURCE_DIR) + "/deploy/demo-models/tandem-target-15m").value();
}

// How many chunks a client has read.
class Progress {
 public:
  void Count() {
    absl::MutexLock lock(&mutex_);
    ++chunks_;
  }
  // False if there are not so many in time.
  bool Reaches(uint32_t chunks) { return ReachesWithin(chunks, absl::Seconds(20)); }
  bool ReachesWithin(uint32_t chunks, absl::Duration time) {
    absl::MutexLock lock(&mutex_);
    const auto reached = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return chunks_ >= chunks; };
    return mutex_.AwaitWithTimeout(absl::Condition(&reached), time);
  }

 private:
  absl::Mutex mutex_;
  uint32_t chunks_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Its steps end when the client has read what the steps before gave.
class AwaitingEngine final : public Engine {
 public:
  AwaitingEngine(const FakeEngine::Options& options, Progress* progress)
      : engine_(options), progress_(progress) {}

  const ModelConfig& config() const override { return engine_.config(); }
  uint32_t num_blocks() const override { return engine_.num_blocks(); }
  uint32_t max_rows() const override { return engine_.max_rows(); }
  absl::Status Step(absl::Span<const StepRow> rows) override { return engine_.Step(rows); }
  absl::Status Start(absl::Span<const StepRow> rows) override {
    ++num_steps_;
    return engine_.Start(rows);
  }
  absl::Status Finish() override {
    if (!progress_->Reaches(num_steps_ - 1)) {
      return absl::DeadlineExceededError("what the step before gave has not arrived");
    }
    return engine_.Finish();
  }
  bool overlaps() const override { return true; }
  absl::Status CopyKv(absl::Span<const KvCopy> copies) override { return engine_.CopyKv(copies); }

 private:
  FakeEngine engine_;
  Progress* const progress_;
  uint32_t num_steps_ = 0;
};

// A step's tokens need not wait for the next one.
TEST(EngineLoopTest, TokensLeaveWhileTheNextStepIsComputed) {
  Progress progress;
  auto engine = std::make_unique<AwaitingEngine>(FakeEngine::Options{.num_blocks = 16}, &progress);
  const ServedTarget target = {.name = "target",
                               .config = engine->config(),
                               .tokenizer = TestTokenizer(),
                               .max_window = 8,
                               .max_length = 200};
  const SystemClock clock;
  MetricsRegistry registry;
  VerifierMetrics metrics(&registry, "target");
  auto pool = std::make_unique<BlockPool>(BlockPool::Options{.num_blocks = engine->num_blocks()});
  EngineLoop loop({}, std::move(engine), std::move(pool), RoundTimeModel({{1, 0.002}, {64, 0.002}}), &clock,
                  &metrics);
  VerifierService service(&target, &loop, &metrics);
  const auto server = ServerRunner::Start({.listen_address = "127.0.0.1:0"},
                                          {{v1::Verifier::service_full_name(), &service}}, {})
                          .value();

  constexpr uint32_t kTokens = 12;
  v1::VerifierGenerateRequest request;
  request.set_request_id("r");
  request.set_model(target.name);
  for (const uint32_t token : {1, 2, 3}) request.mutable_prompt()->add_ids(token);
  request.mutable_stopping()->set_max_tokens(kTokens);
  request.mutable_stopping()->set_ignore_eos(true);
  const auto stub = v1::Verifier::NewStub(CreateChannel(server->address(), nullptr));
  grpc::ClientContext context;
  const auto stream = stub->Generate(&context, request);
  v1::GenerateResponse response;
  uint32_t num_tokens = 0;
  bool finished = false;
  while (stream->Read(&response)) {
    finished = response.has_finished();
    if (!response.has_chunk()) continue;
    num_tokens += static_cast<uint32_t>(response.chunk().tokens_size());
    progress.Count();
  }
  const grpc::Status status = stream->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(finished);
  EXPECT_EQ(num_tokens, kTokens);
}

// Its warm-up makes a pass for each that is let through; steps of requests are as quick as ever.
class GatedEngine final : public Engine {
 public:
  explicit GatedEngine(const FakeEngine::Options& options) : engine_(options) {}

  const ModelConfig& config() const override { return engine_.config(); }
  uint32_t num_blocks() const override { return engine_.num_blocks(); }
  uint32_t max_rows() const override { return engine_.max_rows(); }
  absl::Status Step(absl::Span<const StepRow> rows) override {
    absl::MutexLock lock(&mutex_);
    const auto is_open = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return allowed_ > made_; };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&is_open), absl::Seconds(20))) {
      return absl::DeadlineExceededError("nobody lets the pass through");
    }
    ++made_;
    return engine_.Step(rows);
  }
  absl::Status Start(absl::Span<const StepRow> rows) override {
    started_ = rows;
    return absl::OkStatus();
  }
  absl::Status Finish() override { return engine_.Step(started_); }
  absl::Status CopyKv(absl::Span<const KvCopy> copies) override { return engine_.CopyKv(copies); }

  void Let(int passes) {
    absl::MutexLock lock(&mutex_);
    allowed_ += passes;
  }

 private:
  FakeEngine engine_;
  absl::Span<const StepRow> started_;
  absl::Mutex mutex_;
  int allowed_ ABSL_GUARDED_BY(mutex_) = 0;
  int made_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A request waits for the pass that is under way, not for those that are still to come.
TEST(EngineLoopTest, ServesDuringTheWarmUp) {
  auto owned = std::make_unique<GatedEngine>(FakeEngine::Options{.num_blocks = 16});
  GatedEngine* const engine = owned.get();
  const ServedTarget target = {.name = "target",
                               .config = engine->config(),
                               .tokenizer = TestTokenizer(),
                               .max_window = 8,
                               .max_length = 200};
  const SystemClock clock;
  MetricsRegistry registry;
  VerifierMetrics metrics(&registry, "target");
  auto pool = std::make_unique<BlockPool>(BlockPool::Options{.num_blocks = engine->num_blocks()});
  auto warm_up = std::make_unique<WarmUp>(engine, pool.get(), &clock, WarmUp::Options{.model = "target"});
  engine->Let(1);
  ASSERT_TRUE(warm_up->Pass(/*alone=*/true).ok());
  RoundTimeModel first = warm_up->RoundTime();
  EngineLoop loop({}, std::move(owned), std::move(pool), std::move(first), &clock, &metrics, {}, {},
                  std::move(warm_up));
  VerifierService service(&target, &loop, &metrics);
  const auto server = ServerRunner::Start({.listen_address = "127.0.0.1:0"},
                                          {{v1::Verifier::service_full_name(), &service}}, {})
                          .value();
  EXPECT_FALSE(loop.measured_round_time().has_value());
  v1::VerifierGenerateRequest request;
  request.set_request_id("r");
  request.set_model(target.name);
  for (const uint32_t token : {1, 2, 3}) request.mutable_prompt()->add_ids(token);
  request.mutable_stopping()->set_max_tokens(4);
  request.mutable_stopping()->set_ignore_eos(true);
  const auto stub = v1::Verifier::NewStub(CreateChannel(server->address(), nullptr));
  grpc::ClientContext context;
  const auto stream = stub->Generate(&context, request);
  // The pass that the loop is in, and those that it begins before it has the request: each takes a while.
  Progress done;
  std::thread letting([&] {
    while (!done.ReachesWithin(1, absl::Milliseconds(200))) engine->Let(1);
  });
  v1::GenerateResponse response;
  while (stream->Read(&response)) {
  }
  const grpc::Status status = stream->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_FALSE(loop.measured_round_time().has_value()) << "the warm-up was over before";
  done.Count();
  letting.join();
  engine->Let(1000);
  EXPECT_TRUE(loop.AwaitWarmUp(absl::Seconds(20)));
  EXPECT_TRUE(loop.measured_round_time().has_value());
}

// A clock that somebody has set.
class ShiftedClock final : public Clock {
 public:
  explicit ShiftedClock(absl::Duration by) : by_(by) {}
  absl::Time Now() const override { return absl::Now() + by_; }

 private:
  const absl::Duration by_;
};

TEST(EngineLoopTest, DeadlinesAreSpansOfTheLoopsOwnClock) {
  auto engine = std::make_unique<FakeEngine>(FakeEngine::Options{.num_blocks = 16});
  const ServedTarget target = {.name = "target",
                               .config = engine->config(),
                               .tokenizer = TestTokenizer(),
                               .max_window = 8,
                               .max_length = 200};
  const ShiftedClock clock(absl::Hours(1));
  MetricsRegistry registry;
  VerifierMetrics metrics(&registry, "target");
  auto pool = std::make_unique<BlockPool>(BlockPool::Options{.num_blocks = engine->num_blocks()});
  EngineLoop loop({}, std::move(engine), std::move(pool), RoundTimeModel({{1, 0.002}, {64, 0.002}}), &clock,
                  &metrics);
  VerifierService service(&target, &loop, &metrics);
  const auto server = ServerRunner::Start({.listen_address = "127.0.0.1:0"},
                                          {{v1::Verifier::service_full_name(), &service}}, {})
                          .value();
  v1::VerifierGenerateRequest request;
  request.set_request_id("r");
  request.set_model(target.name);
  for (const uint32_t token : {1, 2, 3}) request.mutable_prompt()->add_ids(token);
  request.mutable_stopping()->set_max_tokens(4);
  request.mutable_stopping()->set_ignore_eos(true);
  const auto stub = v1::Verifier::NewStub(CreateChannel(server->address(), nullptr));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Minutes(1)));
  const auto stream = stub->Generate(&context, request);
  v1::GenerateResponse response;
  while (stream->Read(&response)) {
  }
  const grpc::Status status = stream->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

}  // namespace
}  // namespace tandem
