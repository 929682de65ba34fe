#include "tests/simulation/cluster_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rpc/sampling_wire.h"
#include "verifier/rpc/request_wire.h"

namespace tandem::simulation {
namespace {

constexpr absl::Duration kFirstClientPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestClientPause = absl::Seconds(2);
constexpr absl::Duration kLatestClientEnd = absl::Milliseconds(100);

bool GivesSeed(const ClientRequest& request) {
  return request.id % 3 != 0;
}

v1::GenerateRequest RequestOf(const ClientRequest& request) {
  v1::GenerateRequest proto;
  proto.set_request_id(absl::StrCat("request-", request.id));
  proto.mutable_token_ids()->mutable_ids()->Assign(request.prompt.begin(), request.prompt.end());
  *proto.mutable_sampling() = SamplingToProto(request.sampling);
  if (!GivesSeed(request)) proto.mutable_sampling()->clear_seed();
  v1::StopConditions& stopping = *proto.mutable_stopping();
  stopping.set_max_tokens(request.rules.max_tokens);
  for (const std::string& stop : request.rules.stop) stopping.add_stop(stop);
  for (TokenId token : request.rules.stop_tokens) stopping.add_stop_token_ids(static_cast<uint32_t>(token));
  v1::SpeculationOptions& speculation = *proto.mutable_speculation();
  if (request.drafter.has_value()) speculation.set_drafter(request.drafter->name);
  if (request.partner.has_value()) speculation.set_partner(absl::StrCat("drafter-", request.partner->link));
  speculation.set_window_policy(request.window_policy);
  speculation.set_max_window(request.max_window);
  // Whose it is: the simulated router makes a tenant of it.
  proto.set_priority(static_cast<int32_t>(request.cache_salt));
  return proto;
}

}  // namespace

ClusterClient::ClusterClient(EventQueue* queue, const Options& options, ClientRequest request,
                             RpcNetwork* network, std::shared_ptr<const Tokenizer> tokenizer,
                             const std::vector<const FakeEngine*>& targets, Findings* findings)
    : queue_(*queue),
      options_(options),
      request_(std::move(request)),
      network_(*network),
      tokenizer_(std::move(tokenizer)),
      targets_(targets),
      findings_(*findings),
      resumption_(RequestOf(request_)) {}

// Of requests that leave the seed to the router it is known then only.
void ClusterClient::OnStarted(const v1::GenerationStarted& started) {
  SamplingParameters sampling = request_.sampling;
  Expect(!GivesSeed(request_) || sampling.seed == started.seed(), "started names another seed");
  sampling.seed = started.seed();
  for (const FakeEngine* target : targets_) {
    outputs_.push_back(
        GenerateReference(*target, request_.prompt, sampling, OutputAssembler(tokenizer_, request_.rules)));
  }
}

void ClusterClient::Expect(bool holds, const std::string& otherwise) const {
  if (!holds) findings_.Expect(false, absl::StrCat("request ", request_.id, ": ", otherwise));
}

void ClusterClient::Start() {
  Attempt();
}

void ClusterClient::Cancel() {
  if (finished()) return;
  if (call_ != nullptr) call_->Cancel();
  Finish(absl::CancelledError("the client has gone"));
}

void ClusterClient::Attempt() {
  if (finished()) return;
  const absl::Duration left = request_.deadline - queue_.now();
  if (left <= absl::ZeroDuration()) return Finish(absl::DeadlineExceededError("no time for another attempt"));
  const size_t attempt = ++num_attempts_;
  num_resumed_ += !received_.empty();
  progress_ = stream_started_ = false;
  const Host router = options_.routers[(options_.first_router + attempt) % options_.routers.size()];
  call_ = network_.Start(
      options_.host, router, resumption_.request(), left,
      {.on_event = [this,
                    attempt](RpcEvent event) { OnEvent(attempt, std::get<v1::GenerateResponse>(event)); },
       .on_done = [this, attempt](const absl::Status& status) { OnDone(attempt, status); }});
}

void ClusterClient::OnEvent(size_t attempt, const v1::GenerateResponse& event) {
  if (finished() || attempt != num_attempts_) return;
  progress_ = true;
  Expect(!resumption_.finished(), "an event after finished");
  Expect(event.has_started() != stream_started_, "started is to be the first event of a stream, once");
  stream_started_ = true;
  if (!resumption_.OnEvent(event)) return;
  if (event.has_started()) OnStarted(event.started());
  if (event.has_chunk()) OnChunk(event.chunk());
  if (event.has_finished()) OnFinished(event.finished());
}

// P1 and P4: at every step what has come is the beginning of an output that is right.
void ClusterClient::OnChunk(const v1::GenerationChunk& chunk) {
  Expect(chunk.offset() == received_.size(),
         absl::StrCat("tokens at offset ", chunk.offset(), " after ", received_.size()));
  Expect(!chunk.tokens().empty(), "a chunk without tokens");
  received_.insert(received_.end(), chunk.tokens().begin(), chunk.tokens().end());
  text_ += chunk.text();
  std::erase_if(outputs_, [this](const ReferenceOutput& output) {
    return received_.size() > output.tokens.size() ||
           !std::equal(received_.begin(), received_.end(), output.tokens.begin()) ||
           output.text.compare(0, text_.size(), text_) != 0;
  });
  Expect(!outputs_.empty(), absl::StrCat("\"", text_, "\", ", absl::StrJoin(received_, " "),
                                         ", begins no output that is right"));
}

void ClusterClient::OnFinished(const v1::GenerationFinished& finished) {
  text_ += finished.text();
  std::erase_if(outputs_, [&](const ReferenceOutput& output) {
    const v1::GenerateResponse expected = FinishedToProto({.end = output.end});
    return received_ != output.tokens || text_ != output.text ||
           finished.reason() != expected.finished().reason() ||
           finished.matched_stop() != output.end.matched_stop;
  });
  Expect(!outputs_.empty(),
         absl::StrCat("\"", text_, "\", ", absl::StrJoin(received_, " "), ", is no output"));
  Expect(finished.usage().completion_tokens() == received_.size(),
         absl::StrCat("usage of ", finished.usage().completion_tokens(), " tokens, ", received_.size(),
                      " came"));
  const v1::SpeculationStats& stats = finished.speculation();
  Expect(stats.accepted_tokens() <= stats.draft_tokens() &&
             stats.hits() + stats.misses() == stats.drafted_rounds() &&
             stats.drafted_rounds() <= stats.rounds(),
         "the statistics of a stream contradict themselves");
}

void ClusterClient::OnDone(size_t attempt, const absl::Status& status) {
  if (finished() || attempt != num_attempts_) return;
  if (status.ok() || resumption_.finished()) {
    Expect(resumption_.finished(), "a stream that ended OK without finished");
    return Finish(absl::OkStatus());
  }
  const uint64_t began = resumption_.request().resume().arithmetic();
  orphaned_ = absl::IsUnavailable(status) && began != 0 && options_.arithmetics.count(began) == 0 &&
              queue_.now() >= options_.calm;
  if (orphaned_) return Finish(status);
  const bool goes_on = absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
  if (!goes_on) return Finish(status);
  in_vain_ = progress_ ? 0 : in_vain_ + 1;
  absl::Duration pause = absl::ZeroDuration();
  if (in_vain_ >= options_.routers.size() || absl::IsResourceExhausted(status)) {
    const size_t rounds = std::min<size_t>(in_vain_ / options_.routers.size(), 6);
    pause = std::min(kFirstClientPause * (1 << static_cast<int>(rounds)), kLongestClientPause);
  }
  queue_.After(std::min(pause, request_.deadline - queue_.now()), [this] { Attempt(); });
}

void ClusterClient::Finish(const absl::Status& status) {
  Expect(!finished(), absl::StrCat("a second terminal status: ", status.ToString()));
  status_ = status;
  const absl::Time now = queue_.now();
  Expect(now <= request_.deadline + kLatestClientEnd,
         absl::StrCat("ended ", absl::FormatDuration(now - request_.deadline), " after its deadline"));
  if (status.ok()) return;
  if (absl::IsDeadlineExceeded(status)) {
    Expect(request_.deadline != absl::InfiniteFuture() &&
               (excused_ || now >= request_.deadline - kLatestClientEnd),
           "expired before its deadline");
    return;
  }
  Expect((absl::IsCancelled(status) && request_.cancel.has_value()) || orphaned_,
         absl::StrCat("ended with ", status.ToString()));
}

}  // namespace tandem::simulation
