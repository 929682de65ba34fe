#include "drafter/service.h"

#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/rpc/draft_wire.h"

namespace tandem {
namespace {

// Messages of one stream that may wait for the engine thread.
constexpr size_t kMaxInboxMessages = 256;

uint32_t EpochOf(const v1::DraftRequest& message) {
  if (message.has_open()) return message.open().epoch();
  return message.has_commit() ? message.commit().epoch() : 0;
}

}  // namespace

DrafterService::DrafterService(DrafterMetrics* metrics) : metrics_(metrics) {}

DrafterService::~DrafterService() {
  Stop();
}

void DrafterService::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (engine_thread_.joinable()) engine_thread_.join();
  core_ = nullptr;
}

void DrafterService::Serve(const DraftCore::Options& options, std::vector<DraftModel> models) {
  assert(core_ == nullptr);
  core_ = std::make_unique<DraftCore>(options, std::move(models), &clock_);
  engine_thread_ = std::thread([this] { Run(); });
  absl::MutexLock lock(&mutex_);
  serving_ = true;
}

grpc::ServerBidiReactor<v1::DraftRequest, v1::DraftResponse>* DrafterService::Draft(
    grpc::CallbackServerContext* context) {
  std::shared_ptr<Stream> stream = Stream::Create(context, {}, kMaxInboxMessages);
  LinkId link = 0;
  absl::Status refused;
  {
    absl::MutexLock lock(&mutex_);
    if (draining_) {
      refused = absl::UnavailableError("the drafter is shutting down");
    } else if (!serving_) {
      refused = absl::UnavailableError("the drafter is still loading its models");
    } else {
      link = ++last_link_;
      open_.emplace(link, stream);
      inbox_.push_back({link, LinkOpened{stream}});
    }
  }
  if (!refused.ok()) {
    stream->Disconnect(refused);
    return stream->Start({});
  }
  LogInfo("verifier connected", {{"peer", context->peer()}, {"link", absl::StrCat(link)}});
  return stream->Start({.on_message = [this, link](const v1::DraftRequest& m) { OnMessage(link, m); },
                        .on_closed = [this, link](const absl::Status& s) { OnClosed(link, s); }});
}

void DrafterService::OnMessage(LinkId link, const v1::DraftRequest& message) {
  absl::StatusOr<DraftRequest> request = DraftRequestFromProto(message);
  Event event{.link = link};
  if (request.ok()) {
    event.what = *std::move(request);
  } else {
    event.what = Rejected{
        .session = message.session(), .epoch = EpochOf(message), .status = std::move(request).status()};
  }
  absl::MutexLock lock(&mutex_);
  inbox_.push_back(std::move(event));
}

void DrafterService::OnClosed(LinkId link, const absl::Status& status) {
  LogInfo("verifier disconnected", {{"link", absl::StrCat(link)}, {"status", status.ToString()}});
  absl::MutexLock lock(&mutex_);
  open_.erase(link);
  inbox_.push_back({link, LinkClosed{}});
}

void DrafterService::Run() {
  PublishStats();
  while (true) {
    const bool busy = core_->HasWork();
    std::vector<Event> events;
    {
      absl::MutexLock lock(&mutex_);
      if (!busy) {
        mutex_.Await(absl::Condition(
            +[](DrafterService* self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mutex_) {
              return !self->inbox_.empty() || self->stopping_;
            },
            this));
      }
      if (stopping_) return;
      std::swap(events, inbox_);
    }
    for (Event& event : events) Handle(std::move(event));
    // Growth that commits have released goes out before the next step begins.
    SendResponses();
    if (core_->HasWork()) {
      const absl::Time start = clock_.Now();
      core_->Step();
      metrics_->RecordStep(clock_.Now() - start);
      SendResponses();
    }
    PublishStats();
  }
}

void DrafterService::PublishStats() {
  const DraftStats stats = core_->stats();
  metrics_->Update(stats);
  absl::MutexLock lock(&mutex_);
  stats_ = stats;
}

void DrafterService::Handle(Event event) {
  if (auto* opened = std::get_if<LinkOpened>(&event.what)) {
    streams_.emplace(event.link, std::move(opened->stream));
    return;
  }
  const auto stream = streams_.find(event.link);
  assert(stream != streams_.end());
  if (std::holds_alternative<LinkClosed>(event.what)) {
    core_->OnLinkClosed(event.link);
    streams_.erase(stream);
    return;
  }
  if (auto* rejected = std::get_if<Rejected>(&event.what)) {
    LogWarning("invalid message from a verifier", {{"link", absl::StrCat(event.link)},
                                                   {"session", absl::StrCat(rejected->session)},
                                                   {"error", std::string(rejected->status.message())}});
    core_->Reject(event.link, rejected->session, rejected->epoch, std::move(rejected->status));
  } else {
    core_->OnRequest(event.link, std::get<DraftRequest>(event.what));
  }
  stream->second->Acknowledge();
}

void DrafterService::SendResponses() {
  for (auto& [link, response] : core_->TakeResponses()) {
    const auto stream = streams_.find(link);
    // A stream that takes no more is about to report that it is closed.
    if (stream != streams_.end()) stream->second->Write(DraftResponseToProto(response));
  }
}

void DrafterService::Drain(absl::Time deadline) {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    for (const auto& [link, stream] : open_) streams.push_back(stream);
  }
  for (const auto& stream : streams) {
    stream->Disconnect(absl::UnavailableError("the drafter is shutting down"));
  }
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithDeadline(absl::Condition(
                               +[](DrafterService* self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mutex_) {
                                 return self->open_.empty();
                               },
                               this),
                           deadline);
}

DraftStats DrafterService::stats() const {
  absl::MutexLock lock(&mutex_);
  return stats_;
}

}  // namespace tandem
