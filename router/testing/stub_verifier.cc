#include "router/testing/stub_verifier.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "grpcpp/ext/health_check_service_server_builder_option.h"
#include "grpcpp/server_builder.h"
#include "tandem/v1/admin.pb.h"

namespace tandem::router::testing {
namespace {

// Long enough for a loaded machine; only a failing test waits this long.
constexpr absl::Duration kPatience = absl::Seconds(30);

}  // namespace

v1::GenerateResponse StartedEvent(const v1::VerifierGenerateRequest& request) {
  v1::GenerateResponse event;
  event.mutable_started()->set_request_id(request.request_id());
  event.mutable_started()->set_seed(request.sampling().seed());
  event.mutable_started()->set_prompt_tokens(request.prompt().ids_size());
  return event;
}

v1::GenerateResponse ChunkEvent(uint32_t offset, absl::string_view text, v1::TokenSource source) {
  v1::GenerateResponse event;
  event.mutable_chunk()->set_offset(offset);
  event.mutable_chunk()->set_text(text.data(), text.size());
  for (char c : text) {
    event.mutable_chunk()->add_tokens(static_cast<unsigned char>(c));
    v1::TokenDetail* detail = event.mutable_chunk()->add_details();
    detail->set_source(source);
    detail->set_text_bytes(1);
  }
  return event;
}

v1::GenerateResponse FinishedEvent(const v1::VerifierGenerateRequest& request, uint32_t completion_tokens) {
  v1::GenerateResponse event;
  event.mutable_finished()->set_reason(v1::FINISH_REASON_STOP_TOKEN);
  event.mutable_finished()->mutable_usage()->set_prompt_tokens(request.prompt().ids_size());
  event.mutable_finished()->mutable_usage()->set_completion_tokens(completion_tokens);
  event.mutable_finished()->mutable_speculation()->set_drafter(request.drafter().name());
  event.mutable_finished()->mutable_speculation()->set_rounds(completion_tokens);
  return event;
}

std::string StubVerifier::Call::Metadata(const std::string& key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? "" : found->second;
}

bool StubVerifier::Call::WaitForCancel() {
  return cancelled_.WaitForNotificationWithTimeout(kPatience);
}

StubVerifier::StubVerifier() {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(this);
  // Instead of gRPC's own health service, which other servers of the process may have switched on for all.
  builder.SetOption(std::make_unique<grpc::HealthCheckServiceServerBuilderOption>(nullptr));
  builder.RegisterCallbackGenericService(&health_);
  server_ = builder.BuildAndStart();
}

StubVerifier::~StubVerifier() {
  Disconnect();
}

std::string StubVerifier::endpoint() const {
  return absl::StrCat("127.0.0.1:", port_);
}

void StubVerifier::SetScript(Script script) {
  absl::MutexLock lock(&mutex_);
  script_ = std::move(script);
}

std::shared_ptr<StubVerifier::Call> StubVerifier::NextCall() {
  const auto arrived = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !calls_.empty(); };
  absl::MutexLock lock(&mutex_);
  if (!mutex_.AwaitWithTimeout(absl::Condition(&arrived), kPatience)) return nullptr;
  std::shared_ptr<Call> call = std::move(calls_.front());
  calls_.pop_front();
  return call;
}

int StubVerifier::num_calls() const {
  absl::MutexLock lock(&mutex_);
  return num_calls_;
}

void StubVerifier::Disconnect() {
  server_->Shutdown(std::chrono::system_clock::now());
}

std::vector<v1::SwapDrafterRequest> StubVerifier::swaps() const {
  absl::MutexLock lock(&mutex_);
  return swaps_;
}

void StubVerifier::SetSwapAnswer(v1::SwapDrafterResponse answer) {
  absl::MutexLock lock(&mutex_);
  swap_answer_ = std::move(answer);
}

grpc::ServerUnaryReactor* StubVerifier::SwapDrafter(grpc::CallbackServerContext* context,
                                                    const v1::SwapDrafterRequest* request,
                                                    v1::SwapDrafterResponse* response) {
  {
    absl::MutexLock lock(&mutex_);
    swaps_.push_back(*request);
    *response = swap_answer_;
  }
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerGenericBidiReactor* StubVerifier::Health::CreateReactor(
    grpc::GenericCallbackServerContext* context) {
  class Reactor final : public grpc::ServerGenericBidiReactor {
   public:
    // Answers nothing, with this, or that there is no such method.
    Reactor(bool stalled, const std::optional<std::string>& answer) : stalled_(stalled) {
      if (stalled) return;
      if (!answer.has_value()) {
        Finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "no such service"));
        return;
      }
      const grpc::Slice slice(*answer);
      response_ = grpc::ByteBuffer(&slice, 1);
      StartRead(&request_);
    }
    void OnReadDone(bool) override {
      StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
    }
    void OnCancel() override {
      if (stalled_) Finish(grpc::Status(grpc::StatusCode::CANCELLED, "given up"));
    }
    void OnDone() override { delete this; }

   private:
    const bool stalled_;
    grpc::ByteBuffer request_;
    grpc::ByteBuffer response_;
  };
  std::optional<std::string> answer;
  if (context->method() == "/tandem.v1.Admin/GetServerInfo") {
    v1::ServerInfo told;
    told.mutable_capacity()->set_max_running(max_running);
    told.mutable_capacity()->set_max_waiting(256);
    if (max_running > 0) answer = told.SerializeAsString();
    absl::MutexLock lock(&mutex);
    if (!info.empty()) answer = info;
  } else if (serving != Serving::kUnknown) {
    // grpc.health.v1.HealthCheckResponse, whose only field is the status.
    answer = serving == Serving::kYes ? "\x08\x01" : "\x08\x02";
  }
  return new Reactor(stalled, answer);
}

void StubVerifier::SetInfo(const v1::ServerInfo& info) {
  absl::MutexLock lock(&health_.mutex);
  health_.info = info.SerializeAsString();
}

grpc::ServerWriteReactor<v1::GenerateResponse>* StubVerifier::Generate(
    grpc::CallbackServerContext* context, const v1::VerifierGenerateRequest* request) {
  auto call = std::make_shared<Call>();
  call->request_ = *request;
  for (const auto& [key, value] : context->client_metadata()) {
    call->metadata_.emplace(std::string(key.data(), key.size()), std::string(value.data(), value.size()));
  }
  call->stream_ = ServerStream<v1::GenerateResponse>::Create(
      {.max_queued_messages = size_t{1} << 20, .max_queued_bytes = size_t{1} << 30});
  grpc::ServerWriteReactor<v1::GenerateResponse>* reactor =
      call->stream_->Start({.on_cancelled = [call](absl::Status) { call->cancelled_.Notify(); }});
  Script script;
  {
    absl::MutexLock lock(&mutex_);
    ++num_calls_;
    script = script_;
    if (!script) calls_.push_back(call);
  }
  if (script) script(*call);
  return reactor;
}

StubVerifier::Script Saying(std::string text, size_t chunk_bytes) {
  return [text = std::move(text), chunk_bytes](StubVerifier::Call& call) {
    call.Send(StartedEvent(call.request()));
    for (size_t offset = 0; offset < text.size(); offset += chunk_bytes) {
      call.Send(
          ChunkEvent(static_cast<uint32_t>(offset), absl::string_view(text).substr(offset, chunk_bytes)));
    }
    call.Send(FinishedEvent(call.request(), static_cast<uint32_t>(text.size())));
    call.Finish(absl::OkStatus());
  };
}

}  // namespace tandem::router::testing
