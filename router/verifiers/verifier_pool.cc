#include "router/verifiers/verifier_pool.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/rpc/release.h"
#include "common/rpc/status.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "router/verifiers/verifier_pool_model.h"
#include "tandem/v1/admin.grpc.pb.h"

namespace tandem::router {
namespace {

constexpr absl::Duration kProbePeriod = absl::Seconds(1);
// How often to ask for the address of one that does not answer. By itself gRPC asks every 30 s at most, and
// after pauses that grow to two minutes where there was no such name: too late for one that took long to
// start.
constexpr absl::Duration kLookUpPeriod = absl::Seconds(3);
// The same while requests wait.
constexpr absl::Duration kHurriedProbePeriod = absl::Milliseconds(100);
constexpr absl::Duration kHurriedLookUpPeriod = absl::Milliseconds(500);
// Of the requests that a verifier runs, one in so many is replaced while its successor is still tokenized and
// on its way.
constexpr uint32_t kRunningPerOneOnTheWay = 8;
// How often to ask one that serves what it holds.
constexpr absl::Duration kAskPeriod = absl::Seconds(5);
constexpr absl::Duration kLongestTick = absl::Milliseconds(250);
constexpr absl::Duration kShortestTick = absl::Milliseconds(5);
// HealthCheckResponse{status: SERVING}, its one field.
constexpr char kHealthMethod[] = "/grpc.health.v1.Health/Check";
constexpr absl::string_view kServing("\x08\x01", 2);

// HealthCheckRequest{service}, likewise.
grpc::ByteBuffer HealthRequest(absl::string_view service) {
  std::string bytes = "\x0a";
  size_t length = service.size();
  for (; length >= 0x80; length >>= 7) bytes.push_back(static_cast<char>((length & 0x7f) | 0x80));
  bytes.push_back(static_cast<char>(length));
  bytes.append(service.data(), service.size());
  grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

absl::Status NoneKnown() {
  return absl::UnavailableError(
      "no verifier of the model is known: none has registered, and no configured name resolves to an "
      "address");
}

std::string Content(const grpc::ByteBuffer& buffer) {
  grpc::Slice slice;
  if (!buffer.Valid() || !buffer.DumpToSingleSlice(&slice).ok()) return std::string();
  return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

}  // namespace

VerifierPool::Attempt::Attempt(VerifierPool& pool, Entry& entry, size_t model, size_t index,
                               std::string adapter)
    : pool_(pool),
      entry_(entry),
      verifier_(entry.verifier),
      model_(model),
      index_(index),
      adapter_(std::move(adapter)) {}

VerifierPool::VerifierPool(const RoutingTable& table, const Options& options, const Clock* clock)
    : options_(options), clock_(clock), budget_(options.retries, clock->Now()) {
  // Threads and entries point to them.
  models_.reserve(table.models.size());
  for (size_t m = 0; m < table.models.size(); ++m) {
    Model& model = models_.emplace_back();
    model.index = m;
    model.name = table.models[m].name;
    model.choice = std::make_unique<VerifierChoice>(options.choice, std::vector<std::string>());
    SetConfigured(m, table.models[m].verifiers);
    absl::MutexLock lock(model.mutex.get());
    for (const auto& entry : model.entries) {
      // Until it is known to be otherwise.
      model.choice->SetServing(entry->index, true);
      entry->serving = true;
      entry->told = true;
    }
  }
  monitor_ = std::thread([this] { Monitor(); });
  resolver_ = std::thread([this] { ResolveNames(); });
}

VerifierPool::~VerifierPool() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  monitor_.join();
  resolver_.join();
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](VerifierPool* pool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(pool->mutex_) { return pool->probes_ == 0; },
      this));
}

absl::StatusOr<std::unique_ptr<VerifierPool::Attempt>> VerifierPool::Begin(
    size_t model_index, absl::Span<const uint32_t> prompt, uint64_t salt, absl::Span<const size_t> tried,
    OnLost on_lost, const VerifierNeeds& needs) {
  Model& model = models_[model_index];
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(model.mutex.get());
  const std::vector<size_t> order = model.choice->Order(
      prompt, salt, tried, now, [&](size_t index) { return Suits(model.entries[index]->traits, needs); });
  if (model.choice->num_listed() == 0) return NoneKnown();
  if (order.empty()) {
    std::vector<VerifierTraits> listed;
    for (const auto& entry : model.entries) {
      if (!model.choice->listed(entry->index)) continue;
      listed.push_back(entry->traits);
      if (needs.adapter.empty()) continue;
      // One may have been loaded just now.
      entry->asked_at = entry->probed = absl::InfinitePast();
    }
    TANDEM_RETURN_IF_ERROR(CheckAnySuits(listed, needs));
    return absl::ResourceExhaustedError("all verifiers of the model are full");
  }
  Attempt::Entry& entry = *model.entries[order.front()];
  auto attempt =
      std::unique_ptr<Attempt>(new Attempt(*this, entry, model_index, order.front(), needs.adapter));
  model.choice->OnBegin(order.front());
  // Silence before there was anything to say is no stall.
  if (entry.attempts.empty()) entry.heard_nanos.store(absl::ToUnixNanos(now), std::memory_order_relaxed);
  entry.attempts.emplace(attempt.get(), std::make_shared<const OnLost>(std::move(on_lost)));
  return attempt;
}

