#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/chat/output_parser.h"
#include "router/models/served_model.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/verifier.pb.h"

namespace tandem::router {

// Puts deltas into the events of a chat whose output is parsed (GenerationChunk.deltas): once for each call,
// on its way to the client.
//
// What deltas say is a function of prompt, seed and output alone: a stream that is resumed goes on with the
// deltas that the broken one would have had, calls have the same ids, and it does not matter how the output
// is cut into chunks. Ids are drawn from prompt, seed and number, so that those of a conversation differ. Not
// thread-safe.
class ParsedOutput {
 public:
  // Nothing for requests whose output is not parsed. Replays what a resumed one has delivered: takes time in
  // proportion to that.
  static std::optional<ParsedOutput> Begin(const v1::GenerateRequest& request,
                                           const v1::VerifierGenerateRequest& prepared,
                                           const ServedModel& model);

  // For every event that is sent on, in order.
  void OnEvent(v1::GenerateResponse& event);

 private:
  ParsedOutput(OutputParser::Options options, uint64_t id_seed, bool short_ids)
      : parser_(std::move(options)), id_seed_(id_seed), short_ids_(short_ids) {}

  std::string IdOf(uint32_t call) const;
  void Add(std::vector<OutputDelta> deltas, google::protobuf::RepeatedPtrField<v1::OutputDelta>& to) const;

  OutputParser parser_;
  uint64_t id_seed_;
  bool short_ids_;  // As Mistral's templates want them.
  // Of a resumed request, until its first event: the text that was delivered, and how much of it before the
  // last token, whose text was not if it ended the output.
  std::optional<std::string> delivered_;
  size_t delivered_before_last_ = 0;
};

}  // namespace tandem::router
