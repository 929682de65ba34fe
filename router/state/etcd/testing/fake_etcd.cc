#include "router/state/etcd/testing/fake_etcd.h"

#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpc/grpc.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace tandem::router::testing {
namespace {

using etcdserverpb::RangeRequest;
using etcdserverpb::RangeResponse;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;

// How often those who wait look whether their call was cancelled.
constexpr absl::Duration kLook = absl::Milliseconds(5);
// Ports that are tried. They lie below those that the system gives to outgoing connections, so that none
// takes one while a fake is away that is to come back there.
constexpr int kMostPorts = 1000;

}  // namespace

grpc::Status FakeEtcd::State::Admit(const grpc::ServerContext& context) {
  absl::MutexLock lock(&mutex);
  while (hang && !stopping && !context.IsCancelled()) {
    const auto goes_on = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return !hang || stopping; };
    mutex.AwaitWithTimeout(absl::Condition(&goes_on), kLook);
  }
  if (user.empty()) return grpc::Status::OK;
  const auto shown = context.client_metadata().find("token");
  if (shown != context.client_metadata().end() && !token.empty() && shown->second == token) {
    return grpc::Status::OK;
  }
  return token_refusal;
}

void FakeEtcd::State::Write(const std::string& key, const std::string* value, int64_t lease) {
  // All writes of a transaction have the revision that the caller has made.
  mvccpb::Event& event = *history[revision].add_events();
  if (value == nullptr) {
    entries.erase(key);
    event.set_type(1);
    event.mutable_kv()->set_key(key);
    event.mutable_kv()->set_mod_revision(revision);
    return;
  }
  mvccpb::KeyValue& kv = entries[key];
  if (kv.key().empty()) kv.set_create_revision(revision);
  kv.set_key(key);
  kv.set_value(*value);
  kv.set_mod_revision(revision);
  kv.set_version(kv.version() + 1);
  kv.set_lease(lease);
  *event.mutable_kv() = kv;
}

void FakeEtcd::State::EndLease(int64_t lease) {
  leases.erase(lease);
  std::vector<std::string> keys;
  for (const auto& [key, kv] : entries) {
    if (kv.lease() == lease) keys.push_back(key);
  }
  if (keys.empty()) return;
  ++revision;
  for (const std::string& key : keys) Write(key, nullptr);
}

void FakeEtcd::State::Read(const RangeRequest& request, RangeResponse* response) {
  response->mutable_header()->set_revision(revision);
  const bool one = request.range_end().empty();
  for (auto entry = entries.lower_bound(request.key()); entry != entries.end(); ++entry) {
    if (one ? entry->first != request.key() : entry->first >= request.range_end()) break;
    response->set_count(response->count() + 1);
    if (request.count_only()) continue;
    if (request.limit() > 0 && response->kvs_size() >= request.limit()) {
      response->set_more(true);
    } else {
      *response->add_kvs() = entry->second;
    }
  }
}

class FakeEtcd::KvService final : public etcdserverpb::KV::Service {
 public:
  explicit KvService(State* state) : state_(*state) {}

  grpc::Status Range(grpc::ServerContext* context, const RangeRequest* request,
                     RangeResponse* response) override {
    if (const grpc::Status status = state_.Admit(*context); !status.ok()) return status;
    absl::MutexLock lock(&state_.mutex);
    if (!request->count_only()) {
      ++state_.ranges;
      if (state_.failing_ranges > 0) {
        --state_.failing_ranges;
        return state_.range_failure;
      }
      if (request->revision() != 0 && state_.compact_pages > 0) {
        --state_.compact_pages;
        return {grpc::StatusCode::OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted"};
      }
    }
    state_.Read(*request, response);
    if (!request->count_only() && state_.spoil) state_.spoil(response);
    return grpc::Status::OK;
  }

  grpc::Status Txn(grpc::ServerContext* context, const TxnRequest* request, TxnResponse* response) override {
    if (const grpc::Status status = state_.Admit(*context); !status.ok()) return status;
    absl::MutexLock lock(&state_.mutex);
    const bool fails = state_.failing_transactions > 0;
    if (fails) --state_.failing_transactions;
    if (fails && !state_.fail_when_done) return state_.transaction_failure;
    bool holds = true;
    for (const etcdserverpb::Compare& compare : request->compare()) {
      const auto entry = state_.entries.find(compare.key());
      const int64_t found = entry == state_.entries.end() ? 0 : entry->second.mod_revision();
      holds = holds && found == compare.mod_revision();
    }
    response->set_succeeded(holds);
    if (holds) {
      ++state_.revision;
      ++state_.transactions;
    }
    for (const etcdserverpb::RequestOp& step : holds ? request->success() : request->failure()) {
      Do(step, response->add_responses());
    }
    response->mutable_header()->set_revision(state_.revision);
    return fails ? state_.transaction_failure : grpc::Status::OK;
  }

 private:
  void Do(const etcdserverpb::RequestOp& step, etcdserverpb::ResponseOp* response)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex) {
    if (step.has_request_range()) state_.Read(step.request_range(), response->mutable_response_range());
    if (step.has_request_put()) {
      state_.Write(step.request_put().key(), &step.request_put().value(), step.request_put().lease());
      response->mutable_response_put();
    }
    if (step.has_request_delete_range()) {
      state_.Write(step.request_delete_range().key(), nullptr);
      response->mutable_response_delete_range();
    }
  }

