#include "verifier/rpc/drafter_links.h"

#include <optional>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "common/base/random_bits.h"
#include "common/rpc/channel.h"
#include "common/rpc/client_bidi.h"
#include "common/rpc/draft_wire.h"
#include "common/rpc/local_sockets.h"
#include "common/rpc/reconnect_backoff.h"
#include "common/rpc/release.h"
#include "grpcpp/alarm.h"
#include "tandem/v1/drafter.grpc.pb.h"

namespace tandem {
namespace {

// Responses that may wait for the engine thread, which takes them between steps.
constexpr size_t kMaxUnacknowledged = 1024;
constexpr absl::Duration kLinkIdleAfter = absl::Minutes(5);

}  // namespace

// One endpoint. Its stream's callbacks hold it, so that it lives until the last of them has run.
class DrafterLinks::Link : public std::enable_shared_from_this<Link> {
 public:
  Link(LinkId id, std::string endpoint, const std::string& server_name,
       std::shared_ptr<const Callbacks> callbacks, const Clock* clock, const Options& options)
      : id_(id),
        endpoint_(std::move(endpoint)),
        server_name_(server_name),
        callbacks_(std::move(callbacks)),
        clock_(clock),
        options_(options),
        channel_(tandem::CreateChannel(endpoint_, options.credentials, server_name)),
        backoff_(clock, RandomFraction) {}

  const std::string& endpoint() const { return endpoint_; }

  void Use() {
    absl::MutexLock lock(&mutex_);
    last_used_ = clock_->Now();
    if (stream_ == nullptr && !retrying_ && !closing_) Open();
  }

  size_t Send(DraftRequest request) {
    std::shared_ptr<Stream> stream;
    {
      absl::MutexLock lock(&mutex_);
      stream = stream_;
      if (stream == nullptr) return 0;
      if (!std::holds_alternative<LoadQuery>(request.event)) last_used_ = clock_->Now();
      if (std::holds_alternative<OpenSession>(request.event)) sessions_.insert(request.session);
      if (std::holds_alternative<CloseSession>(request.event)) sessions_.erase(request.session);
    }
    const bool is_features = std::holds_alternative<Features>(request.event);
    v1::DraftRequest message = DraftRequestToProto(std::move(request));
    const size_t bytes = message.ByteSizeLong();
    // Nobody waits for a round because of features, but for what they would hold up.
    if (!is_features) {
      stream->Write(std::move(message));
    } else if (!stream->WriteBehind(std::move(message))) {
      return 0;
    }
    return bytes;
  }

  Backlog backlog() {
    std::shared_ptr<Stream> stream;
    {
      absl::MutexLock lock(&mutex_);
      stream = stream_;
    }
    if (stream == nullptr) return {};
    const Stream::Backlog backlog = stream->backlog();
    return {.feature_messages = backlog.num_behind,
            .feature_bytes = backlog.bytes_behind,
            .other_bytes = backlog.bytes};
  }

  void Acknowledge() {
    std::shared_ptr<Stream> stream;
    {
      absl::MutexLock lock(&mutex_);
      stream = stream_;
    }
    if (stream != nullptr) stream->Acknowledge();
  }

  LinkId id() const { return id_; }
  bool is_local() {
    absl::MutexLock lock(&mutex_);
    return stream_ != nullptr && is_local_;
  }
  // Nothing while it has sessions.
  std::optional<absl::Time> UnusedSince() {
    absl::MutexLock lock(&mutex_);
    if (!sessions_.empty()) return std::nullopt;
    return last_used_;
  }

  // Ends the stream and tells, when it has ended, that the link is gone.
  void Leave() {
    absl::MutexLock lock(&mutex_);
    leaving_ = true;
    BeginClose();
    if (Ended()) callbacks_->on_gone(id_, endpoint_);
  }
  bool HasEnded() {
    absl::MutexLock lock(&mutex_);
    return Ended();
  }

  void Close() {
    absl::MutexLock lock(&mutex_);
    BeginClose();
    mutex_.Await(absl::Condition(
        +[](Link* link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(link->mutex_) { return link->Ended(); }, this));
  }

 private:
  using Stream = ClientBidi<v1::DraftRequest, v1::DraftResponse>;

  void BeginClose() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    closing_ = true;
    alarm_.Cancel();
    if (stream_ != nullptr) stream_->Cancel();
    if (finder_ != nullptr) finder_->Cancel();
  }
  bool Ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stream_ == nullptr && !retrying_; }