VerifierPool::Attempt::~Attempt() {
  Model& model = pool_.models_[model_];
  absl::MutexLock lock(model.mutex.get());
  model.choice->OnEnd(index_);
  entry_.attempts.erase(this);
}

uint64_t VerifierPool::Attempt::arithmetic() const {
  absl::MutexLock lock(pool_.models_[model_].mutex.get());
  return entry_.verifier == verifier_ ? entry_.traits.ArithmeticWith(adapter_) : 0;
}

void VerifierPool::Attempt::OnEvent() {
  entry_.heard_nanos.store(absl::ToUnixNanos(pool_.clock_->Now()), std::memory_order_relaxed);
}

void VerifierPool::Attempt::OnSuccess() {
  Model& model = pool_.models_[model_];
  absl::MutexLock lock(model.mutex.get());
  model.choice->OnSuccess(index_, pool_.clock_->Now());
}

void VerifierPool::Attempt::OnFailure() {
  Model& model = pool_.models_[model_];
  absl::MutexLock lock(model.mutex.get());
  model.choice->OnFailure(index_, pool_.clock_->Now());
  // So that the next second's requests need not find out one by one.
  entry_.probed = absl::InfinitePast();
}

void VerifierPool::Attempt::OnChanged() {
  Model& model = pool_.models_[model_];
  absl::MutexLock lock(model.mutex.get());
  model.choice->OnSuccess(index_, pool_.clock_->Now());
  if (entry_.verifier != verifier_) return;
  entry_.traits = {};
  entry_.asked = false;
  entry_.probed = absl::InfinitePast();
}

VerifierPool::Wait::~Wait() {
  Model& model = pool_.models_[model_];
  std::shared_ptr<const std::function<void()>> dropped;  // Destroyed without the lock.
  absl::MutexLock lock(model.mutex.get());
  const auto self = model.waits.find(this);
  dropped = std::move(self->second);
  model.waits.erase(self);
}

std::unique_ptr<VerifierPool::Wait> VerifierPool::BeginWait(size_t model_index,
                                                            std::function<void()> on_serving) {
  Model& model = models_[model_index];
  absl::MutexLock lock(model.mutex.get());
  if (model.waits.size() >= options_.max_waits) return nullptr;
  std::unique_ptr<Wait> wait(new Wait(*this, model_index));
  model.waits.emplace(wait.get(), std::make_shared<const std::function<void()>>(std::move(on_serving)));
  return wait;
}

size_t VerifierPool::num_waiting(size_t model_index) const {
  const Model& model = models_[model_index];
  absl::MutexLock lock(model.mutex.get());
  return model.waits.size();
}

absl::Status VerifierPool::NoneServes(size_t model) const {
  return size(model) == 0 ? NoneKnown() : absl::UnavailableError("no verifier of the model serves");
}

bool VerifierPool::MayServe(size_t model_index) const {
  const Model& model = models_[model_index];
  absl::MutexLock lock(model.mutex.get());
  return OtherServes(model, model.choice->size());
}

std::optional<uint32_t> VerifierPool::places(size_t model_index) const {
  const Model& model = models_[model_index];
  absl::MutexLock lock(model.mutex.get());
  uint64_t sum = 0;
  for (size_t i = 0; i < model.entries.size(); ++i) {
    const Attempt::Entry& entry = *model.entries[i];
    if (!model.choice->listed(i) || !entry.serving || !entry.confirmed) continue;
    uint64_t most = model.choice->max_in_flight(i);
    if (entry.max_running > 0) {
      const uint64_t on_the_way = std::max<uint64_t>(entry.max_running / kRunningPerOneOnTheWay, 1);
      most = std::min(most, entry.max_running + on_the_way);
    }
    sum += most;
  }
  if (sum == 0) return std::nullopt;
  return static_cast<uint32_t>(std::min<uint64_t>(sum, UINT32_MAX));
}

