#include "verifier/rpc/constraint_wire.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/constraint_wire.h"

namespace tandem {

absl::StatusOr<std::optional<ConstraintSource>> ConstraintFromProto(const v1::VerifierGenerateRequest& proto,
                                                                    const ConstraintLimits& limits) {
  if (!proto.has_constraint()) return std::nullopt;
  if (proto.stopping().ignore_eos()) {
    return absl::InvalidArgumentError(
        "stopping.ignore_eos: true, expected false with a constraint, which says where the output may end");
  }
  return ConstraintFromProto(proto.constraint(), limits);
}

absl::Status ConstraintError(const absl::Status& compiled) {
  return absl::Status(compiled.code(), absl::StrCat("constraint: ", compiled.message()));
}

absl::Status Constrain(std::shared_ptr<const CompiledConstraint> constraint, const ServedTarget& target,
                       SessionRequest* session) {
  auto held = std::make_unique<SessionConstraint>(CompiledConstraint::Begin(std::move(constraint)),
                                                  target.tokenizer, target.config.vocab_size);
  if (session->end_instead.has_value()) held->EndWhereOthersWould(*session->end_instead);
  TANDEM_RETURN_IF_ERROR(held->Replay(session->emitted));
  session->constraint = std::move(held);
  return absl::OkStatus();
}

}  // namespace tandem
