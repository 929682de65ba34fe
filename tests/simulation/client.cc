#include "tests/simulation/client.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tandem::simulation {
namespace {

constexpr absl::Duration kDeadlineSlack = absl::Milliseconds(100);

}  // namespace

Client::Client(ClientRequest request, std::shared_ptr<const Tokenizer> tokenizer, const FakeEngine& target,
               Findings* findings)
    : request_(std::move(request)),
      tokenizer_(std::move(tokenizer)),
      target_(target),
      findings_(findings),
      allowed_{.vocab_size = target.config().vocab_size, .tokenizer = tokenizer_},
      reference_(GenerateReference(target, request_.prompt, request_.sampling,
                                   OutputAssembler(tokenizer_, request_.rules), constraint())) {
  // The last token of the output is never among the emitted ones: then there would be nothing to ask for.
  const size_t num_emitted = std::min<size_t>(request_.num_emitted, reference_.tokens.size() - 1);
  received_.assign(reference_.tokens.begin(),
                   reference_.tokens.begin() + static_cast<ptrdiff_t>(num_emitted));
  OutputAssembler delivered(tokenizer_, request_.rules);
  for (TokenId token : received_) text_ += delivered.Push(token).text;
}

void Client::Expect(bool holds, const std::string& otherwise) const {
  if (!holds) findings_->Expect(false, absl::StrCat("request ", request_.id, ": ", otherwise));
}

SessionRequest Client::MakeSessionRequest(const MachineClock& clock) {
  // A deadline is so much from now, whatever the clocks of others say.
  verifier_deadline_ = clock.FromQueue(request_.deadline);
  SessionRequest request{.prompt = request_.prompt,
                         .emitted = received_,
                         .max_tokens = request_.rules.max_tokens,
                         .sampling = request_.sampling,
                         .output = std::make_unique<OutputAssembler>(tokenizer_, request_.rules),
                         .cache_salt = request_.cache_salt,
                         .deadline = verifier_deadline_,
                         .drafter = request_.drafter,
                         .alternates = request_.alternates,
                         .partner = request_.partner,
                         .window_policy = request_.window_policy,
                         .max_window = request_.max_window};
  request.output->Replay(received_);
  if (request_.constrained) {
    request.constraint = std::make_unique<SessionConstraint>(std::make_unique<FakeConstraint>(allowed_),
                                                             tokenizer_, allowed_.vocab_size);
    const absl::Status replayed = request.constraint->Replay(received_);
    Expect(replayed.ok(), std::string(replayed.message()));
    request.wire_constraint = std::make_shared<const std::string>("fake");
  }
  return request;
}

void Client::OnStarted() {
  Expect(!started_ && !finished(), "started when it had started or finished");
  started_ = true;
}

void Client::OnTokens(const CommittedTokens& tokens) {
  Expect(started_ && !finished(), "tokens before the start or after the end");
  Expect(tokens.offset == received_.size(),
         absl::StrCat("tokens at offset ", tokens.offset, " after ", received_.size()));
  Expect(!tokens.tokens.empty(), "a message without tokens");
  uint32_t text_bytes = 0;
  for (const CommittedToken& token : tokens.tokens) {
    received_.push_back(token.token);
    text_bytes += token.text_bytes;
  }
  Expect(text_bytes == tokens.text.size(), "text_bytes do not add up to the text");
  text_ += tokens.text;
  CheckShares(tokens);
  for (size_t i = 0; i < kNumDraftOrigins; ++i) {
    const auto origin = static_cast<DraftOrigin>(i);
    if (tokens.shares[i].nodes == 0) continue;
    auto& [drafted, accepted] = by_origin_[{origin, tokens.drafters.NameOf(origin)}];
    drafted += tokens.shares[i].nodes;
    accepted += tokens.shares[i].accepted;
  }
}

// What a round's origins are told to have done adds up to the round, and to its tokens.
void Client::CheckShares(const CommittedTokens& tokens) const {
  uint32_t nodes = 0;
  for (size_t i = 0; i < kNumDraftOrigins; ++i) {
    const OriginShare& share = tokens.shares[i];
    nodes += share.nodes;
    const auto tokens_of_it = std::count_if(
        tokens.tokens.begin(), tokens.tokens.end(),
        [&](const CommittedToken& token) { return token.drafted_by == static_cast<DraftOrigin>(i); });
    Expect(
        share.accepted == static_cast<uint32_t>(tokens_of_it),
        absl::StrCat(share.accepted, " accepted of origin ", i, ", but ", tokens_of_it, " tokens are its"));
    Expect(share.accepted <= share.nodes, "more accepted than drafted by one origin");
  }
  Expect(nodes == tokens.nodes, absl::StrCat("shares of ", nodes, " nodes, of a round of ", tokens.nodes));
}

