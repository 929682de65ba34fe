#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/text_fields.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/proto_buffer_reader.h"

namespace tandem::router {

// Parses the message of a call that came as bytes. gRPC's own parser would answer text that is not UTF-8 with
// UNIMPLEMENTED and no explanation. Errors: InvalidArgument, which names the field if its text is not UTF-8;
// Cancelled if there is no message, because gRPC also starts calls that were reset before their message was
// read.
template <class Message>
absl::StatusOr<std::shared_ptr<const Message>> ParseMessage(const grpc::ByteBuffer& bytes) {
  if (!bytes.Valid()) return absl::CancelledError("the call ended before its message arrived");
  auto message = std::make_shared<Message>();
  grpc::ByteBuffer consumed = bytes;  // A reference to the same bytes, which parsing uses up.
  if (grpc::SerializationTraits<Message>::Deserialize(&consumed, message.get()).ok()) {
    return std::shared_ptr<const Message>(std::move(message));
  }
  grpc::Slice whole;
  std::optional<std::string> field;
  grpc::ByteBuffer again = bytes;
  if (again.DumpToSingleSlice(&whole).ok()) {
    field = FieldThatIsNotUtf8(*Message::descriptor(),
                               {reinterpret_cast<const char*>(whole.begin()), whole.size()});
  }
  if (field.has_value()) return absl::InvalidArgumentError(absl::StrCat(*field, ": not UTF-8"));
  return absl::InvalidArgumentError(
      absl::StrCat("the message is not a ", Message::descriptor()->full_name()));
}

}  // namespace tandem::router
