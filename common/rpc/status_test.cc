#include "common/rpc/status.h"

#include <string>

#include "absl/strings/cord.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

TEST(StatusTest, EveryCodeRoundTrips) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    const grpc::Status wire = ToGrpcStatus(status);
    EXPECT_EQ(static_cast<int>(wire.error_code()), code);
    EXPECT_TRUE(wire.error_details().empty());
    EXPECT_EQ(FromGrpcStatus(wire), status);
  }
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
}

TEST(StatusTest, UnknownCodesBecomeUnknown) {
  EXPECT_EQ(FromGrpcStatus(grpc::Status(static_cast<grpc::StatusCode>(20), "x")).code(),
            absl::StatusCode::kUnknown);
}

TEST(StatusTest, RetryInfoTravels) {
  const absl::Status status = WithRetryAfter(absl::ResourceExhaustedError("full"), absl::Milliseconds(2250));
  const absl::Status received = FromGrpcStatus(ToGrpcStatus(status));
  EXPECT_EQ(received.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(received.message(), "full");
  EXPECT_EQ(RetryAfter(received), absl::Milliseconds(2250));
  EXPECT_EQ(RetryAfter(absl::ResourceExhaustedError("full")), std::nullopt);
}

TEST(StatusTest, ReasonsTravelBesideWhatElseThereIs) {
  const absl::Status status =
      WithReason(WithRetryAfter(absl::InvalidArgumentError("prompt: too long"), absl::Seconds(3)),
                 kContextLengthExceeded);
  const absl::Status back = FromGrpcStatus(ToGrpcStatus(status));
  EXPECT_EQ(ReasonOf(back), kContextLengthExceeded);
  EXPECT_EQ(RetryAfter(back), absl::Seconds(3));
  const absl::Status restated = Restated(back, absl::StatusCode::kOutOfRange, "other");
  EXPECT_EQ(restated.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(restated.message(), "other");
  EXPECT_EQ(ReasonOf(restated), kContextLengthExceeded);
  EXPECT_EQ(ReasonOf(absl::InternalError("x")), "");
  absl::Status hostile = absl::InternalError("x");
  hostile.SetPayload("type.googleapis.com/google.rpc.ErrorInfo", absl::Cord("\x0a\xff\xff\xff\x7f"));
  EXPECT_EQ(ReasonOf(hostile), "");
}

// The bytes that any other implementation of google.rpc.Status writes.
TEST(StatusTest, WireFormatIsGoogleRpcStatus) {
  const absl::Status status = WithRetryAfter(absl::ResourceExhaustedError("full"), absl::Milliseconds(2250));
  const std::string any = std::string("\x0a\x28") + "type.googleapis.com/google.rpc.RetryInfo" +
                          "\x12\x09\x0a\x07\x08\x02\x10" + "\x80\xe5\x9a\x77";
  EXPECT_EQ(ToGrpcStatus(status).error_details(),
            std::string("\x08\x08\x12\x04") + "full" + "\x1a" + static_cast<char>(any.size()) + any);
}

TEST(StatusTest, DelaysAreKeptInRange) {
  const absl::Status full = absl::ResourceExhaustedError("full");
  EXPECT_EQ(RetryAfter(WithRetryAfter(full, -absl::Seconds(1))), absl::ZeroDuration());
  EXPECT_EQ(RetryAfter(WithRetryAfter(full, absl::InfiniteDuration())), absl::Hours(24 * 3650));
}

TEST(StatusTest, HostileDetailsAreDropped) {
  const std::string good =
      ToGrpcStatus(WithRetryAfter(absl::ResourceExhaustedError("full"), absl::Seconds(1))).error_details();
  for (size_t size = 0; size <= good.size(); ++size) {
    const grpc::Status cut(grpc::StatusCode::RESOURCE_EXHAUSTED, "full", good.substr(0, size));
    EXPECT_EQ(RetryAfter(FromGrpcStatus(cut)).has_value(), size == good.size());
  }
  // A length far beyond the end, and a negative delay.
  for (const std::string& details : {std::string("\x1a\xff\xff\xff\xff\x07"), std::string(1000, '\xff')}) {
    EXPECT_EQ(RetryAfter(FromGrpcStatus(grpc::Status(grpc::StatusCode::ABORTED, "", details))), std::nullopt);
  }
  absl::Status negative = absl::AbortedError("");
  negative.SetPayload("type.googleapis.com/google.rpc.RetryInfo",
                      absl::Cord("\x0a\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"));
  EXPECT_EQ(RetryAfter(negative), std::nullopt);
}

TEST(StatusTest, LongMessagesAreCutOnACharacterBorder) {
  const std::string message = std::string(kMaxStatusMessage - 1, 'a') + "\xc3\xa9";
  EXPECT_EQ(ToGrpcStatus(absl::InternalError(message)).error_message(),
            std::string(kMaxStatusMessage - 1, 'a'));
}

}  // namespace
}  // namespace tandem
