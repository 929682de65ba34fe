#include "router/cli/message_json.h"

#include "google/protobuf/util/json_util.h"

namespace tandem::cli {
namespace {

// The field has another name from Protocol Buffers 26 on.
template <class Options>
void PrintEveryField(Options& options) {
  if constexpr (requires { options.always_print_fields_with_no_presence; }) {
    options.always_print_fields_with_no_presence = true;
  } else {
    options.always_print_primitive_fields = true;
  }
}

}  // namespace

std::string MessageJson(const google::protobuf::Message& message, bool pretty) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = pretty;
  options.preserve_proto_field_names = true;
  PrintEveryField(options);
  std::string text;
  // Of our own messages, which all have a JSON form.
  (void)google::protobuf::util::MessageToJsonString(message, &text, options);
  if (text.empty() || text.back() != '\n') text += '\n';
  return text;
}

}  // namespace tandem::cli
