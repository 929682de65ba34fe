#include "router/cli/client.h"

#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "common/rpc/security.h"
#include "common/rpc/status.h"
#include "common/tokenizer/unicode/unicode.h"
#include "router/cli/resumption.h"

namespace tandem::cli {

Interrupts::Watch::Watch(Interrupts& interrupts, std::function<void()> on_interrupt)
    : interrupts_(interrupts) {
  absl::MutexLock lock(&interrupts_.mutex_);
  interrupts_.on_interrupt_ = std::move(on_interrupt);
}

Interrupts::Watch::~Watch() {
  absl::MutexLock lock(&interrupts_.mutex_);
  interrupts_.on_interrupt_ = nullptr;
}

bool Interrupts::Trigger() {
  // Called under the mutex, so that what it uses cannot go away meanwhile.
  absl::MutexLock lock(&mutex_);
  if (!on_interrupt_) return false;
  on_interrupt_();
  return true;
}

namespace {

// gRPC's library would end the process over what it cannot put into a header.
absl::Status CheckToken(absl::string_view token) {
  for (size_t i = 0; i < token.size(); ++i) {
    if (token[i] > ' ' && token[i] <= '~') continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--token: byte ", i, " is not printable ASCII; does the token end in a line break?"));
  }
  return absl::OkStatus();
}

absl::Status CheckUtf8(absl::string_view what, absl::string_view text) {
  const std::optional<size_t> at = FindInvalidUtf8(text);
  if (!at.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, ": byte ", *at, " is not UTF-8"));
}

// The server could not even decode these, and would not say why.
absl::Status CheckTexts(const v1::GenerateRequest& request) {
  TANDEM_RETURN_IF_ERROR(CheckUtf8("prompt", request.text()));
  for (const v1::ChatMessage& message : request.chat().messages()) {
    TANDEM_RETURN_IF_ERROR(CheckUtf8("role", message.role()));
    TANDEM_RETURN_IF_ERROR(CheckUtf8(absl::StrCat("message of the ", message.role()), message.content()));
    for (const std::string& part : message.content_parts())
      TANDEM_RETURN_IF_ERROR(CheckUtf8(absl::StrCat("message of the ", message.role()), part));
  }
  for (const std::string& stop : request.stopping().stop()) TANDEM_RETURN_IF_ERROR(CheckUtf8("--stop", stop));
  return absl::OkStatus();
}

}  // namespace

Client::Client(const ConnectionOptions& connection, Interrupts& interrupts)
    : connection_(connection),
      credentials_(OpenClientSecurity(connection.tls, absl::Now())),
      interrupts_(interrupts),
      server_(Connect(connection.endpoint)) {}

Client::Server Client::Connect(const std::string& endpoint) const {
  return {.endpoint = endpoint,
          .channel = tandem::CreateChannel(endpoint, credentials_.ok() ? *credentials_ : nullptr, "",
                                           kClientConnectTimeout)};
}

absl::Status Client::CheckConnection() const {
  TANDEM_RETURN_IF_ERROR(credentials_.status());
  return CheckToken(connection_.token.Reveal());
}

namespace {

// Attempts in a row that bring nothing, for each endpoint, and the pause after the first round of them; each
// is twice as long as the one before.
constexpr size_t kAttemptsPerEndpoint = 6;
constexpr absl::Duration kFirstPause = absl::Milliseconds(100);

}  // namespace

absl::Status Client::GenerateWithRetry(const v1::GenerateRequest& request,
                                       const std::function<bool(const v1::GenerateResponse&)>& on_event) {
  const absl::Time deadline = absl::Now() + connection_.timeout;
  std::vector<Server> servers = {server_};
  for (const std::string& endpoint : connection_.other_endpoints) servers.push_back(Connect(endpoint));
  std::atomic<bool> interrupted{false};
  Resumption resumption(request);
  size_t in_vain = 0;
  for (size_t attempt = 0;; ++attempt) {
    bool progress = false;
    server_ = servers[attempt % servers.size()];
    absl::Status status = Stream(deadline, resumption.request(), [&](const v1::GenerateResponse& event) {
      progress = true;
      if (!resumption.OnEvent(event) || on_event(event)) return true;
      interrupted = true;
      return false;
    });
    if (!absl::IsUnavailable(status) || resumption.finished() || interrupted) {
      return resumption.finished() ? absl::OkStatus() : status;
    }
    in_vain = progress ? 0 : in_vain + 1;
    if (in_vain >= kAttemptsPerEndpoint * servers.size()) return status;
    absl::Duration pause = absl::ZeroDuration();
    if (in_vain >= servers.size()) pause = kFirstPause * (1 << (in_vain / servers.size() - 1));
    if (absl::Now() + pause >= deadline) return status;
    absl::SleepFor(pause);
  }
}

absl::Status Client::Generate(const v1::GenerateRequest& request,
                              const std::function<bool(const v1::GenerateResponse&)>& on_event) {
  return Stream(absl::Now() + connection_.timeout, request, on_event);
}

