#pragma once

#include "absl/status/statusor.h"
#include "common/speculation/draft_messages.h"
#include "tandem/v1/drafter.pb.h"

namespace tandem {

// Draft protocol messages between the wire and protocol logic.
//
// FromProto checks what can be checked without the session: that an event is set, that parallel arrays have
// one length, counts are within the bounds of draft_messages.h, budgets within the tree's, token ids below
// 2^31, node ids do not wrap and stand after their parents, and status codes exist. Errors are
// InvalidArgument and name the field. The tree's mirror checks parents, tokens and scores. Texts for logs are
// cut to 1 KiB and a request's id to 128 bytes; trace headers that are too long to be valid are dropped.
absl::StatusOr<DraftRequest> DraftRequestFromProto(const v1::DraftRequest& proto);
v1::DraftRequest DraftRequestToProto(DraftRequest request);

absl::StatusOr<DraftResponse> DraftResponseFromProto(const v1::DraftResponse& proto);
v1::DraftResponse DraftResponseToProto(const DraftResponse& response);

}  // namespace tandem
