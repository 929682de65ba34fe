#include "router/state/etcd/etcd_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "router/state/etcd/etcd_address.h"
#include "router/state/memory_store.h"

namespace tandem::router {
namespace {

// In etcdserverpb::Compare.
constexpr int32_t kEqual = 0;
constexpr int32_t kModRevision = 2;
// Far more than any routing has, whatever is under the prefix.
constexpr size_t kMaxListedBytes = size_t{256} << 20;
// Listings that a compaction came in between, one after the other.
constexpr int kMaxListings = 5;

// Changes of more keys than this are told to every watch.
constexpr size_t kMaxUntoldKeys = 10000;

// On a store's telling thread. A watch that cannot read now is called again when etcd answers again, so its
// own reads do not wait for that: whoever ends a watch waits for its call.
thread_local bool is_telling = false;

// The first key that does not begin with `prefix`, which is not empty and does not end with the last byte.
std::string EndOf(std::string prefix) {
  prefix.back() = static_cast<char>(static_cast<unsigned char>(prefix.back()) + 1);
  return prefix;
}

bool IsTransient(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

// What etcd refuses because of how it was started, in words that help.
absl::Status Explained(const absl::Status& status) {
  absl::string_view advice;
  if (absl::StrContains(status.message(), "too many operations in txn")) {
    advice = "; start etcd with a larger --max-txn-ops";
  } else if (absl::StrContains(status.message(), "request is too large")) {
    advice = "; start etcd with a larger --max-request-bytes";
  } else if (absl::StrContains(status.message(), "database space exceeded")) {
    advice = "; compact and defragment etcd, or start it with a larger --quota-backend-bytes";
  }
  if (advice.empty()) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), advice));
}

absl::Status Nonsense(absl::string_view what) {
  return absl::InternalError(absl::StrCat("etcd's answer is invalid: ", what));
}

}  // namespace

absl::StatusOr<std::unique_ptr<EtcdStore>> EtcdStore::Open(Options options) {
  auto store = std::unique_ptr<EtcdStore>(new EtcdStore(std::move(options)));
  const absl::Time deadline = absl::Now() + store->options_.open_timeout;
  std::vector<std::string> said(store->client_.num_endpoints());
  for (size_t member = 0; true; member = (member + 1) % said.size()) {
    const absl::Status status = store->Ping();
    if (status.ok()) break;
    said[member] = std::string(status.message());
    if (!IsTransient(status)) return status;
    if (absl::Now() + store->options_.retry_interval > deadline) {
      return absl::UnavailableError(absl::StrCat("no etcd answers: ", absl::StrJoin(said, "; ")));
    }
    store->client_.TryNext();
    absl::SleepFor(store->options_.retry_interval);
  }
  store->following_ = std::thread([self = store.get()] { self->Run(); });
  store->telling_ = std::thread([self = store.get()] { self->RunTelling(); });
  if (const absl::Status status = store->AwaitFirst(deadline); !status.ok()) return status;
  return store;
}

absl::Status EtcdStore::AwaitFirst(absl::Time deadline) const {
  absl::MutexLock lock(&mutex_);
  if (mutex_.AwaitWithDeadline(absl::Condition(&here_), deadline)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("no etcd can be watched: ", away_reason_.message()));
}

EtcdStore::EtcdStore(Options options)
    : options_(std::move(options)),
      client_(options_.client),
      away_since_(absl::Now()),
      away_reason_(absl::UnavailableError("not asked yet")) {}

EtcdStore::~EtcdStore() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (inbox_ != nullptr) inbox_->Push(Wake{});
  }
  if (following_.joinable()) following_.join();
  if (telling_.joinable()) telling_.join();
}

bool EtcdStore::Stopping() const {
  absl::MutexLock lock(&mutex_);
  return stopping_;
}

absl::Status EtcdStore::health() const {
  absl::MutexLock lock(&mutex_);
  return here_ ? absl::OkStatus() : away_reason_;
}