size_t VerifierPool::num_serving(size_t model_index) const {
  const Model& model = models_[model_index];
  absl::MutexLock lock(model.mutex.get());
  size_t count = 0;
  for (size_t i = 0; i < model.entries.size(); ++i) {
    const Attempt::Entry& entry = *model.entries[i];
    if (model.choice->listed(i) && entry.serving && entry.confirmed) ++count;
  }
  return count;
}

std::vector<VerifierPool::Status> VerifierPool::List(size_t model_index) const {
  const Model& model = models_[model_index];
  const absl::Time now = clock_->Now();
  std::vector<Status> list;
  {
    absl::MutexLock lock(model.mutex.get());
    for (size_t i = 0; i < model.entries.size(); ++i) {
      const size_t name = model.entries[i]->name;
      const Source source = name == kNoName       ? Source::kConfigured
                            : name == kRegistered ? Source::kRegistered
                                                  : Source::kName;
      const bool listed = model.choice->listed(i);
      if (!listed && model.choice->in_flight(i) == 0) continue;
      list.push_back({.endpoint = model.choice->endpoint(i),
                      .source = source,
                      .listed = listed,
                      .serving = model.choice->serving(i),
                      .ejected = model.choice->ejected(i, now),
                      .in_flight = model.choice->in_flight(i),
                      .max_in_flight = model.choice->max_in_flight(i)});
    }
  }
  std::sort(list.begin(), list.end(),
            [](const Status& a, const Status& b) { return a.endpoint < b.endpoint; });
  return list;
}

std::vector<v1::AdapterInfo> VerifierPool::Adapters(size_t model_index) const {
  const Model& model = models_[model_index];
  std::map<std::string, v1::AdapterInfo> adapters;
  {
    absl::MutexLock lock(model.mutex.get());
    for (const auto& entry : model.entries) {
      if (!model.choice->listed(entry->index)) continue;
      adapters.insert(entry->traits.adapters.begin(), entry->traits.adapters.end());
    }
  }
  std::vector<v1::AdapterInfo> list;
  for (auto& [name, adapter] : adapters) list.push_back(std::move(adapter));
  return list;
}

std::optional<uint64_t> VerifierPool::MostTokens(size_t model_index) const {
  const Model& model = models_[model_index];
  std::optional<uint64_t> serving;
  std::optional<uint64_t> listed;
  absl::MutexLock lock(model.mutex.get());
  for (const auto& entry : model.entries) {
    const std::optional<uint64_t> most = entry->traits.most_tokens;
    if (!most.has_value() || !model.choice->listed(entry->index)) continue;
    listed = std::min(*most, listed.value_or(*most));
    if (model.choice->serving(entry->index)) serving = std::min(*most, serving.value_or(*most));
  }
  return serving.has_value() ? serving : listed;
}

uint64_t VerifierPool::FingerprintOf(size_t model, const std::string& adapter) const {
  for (const v1::AdapterInfo& held : Adapters(model)) {
    if (held.name() == adapter) return held.fingerprint();
  }
  return 0;
}

size_t VerifierPool::size(size_t model) const {
  absl::MutexLock lock(models_[model].mutex.get());
  return models_[model].choice->num_listed();
}

void VerifierPool::CountRequest() {
  absl::MutexLock lock(&budget_mutex_);
  budget_.OnRequest(clock_->Now());
}

bool VerifierPool::TakeRetry() {
  absl::MutexLock lock(&budget_mutex_);
  return budget_.Take(clock_->Now());
}

void VerifierPool::Monitor() {
  const absl::Duration tick = std::clamp(options_.stall_timeout / 8, kShortestTick, kLongestTick);
  absl::MutexLock lock(&mutex_);
  const auto stopping = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_; };
  do {
    mutex_.Unlock();
    ProbeDue(clock_->Now());
    mutex_.Lock();
  } while (!mutex_.AwaitWithTimeout(absl::Condition(&stopping), tick));
}

absl::Duration VerifierPool::ProbePeriod(const Model& model, const Attempt::Entry& entry) {
  return !model.waits.empty() && !(entry.serving && entry.confirmed) ? kHurriedProbePeriod : kProbePeriod;
}

absl::Duration VerifierPool::LookUpPeriod(const Model& model) {
  return model.waits.empty() ? kLookUpPeriod : kHurriedLookUpPeriod;
}

absl::Duration VerifierPool::Quiet(const Attempt::Entry& entry, absl::Time now) const {
  return now - absl::FromUnixNanos(entry.heard_nanos.load(std::memory_order_relaxed));
}

