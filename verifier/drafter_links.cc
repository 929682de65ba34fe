#include "verifier/drafter_links.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "common/rpc/channel.h"
#include "common/rpc/client_bidi.h"
#include "common/rpc/draft_wire.h"
#include "common/rpc/reconnect_backoff.h"
#include "common/rpc/release.h"
#include "grpcpp/alarm.h"
#include "tandem/v1/drafter.grpc.pb.h"

namespace tandem {
namespace {

constexpr size_t kMaxLinks = 256;
// Responses that may wait for the engine thread, which takes them between steps.
constexpr size_t kMaxUnacknowledged = 1024;
constexpr absl::Duration kIdleAfter = absl::Minutes(5);

double Uniform() {
  static thread_local std::mt19937_64 generator{std::random_device{}()};
  return std::uniform_real_distribution<double>(0.0, 1.0)(generator);
}

}  // namespace

// One endpoint. Its stream's callbacks hold it, so that it lives until the last of them has run.
class DrafterLinks::Link : public std::enable_shared_from_this<Link> {
 public:
  Link(LinkId id, std::string endpoint, std::shared_ptr<const Callbacks> callbacks, const Clock* clock,
       const std::shared_ptr<grpc::ChannelCredentials>& credentials)
      : id_(id),
        endpoint_(std::move(endpoint)),
        callbacks_(std::move(callbacks)),
        clock_(clock),
        channel_(tandem::CreateChannel(endpoint_, credentials)),
        stub_(v1::Drafter::NewStub(channel_)),
        backoff_(clock, Uniform) {}

  const std::string& endpoint() const { return endpoint_; }

  void Use() {
    absl::MutexLock lock(&mutex_);
    last_used_ = clock_->Now();
    if (stream_ == nullptr && !retrying_ && !closing_) Open();
  }

  size_t Send(const DraftRequest& request) {
    std::shared_ptr<Stream> stream;
    {
      absl::MutexLock lock(&mutex_);
      stream = stream_;
    }
    if (stream == nullptr) return 0;
    v1::DraftRequest message = DraftRequestToProto(request);
    const size_t bytes = message.ByteSizeLong();
    stream->Write(std::move(message));
    return bytes;
  }

  void Acknowledge() {
    std::shared_ptr<Stream> stream;
    {
      absl::MutexLock lock(&mutex_);
      stream = stream_;
    }
    if (stream != nullptr) stream->Acknowledge();
  }

  void Close() {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    alarm_.Cancel();
    if (stream_ != nullptr) stream_->Cancel();
    mutex_.Await(absl::Condition(
        +[](Link* link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(link->mutex_) {
          return link->stream_ == nullptr && !link->retrying_;
        },
        this));
  }

 private:
  using Stream = ClientBidi<v1::DraftRequest, v1::DraftResponse>;

  void Open() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    stream_ = Stream::Create({}, kMaxUnacknowledged);
    answered_ = false;
    callbacks_->on_up(id_);
    auto self = shared_from_this();
    stream_->Start(
        [this](grpc::ClientContext* context,
               grpc::ClientBidiReactor<v1::DraftRequest, v1::DraftResponse>* reactor) {
          stub_->async()->Draft(context, reactor);
        },
        {.on_message = [self](v1::DraftResponse message) { self->OnMessage(message); },
         .on_closed = [self](absl::Status status) { self->OnClosed(status); }});
  }

  void OnMessage(const v1::DraftResponse& message) {
    {
      absl::MutexLock lock(&mutex_);
      if (!answered_) backoff_.Succeeded();
      answered_ = true;
    }
    absl::StatusOr<DraftResponse> response = DraftResponseFromProto(message);
    if (response.ok()) {
      callbacks_->on_response(id_, *std::move(response), message.ByteSizeLong());
    } else {
      callbacks_->on_malformed(id_, response.status());
    }
  }

  void OnClosed(const absl::Status& status) {
    callbacks_->on_down(id_, status.ok() ? absl::UnavailableError("the drafter ended the stream") : status);
    absl::MutexLock lock(&mutex_);
    stream_ = nullptr;
    if (closing_ || clock_->Now() - last_used_ > kIdleAfter) return;
    retrying_ = true;
    const absl::Time next = backoff_.Failed();
    alarm_.Set(absl::ToChronoTime(next), [self = shared_from_this()](bool) mutable {
      // Retry may come to set the alarm again, which destroys this very function while it runs: nothing
      // captured is touched after it.
      std::shared_ptr<Link> link = std::move(self);
      link->Retry();
      ReleaseElsewhere(std::move(link));
    });
  }

  void Retry() {
    absl::MutexLock lock(&mutex_);
    retrying_ = false;
    if (closing_) return;
    // Its address is asked for anew: gRPC's own pauses before that grow to two minutes.
    grpc::experimental::ChannelResetConnectionBackoff(channel_.get());
    Open();
  }

  const LinkId id_;
  const std::string endpoint_;
  const std::shared_ptr<const Callbacks> callbacks_;
  const Clock* const clock_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Drafter::Stub> stub_;
  absl::Mutex mutex_;
  ReconnectBackoff backoff_ ABSL_GUARDED_BY(mutex_);
  grpc::Alarm alarm_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_used_ ABSL_GUARDED_BY(mutex_);
  bool answered_ ABSL_GUARDED_BY(mutex_) = false;
  bool retrying_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
};

DrafterLinks::DrafterLinks(Callbacks callbacks, const Clock* clock,
                           std::shared_ptr<grpc::ChannelCredentials> credentials)
    : callbacks_(std::make_shared<const Callbacks>(std::move(callbacks))),
      clock_(clock),
      credentials_(std::move(credentials)) {}

DrafterLinks::~DrafterLinks() {
  std::vector<std::shared_ptr<Link>> links;
  {
    absl::MutexLock lock(&mutex_);
    links = links_;
  }
  for (const std::shared_ptr<Link>& link : links) link->Close();
}

absl::StatusOr<LinkId> DrafterLinks::Acquire(const std::string& endpoint) {
  std::shared_ptr<Link> link;
  LinkId id = 0;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = ids_.find(endpoint);
    if (found == ids_.end() && links_.size() >= kMaxLinks) {
      return absl::ResourceExhaustedError(absl::StrCat(links_.size(), " drafter endpoints are in use"));
    }
    if (found != ids_.end()) {
      id = found->second;
    } else {
      id = static_cast<LinkId>(links_.size());
      links_.push_back(std::make_shared<Link>(id, endpoint, callbacks_, clock_, credentials_));
      ids_[endpoint] = id;
    }
    link = links_[id];
  }
  link->Use();
  return id;
}

std::string DrafterLinks::EndpointOf(LinkId link) const {
  absl::MutexLock lock(&mutex_);
  return link < links_.size() ? links_[link]->endpoint() : "";
}

size_t DrafterLinks::Send(LinkId link, const DraftRequest& request) {
  std::shared_ptr<Link> target;
  {
    absl::MutexLock lock(&mutex_);
    if (link >= links_.size()) return 0;
    target = links_[link];
  }
  return target->Send(request);
}

void DrafterLinks::Acknowledge(LinkId link) {
  std::shared_ptr<Link> target;
  {
    absl::MutexLock lock(&mutex_);
    if (link >= links_.size()) return;
    target = links_[link];
  }
  target->Acknowledge();
}

}  // namespace tandem
