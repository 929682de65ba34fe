#include "router/spool/recorded_call.h"

#include <filesystem>
#include <optional>

#include "common/base/file.h"
#include "common/base/temporary_folder.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

class RecordedCallTest : public ::testing::Test {
 protected:
  RecordedCallTest() {
    Spool::Options options;
    options.folder.folder = temporary_.PathOf("spool");
    options.folder.keys = temporary_.PathOf("keys");
    spool_ = Spool::Open(std::move(options), &clock_, &registry_).value();
    prepared_.set_request_id("r-1");
    prepared_.set_model("letters");
    for (const uint32_t token : {1u, 2u}) prepared_.mutable_prompt()->add_ids(token);
  }
  // What a verifier answers that was asked for 20.
  static v1::GenerateResponse Chunk(uint32_t token) {
    v1::GenerateResponse event;
    event.mutable_chunk()->add_tokens(token);
    v1::TokenDetail& detail = *event.mutable_chunk()->add_details();
    detail.set_logprob(-0.5f);
    for (uint32_t i = 0; i < RecordedCall::kTop; ++i) {
      v1::TokenLogprob& top = *detail.add_top_logprobs();
      top.set_token(token + i);
      top.set_logprob(-0.5f - static_cast<float>(i));
    }
    return event;
  }
  // The only record; none if there is none.
  std::optional<SpoolRecord> Written() {
    spool_->Flush();
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(temporary_.PathOf("spool/acme"), error)) {
      const std::string file = ReadFile(entry.path(), 1 << 20).value();
      const SpoolKey key = ReadSpoolKey(temporary_.PathOf("keys/acme.key")).value();
      return DecodeSpoolRecord(file, ParseSpoolHeader(file, "").value(), ScanSpoolFile(file).entries.at(0),
                               key)
          .value();
    }
    return std::nullopt;
  }

  const TemporaryFolder temporary_;
  SystemClock clock_;
  MetricsRegistry registry_;
  std::unique_ptr<Spool> spool_;
  v1::VerifierGenerateRequest prepared_;
};

TEST_F(RecordedCallTest, KeepsWhatWasSaidAndHidesWhatWasNotAskedFor) {
  RecordedCall call(spool_.get(), "acme", 77, prepared_);
  EXPECT_EQ(prepared_.output().logprobs(), RecordedCall::kTop);
  v1::GenerateResponse event = Chunk(5);
  call.OnEvent(event);
  EXPECT_EQ(event.chunk().details(0).logprob(), 0.0f);
  EXPECT_EQ(event.chunk().details(0).top_logprobs_size(), 0);
  event = Chunk(6);
  call.OnEvent(event);
  call.End(absl::FromUnixMillis(99));
  const auto record = Written();
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->request_id, "r-1");
  EXPECT_EQ(record->model, "letters");
  EXPECT_EQ(record->vocabulary_fingerprint, 77u);
  EXPECT_EQ(record->temperature, 1.0f);
  EXPECT_EQ(record->prompt, (std::vector<uint32_t>{1, 2}));
  ASSERT_EQ(record->output.size(), 2u);
  EXPECT_EQ(record->output[1].chosen.token, 6u);
  EXPECT_EQ(record->output[1].chosen.logprob, -0.5f);
  ASSERT_EQ(record->output[1].top.size(), 20u);
  EXPECT_EQ(record->output[1].top[19].token, 25u);
}

TEST_F(RecordedCallTest, GivesTheClientWhatItAskedFor) {
  for (const uint32_t wanted : {0u, 3u, 20u}) {
    prepared_.mutable_output()->set_logprobs(wanted);
    RecordedCall call(spool_.get(), "acme", 77, prepared_);
    v1::GenerateResponse event = Chunk(5);
    call.OnEvent(event);
    EXPECT_EQ(event.chunk().details(0).logprob(), -0.5f);
    ASSERT_EQ(event.chunk().details(0).top_logprobs_size(), static_cast<int>(wanted));
    for (uint32_t i = 0; i < wanted; ++i) {
      EXPECT_EQ(event.chunk().details(0).top_logprobs(static_cast<int>(i)).token(), 5 + i);
    }
  }
}

TEST_F(RecordedCallTest, WhatIsNotWholeIsNotKept) {
  RecordedCall call(spool_.get(), "acme", 77, prepared_);
  v1::GenerateResponse event = Chunk(5);
  call.OnEvent(event);
  event = Chunk(6);
  event.mutable_chunk()->clear_details();
  call.OnEvent(event);
  call.End(absl::Now());
  RecordedCall empty(spool_.get(), "acme", 77, prepared_);
  empty.End(absl::Now());
  EXPECT_FALSE(Written().has_value());
}

}  // namespace
}  // namespace tandem::router