// Only the following thread changes what these two do, so that they can say so first: whoever sees the change
// finds it in the log.
bool EtcdStore::SetHere() {
  bool again = false;
  {
    absl::MutexLock lock(&mutex_);
    again = connection_ > 0;
  }
  LogInfo(again ? "etcd answers again" : "etcd answers", {{"endpoint", client_.endpoint()}});
  absl::MutexLock lock(&mutex_);
  here_ = true;
  suspect_ = false;
  ++connection_;
  return again;
}

void EtcdStore::SetAway(const absl::Status& reason) {
  bool was_here = false;
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    was_here = here_;
  }
  if (was_here) {
    LogError("etcd is unreachable; routing continues unchanged, and changes are refused",
             {{"error", std::string(reason.message())}});
  }
  absl::MutexLock lock(&mutex_);
  here_ = false;
  if (was_here) away_since_ = absl::Now();
  away_reason_ = reason;
}

absl::Status EtcdStore::Ping() {
  etcdserverpb::RangeRequest request;
  request.set_key(options_.prefix);
  request.set_range_end(EndOf(options_.prefix));
  request.set_count_only(true);
  return client_.Range(request, absl::Now() + options_.ping_timeout).status();
}

void EtcdStore::RunTelling() {
  is_telling = true;
  const auto has_news = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopping_ || untold_all_ || !untold_keys_.empty();
  };
  while (true) {
    std::set<std::string> keys;
    bool all = false;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_news));
      if (stopping_) return;
      keys.swap(untold_keys_);
      all = std::exchange(untold_all_, false);
    }
    if (all) {
      watches_.NotifyAll();
    } else {
      watches_.Notify({keys.begin(), keys.end()});
    }
  }
}

void EtcdStore::Tell(const std::vector<std::string>& keys) {
  absl::MutexLock lock(&mutex_);
  untold_keys_.insert(keys.begin(), keys.end());
  if (untold_keys_.size() <= kMaxUntoldKeys) return;
  untold_keys_.clear();
  untold_all_ = true;
}

void EtcdStore::TellAll() {
  absl::MutexLock lock(&mutex_);
  untold_all_ = true;
}

void EtcdStore::Run() {
  while (!Stopping()) {
    SetAway(Follow());
    client_.TryNext();
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&stopping_), options_.retry_interval);
  }
}

absl::Status EtcdStore::Begin(const std::shared_ptr<Inbox>& inbox,
                              std::shared_ptr<EtcdClient::WatchStream>* stream) {
  // First, since it also shows whether user and password still hold.
  TANDEM_RETURN_IF_ERROR(Ping());
  etcdserverpb::WatchCreateRequest create;
  create.set_key(options_.prefix);
  create.set_range_end(EndOf(options_.prefix));
  const absl::Time deadline = absl::Now() + options_.ping_timeout;
  TANDEM_ASSIGN_OR_RETURN(
      *stream,
      client_.Watch(create,
                    {.on_message = [inbox](etcdserverpb::WatchResponse m) { inbox->Push(std::move(m)); },
                     .on_closed = [inbox](absl::Status status) { inbox->Push(Ended{std::move(status)}); }},
                    deadline));
  // What came with the answer counts as well: the watch may have ended already. A wake of an older connection
  // says nothing.
  std::vector<Event> events;
  while (absl::Now() < deadline && !Stopping()) {
    std::vector<Event> more;
    inbox->WaitUntil(deadline, &more);
    events.insert(events.end(), more.begin(), more.end());
    const bool answered = std::any_of(events.begin(), events.end(), [](const Event& event) {
      const auto* response = std::get_if<etcdserverpb::WatchResponse>(&event);
      return std::holds_alternative<Ended>(event) || (response != nullptr && response->created());
    });
    if (answered) return Take(events);
  }
  return absl::UnavailableError(absl::StrCat("etcd at ", client_.endpoint(), " does not begin a watch"));
}