  State& state_;
};

class FakeEtcd::WatchService final : public etcdserverpb::Watch::Service {
 public:
  explicit WatchService(State* state) : state_(*state) {}

  grpc::Status Watch(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<etcdserverpb::WatchResponse, etcdserverpb::WatchRequest>* stream) override {
    if (const grpc::Status status = state_.Admit(*context); !status.ok()) return status;
    etcdserverpb::WatchRequest request;
    if (!stream->Read(&request)) return grpc::Status::OK;
    etcdserverpb::WatchResponse response;
    int64_t told = 0;
    int compactions = 0;
    bool ends = false;
    {
      absl::MutexLock lock(&state_.mutex);
      ++state_.watches;
      told = state_.revision;
      compactions = state_.compactions;
      response.mutable_header()->set_revision(told);
      if (state_.refused_watches > 0) {
        --state_.refused_watches;
        response.set_canceled(true);
        response.set_cancel_reason("etcdserver: permission denied");
      } else if (state_.ended_watches > 0) {
        --state_.ended_watches;
        ends = true;
      }
    }
    response.set_created(true);
    if (ends) {
      // In one piece with the call's end.
      stream->WriteLast(response, grpc::WriteOptions());
      return {grpc::StatusCode::UNAVAILABLE, "etcdserver: server stopped"};
    }
    stream->Write(response);
    if (response.canceled()) AwaitCancellation(*context);
    while (!context->IsCancelled()) {
      response.Clear();
      {
        absl::MutexLock lock(&state_.mutex);
        const auto has_news = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex) {
          return state_.stopping || compactions != state_.compactions ||
                 (!state_.hang && state_.history.upper_bound(told) != state_.history.end());
        };
        if (!state_.mutex.AwaitWithTimeout(absl::Condition(&has_news), kLook)) continue;
        if (state_.stopping) return {grpc::StatusCode::UNAVAILABLE, "etcdserver: server stopped"};
        if (compactions != state_.compactions) {
          response.set_canceled(true);
          response.set_compact_revision(state_.revision);
        } else {
          const auto news = state_.history.upper_bound(told);
          told = news->first;
          response = news->second;
          response.mutable_header()->set_revision(told);
        }
      }
      stream->Write(response);
      if (response.canceled()) AwaitCancellation(*context);
    }
    return grpc::Status::CANCELLED;
  }

 private:
  // A real etcd leaves the stream of a cancelled watch open, for others.
  void AwaitCancellation(const grpc::ServerContext& context) {
    while (!context.IsCancelled()) {
      absl::MutexLock lock(&state_.mutex);
      if (state_.mutex.AwaitWithTimeout(absl::Condition(&state_.stopping), kLook)) return;
    }
  }

  State& state_;
};

class FakeEtcd::LeaseService final : public etcdserverpb::Lease::Service {
 public:
  explicit LeaseService(State* state) : state_(*state) {}

  grpc::Status LeaseGrant(grpc::ServerContext* context, const etcdserverpb::LeaseGrantRequest* request,
                          etcdserverpb::LeaseGrantResponse* response) override {
    if (const grpc::Status status = state_.Admit(*context); !status.ok()) return status;
    absl::MutexLock lock(&state_.mutex);
    response->set_id(++state_.last_lease);
    response->set_ttl(request->ttl());
    state_.leases[response->id()] = request->ttl();
    return grpc::Status::OK;
  }

  grpc::Status LeaseRevoke(grpc::ServerContext* context, const etcdserverpb::LeaseRevokeRequest* request,
                           etcdserverpb::LeaseRevokeResponse*) override {
    if (const grpc::Status status = state_.Admit(*context); !status.ok()) return status;
    absl::MutexLock lock(&state_.mutex);
    if (state_.leases.count(request->id()) == 0) {
      return {grpc::StatusCode::NOT_FOUND, "etcdserver: requested lease not found"};
    }
    state_.EndLease(request->id());
    return grpc::Status::OK;
  }

  grpc::Status LeaseKeepAlive(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<etcdserverpb::LeaseKeepAliveResponse, etcdserverpb::LeaseKeepAliveRequest>*
          stream) override {
    if (const grpc::Status status = state_.Admit(*context); !status.ok()) return status;
    etcdserverpb::LeaseKeepAliveRequest request;
    while (stream->Read(&request)) {
      etcdserverpb::LeaseKeepAliveResponse response;
      response.set_id(request.id());
      {
        absl::MutexLock lock(&state_.mutex);
        ++state_.renewals;
        const auto lease = state_.leases.find(request.id());
        if (lease != state_.leases.end()) response.set_ttl(lease->second);
      }
      stream->Write(response);
    }
    return grpc::Status::OK;
  }

 private:
  State& state_;
};

class FakeEtcd::AuthService final : public etcdserverpb::Auth::Service {
 public:
  explicit AuthService(State* state) : state_(*state) {}