// One question to one verifier; lives until it is answered. Asks for the model's health first and, where
// nobody knows of that, for the server's: a verifier with one model may tell of itself only.
class VerifierPool::Probe {
 public:
  static void Send(VerifierPool& pool, Attempt::Entry& entry, const std::shared_ptr<grpc::Channel>& channel,
                   absl::Time deadline, bool of_model) {
    auto probe = std::make_shared<Probe>();
    probe->channel = channel;
    probe->stub = std::make_unique<grpc::GenericStub>(channel);
    const char* const server = v1::Verifier::service_full_name();
    probe->request =
        HealthRequest(of_model ? absl::StrCat(server, "/", pool.models_[entry.model].name) : server);
    probe->context.set_deadline(absl::ToChronoTime(deadline));
    probe->stub->UnaryCall(
        &probe->context, kHealthMethod, grpc::StubOptions(), &probe->request, &probe->response,
        [probe, at = &pool, &entry, deadline, of_model](grpc::Status status) mutable {
          VerifierPool& answered_to = *at;
          const bool again = of_model && status.error_code() == grpc::StatusCode::NOT_FOUND;
          if (again) {
            Send(answered_to, entry, probe->channel, deadline, /*of_model=*/false);
          } else {
            answered_to.OnProbed(entry, FromGrpcStatus(status), Content(probe->response) == kServing);
          }
          // What is captured may go with it.
          ReleaseElsewhere(std::move(probe));
          if (again) return;
          absl::MutexLock lock(&answered_to.mutex_);
          --answered_to.probes_;
        });
  }

  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<grpc::GenericStub> stub;
  grpc::ClientContext context;
  grpc::ByteBuffer request;
  grpc::ByteBuffer response;
};

// What a verifier has room for and holds, and how it computes; lives until it is answered. `first`: since it
// began to serve.
class VerifierPool::Question {
 public:
  static void Send(VerifierPool& pool, Attempt::Entry& entry, std::shared_ptr<Verifier> verifier,
                   bool first) {
    auto question = std::make_shared<Question>();
    question->stub = v1::Admin::NewStub(verifier->channel);
    question->verifier = std::move(verifier);
    question->context.set_deadline(absl::ToChronoTime(pool.clock_->Now() + pool.options_.stall_timeout));
    {
      absl::MutexLock lock(&pool.mutex_);
      ++pool.probes_;
    }
    question->stub->async()->GetServerInfo(
        &question->context, &question->request, &question->response,
        [question, at = &pool, &entry, first](const grpc::Status& status) mutable {
          VerifierPool& answered_to = *at;
          if (status.ok()) answered_to.OnInfo(entry, *question->verifier, question->response, first);
          answered_to.OnTold(entry, *question->verifier);
          ReleaseElsewhere(std::move(question));
          absl::MutexLock lock(&answered_to.mutex_);
          --answered_to.probes_;
        });
  }

  std::shared_ptr<Verifier> verifier;
  std::unique_ptr<v1::Admin::Stub> stub;
  grpc::ClientContext context;
  v1::GetServerInfoRequest request;
  v1::ServerInfo response;
};

void VerifierPool::OnInfo(Attempt::Entry& entry, const Verifier& verifier, const v1::ServerInfo& told,
                          bool first) {
  Model& model = models_[entry.model];
  const bool lacks_model = LacksModel(told, model.name);
  const v1::ServerInfo info = InfoOfModel(told, model.name);
  if (options_.on_info && !lacks_model && first) options_.on_info(entry.model, info);
  absl::MutexLock lock(model.mutex.get());
  if (entry.verifier.get() != &verifier) return;
  if (std::exchange(entry.lacks_model, lacks_model) != lacks_model && lacks_model) {
    LogWarning("verifier does not hold the model and gets no requests for it",
               {{"verifier", verifier.endpoint}, {"model", model.name}});
  }
  if (lacks_model) {
    model.choice->SetServing(entry.index, false);
    entry.serving = false;
    entry.asked = false;  // It may be loaded there.
    return;
  }
  entry.max_running = info.capacity().max_running();
  entry.max_waiting = info.capacity().max_waiting();
  entry.traits = TraitsOf(info, model.name);
  SetRoom(model, entry.index);
  if (!first) return;
  for (const auto& other : model.entries) {
    if (!model.choice->listed(other->index) || !Differ(entry.traits, other->traits)) continue;
    LogWarning(
        "verifiers of one model compute differently: they cannot resume each other's outputs",
        {{verifier.endpoint, entry.traits.computes}, {other->verifier->endpoint, other->traits.computes}});
    break;
  }
}

