#include "tests/simulation/verifier_host.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/rpc/arithmetic.h"
#include "router/registry/testing/registrations.h"

namespace tandem::simulation {
namespace {

constexpr char kModel[] = "letters";
// What a step takes a verifier.
constexpr absl::Duration kBusiestVerifier = absl::Milliseconds(50);
constexpr absl::Duration kLatestVerifierEnd = absl::Milliseconds(100);
constexpr absl::Duration kRegisterTimeout = absl::Milliseconds(500);
constexpr uint32_t kMostWindow = 16;

DrafterBinding BindingOf(const v1::DrafterTarget& target) {
  uint64_t link = 0;
  absl::string_view number = target.name();
  absl::ConsumePrefix(&number, "drafter-");
  (void)absl::SimpleAtoi(number, &link);
  return {.link = link, .name = target.name(), .draft_model = DrafterMachine::kModelName};
}

}  // namespace

VerifierCall::VerifierCall(SessionId id, VerifierHost* host, VerifierMachine* machine,
                           std::shared_ptr<RpcCall> rpc)
    : id_(id), host_(*host), machine_(*machine), rpc_(std::move(rpc)) {}

bool VerifierCall::Read() {
  const auto& proto = std::get<v1::VerifierGenerateRequest>(rpc_->request());
  MachineClock& clock = machine_.clock();
  arrived_ = clock.queue_now();
  deadline_ = clock.Now() + rpc_->timeout();
  absl::StatusOr<SessionRequest> request = SessionRequestFromProto(proto, host_.target(), deadline_);
  if (!request.ok()) {
    Finish(request.status());
    return false;
  }
  read_ = *std::move(request);
  untold_arithmetic_ = read_.arithmetic;
  salt_ = read_.cache_salt;
  context_ = read_.prompt;
  context_.insert(context_.end(), read_.emitted.begin(), read_.emitted.end());
  if (proto.has_drafter()) read_.drafter = BindingOf(proto.drafter());
  for (const v1::DrafterTarget& other : proto.alternates()) read_.alternates.push_back(BindingOf(other));
  if (proto.has_partner()) read_.partner = BindingOf(proto.partner());
  v1::GenerationStarted& started = *started_.mutable_started();
  started.set_request_id(proto.request_id());
  started.set_model(proto.model());
  started.set_seed(read_.sampling.seed);
  started.set_prompt_tokens(static_cast<uint32_t>(read_.prompt.size()));
  started.set_max_tokens(read_.max_tokens);
  if (!read_.replayed_end.has_value()) return true;
  SessionSummary summary{.end = *std::move(read_.replayed_end)};
  summary.prompt_tokens = static_cast<uint32_t>(read_.prompt.size());
  summary.output_tokens = read_.output->num_tokens();
  Send(started_);
  Send(FinishedToProto(summary));
  Finish(absl::OkStatus());
  return false;
}

SessionRequest VerifierCall::MakeSessionRequest(const MachineClock&) {
  return std::move(read_);
}

void VerifierCall::Send(v1::GenerateResponse event) {
  rpc_->Send(machine_.clock().queue_now(), std::move(event));
}

void VerifierCall::Finish(const absl::Status& status) {
  over_ = true;
  rpc_->Finish(machine_.clock().queue_now(), status);
  rpc_ = nullptr;
}

void VerifierCall::OnStarted() {
  host_.findings().Expect(!over_, "a session starts after its end");
  Send(started_);
}

void VerifierCall::OnTokens(const CommittedTokens& tokens) {
  host_.findings().Expect(!over_, "a session commits after its end");
  for (const CommittedToken& token : tokens.tokens) context_.push_back(token.token);
  v1::GenerateResponse event = ChunkToProto(tokens, /*with_logprobs=*/false);
  event.mutable_chunk()->set_arithmetic(std::exchange(untold_arithmetic_, 0));
  Send(std::move(event));
}

void VerifierCall::OnFinished(const MachineClock& clock, const absl::Status& status,
                              const SessionSummary& summary) {
  host_.findings().Expect(!over_, "a session ends twice");
  const absl::Duration late = clock.Now() - deadline_;
  // Of one that stood still, or whose clock jumped, as everybody else counts; clocks may run slow.
  const absl::Time latest = std::max(arrived_ + rpc_->timeout(), host_.disturbed()) + 2 * kLatestVerifierEnd;
  host_.findings().Expect(
      host_.disturbed() >= arrived_ ? clock.queue_now() <= latest : late <= kLatestVerifierEnd,
      absl::StrCat("a verifier ended a session ", absl::FormatDuration(late), " after its deadline"));
  if (status.ok()) {
    host_.CheckCached(*this, summary.cached_prompt_tokens);
    Send(FinishedToProto(summary));
  }
  Finish(status);
}

void VerifierCall::OnRejected(const absl::Status& status) {
  Finish(status);
}

VerifierHost::VerifierHost(EventQueue* queue, Options options, RpcNetwork* network, Random random,
                           std::function<bool()> over, Findings* findings)
    : queue_(*queue),
      options_(std::move(options)),
      network_(*network),
      random_(random),
      over_(std::move(over)),
      findings_(*findings),
      clock_ahead_(random_.Between(absl::ZeroDuration(), absl::Hours(24))),
      up_(options_.drafters.size()) {
  target_.name = kModel;
  target_.config = FakeEngine(options_.machine.model).config();
  target_.tokenizer = options_.tokenizer;
  target_.max_window = kMostWindow;
  target_.max_length = std::min(static_cast<uint32_t>(target_.config.max_context),
                                options_.machine.model.num_blocks * kBlockTokens);
  for (size_t drafter = 0; drafter < options_.drafters.size(); ++drafter) AddLink(drafter);
  Start();
  arithmetic_ = target_.arithmetic;
}

// The drafter tells the connections of verifiers apart.
void VerifierHost::AddLink(size_t drafter) {
  DrafterMachine* const machine = options_.drafters[drafter];
  const uint64_t index = options_.index;
  links_.push_back(std::make_unique<Link>(
      &queue_, options_.links[drafter], random_.Fork(),
      Link::Ends{
          .on_up =
              [this, drafter] {
                if (machine_ == nullptr) return;
                up_[drafter] = true;
                machine_->OnLinkUp(drafter);
              },
          .on_down =
              [this, drafter] {
                // Of a process before this one it may be.
                if (!up_[drafter]) return;
                up_[drafter] = false;
                machine_->OnLinkDown(drafter);
              },
          .on_response =
              [this, drafter](DraftResponse response) {
                if (up_[drafter]) machine_->OnResponse(drafter, std::move(response));
              },
          .on_request =
              [machine, index](uint64_t connection, DraftRequest request) {
                machine->OnRequest(connection * kMostHosts + index, std::move(request));
              },
          .on_closed = [machine, index](
                           uint64_t connection) { machine->OnClosed(connection * kMostHosts + index); }}));
  queue_.After(random_.Between(absl::ZeroDuration(), absl::Milliseconds(10)),
               [link = links_.back().get()] { link->Connect(); });
}

void VerifierHost::Start() {
  VerifierMachine::Options options = options_.machine;
  options.chance = random_.Next();
  options.model.seed = computes_differently() ? kOtherWeights : kWeights;
  const v1::ServerInfo info = Describe();
  target_.arithmetic = ArithmeticOf(ComputesInWords(info, info.models(0)));
  machines_.push_back(std::make_unique<VerifierMachine>(
      &queue_, options,
      [this](absl::Time departure, LinkId link, DraftRequest request) {
        links_[link]->SendRequest(departure, std::move(request));
      },
      [this](LinkId link, absl::string_view what) {
        findings_.Expect(options_.drafters[link]->byzantine(),
                         absl::StrCat("an honest drafter is said to break the protocol: ", what));
      },
      &findings_));
  machine_ = machines_.back().get();
  machine_->clock().SetDrift(options_.drift);
  machine_->clock().Jump(clock_ahead_);
  // Its connections are its own.
  for (const auto& link : links_) {
    if (link->connected()) link->Break();
  }
  network_.Up(options_.host, [this, machine = machine_](const std::shared_ptr<RpcCall>& rpc) {
    machine->Post([this, machine, rpc] { Serve(machine, rpc); });
  });
  registration_ =
      router::testing::VerifierAt(options_.name, options_.address,
                                  static_cast<uint64_t>(absl::ToUnixMillis(machine_->clock().Now())) + 1);
  registration_.mutable_instance()->set_instance(
      router::testing::InstanceBytes(options_.index * 1000 + ++process_));
  v1::ServerCapacity& capacity = *registration_.mutable_capacity();
  capacity.set_max_running(options_.machine.scheduler.max_running);
  capacity.set_max_waiting(options_.machine.scheduler.max_waiting);
  Register(process_);
}

bool VerifierHost::Kill(bool silently) {
  if (machine_ == nullptr) return false;
  machine_->Kill();
  machine_ = nullptr;
  for (const auto& call : calls_) call->Abandon();
  network_.Down(options_.host, silently);
  for (size_t drafter = 0; drafter < links_.size(); ++drafter) {
    links_[drafter]->Break();
    up_[drafter] = false;
  }
  return true;
}

bool VerifierHost::Replace(bool others, absl::Duration pause) {
  // One that is down comes back with the weights that it was to have.
  replaced_ = others && running();
  if (!Kill(/*silently=*/false)) return false;
  queue_.After(pause, [this] { Start(); });
  return true;
}

void VerifierHost::StopFor(absl::Duration duration) {
  if (machine_ == nullptr) return;
  machine_->Stop(duration);
  Disturb();
}

void VerifierHost::JumpBy(absl::Duration duration) {
  if (machine_ == nullptr) return;
  machine_->JumpClock(duration);
  Disturb();
}

void VerifierHost::Disturb() {
  machine_->Post([this, machine = machine_] {
    disturbed_ = std::max(disturbed_, machine->clock().queue_now() + kBusiestVerifier);
  });
}

size_t VerifierHost::num_sessions() const {
  return static_cast<size_t>(
      std::count_if(calls_.begin(), calls_.end(), [](const auto& call) { return !call->over(); }));
}

v1::ServerInfo VerifierHost::Describe() const {
  v1::ServerInfo info;
  v1::ModelInfo& model = *info.add_models();
  model.set_name(kModel);
  model.set_context_length(static_cast<uint32_t>(target_.config.max_context));
  model.set_target_fingerprint(computes_differently() ? kOtherWeights : kWeights);
  info.set_arithmetic("simulated, seeded");
  info.mutable_capacity()->set_max_running(options_.machine.scheduler.max_running);
  info.mutable_capacity()->set_max_waiting(options_.machine.scheduler.max_waiting);
  info.mutable_capacity()->set_kv_tokens(uint64_t{options_.machine.model.num_blocks} * kBlockTokens);
  return info;
}

void VerifierHost::Serve(VerifierMachine* machine, const std::shared_ptr<RpcCall>& rpc) {
  const bool is_question = std::holds_alternative<InfoQuestion>(rpc->request());
  if (is_question) rpc->Send(machine->clock().queue_now(), Describe());
  if (is_question || std::holds_alternative<HealthCheck>(rpc->request())) {
    rpc->Finish(machine->clock().queue_now(), absl::OkStatus());
    return;
  }
  calls_.push_back(std::make_unique<VerifierCall>(++last_session_, this, machine, rpc));
  VerifierCall* const call = calls_.back().get();
  if (!call->Read()) return;
  machine->Submit(call);
  rpc->SetOnCancel([machine, id = call->session()] { machine->Cancel(id); });
}

// As registration does it: with any router, and again before the lease ends.
void VerifierHost::Register(uint64_t process) {
  if (over_() || process != process_ || machine_ == nullptr) return;
  v1::RegisterRequest request;
  *request.mutable_server() = registration_;
  const Host to = options_.routers[random_.Between(0, static_cast<uint32_t>(options_.routers.size()) - 1)];
  network_.Start(options_.host, to, std::move(request), kRegisterTimeout,
                 {.on_event = [](const RpcEvent&) {},
                  .on_done =
                      [this, process](const absl::Status& status) {
                        const absl::Duration pause = status.ok() ? options_.ttl / 3 : absl::Milliseconds(250);
                        queue_.After(random_.Between(0.8 * pause, pause),
                                     [this, process] { Register(process); });
                      }});
}

void VerifierHost::CheckCached(const VerifierCall& call, uint32_t cached) {
  ptrdiff_t own = 0;
  ptrdiff_t others = 0;
  const TokenIds& context = call.context();
  for (const auto& other : calls_) {
    if (other.get() == &call || other->machine() != call.machine()) continue;
    const TokenIds& known = other->context();
    const auto end = std::mismatch(context.begin(), context.end(), known.begin(), known.end()).first;
    ptrdiff_t& longest = other->salt() == call.salt() ? own : others;
    longest = std::max(longest, end - context.begin());
  }
  findings_.Expect(cached <= own,
                   absl::StrCat(cached, " tokens of a prompt were cached, of which its tenant's ",
                                "requests have computed ", own));
  num_cached_ += cached > 0;
  num_kept_apart_ += others >= own + kBlockTokens;
}

void VerifierHost::CheckEmpty() {
  if (machine_ != nullptr) machine_->CheckEmpty();
}

}  // namespace tandem::simulation
