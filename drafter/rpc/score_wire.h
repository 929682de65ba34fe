#pragma once

#include "absl/status/statusor.h"
#include "drafter/drafting/score_job.h"
#include "tandem/v1/drafter.pb.h"

namespace tandem {

// Drafter.Score's messages between the wire and the drafter. InvalidArgument, naming the field: a token id of
// 2^31 or above, a model name over 256 bytes, a logit bias that does not decode. The rest is for
// CheckScoreRequest.
absl::StatusOr<ScoreRequest> ScoreRequestFromProto(const v1::ScoreRequest& proto);
v1::ScoreResponse ScoreResultToProto(const ScoreResult& result);

}  // namespace tandem