absl::Status EtcdStore::Follow() {
  auto inbox = std::make_shared<Inbox>();
  {
    absl::MutexLock lock(&mutex_);
    inbox_ = inbox;
  }
  std::shared_ptr<EtcdClient::WatchStream> stream;
  absl::Status status = Begin(inbox, &stream);
  if (status.ok()) {
    // At first nobody watches yet.
    if (SetHere()) TellAll();
  }
  absl::Time next_ping = absl::Now() + options_.ping_interval;
  std::vector<Event> events;
  while (status.ok() && !Stopping()) {
    events.clear();
    inbox->WaitUntil(next_ping, &events);
    status = Take(events);
    bool suspect = false;
    {
      absl::MutexLock lock(&mutex_);
      suspect = suspect_;
    }
    // Whoever had no answer waits for another member.
    const bool woken = std::any_of(events.begin(), events.end(),
                                   [](const Event& event) { return std::holds_alternative<Wake>(event); });
    if (woken) next_ping = std::min(next_ping, absl::Now() + options_.ping_interval / 5);
    if (!status.ok() || absl::Now() < next_ping) continue;
    status = Ping();
    next_ping = absl::Now() + options_.ping_interval;
    if (!status.ok() || !suspect) continue;
    // It answers after all. A connection of its own to those that wait, and another call to watches, whose
    // reading may have failed.
    SetHere();
    TellAll();
  }
  if (stream != nullptr) stream->Cancel();
  return status;
}

absl::Status EtcdStore::Take(const std::vector<Event>& events) {
  std::vector<std::string> keys;
  absl::Status status;
  for (const Event& event : events) {
    if (const auto* ended = std::get_if<Ended>(&event)) {
      status = ended->status.ok() ? absl::UnavailableError("etcd ended the watch") : ended->status;
    }
    const auto* response = std::get_if<etcdserverpb::WatchResponse>(&event);
    if (response == nullptr) continue;
    if (response->canceled()) {
      // Compaction, for one: the next watch begins with reading everything.
      status = absl::UnavailableError(absl::StrCat("etcd at ", client_.endpoint(),
                                                   " ended the watch: ", response->cancel_reason(),
                                                   response->compact_revision() > 0 ? " (compacted)" : ""));
    }
    for (const mvccpb::Event& change : response->events()) {
      absl::string_view key = change.kv().key();
      if (absl::ConsumePrefix(&key, options_.prefix)) keys.emplace_back(key.data(), key.size());
    }
  }
  if (!keys.empty()) Tell(keys);
  return status;
}

absl::StatusOr<uint64_t> EtcdStore::AwaitHere(uint64_t failed, absl::Time deadline) const {
  absl::MutexLock lock(&mutex_);
  const auto is_here = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return here_ && connection_ != failed; };
  if (!is_telling) {
    // What has been away for long is not waited for.
    if (!here_) deadline = std::min(deadline, away_since_ + options_.patience);
    mutex_.AwaitWithDeadline(absl::Condition(&is_here), deadline);
  }
  if (is_here()) return connection_;
  return absl::UnavailableError(
      absl::StrCat("etcd is unreachable: ", here_ ? "no answer in time" : away_reason_.message()));
}

void EtcdStore::Suspect(uint64_t connection, bool urgent) {
  absl::MutexLock lock(&mutex_);
  if (connection != connection_) return;
  suspect_ = true;
  if (urgent && inbox_ != nullptr) inbox_->Push(Wake{});
}

template <class Response, class Call>
absl::StatusOr<Response> EtcdStore::Perform(bool* retried, const Call& call) {
  const absl::Time deadline = absl::Now() + options_.request_timeout;
  uint64_t failed = 0;
  absl::Status status;
  while (true) {
    const absl::StatusOr<uint64_t> connection = AwaitHere(failed, deadline);
    if (!connection.ok()) return status.ok() ? connection.status() : status;
    absl::StatusOr<Response> response = call(std::min(deadline, absl::Now() + options_.attempt_timeout));
    if (response.ok()) return response;
    status = Explained(response.status());
    // An Aborted is no trouble of etcd's.
    if (!absl::IsAborted(status)) Suspect(*connection, /*urgent=*/IsTransient(status));
    if (!IsTransient(status)) return status;
    *retried = true;
    failed = *connection;
  }
}