  grpc::Status Authenticate(grpc::ServerContext*, const etcdserverpb::AuthenticateRequest* request,
                            etcdserverpb::AuthenticateResponse* response) override {
    absl::MutexLock lock(&state_.mutex);
    if (request->name() != state_.user || request->password() != state_.password) {
      return {grpc::StatusCode::INVALID_ARGUMENT,
              "etcdserver: authentication failed, invalid user ID or password"};
    }
    state_.token = absl::StrCat("token-", ++state_.tokens);
    response->set_token(state_.token);
    return grpc::Status::OK;
  }

 private:
  State& state_;
};

FakeEtcd::FakeEtcd(int port)
    : kv_(std::make_unique<KvService>(&state_)),
      watch_(std::make_unique<WatchService>(&state_)),
      lease_(std::make_unique<LeaseService>(&state_)),
      auth_(std::make_unique<AuthService>(&state_)) {
  std::random_device random;
  for (int attempt = 0; attempt < kMostPorts && server_ == nullptr; ++attempt) {
    const int wanted = port != 0 ? port : std::uniform_int_distribution<int>(20000, 29999)(random);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", wanted), grpc::InsecureServerCredentials(), &port_);
    // Two fakes on one port would share the calls.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.RegisterService(kv_.get());
    builder.RegisterService(watch_.get());
    builder.RegisterService(lease_.get());
    builder.RegisterService(auth_.get());
    server_ = builder.BuildAndStart();
    if (server_ == nullptr && port != 0) absl::SleepFor(kLook);
  }
}

FakeEtcd::~FakeEtcd() {
  {
    absl::MutexLock lock(&state_.mutex);
    state_.stopping = true;
  }
  server_->Shutdown(absl::ToChronoTime(absl::Now()));
  server_->Wait();
}

std::string FakeEtcd::endpoint() const {
  return absl::StrCat("127.0.0.1:", port_);
}

void FakeEtcd::Put(const std::string& key, const std::string& value) {
  absl::MutexLock lock(&state_.mutex);
  ++state_.revision;
  state_.Write(key, &value);
}

std::string FakeEtcd::Value(const std::string& key) const {
  absl::MutexLock lock(&state_.mutex);
  const auto entry = state_.entries.find(key);
  return entry == state_.entries.end() ? "" : entry->second.value();
}

size_t FakeEtcd::num_transactions() const {
  absl::MutexLock lock(&state_.mutex);
  return state_.transactions;
}

size_t FakeEtcd::num_watches() const {
  absl::MutexLock lock(&state_.mutex);
  return state_.watches;
}

size_t FakeEtcd::num_ranges() const {
  absl::MutexLock lock(&state_.mutex);
  return state_.ranges;
}

void FakeEtcd::FailRanges(int count, grpc::Status status) {
  absl::MutexLock lock(&state_.mutex);
  state_.failing_ranges = count;
  state_.range_failure = std::move(status);
}

void FakeEtcd::FailTransactions(int count, grpc::Status status, bool done) {
  absl::MutexLock lock(&state_.mutex);
  state_.failing_transactions = count;
  state_.transaction_failure = std::move(status);
  state_.fail_when_done = done;
}

void FakeEtcd::CompactPages(int count) {
  absl::MutexLock lock(&state_.mutex);
  state_.compact_pages = count;
}

void FakeEtcd::CompactWatches() {
  absl::MutexLock lock(&state_.mutex);
  ++state_.compactions;
}

void FakeEtcd::RefuseWatches(int count) {
  absl::MutexLock lock(&state_.mutex);
  state_.refused_watches = count;
}

void FakeEtcd::EndWatches(int count) {
  absl::MutexLock lock(&state_.mutex);
  state_.ended_watches = count;
}

void FakeEtcd::Spoil(std::function<void(RangeResponse*)> change) {
  absl::MutexLock lock(&state_.mutex);
  state_.spoil = std::move(change);
}

void FakeEtcd::Hang(bool hang) {
  absl::MutexLock lock(&state_.mutex);
  state_.hang = hang;
}

void FakeEtcd::RequireUser(const std::string& name, const std::string& password) {
  absl::MutexLock lock(&state_.mutex);
  state_.user = name;
  state_.password = password;
  state_.token.clear();
}

void FakeEtcd::EndToken(grpc::Status refusal) {
  absl::MutexLock lock(&state_.mutex);
  state_.token.clear();
  state_.token_refusal = std::move(refusal);
}

size_t FakeEtcd::num_leases() const {
  absl::MutexLock lock(&state_.mutex);
  return state_.leases.size();
}

size_t FakeEtcd::num_renewals() const {
  absl::MutexLock lock(&state_.mutex);
  return state_.renewals;
}

void FakeEtcd::EndLeases() {
  absl::MutexLock lock(&state_.mutex);
  while (!state_.leases.empty()) state_.EndLease(state_.leases.begin()->first);
}

size_t FakeEtcd::num_tokens() const {
  absl::MutexLock lock(&state_.mutex);
  return state_.tokens;
}

}  // namespace tandem::router::testing