// One that does not tell is taken for as large as the options say, and to hold the model.
void VerifierPool::OnTold(Attempt::Entry& entry, const Verifier& verifier) {
  absl::MutexLock lock(models_[entry.model].mutex.get());
  if (entry.verifier.get() != &verifier || entry.told) return;
  entry.told = true;
  entry.probed = absl::InfinitePast();  // It need not wait for its turn.
}

void VerifierPool::ProbeDue(absl::Time now) {
  for (Model& model : models_) {
    // There may be more by the next turn, but never fewer.
    for (size_t i = 0; true; ++i) {
      Attempt::Entry* entry = nullptr;
      std::shared_ptr<grpc::Channel> channel;
      {
        absl::MutexLock lock(model.mutex.get());
        if (i >= model.entries.size()) break;
        entry = model.entries[i].get();
        channel = entry->verifier->channel;
        // One that is gone matters as long as something runs there.
        if (!model.choice->listed(i) && entry->attempts.empty()) continue;
        const bool quiet = !entry->attempts.empty() && Quiet(*entry, now) > options_.stall_timeout / 4;
        if (entry->probing || (!quiet && now - entry->probed < ProbePeriod(model, *entry))) continue;
        entry->probing = true;
        entry->probed = now;
      }
      {
        absl::MutexLock lock(&mutex_);
        ++probes_;
      }
      Probe::Send(*this, *entry, channel, now + options_.stall_timeout / 2, /*of_model=*/true);
    }
  }
}

bool VerifierPool::OtherServes(const Model& model, size_t index) {
  for (size_t other = 0; other < model.choice->size(); ++other) {
    if (other != index && model.choice->listed(other) && model.choice->serving(other)) return true;
  }
  return false;
}

void VerifierPool::OnProbed(Attempt::Entry& entry, const absl::Status& status, bool serving) {
  // A server without health service has answered as well.
  const bool answered = status.ok() || absl::IsUnimplemented(status) || absl::IsNotFound(status);
  if (answered) entry.heard_nanos.store(absl::ToUnixNanos(clock_->Now()), std::memory_order_relaxed);
  const bool healthy = answered && (serving || !status.ok());
  std::vector<std::shared_ptr<const OnLost>> lost;
  std::vector<std::shared_ptr<const std::function<void()>>> waits;
  const absl::Time now = clock_->Now();
  std::shared_ptr<grpc::Channel> to_look_up;
  std::shared_ptr<Verifier> to_ask;
  bool first = false;
  {
    absl::MutexLock lock(models_[entry.model].mutex.get());
    const Model& model = models_[entry.model];
    entry.probing = false;
    if (!answered && now - entry.looked_up >= LookUpPeriod(model)) {
      entry.looked_up = now;
      to_look_up = entry.verifier->channel;
    }
    const bool fit = healthy && entry.told && !entry.lacks_model;
    model.choice->SetServing(entry.index, fit);
    entry.confirmed = true;
    // Perhaps another process by now, with other flags.
    first = !std::exchange(entry.asked, healthy) && healthy;
    if (first || (healthy && now - entry.asked_at >= kAskPeriod)) {
      to_ask = entry.verifier;
      entry.asked_at = now;
    }
    if (!healthy) entry.lacks_model = false;
    if (fit && model.choice->listed(entry.index)) {
      for (const auto& [wait, on_serving] : model.waits) waits.push_back(on_serving);
    }
    if (std::exchange(entry.serving, fit) != fit) {
      LogInfo(fit ? "verifier is serving" : "verifier is not serving",
              {{"verifier", entry.verifier->endpoint},
               {"reason", answered ? "" : std::string(status.message().data(), status.message().size())}});
    }
    // Tokens that came meanwhile are an answer too, and without another verifier there is nowhere to go.
    if (!answered && Quiet(entry, clock_->Now()) >= 0.7 * options_.stall_timeout &&
        OtherServes(model, entry.index)) {
      for (const auto& [attempt, on_lost] : entry.attempts) lost.push_back(on_lost);
    }
  }
  if (to_ask != nullptr) Question::Send(*this, entry, std::move(to_ask), first);
  if (to_look_up != nullptr) grpc::experimental::ChannelResetConnectionBackoff(to_look_up.get());
  const absl::Status reason = absl::UnavailableError(
      absl::StrCat("the verifier has stalled: it sent nothing, and its health service answers ",
                   absl::StatusCodeToString(status.code())));
  for (const std::shared_ptr<const OnLost>& on_lost : lost) (*on_lost)(reason);
  for (const auto& on_serving : waits) (*on_serving)();
}

}  // namespace tandem::router