absl::StatusOr<StoredEntry> EtcdStore::ReadEntry(mvccpb::KeyValue& kv) const {
  if (!absl::StartsWith(kv.key(), options_.prefix)) return Nonsense("a key that was not asked for");
  if (kv.mod_revision() <= 0) return Nonsense("a key without a revision");
  return StoredEntry{.key = kv.key().substr(options_.prefix.size()),
                     .value = std::move(*kv.mutable_value()),
                     .version = static_cast<uint64_t>(kv.mod_revision()),
                     .lease = kv.lease()};
}

absl::StatusOr<RoutingStore::Listing> EtcdStore::ListOnce(absl::string_view prefix, absl::Time deadline) {
  Listing listing;
  etcdserverpb::RangeRequest request;
  request.set_key(absl::StrCat(options_.prefix, prefix));
  request.set_range_end(EndOf(request.key()));
  request.set_limit(options_.page);
  size_t bytes = 0;
  while (true) {
    absl::StatusOr<etcdserverpb::RangeResponse> page = client_.Range(request, deadline);
    if (absl::IsResourceExhausted(page.status()) && request.limit() > 1) {
      // More than a message holds.
      request.set_limit(1);
      continue;
    }
    TANDEM_RETURN_IF_ERROR(page.status());
    if (request.revision() == 0) {
      listing.version = static_cast<uint64_t>(std::max<int64_t>(page->header().revision(), 0));
      request.set_revision(page->header().revision());
    }
    for (mvccpb::KeyValue& kv : *page->mutable_kvs()) {
      TANDEM_ASSIGN_OR_RETURN(StoredEntry entry, ReadEntry(kv));
      bytes += entry.key.size() + entry.value.size();
      if (!listing.entries.empty() && listing.entries.back().key >= entry.key) {
        return Nonsense("keys out of order");
      }
      listing.entries.push_back(std::move(entry));
    }
    if (bytes > kMaxListedBytes) return absl::ResourceExhaustedError("etcd holds too much under the prefix");
    if (!page->more()) return listing;
    if (page->kvs().empty()) return Nonsense("more to come, after nothing");
    // The key after the last one.
    request.set_key(absl::StrCat(options_.prefix, listing.entries.back().key, absl::string_view("\0", 1)));
  }
}

absl::StatusOr<RoutingStore::Listing> EtcdStore::List(absl::string_view prefix) {
  bool retried = false;
  return Perform<Listing>(&retried, [&](absl::Time deadline) -> absl::StatusOr<Listing> {
    absl::StatusOr<Listing> listing = ListOnce(prefix, deadline);
    // The revision of the first page was compacted away before the last.
    for (int i = 1; i < kMaxListings && absl::IsOutOfRange(listing.status()); ++i) {
      listing = ListOnce(prefix, deadline);
    }
    if (absl::IsOutOfRange(listing.status())) return absl::UnavailableError(listing.status().message());
    return listing;
  });
}

absl::StatusOr<std::optional<StoredEntry>> EtcdStore::Get(absl::string_view key) {
  bool retried = false;
  etcdserverpb::RangeRequest request;
  request.set_key(absl::StrCat(options_.prefix, key));
  TANDEM_ASSIGN_OR_RETURN(etcdserverpb::RangeResponse response,
                          Perform<etcdserverpb::RangeResponse>(&retried, [&](absl::Time deadline) {
                            return client_.Range(request, deadline);
                          }));
  if (response.kvs().empty()) return std::nullopt;
  TANDEM_ASSIGN_OR_RETURN(StoredEntry entry, ReadEntry(*response.mutable_kvs(0)));
  if (entry.key != key) return Nonsense("a key that was not asked for");
  return entry;
}

