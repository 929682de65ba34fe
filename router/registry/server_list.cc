#include "router/registry/server_list.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "tandem/v1/state.pb.h"

namespace tandem::router {
namespace {

// Names of drafters that are remembered for requests that name them while they are away.
constexpr size_t kMaxRememberedNames = 4096;

bool SameInstance(const v1::ServerRegistration& a, const v1::ServerRegistration& b) {
  return a.instance().instance() == b.instance().instance();
}

// Processes that start at the same time have an order, too.
bool StartedBefore(const v1::ServerInstance& a, const v1::ServerInstance& b) {
  return std::make_pair(a.started_unix_ms(), absl::string_view(a.instance())) <
         std::make_pair(b.started_unix_ms(), absl::string_view(b.instance()));
}

std::string Described(const v1::ServerRegistration& server) {
  return absl::StrCat(server.has_verifier() ? "verifier \"" : "drafter \"", server.instance().name(),
                      "\" at ", server.address());
}

}  // namespace

std::string RegistrationKey(const v1::ServerInstance& instance, bool is_verifier) {
  return absl::StrCat(kRegisteredPrefix, is_verifier ? "verifiers/" : "drafters/", instance.name());
}

const ServerList::Known* ServerList::Find(const std::string& key) const {
  const auto found = known_.find(key);
  return found == known_.end() ? nullptr : &found->second;
}

// Somebody has the name: whether `server` may take it. Which of two processes came later is not told by whose
// call arrives last, since calls of one that is gone may still be under way.
absl::Status ServerList::CheckName(const v1::ServerRegistration& server, const Known& present) const {
  if (SameInstance(server, present.server)) {
    if (!present.left) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "this process has left; it can register again only as a new instance");
  }
  if (present.left) return absl::OkStatus();
  if (server.address() != present.server.address()) {
    return absl::AlreadyExistsError(absl::StrCat("the name is taken by ", Described(present.server)));
  }
  if (StartedBefore(present.server.instance(), server.instance())) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "replaced by a process that started later at the same address: ", Described(present.server)));
}

class ServerList::Claims {
 public:
  // Whether `server` can be used besides those that were added, and if not, why.
  absl::Status Check(const v1::ServerRegistration& server) const {
    return server.has_verifier() ? CheckWeights(server.verifier()) : CheckNames(server.drafter());
  }

  void Add(const v1::ServerRegistration& server) {
    if (server.has_verifier()) verifiers_.emplace(server.verifier().model().name(), &server);
    for (const v1::RegisteredDraftModel& model : server.drafter().models()) {
      drafters_.emplace(model.model().name(), &server);
    }
  }

 private:
  absl::Status CheckWeights(const v1::RegisteredVerifier& own) const {
    const auto other = verifiers_.find(own.model().name());
    if (other == verifiers_.end()) return absl::OkStatus();
    const v1::RegisteredVerifier& others = other->second->verifier();
    if (own.weights_sha256() == others.weights_sha256() &&
        own.model().weight_type() == others.model().weight_type() &&
        own.arithmetic() == others.arithmetic()) {
      return absl::OkStatus();
    }
    const auto weights = [](const v1::RegisteredVerifier& verifier) {
      return absl::StrCat("SHA-256 ", absl::BytesToHexString(verifier.weights_sha256()), " kept as ",
                          Shown(verifier.model().weight_type()), ", computed by ",
                          Shown(verifier.arithmetic()));
    };
    return absl::FailedPreconditionError(
        absl::StrCat("the weights of model \"", own.model().name(),
                     "\" or its arithmetic differ from those of ", Described(*other->second),
                     ", so outputs would differ: ", weights(own), "; expected ", weights(others)));
  }

  absl::Status CheckNames(const v1::RegisteredDrafter& own) const {
    for (const v1::RegisteredDraftModel& model : own.models()) {
      const auto other = drafters_.find(model.model().name());
      if (other == drafters_.end()) continue;
      return absl::AlreadyExistsError(absl::StrCat("the draft model's name \"", model.model().name(),
                                                   "\" is taken by ", Described(*other->second)));
    }
    return absl::OkStatus();
  }

  // By the model's name, and by the draft model's.
  std::map<absl::string_view, const v1::ServerRegistration*> verifiers_;
  std::map<absl::string_view, const v1::ServerRegistration*> drafters_;
};

absl::Status ServerList::CheckOthers(const std::string& key, const v1::ServerRegistration& server,
                                     const std::function<bool(const std::string&)>& is_configured) const {
  for (const v1::RegisteredDraftModel& model : server.drafter().models()) {
    if (!is_configured(model.model().name())) continue;
    return absl::AlreadyExistsError(absl::StrCat("the draft model's name \"", model.model().name(),
                                                 "\" is that of a configured drafter"));
  }
  Claims claims;
  for (const Known* known : InUse()) {
    if (known->entry.key != key) claims.Add(known->server);
  }
  return claims.Check(server);
}

absl::StatusOr<ServerList::Step> ServerList::Decide(
    const v1::ServerRegistration& server,
    const std::function<bool(const std::string&)>& is_configured) const {
  TANDEM_RETURN_IF_ERROR(CheckUse(server, options_.registration, options_.models));
  const std::string key = RegistrationKey(server.instance(), server.has_verifier());
  const Known* const present = Find(key);
  if (present != nullptr) TANDEM_RETURN_IF_ERROR(CheckName(server, *present));
  TANDEM_RETURN_IF_ERROR(CheckOthers(key, server, is_configured));
  if (present == nullptr) {
    if (known_.size() < options_.max_servers) return Step::kPut;
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", known_.size(), " servers, which is the limit"));
  }
  const bool unchanged = present->stored && SameInstance(server, present->server) &&
                         present->server.SerializeAsString() == server.SerializeAsString();
  return unchanged ? Step::kRenew : Step::kPut;
}