absl::Status Client::Stream(absl::Time deadline, const v1::GenerateRequest& request,
                            const std::function<bool(const v1::GenerateResponse&)>& on_event) {
  TANDEM_RETURN_IF_ERROR(CheckTexts(request));
  return Run(deadline, [&](Call& call) {
    const auto stub = v1::Generation::NewStub(server_.channel);
    const auto reader = stub->Generate(&call.context, request);
    v1::GenerateResponse event;
    while (reader->Read(&event)) {
      if (!on_event(event)) call.Cancel();
    }
    return reader->Finish();
  });
}

absl::Status Client::Run(absl::Time deadline, absl::FunctionRef<grpc::Status(Call&)> run) {
  TANDEM_RETURN_IF_ERROR(CheckConnection());
  Call call;
  Prepare(call.context, deadline);
  const Interrupts::Watch watch(interrupts_, [&call] { call.Cancel(); });
  const grpc::Status status = run(call);
  if (call.cancelled && !status.ok()) return absl::CancelledError(status.error_message());
  // gRPC itself answers so to a call that reaches a server while this shuts down.
  if (status.error_code() == grpc::StatusCode::CANCELLED) {
    return absl::UnavailableError(
        absl::StrCat(server_.endpoint, " cancelled the request: ", status.error_message()));
  }
  return Explain(status);
}

absl::Status Client::RunWithTimeout(absl::FunctionRef<grpc::Status(Call&)> run) {
  return Run(absl::Now() + connection_.timeout, run);
}

absl::StatusOr<v1::ServerInfo> Client::GetServerInfo() {
  v1::ServerInfo info;
  TANDEM_RETURN_IF_ERROR(RunWithTimeout([&](Call& call) {
    return v1::Admin::NewStub(server_.channel)->GetServerInfo(&call.context, {}, &info);
  }));
  return info;
}

absl::Status Client::CallAdmin(
    const std::function<grpc::Status(v1::RouterAdmin::Stub&, grpc::ClientContext&)>& admin) {
  return RunWithTimeout(
      [&](Call& call) { return admin(*v1::RouterAdmin::NewStub(server_.channel), call.context); });
}

absl::Status Client::CallVerifier(
    const std::function<grpc::Status(v1::Verifier::Stub&, grpc::ClientContext&)>& verifier) {
  return RunWithTimeout(
      [&](Call& call) { return verifier(*v1::Verifier::NewStub(server_.channel), call.context); });
}

absl::Status Client::CallDrafter(
    const std::function<grpc::Status(v1::Drafter::Stub&, grpc::ClientContext&)>& drafter) {
  return RunWithTimeout(
      [&](Call& call) { return drafter(*v1::Drafter::NewStub(server_.channel), call.context); });
}

absl::StatusOr<v1::ChoiceExplanation> Client::ExplainChoice(const v1::ExplainChoiceRequest& request) {
  TANDEM_RETURN_IF_ERROR(CheckTexts(request.request()));
  v1::ChoiceExplanation explanation;
  TANDEM_RETURN_IF_ERROR(RunWithTimeout([&](Call& call) {
    return v1::Routing::NewStub(server_.channel)->ExplainChoice(&call.context, request, &explanation);
  }));
  return explanation;
}

absl::StatusOr<v1::CalibrateResponse> Client::Calibrate(const v1::CalibrateRequest& request) {
  v1::CalibrateResponse response;
  TANDEM_RETURN_IF_ERROR(RunWithTimeout([&](Call& call) {
    return v1::Routing::NewStub(server_.channel)->Calibrate(&call.context, request, &response);
  }));
  return response;
}

void Client::Prepare(grpc::ClientContext& context, absl::Time deadline) const {
  if (deadline != absl::InfiniteFuture()) context.set_deadline(absl::ToChronoTime(deadline));
  if (!connection_.token.empty())
    context.AddMetadata("authorization", absl::StrCat("Bearer ", connection_.token.Reveal()));
}

absl::Status Client::Explain(const grpc::Status& grpc_status) const {
  const absl::Status status = FromGrpcStatus(grpc_status);
  const auto with_advice = [&status](absl::string_view advice) {
    return absl::Status(status.code(), absl::StrCat(status.message(), "\n", advice));
  };
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      // A router that answers with this status has a connection to say so.
      if (server_.channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY) return status;
      return absl::UnavailableError(absl::StrCat(
          "cannot connect to ", server_.endpoint, ": ", status.message(),
          "\nIs a router running there, and does it use TLS only if --tls-ca is given? "
          "`tandem-router --config router.yaml --listen ",
          server_.endpoint, "` starts one; --endpoint or TANDEM_ENDPOINT sets another address."));
    case absl::StatusCode::kUnauthenticated:
      return with_advice(connection_.token.empty()
                             ? "Give the tenant's token with --token or TANDEM_TOKEN."
                             : "The router does not know the token from --token or TANDEM_TOKEN.");
    case absl::StatusCode::kDeadlineExceeded:
      return with_advice("--timeout sets how long to wait.");
    case absl::StatusCode::kResourceExhausted:
      if (const std::optional<absl::Duration> delay = RetryAfter(status)) {
        return with_advice(absl::StrCat("Try again in ", absl::FormatDuration(*delay), "."));
      }
      return status;
    default:
      return status;
  }
}

}  // namespace tandem::cli
