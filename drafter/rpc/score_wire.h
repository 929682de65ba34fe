#pragma once

#include "absl/status/statusor.h"
#include "drafter/drafting/score_job.h"
#include "tandem/v1/drafter.pb.h"

namespace tandem {

// Converts messages of Drafter.Score. InvalidArgument, naming the field, for a token id of 2^31 or above, a
// model name over 256 bytes, or an invalid logit bias. CheckScoreRequest checks the rest.
absl::StatusOr<ScoreRequest> ScoreRequestFromProto(const v1::ScoreRequest& proto);
v1::ScoreResponse ScoreResultToProto(const ScoreResult& result);

}  // namespace tandem
