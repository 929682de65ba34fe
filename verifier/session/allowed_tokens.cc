// What a Session's request allows: which candidates are worth a row, and whether a choice may stand.

#include <vector>

#include "absl/strings/str_cat.h"
#include "verifier/session/session.h"

namespace tandem {

// Drawn drafts stay, all of them: that one was drawn counts, whatever becomes of it.
void Session::DropForbidden(RoundTree* drafted) {
  if (samples_drafts() || drafted->empty()) return;
  const uint32_t banned = DropBanned(drafted);
  num_banned_ += banned;
  num_masked_ += banned;
  if (request_.constraint == nullptr) return;
  num_masked_ += request_.constraint->DropForbidden(drafted, request_.trace_trees ? &masked_ : nullptr);
}

uint32_t Session::DropBanned(RoundTree* tree) const {
  if (!sampler_.restricts()) return 0;
  const auto next = static_cast<uint32_t>(kv_.tokens().size());
  TokenIds above;
  return tree->KeepIf([&](uint32_t, const RoundNode& node) {
    CollectPath(tree->nodes(), node.parent, &above);
    return sampler_.Allows(node.token, next + node.depth - 1, above);
  });
}

absl::Status Session::TakeChoice(TokenId token, absl::Span<const CommittedToken> before) {
  const auto position = static_cast<uint32_t>(kv_.tokens().size() + before.size());
  const auto nothing_left = [&](absl::string_view what) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, " can go on after ", position - request_.prompt.size(), " tokens of output"));
  };
  // Where nothing has a chance, token 0 was chosen. The sampler has the whole round's tokens already, so that
  // only what it allows by position is asked of it.
  const std::vector<TokenIds>& sequences = request_.sampling.banned_sequences;
  TokenIds path;
  if (!sequences.empty()) {
    for (const CommittedToken& taken : before) path.push_back(taken.token);
  }
  if (!sampler_.AllowsAt(token, position) ||
      CompletesAny(sequences, kv_.tokens().subspan(request_.prompt.size()), path, token)) {
    return nothing_left("sampling: no token that is allowed and not banned");
  }
  if (request_.constraint != nullptr && !request_.constraint->Commit(token)) {
    return nothing_left(request_.constraint->gave_up()
                            ? "constraint: the output has more readings than can be followed, and no token"
                            : "constraint: no token of the model");
  }
  return absl::OkStatus();
}

}  // namespace tandem