std::vector<std::string> ServerList::OutdatedBy(const v1::ServerRegistration& server) const {
  std::vector<std::string> keys;
  for (const auto& [key, known] : known_) {
    if (!known.left && known.server.address() == server.address() &&
        known.server.kind_case() == server.kind_case() &&
        StartedBefore(known.server.instance(), server.instance())) {
      keys.push_back(key);
    }
  }
  return keys;
}

bool ServerList::IsToLeave(const v1::ServerRegistration& server) const {
  if (!CheckUse(server, options_.registration, options_.models).ok()) return false;
  const Known* const present = Find(RegistrationKey(server.instance(), server.has_verifier()));
  if (present == nullptr) {
    const auto left =
        std::count_if(known_.begin(), known_.end(), [](const auto& known) { return known.second.left; });
    return known_.size() < options_.max_servers && static_cast<size_t>(left) < options_.max_unknown_left;
  }
  return !present->left && SameInstance(server, present->server);
}

void ServerList::Stored(const LeasedEntry& entry, const v1::ServerRegistration& server, bool left) {
  Known& known = known_[entry.key];
  if (!SameInstance(known.server, server)) known.heard = absl::InfinitePast();
  known.entry = entry;
  known.server = server;
  known.left = left;
  known.stored = true;
  known.order = entry.version;
}

void ServerList::Heard(const std::string& key, absl::Time now) {
  const auto found = known_.find(key);
  if (found != known_.end()) found->second.heard = now;
}

bool ServerList::MayBeThere(const Known& known, const Signs& signs) const {
  if (known.stored) return true;
  if (known.left) return false;
  return signs.now < signs.doubt_until || signs.now < known.heard + options_.registration.ttl;
}

std::vector<v1::ServerRegistration> ServerList::Merge(absl::Span<const LeasedEntry> entries,
                                                      const Signs& signs, std::vector<std::string>* damaged) {
  for (auto& [key, known] : known_) {
    known.stored = false;
    known.entry = {.key = key};
  }
  for (const LeasedEntry& entry : entries) {
    v1::RegistrationRecord record;
    const bool readable =
        record.ParseFromString(entry.value) && CheckRegistration(record.server()).ok() &&
        RegistrationKey(record.server().instance(), record.server().has_verifier()) == entry.key;
    if (!readable) {
      damaged->push_back(entry.key);
      continue;
    }
    // Another router's configuration may take what this one's does not.
    if (!CheckUse(record.server(), options_.registration, options_.models).ok()) continue;
    const auto present = known_.find(entry.key);
    if (record.left() && present != known_.end() && !SameInstance(present->second.server, record.server()) &&
        MayBeThere(present->second, signs)) {
      // That another process has left says nothing of this one, which the store has lost.
      present->second.entry = entry;
      continue;
    }
    Stored(entry, record.server(), record.left());
  }
  return Expire(signs);
}

std::vector<v1::ServerRegistration> ServerList::Expire(const Signs& signs) {
  std::vector<v1::ServerRegistration> gone;
  for (auto known = known_.begin(); known != known_.end();) {
    if (MayBeThere(known->second, signs)) {
      ++known;
      continue;
    }
    if (!known->second.left) gone.push_back(std::move(known->second.server));
    known = known_.erase(known);
  }
  return gone;
}

std::vector<const ServerList::Known*> ServerList::InUse() const {
  std::vector<const Known*> ordered;
  for (const auto& [key, known] : known_) {
    if (!known.left) ordered.push_back(&known);
  }
  std::sort(ordered.begin(), ordered.end(), [](const Known* a, const Known* b) {
    return std::make_pair(a->order, absl::string_view(a->entry.key)) <
           std::make_pair(b->order, absl::string_view(b->entry.key));
  });
  Claims claims;
  std::vector<const Known*> used;
  for (const Known* known : ordered) {
    if (!claims.Check(known->server).ok()) continue;
    claims.Add(known->server);
    used.push_back(known);
  }
  return used;
}

std::vector<const ServerList::Known*> ServerList::Verifiers(size_t model) const {
  std::vector<const Known*> verifiers;
  for (const Known* known : InUse()) {
    if (known->server.has_verifier() &&
        known->server.verifier().model().name() == options_.models[model].name) {
      verifiers.push_back(known);
    }
  }
  return verifiers;
}

std::vector<Drafter> ServerList::Drafters() {
  std::vector<Drafter> drafters;
  std::set<std::string> away = drafter_names_;
  for (const Known* known : InUse()) {
    for (const v1::RegisteredDraftModel& model : known->server.drafter().models()) {
      const std::string& name = model.model().name();
      drafters.push_back({.name = name, .endpoint = known->server.address(), .draft_model = name});
      away.erase(name);
      if (drafter_names_.size() < kMaxRememberedNames) drafter_names_.insert(name);
    }
  }
  for (const std::string& name : away) {
    drafters.push_back({.name = name, .draft_model = name, .draining = true, .absent = true});
  }
  return drafters;
}

size_t ServerList::num_verifiers() const {
  return static_cast<size_t>(std::count_if(known_.begin(), known_.end(), [](const auto& known) {
    return !known.second.left && known.second.server.has_verifier();
  }));
}

size_t ServerList::num_drafters() const {
  return static_cast<size_t>(std::count_if(known_.begin(), known_.end(), [](const auto& known) {
    return !known.second.left && known.second.server.has_drafter();
  }));
}

}  // namespace tandem::router
