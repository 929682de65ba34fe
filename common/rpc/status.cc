#include "common/rpc/status.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/any.pb.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"

namespace tandem {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";
constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kErrorDomain[] = "tandem";
constexpr int64_t kMaxDelaySeconds = int64_t{10} * 365 * 24 * 3600;
// Details larger than this would not fit a trailer beside the message.
constexpr size_t kMaxDetailsBytes = 4096;

// Fields of google.rpc.Status, google.rpc.RetryInfo and google.rpc.ErrorInfo. The messages are written and
// read field by field, since their generated code is not part of protobuf and may already be linked in by
// gRPC.
constexpr int kStatusCode = 1;
constexpr int kStatusMessage = 2;
constexpr int kStatusDetails = 3;
constexpr int kRetryDelay = 1;
constexpr int kErrorReason = 1;
constexpr int kErrorDomainField = 2;

class WireWriter {
 public:
  explicit WireWriter(std::string* out) : strings_(out), out_(&strings_) {}

  void Varint(int field, uint32_t value) {
    out_.WriteTag(WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_VARINT));
    out_.WriteVarint32(value);
  }
  void Bytes(int field, const std::string& value) {
    out_.WriteTag(WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
    out_.WriteVarint32(static_cast<uint32_t>(value.size()));
    out_.WriteString(value);
  }

 private:
  google::protobuf::io::StringOutputStream strings_;
  CodedOutputStream out_;
};

// Calls `each` with every length-delimited field number `field`; false when the bytes are not a message.
template <class Each>
bool ForEachBytes(absl::string_view wire, int field, Each each) {
  CodedInputStream in(reinterpret_cast<const uint8_t*>(wire.data()), static_cast<int>(wire.size()));
  const uint32_t wanted = WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  while (const uint32_t tag = in.ReadTag()) {
    if (tag != wanted) {
      if (!WireFormatLite::SkipField(&in, tag)) return false;
      continue;
    }
    uint32_t size = 0;
    std::string bytes;
    if (!in.ReadVarint32(&size) || size > wire.size() || !in.ReadString(&bytes, static_cast<int>(size)))
      return false;
    each(bytes);
  }
  return in.ConsumedEntireMessage();
}

// Cut so that no UTF-8 character is split.
absl::string_view CutMessage(absl::string_view message) {
  if (message.size() <= kMaxStatusMessage) return message;
  size_t size = kMaxStatusMessage;
  while (size > 0 && (static_cast<unsigned char>(message[size]) & 0xc0) == 0x80) --size;
  return message.substr(0, size);
}

std::string EncodeDetails(const absl::Status& status, const std::string& message) {
  std::string wire;
  WireWriter writer(&wire);
  writer.Varint(kStatusCode, static_cast<uint32_t>(status.code()));
  writer.Bytes(kStatusMessage, message);
  size_t detail_bytes = 0;
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    detail_bytes += url.size() + payload.size();
    if (detail_bytes > kMaxDetailsBytes) return;
    google::protobuf::Any any;
    any.set_type_url(url.data(), url.size());
    any.set_value(std::string(payload));
    writer.Bytes(kStatusDetails, any.SerializeAsString());
  });
  return wire;
}

bool HasPayload(const absl::Status& status) {
  bool found = false;
  status.ForEachPayload([&](absl::string_view, const absl::Cord&) { found = true; });
  return found;
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const absl::string_view cut = CutMessage(status.message());
  const std::string message(cut.data(), cut.size());
  const auto code = static_cast<grpc::StatusCode>(status.code());
  if (!HasPayload(status)) return grpc::Status(code, message);
  return grpc::Status(code, message, EncodeDetails(status, message));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const int number = static_cast<int>(status.error_code());
  const bool known = number > 0 && number <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  absl::Status result(known ? static_cast<absl::StatusCode>(number) : absl::StatusCode::kUnknown,
                      status.error_message());
  ForEachBytes(status.error_details(), kStatusDetails, [&](const std::string& bytes) {
    google::protobuf::Any any;
    if (any.ParseFromString(bytes) && !any.type_url().empty()) {
      result.SetPayload(any.type_url(), absl::Cord(any.value()));
    }
  });
  return result;
}

absl::Status WithRetryAfter(absl::Status status, absl::Duration delay) {
  delay = std::clamp(delay, absl::ZeroDuration(), absl::Seconds(kMaxDelaySeconds));
  google::protobuf::Duration duration;
  const int64_t seconds = absl::ToInt64Seconds(delay);
  duration.set_seconds(seconds);
  duration.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(delay - absl::Seconds(seconds))));
  std::string wire;
  WireWriter(&wire).Bytes(kRetryDelay, duration.SerializeAsString());
  status.SetPayload(kRetryInfoUrl, absl::Cord(wire));
  return status;
}

std::optional<absl::Duration> RetryAfter(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryInfoUrl);
  if (!payload.has_value()) return std::nullopt;
  std::optional<absl::Duration> delay;
  const bool parsed = ForEachBytes(std::string(*payload), kRetryDelay, [&](const std::string& bytes) {
    google::protobuf::Duration duration;
    delay.reset();
    if (!duration.ParseFromString(bytes)) return;
    if (duration.seconds() < 0 || duration.seconds() > kMaxDelaySeconds) return;
    if (duration.nanos() < 0 || duration.nanos() > 999'999'999) return;
    delay = absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
  });
  return parsed ? delay : std::nullopt;
}

absl::Status Restated(const absl::Status& status, absl::StatusCode code, absl::string_view message) {
  absl::Status restated(code, message);
  status.ForEachPayload(
      [&restated](absl::string_view url, const absl::Cord& payload) { restated.SetPayload(url, payload); });
  return restated;
}

absl::Status WithReason(absl::Status status, absl::string_view reason) {
  std::string wire;
  {
    WireWriter writer(&wire);
    writer.Bytes(kErrorReason, std::string(reason));
    writer.Bytes(kErrorDomainField, kErrorDomain);
  }
  status.SetPayload(kErrorInfoUrl, absl::Cord(wire));
  return status;
}

std::string ReasonOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kErrorInfoUrl);
  std::string reason;
  if (!payload.has_value()) return reason;
  const bool parsed =
      ForEachBytes(std::string(*payload), kErrorReason, [&](const std::string& bytes) { reason = bytes; });
  return parsed ? reason : "";
}

}  // namespace tandem