etcdserverpb::TxnRequest EtcdStore::MakeTransaction(absl::Span<const StoreChange> changes) const {
  etcdserverpb::TxnRequest transaction;
  for (const StoreChange& change : changes) {
    const std::string key = absl::StrCat(options_.prefix, change.key);
    if (change.expected_version.has_value()) {
      etcdserverpb::Compare& compare = *transaction.add_compare();
      compare.set_result(kEqual);
      compare.set_target(kModRevision);
      compare.set_key(key);
      compare.set_mod_revision(static_cast<int64_t>(*change.expected_version));
    }
    etcdserverpb::RequestOp& step = *transaction.add_success();
    if (change.value.has_value()) {
      step.mutable_request_put()->set_key(key);
      step.mutable_request_put()->set_value(*change.value);
    } else {
      step.mutable_request_delete_range()->set_key(key);
    }
    transaction.add_failure()->mutable_request_range()->set_key(key);
  }
  return transaction;
}

absl::StatusOr<uint64_t> EtcdStore::Conflict(absl::Span<const StoreChange> changes,
                                             const etcdserverpb::TxnResponse& response, bool retried) const {
  if (static_cast<size_t>(response.responses_size()) != changes.size()) {
    return Nonsense("a transaction with other steps");
  }
  // One transaction gives all that it writes the same revision.
  std::optional<uint64_t> written;
  bool done_before = retried;
  absl::Status mismatch;
  for (size_t i = 0; i < changes.size(); ++i) {
    const etcdserverpb::RangeResponse& found = response.responses(static_cast<int>(i)).response_range();
    const bool exists = !found.kvs().empty();
    const uint64_t version = exists ? static_cast<uint64_t>(found.kvs(0).mod_revision()) : 0;
    mismatch.Update(CheckExpectedVersion(changes[i], version));
    if (changes[i].value.has_value()) {
      done_before = done_before && exists && found.kvs(0).value() == *changes[i].value &&
                    version == written.value_or(version);
      if (exists) written = version;
    } else {
      done_before = done_before && !exists;
    }
  }
  if (done_before) return written.value_or(static_cast<uint64_t>(response.header().revision()));
  if (mismatch.ok()) return Nonsense("conditions that hold were reported as failed");
  return mismatch;
}

absl::StatusOr<uint64_t> EtcdStore::Update(absl::Span<const StoreChange> changes) {
  TANDEM_RETURN_IF_ERROR(CheckChanges(changes));
  const etcdserverpb::TxnRequest transaction = MakeTransaction(changes);
  bool retried = false;
  absl::StatusOr<etcdserverpb::TxnResponse> response = Perform<etcdserverpb::TxnResponse>(
      &retried, [&](absl::Time deadline) { return client_.Txn(transaction, deadline); });
  if (!response.ok()) {
    if (!IsTransient(response.status())) return response.status();
    return absl::UnavailableError(
        absl::StrCat(response.status().message(),
                     retried ? "; the change may have been made: check when etcd answers again, or repeat it"
                             : "; nothing was changed"));
  }
  uint64_t version = static_cast<uint64_t>(std::max<int64_t>(response->header().revision(), 0));
  if (!response->succeeded()) {
    TANDEM_ASSIGN_OR_RETURN(version, Conflict(changes, *response, retried));
  }
  std::vector<std::string> keys;
  for (const StoreChange& change : changes) keys.push_back(change.key);
  Tell(keys);
  return version;
}

absl::StatusOr<std::vector<LeasedEntry>> EtcdStore::ListLeased(absl::string_view prefix) {
  TANDEM_ASSIGN_OR_RETURN(Listing listing, List(prefix));
  std::vector<LeasedEntry> entries;
  for (StoredEntry& entry : listing.entries) {
    entries.push_back({.key = std::move(entry.key),
                       .value = std::move(entry.value),
                       .version = entry.version,
                       .lease = entry.lease});
  }
  return entries;
}

