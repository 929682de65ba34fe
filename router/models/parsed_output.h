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

// Adds deltas (GenerationChunk.deltas) to the events of a chat whose output is parsed. One object per call.
//
// Deltas depend only on prompt, seed and output: a resumed stream continues with the deltas and call ids that
// the broken one would have had, and it does not matter how the output is cut into chunks. Call ids are
// derived from prompt, seed and number, so that they differ within a conversation. Not thread-safe.
class ParsedOutput {
 public:
  // nullopt for requests whose output is not parsed. If the request resumes a stream, replays the delivered
  // output, in time proportional to it.
  static std::optional<ParsedOutput> Begin(const v1::GenerateRequest& request,
                                           const v1::VerifierGenerateRequest& prepared,
                                           const ServedModel& model);

  // Call it for every event to the client, in order.
  void OnEvent(v1::GenerateResponse& event);

 private:
  ParsedOutput(OutputParser::Options options, uint64_t id_seed, bool short_ids)
      : parser_(std::move(options)), id_seed_(id_seed), short_ids_(short_ids) {}

  std::string IdOf(uint32_t call) const;
  void Add(std::vector<OutputDelta> deltas, google::protobuf::RepeatedPtrField<v1::OutputDelta>& to) const;

  OutputParser parser_;
  uint64_t id_seed_;
  bool short_ids_;  // As Mistral's templates want them.
  // Of a resumed request, until its first event: the delivered text, and its length before the last token. If
  // the last token ended the output, its text was not delivered.
  std::optional<std::string> delivered_;
  size_t delivered_before_last_ = 0;
};

}  // namespace tandem::router
