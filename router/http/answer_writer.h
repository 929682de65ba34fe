#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "router/http/field_names.h"
#include "router/http/openai_json.h"
#include "router/http/openai_request.h"
#include "router/http/server/http_message.h"
#include "router/models/served_model.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// Converts the events of a call's generations to the format of one of OpenAI's APIs: one answer, or a stream
// of server-sent events. Not thread-safe.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  // Takes the next event of the choice with this number; choices of one prompt have consecutive numbers.
  // Returns the server-sent events to send, possibly none; always none without `request.stream`. `encoder`:
  // of its model.
  virtual std::string OnEvent(size_t choice, const v1::GenerateResponse& event,
                              const PromptEncoder& encoder) = 0;
  // The end of a stream after all generations have finished,
  virtual std::string Ending() = 0;
  // or after one of them failed when something was already sent.
  virtual std::string Failure(const absl::Status& status) = 0;
  // The whole answer, after all generations have finished.
  virtual OrderedJson Whole() = 0;
  // The answer where nothing was sent yet and a generation failed. `names`: of its fields.
  virtual HttpAnswer Refusal(const absl::Status& status, const FieldNames& names) = 0;
};

// Makes the writer for the API of the request. `id`: the request's; `created`: in seconds of the Unix epoch.
// `request` outlives the writer.
std::unique_ptr<AnswerWriter> MakeAnswerWriter(const CompletionRequest& request, std::string id,
                                               int64_t created);

}  // namespace tandem::router