// What the summary says of each origin is what its rounds said.
void Client::CheckOrigins(const SessionSummary& summary) const {
  uint32_t drafted = 0;
  uint32_t accepted = 0;
  uint32_t rounds = 0;
  size_t num_told = 0;
  for (const OriginSummary& entry : summary.by_origin) {
    drafted += entry.draft_tokens;
    accepted += entry.accepted_tokens;
    rounds += entry.rounds;
    Expect(std::accumulate(entry.accepted_per_position.begin(), entry.accepted_per_position.end(), 0u) ==
               entry.accepted_tokens,
           "accepted per position of one origin do not add up");
    if (entry.draft_tokens == 0 || entry.drafter == kOtherDrafters) continue;
    ++num_told;
    const auto seen = by_origin_.find({entry.origin, entry.drafter});
    Expect(
        seen != by_origin_.end() && seen->second == std::pair(entry.draft_tokens, entry.accepted_tokens),
        absl::StrCat("origin ", static_cast<int>(entry.origin), " \"", entry.drafter, "\" is told to have ",
                     entry.accepted_tokens, " of ", entry.draft_tokens, " accepted"));
  }
  Expect(drafted == summary.draft_tokens && accepted == summary.accepted_tokens,
         "the origins do not add up to the whole");
  Expect(rounds >= summary.drafted_rounds && rounds - summary.drafted_rounds >= summary.merged_rounds,
         "the origins' rounds do not add up to the whole");
  Expect(num_told == by_origin_.size() || summary.by_origin.size() > kMostOriginSummaries,
         "an origin is missing from the summary");
}

void Client::OnFinished(const MachineClock& clock, const absl::Status& status,
                        const SessionSummary& summary) {
  Expect(!finished(), absl::StrCat("a second terminal status: ", status.ToString()));
  status_ = status;
  summary_ = summary;
  const absl::Time now = clock.queue_now();
  const absl::Time due = clock.ReachedAt(verifier_deadline_);
  Expect(now <= due + kDeadlineSlack, absl::StrCat(absl::FormatDuration(now - due), " after its deadline"));
  CheckSummary(summary);
  if (status.ok()) {
    if (request_.accepted_by_ratio) {
      CheckPossible(summary);
    } else {
      CheckComplete(summary);
    }
    return;
  }
  Expect(request_.accepted_by_ratio ||
             (received_.size() <= reference_.tokens.size() &&
              std::equal(received_.begin(), received_.end(), reference_.tokens.begin())),
         "what arrived is not the beginning of the output");
  if (absl::IsDeadlineExceeded(status)) {
    Expect(now >= due, "expired before its deadline");
  } else {
    Expect(absl::IsCancelled(status) && request_.cancel.has_value(),
           absl::StrCat("ended with ", status.ToString()));
  }
}

void Client::OnRejected(const absl::Status& status) {
  Expect(absl::IsResourceExhausted(status), absl::StrCat("rejected with ", status.ToString()));
  Expect(!started_ && !finished(), "rejected when it had started or finished");
  status_ = status;
}

void Client::CheckComplete(const SessionSummary& summary) const {
  Expect(received_ == reference_.tokens, absl::StrCat("got ", absl::StrJoin(received_, " "), ", expected ",
                                                      absl::StrJoin(reference_.tokens, " ")));
  Expect(text_ + summary.end.text == reference_.text, "the text is not the output's");
  Expect(
      summary.end.reason == reference_.end.reason && summary.end.matched_stop == reference_.end.matched_stop,
      "ended for another reason");
}

// Every token has a chance after those before it, and the output ends where it has to.
void Client::CheckPossible(const SessionSummary& summary) const {
  TargetSampler sampler(request_.sampling, target_.config().vocab_size, request_.prompt);
  OutputAssembler assembler(tokenizer_, request_.rules);
  TokenIds context = request_.prompt;
  std::string text;
  std::optional<OutputEnd> end;
  for (TokenId token : received_) {
    Expect(!end.has_value(), "tokens after the end");
    std::vector<float> logits = target_.ReferenceLogits(context);
    if (request_.constrained) {
      const absl::Span<const TokenId> output = absl::MakeConstSpan(context).subspan(request_.prompt.size());
      FakeConstraint::Mask(allowed_, output, absl::MakeSpan(logits));
    }
    const auto position = static_cast<uint32_t>(context.size());
    Expect(sampler.Weights(absl::MakeSpan(logits), position)[static_cast<size_t>(token)] > 0.0,
           absl::StrCat("token ", token, " has no chance after ", absl::StrJoin(context, " ")));
    sampler.Append(token);
    context.push_back(token);
    OutputPiece piece = assembler.Push(token);
    text += piece.text;
    end = std::move(piece.end);
  }
  Expect(end.has_value() && end->reason == summary.end.reason && end->text == summary.end.text &&
             end->matched_stop == summary.end.matched_stop,
         "ended elsewhere or for another reason");
  Expect(text == text_, "the text is not the tokens'");
}

void Client::CheckSummary(const SessionSummary& summary) const {
  Expect(summary.output_tokens == received_.size(),
         absl::StrCat("summary of ", summary.output_tokens, " tokens, ", received_.size(), " arrived"));
  Expect(summary.hits + summary.misses == summary.drafted_rounds && summary.drafted_rounds <= summary.rounds,
         "rounds do not add up");
  Expect(summary.accepted_tokens <= summary.draft_tokens, "more accepted than drafted");
  Expect(std::accumulate(summary.accepted_per_position.begin(), summary.accepted_per_position.end(), 0u) ==
             summary.accepted_tokens,
         "accepted per position do not add up");
  Expect(
      std::accumulate(summary.window_histogram.begin(), summary.window_histogram.end(), 0u) == summary.rounds,
      "the windows do not add up to the rounds");
  CheckOrigins(summary);
}

TokenIds Client::conversation() const {
  TokenIds all = request_.prompt;
  all.insert(all.end(), received_.begin(), received_.end());
  return all;
}

}  // namespace tandem::simulation
