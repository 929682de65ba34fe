#include "router/drafters/drafter_speed_client.h"

#include <set>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/rpc/channel.h"
#include "tandem/v1/admin.grpc.pb.h"

namespace tandem::router {
namespace {

// Between two looks at who is there.
constexpr absl::Duration kLookPeriod = absl::Milliseconds(200);

DraftVocabularies VocabulariesOf(const v1::ModelInfo& model) {
  DraftVocabularies vocabularies{.own = model.vocabulary_fingerprint(), .bridged = {}, .by_text = {}};
  for (const v1::BridgedVocabulary& other : model.bridged_vocabularies()) {
    (other.by_text() ? vocabularies.by_text : vocabularies.bridged).push_back(other.fingerprint());
  }
  return vocabularies;
}

}  // namespace

DrafterSpeedClient::DrafterSpeedClient(Options options,
                                       std::function<std::shared_ptr<const RoutingSnapshot>()> routing,
                                       DrafterChooser* chooser)
    : options_(std::move(options)), routing_(std::move(routing)), chooser_(*chooser) {
  thread_ = std::thread([this] { Watch(); });
}

DrafterSpeedClient::~DrafterSpeedClient() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (call_ != nullptr) call_->TryCancel();
  }
  thread_.join();
}

bool DrafterSpeedClient::stopping() {
  absl::MutexLock lock(&mutex_);
  return stopping_;
}

void DrafterSpeedClient::Watch() {
  const auto is_stopping = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_; };
  absl::MutexLock lock(&mutex_);
  do {
    mutex_.Unlock();
    AskDue();
    mutex_.Lock();
  } while (!mutex_.AwaitWithTimeout(absl::Condition(&is_stopping), kLookPeriod));
}

void DrafterSpeedClient::AskDue() {
  const std::shared_ptr<const RoutingSnapshot> routing = routing_();
  std::set<std::string> endpoints;
  for (const Drafter& drafter : routing->table().drafters) {
    if (!drafter.absent) endpoints.insert(drafter.endpoint);
  }
  std::erase_if(due_, [&endpoints](const auto& entry) { return !endpoints.contains(entry.first); });
  for (const std::string& endpoint : endpoints) {
    if (stopping()) return;
    const auto [due, is_new] = due_.try_emplace(endpoint, absl::InfinitePast());
    if (due->second > absl::Now()) continue;
    const bool answered = Ask(endpoint, *routing);
    due->second = absl::Now() + (answered ? options_.period : options_.retry);
  }
}

bool DrafterSpeedClient::Ask(const std::string& endpoint, const RoutingSnapshot& routing) {
  const std::unique_ptr<v1::Admin::Stub> stub =
      v1::Admin::NewStub(tandem::CreateChannel(endpoint, options_.credentials));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + options_.patience));
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return false;
    call_ = &context;
  }
  v1::ServerInfo info;
  const grpc::Status status = stub->GetServerInfo(&context, v1::GetServerInfoRequest(), &info);
  {
    absl::MutexLock lock(&mutex_);
    call_ = nullptr;
  }
  // One that loads has not measured itself yet.
  if (!status.ok() || !info.serving()) return false;
  for (const v1::ModelInfo& model : info.models()) {
    for (const Drafter& drafter : routing.table().drafters) {
      if (drafter.endpoint != endpoint || drafter.draft_model != model.name()) continue;
      if (model.has_level_seconds()) chooser_.TellLevelSeconds(drafter.name, model.level_seconds());
      if (chooser_.TellVocabularies(drafter.name, VocabulariesOf(model))) LogFits(routing, drafter.name);
    }
  }
  return true;
}

void DrafterSpeedClient::LogFits(const RoutingSnapshot& routing, const std::string& drafter) const {
  const std::vector<TargetModel>& models = routing.table().models;
  for (size_t model = 0; model < models.size(); ++model) {
    const VocabularyFit fit = chooser_.FitOf(model, drafter);
    if (fit == VocabularyFit::kIds) continue;
    LogInfo(
        fit == VocabularyFit::kText
            ? "drafter drafts only by text: the automatic choice skips it for tenants without text_drafting"
            : "drafter has another vocabulary: the automatic choice skips it",
        {{"drafter", drafter}, {"model", models[model].name}});
  }
}

}  // namespace tandem::router