absl::StatusOr<LeasedEntry> EtcdStore::PutLeased(const Put& put) {
  bool retried = false;
  etcdserverpb::LeaseGrantRequest grant;
  grant.set_ttl(std::max<int64_t>(absl::ToInt64Seconds(absl::Ceil(put.ttl, absl::Seconds(1))), 1));
  TANDEM_ASSIGN_OR_RETURN(const etcdserverpb::LeaseGrantResponse granted,
                          Perform<etcdserverpb::LeaseGrantResponse>(&retried, [&](absl::Time deadline) {
                            return client_.GrantLease(grant, deadline);
                          }));
  if (granted.id() == 0) return Nonsense("a lease without an id");
  const StoreChange change{.key = put.key, .value = put.value, .expected_version = put.expected_version};
  etcdserverpb::TxnRequest transaction = MakeTransaction({change});
  transaction.mutable_success(0)->mutable_request_put()->set_lease(granted.id());
  // A lease of which nobody has heard is this call's own: so an earlier try is known by it.
  retried = false;
  TANDEM_ASSIGN_OR_RETURN(const etcdserverpb::TxnResponse response,
                          Perform<etcdserverpb::TxnResponse>(&retried, [&](absl::Time deadline) {
                            return client_.Txn(transaction, deadline);
                          }));
  LeasedEntry entry{.key = put.key, .value = put.value, .lease = granted.id()};
  if (response.succeeded()) {
    entry.version = static_cast<uint64_t>(std::max<int64_t>(response.header().revision(), 0));
  } else {
    if (response.responses_size() != 1) return Nonsense("a transaction with other steps");
    const etcdserverpb::RangeResponse& found = response.responses(0).response_range();
    const bool done_before = retried && !found.kvs().empty() && found.kvs(0).lease() == granted.id();
    if (!done_before) {
      RevokeLease(granted.id());
      return Conflict({change}, response, /*retried=*/false).status();
    }
    entry.version = static_cast<uint64_t>(found.kvs(0).mod_revision());
  }
  if (put.replaced_lease != 0) RevokeLease(put.replaced_lease);
  Tell({put.key});
  return entry;
}

void EtcdStore::RevokeLease(int64_t lease) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  // One that is not taken back ends by itself.
  client_.RevokeLease(request, absl::Now() + options_.attempt_timeout).status().IgnoreError();
}

absl::Status EtcdStore::RenewLease(const LeasedEntry& entry) {
  const absl::Status ended =
      absl::NotFoundError(absl::StrCat("the lease of \"", absl::CHexEscape(entry.key), "\" has ended"));
  if (entry.lease == 0) return ended;
  bool retried = false;
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(entry.lease);
  TANDEM_ASSIGN_OR_RETURN(const etcdserverpb::LeaseKeepAliveResponse response,
                          Perform<etcdserverpb::LeaseKeepAliveResponse>(&retried, [&](absl::Time deadline) {
                            return client_.KeepLeaseAlive(request, deadline);
                          }));
  return response.ttl() > 0 ? absl::OkStatus() : ended;
}

std::unique_ptr<RoutingStore::Watch> EtcdStore::WatchPrefix(std::string prefix,
                                                            std::function<void()> on_change) {
  return watches_.Add(std::move(prefix), std::move(on_change));
}

absl::StatusOr<std::unique_ptr<RoutingStore>> OpenEtcdStore(absl::string_view uri, const EtcdAccess& access) {
  TANDEM_ASSIGN_OR_RETURN(EtcdAddress address, ParseEtcdAddress(uri));
  EtcdStore::Options options{.prefix = std::move(address.prefix)};
  TANDEM_ASSIGN_OR_RETURN(options.client,
                          EtcdClient::MakeOptions(std::move(address.endpoints), access, absl::Now()));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<EtcdStore> store, EtcdStore::Open(std::move(options)));
  return store;
}

absl::Status CheckEtcdStore(absl::string_view uri, const EtcdAccess& access) {
  TANDEM_ASSIGN_OR_RETURN(EtcdAddress address, ParseEtcdAddress(uri));
  return EtcdClient::MakeOptions(std::move(address.endpoints), access, absl::Now()).status();
}

}  // namespace tandem::router
