#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "tandem/v1/generation.pb.h"

namespace tandem::bench {

// What a client saw of one request.
struct RequestRecord {
  struct Chunk {
    double seconds = 0.0;  // After the call.
    uint32_t tokens = 0;
  };

  absl::Time start;
  absl::Status status = absl::UnknownError("the request has not ended");
  double total_seconds = 0.0;  // From the call to the end of its stream.
  std::vector<uint32_t> tokens;
  std::string text;
  std::vector<Chunk> chunks;
  std::vector<v1::RoundTrace> rounds;  // When they were asked for, one for each chunk.
  v1::GenerationStarted started;
  v1::GenerationFinished finished;

  // From the call to the first tokens; 0 when there were none.
  double first_token_seconds() const { return chunks.empty() ? 0.0 : chunks.front().seconds; }
  double tokens_per_second() const;
  // Seconds from each chunk to the next.
  std::vector<double> ChunkGaps() const;
  // The same for each token after the first chunk: the tokens of a chunk share its gap equally, so that the
  // mean is the time per token whatever the number of tokens in a chunk.
  std::vector<double> TokenGaps() const;

  nlohmann::json ToJson() const;
};

// Builds a record from the events of a call.
class RequestRecorder {
 public:
  explicit RequestRecorder(absl::Time start) { record_.start = start; }

  void Add(const v1::GenerateResponse& event, absl::Time now);
  // The call has ended. DataLoss when it ended well without everything having come.
  RequestRecord End(const absl::Status& status, absl::Time now);

 private:
  RequestRecord record_;
  bool finished_ = false;
  bool gap_ = false;
};

}  // namespace tandem::bench
