// What a receiver of traces (OTLP) answers: any bytes, any status.

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/rpc/otlp_client.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/server_builder.h"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

// Answers every call with the bytes and the status that it was told.
class AnyReceiver final : public grpc::CallbackGenericService {
 public:
  AnyReceiver() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
    Require(server_ != nullptr, "a server");
  }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Call(this);
  }

  void Answer(absl::string_view bytes, grpc::Status status) {
    absl::MutexLock lock(&mutex_);
    bytes_ = std::string(bytes);
    status_ = std::move(status);
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  class Call final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Call(AnyReceiver* receiver) : receiver_(receiver) { StartRead(&request_); }
    void OnReadDone(bool ok) override {
      absl::MutexLock lock(&receiver_->mutex_);
      if (!ok || !receiver_->status_.ok()) return Finish(receiver_->status_);
      const grpc::Slice slice(receiver_->bytes_.data(), receiver_->bytes_.size());
      response_ = grpc::ByteBuffer(&slice, 1);
      StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
    }
    void OnDone() override { delete this; }

   private:
    AnyReceiver* const receiver_;
    grpc::ByteBuffer request_;
    grpc::ByteBuffer response_;
  };

  int port_ = 0;
  absl::Mutex mutex_;
  std::string bytes_ ABSL_GUARDED_BY(mutex_);
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Server> server_;
};

bool RunOtlp(absl::string_view input) {
  static auto* const receiver = new AnyReceiver();
  static auto* const client = new OtlpClient(receiver->address(), {"tandem-router", "1", "i"}, nullptr);
  InputReader reader(input);
  const auto code = static_cast<grpc::StatusCode>(reader.Below(17));
  const std::string details(reader.Bytes());
  const absl::string_view bytes = reader.Rest();
  receiver->Answer(bytes, code == grpc::OK ? grpc::Status::OK : grpc::Status(code, "no", details));
  const absl::StatusOr<size_t> rejected = client->Send({}, absl::Now() + absl::Seconds(10));
  if (!rejected.ok()) return Refused(rejected.status(), "");
  Require(code == grpc::OK, "an error of the receiver stays one");
  return true;
}

std::vector<std::string> OtlpSeeds() {
  opentelemetry::proto::collector::trace::v1::ExportTraceServiceResponse response;
  response.mutable_partial_success()->set_rejected_spans(3);
  response.mutable_partial_success()->set_error_message("too many");
  return {std::string(2, '\0') + response.SerializeAsString(), std::string(2, '\0'),
          std::string("\16\3abc", 5)};
}

const Registration kOtlp({.name = "otlp", .run = RunOtlp, .seeds = OtlpSeeds, .spoilt = 300});

}  // namespace
}  // namespace tandem::fuzz
