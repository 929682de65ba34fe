#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "router/http/http_message.h"
#include "router/http/openai_json.h"
#include "router/http/openai_request.h"
#include "router/served_model.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// A status as an answer in OpenAI's shape: {"error": {"message", "type", "param", "code"}}, with the HTTP
// status that goes with it, and Retry-After where the status says how long to wait.
HttpAnswer ErrorAnswer(const absl::Status& status);
// The same without head, for a stream that has begun.
OrderedJson ErrorJson(const absl::Status& status);
int HttpStatusOf(const absl::Status& status);

HttpAnswer JsonAnswer(const OrderedJson& json);
// One server-sent event. `json` is written on one line, invalid UTF-8 replaced.
std::string ServerSentEvent(const OrderedJson& json);

// What a completion's generations say, in the shape of OpenAI's API: as one answer, or as events of a stream.
// Not thread-safe.
class CompletionAnswer {
 public:
  // `id` is the request's, `created` in seconds of the Unix epoch. `request` outlives this.
  CompletionAnswer(const CompletionRequest& request, std::string id, int64_t created);

  // Takes the next event of the generation for the prompt of this number. Returns what a stream is to be sent
  // of it: server-sent events, or nothing; always nothing without `request.stream`. `encoder` is its model's.
  std::string OnEvent(size_t choice, const v1::GenerateResponse& event, const PromptEncoder& encoder);
  // The end of a stream: the usage, where it is wanted, and the mark after which nothing follows.
  std::string Ending() const;
  // Everything, when all generations are finished.
  OrderedJson Whole() const;

 private:
  struct Choice {
    std::string text;
    std::vector<uint32_t> tokens;
    OrderedJson logprobs;       // Entries, in the shape of the API; null when none were asked for.
    std::string finish_reason;  // Empty until it is finished.
    std::string matched_stop;
    v1::Usage usage;
    v1::SpeculationStats speculation;
    uint64_t seed = 0;
    std::string drafter;
  };

  // The frame of an answer or of an event, without choices.
  OrderedJson Frame(bool chunk) const;
  OrderedJson Usage() const;
  // A choice's own object `tandem`: the seed, and what speculation did.
  OrderedJson Tandem(const Choice& choice) const;
  // An event with one choice, whose text and log probabilities are given.
  std::string Chunk(size_t index, const std::string& text, OrderedJson logprobs,
                    const std::vector<uint32_t>& tokens, bool first) const;
  std::string LastChunk(size_t index) const;
  // Of the chunk's tokens, in the shape of the API; null when they were not asked for.
  OrderedJson Logprobs(const v1::GenerationChunk& chunk, size_t text_offset,
                       const PromptEncoder& encoder) const;
  std::string EchoOf(size_t choice, const PromptEncoder& encoder) const;

  const CompletionRequest& request_;
  const std::string id_;
  const int64_t created_;
  std::string model_;
  std::vector<Choice> choices_;
};

}  // namespace tandem::router
