#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "router/http/openai_json.h"
#include "router/http/openai_request.h"
#include "router/models/served_model.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// Says what a call's generations say in the shape of one of OpenAI's APIs: as one answer, or as a stream of
// server-sent events. Not thread-safe.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  // Takes the next event of the choice of this number: choices of one prompt follow one another. Returns what
  // a stream is to be sent of it: server-sent events, or nothing; always nothing without `request.stream`.
  // `encoder` is its model's.
  virtual std::string OnEvent(size_t choice, const v1::GenerateResponse& event,
                              const PromptEncoder& encoder) = 0;
  // The end of a stream, when all generations are finished,
  virtual std::string Ending() = 0;
  // or when one of them failed after something was sent.
  virtual std::string Failure(const absl::Status& status) = 0;
  // Everything, when all generations are finished.
  virtual OrderedJson Whole() = 0;
};

// The one for the API that the request came by. `id` is the request's, `created` in seconds of the Unix
// epoch. `request` outlives it.
std::unique_ptr<AnswerWriter> MakeAnswerWriter(const CompletionRequest& request, std::string id,
                                               int64_t created);

}  // namespace tandem::router