  void Open() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    stream_ = Stream::Create({}, kMaxUnacknowledged);
    answered_ = false;
    callbacks_->on_up(id_);
    if (options_.local_sockets.empty()) return Start(channel_);
    finder_ = LocalSocketFinder::Start({.folder = options_.local_sockets,
                                        .endpoint = endpoint_,
                                        .server_name = server_name_,
                                        .credentials = options_.credentials,
                                        .channel = channel_},
                                       [self = shared_from_this()](std::shared_ptr<grpc::Channel> local) {
                                         self->OnSearched(std::move(local));
                                       });
  }

  void OnSearched(std::shared_ptr<grpc::Channel> local) {
    absl::MutexLock lock(&mutex_);
    ReleaseElsewhere(std::exchange(finder_, nullptr));
    if (local != nullptr) LogInfo("using a drafter's socket on this machine", {{"endpoint", endpoint_}});
    is_local_ = local != nullptr;
    Start(local != nullptr ? std::move(local) : channel_);
  }

  // The stream, over the channel.
  void Start(const std::shared_ptr<grpc::Channel>& channel) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // The one before may hold the last reference to its channel.
    if (stub_ != nullptr) ReleaseElsewhere(std::move(stub_));
    stub_ = v1::Drafter::NewStub(channel);
    auto self = shared_from_this();
    stream_->Start([this](grpc::ClientContext* context,
                          grpc::ClientBidiReactor<v1::DraftRequest, v1::DraftResponse>* reactor)
                       ABSL_NO_THREAD_SAFETY_ANALYSIS { stub_->async()->Draft(context, reactor); },
                   {.on_message = [self](v1::DraftResponse message) { self->OnMessage(message); },
                    .on_closed = [self](absl::Status status) { self->OnClosed(status); },
                    .on_room =
                        [self] {
                          if (self->callbacks_->on_room) self->callbacks_->on_room(self->id_);
                        }});
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
    sessions_.clear();
    if (leaving_) callbacks_->on_gone(id_, endpoint_);
    if (closing_ || clock_->Now() - last_used_ > kLinkIdleAfter) return;
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
    if (leaving_) callbacks_->on_gone(id_, endpoint_);
    if (closing_) return;
    // Its address is asked for anew: gRPC's own pauses before that grow to two minutes.
    grpc::experimental::ChannelResetConnectionBackoff(channel_.get());
    Open();
  }

  const LinkId id_;
  const std::string endpoint_;
  const std::string server_name_;
  const std::shared_ptr<const Callbacks> callbacks_;
  const Clock* const clock_;
  const Options options_;
  const std::shared_ptr<grpc::Channel> channel_;  // To the endpoint.
  absl::Mutex mutex_;
  std::shared_ptr<v1::Drafter::Stub> stub_ ABSL_GUARDED_BY(mutex_);  // Of the stream that began last.
  std::shared_ptr<LocalSocketFinder> finder_ ABSL_GUARDED_BY(mutex_);
  bool is_local_ ABSL_GUARDED_BY(mutex_) = false;
  ReconnectBackoff backoff_ ABSL_GUARDED_BY(mutex_);
  grpc::Alarm alarm_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_used_ ABSL_GUARDED_BY(mutex_);
  bool answered_ ABSL_GUARDED_BY(mutex_) = false;
  bool retrying_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_set<SessionId> sessions_ ABSL_GUARDED_BY(mutex_);  // Open on this stream.
};

DrafterLinks::DrafterLinks(Callbacks callbacks, const Clock* clock, Options options)
    : callbacks_(std::make_shared<const Callbacks>(std::move(callbacks))),
      clock_(clock),
      options_(std::move(options)) {}

DrafterLinks::~DrafterLinks() {
  std::vector<std::shared_ptr<Link>> links;
  {
    absl::MutexLock lock(&mutex_);
    links = leaving_;
    for (const auto& [id, link] : links_) links.push_back(link);
  }
  for (const std::shared_ptr<Link>& link : links) link->Close();
}

std::shared_ptr<DrafterLinks::Link> DrafterLinks::TakeUnused() {
  auto longest = links_.end();
  absl::Time since = absl::InfiniteFuture();
  for (auto at = links_.begin(); at != links_.end(); ++at) {
    const std::optional<absl::Time> unused = at->second->UnusedSince();
    if (!unused.has_value() || *unused >= since) continue;
    since = *unused;
    longest = at;
  }
  if (longest == links_.end()) return nullptr;
  std::shared_ptr<Link> link = std::move(longest->second);
  links_.erase(longest);
  ids_.erase(link->endpoint());
  std::erase_if(leaving_, [](const std::shared_ptr<Link>& left) { return left->HasEnded(); });
  leaving_.push_back(link);
  return link;
}

absl::StatusOr<LinkId> DrafterLinks::Acquire(const std::string& endpoint, const std::string& server_name) {
  std::shared_ptr<Link> link;
  std::shared_ptr<Link> left;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = ids_.find(endpoint);
    if (found != ids_.end()) {
      link = links_.at(found->second);
    } else {
      if (links_.size() >= kMostLinks && (left = TakeUnused()) == nullptr) {
        return absl::ResourceExhaustedError(
            absl::StrCat(links_.size(), " drafter endpoints are in use, each with sessions"));
      }
      const LinkId id = next_id_++;
      link = std::make_shared<Link>(id, endpoint, server_name, callbacks_, clock_, options_);
      links_[id] = link;
      ids_[endpoint] = id;
    }
  }
  if (left != nullptr) left->Leave();
  link->Use();
  return link->id();
}

std::shared_ptr<DrafterLinks::Link> DrafterLinks::Find(LinkId link) const {
  absl::MutexLock lock(&mutex_);
  const auto found = links_.find(link);
  return found == links_.end() ? nullptr : found->second;
}

std::string DrafterLinks::EndpointOf(LinkId link) const {
  const std::shared_ptr<Link> found = Find(link);
  return found == nullptr ? "" : found->endpoint();
}

size_t DrafterLinks::Send(LinkId link, DraftRequest request) {
  const std::shared_ptr<Link> found = Find(link);
  return found == nullptr ? 0 : found->Send(std::move(request));
}

DrafterLinks::Backlog DrafterLinks::BacklogOf(LinkId link) const {
  const std::shared_ptr<Link> found = Find(link);
  return found == nullptr ? Backlog{} : found->backlog();
}

bool DrafterLinks::IsLocal(LinkId link) const {
  const std::shared_ptr<Link> found = Find(link);
  return found != nullptr && found->is_local();
}

void DrafterLinks::Acknowledge(LinkId link) {
  const std::shared_ptr<Link> found = Find(link);
  if (found != nullptr) found->Acknowledge();
}

}  // namespace tandem
