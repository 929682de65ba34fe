// Which verifiers a model has: those that are configured, those behind names, and those that registered.
#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "common/base/log.h"
#include "common/rpc/channel.h"
#include "router/verifiers/verifier_pool_model.h"

namespace tandem::router {

size_t VerifierPool::AddEntry(Model& model, const std::string& endpoint, size_t name) {
  auto verifier = std::make_shared<Verifier>();
  verifier->endpoint = endpoint;
  // A certificate has the name and not the address. Who registers says how it is called.
  verifier->channel = tandem::CreateChannel(endpoint, options_.credentials,
                                            name < model.names.size() ? model.names[name].name.host : "");
  verifier->stub = v1::Verifier::NewStub(verifier->channel);
  size_t index = 0;
  for (; index < model.entries.size(); ++index) {
    const Attempt::Entry& entry = *model.entries[index];
    if (!model.choice->listed(index) && entry.attempts.empty() && !entry.probing) break;
  }
  if (index == model.entries.size()) model.entries.push_back(std::make_unique<Attempt::Entry>());
  Attempt::Entry& entry = *model.entries[index];
  entry.model = model.index;
  entry.index = index;
  entry.verifier = std::move(verifier);
  entry.name = name;
  entry.serving = false;
  entry.confirmed = false;
  entry.asked = false;
  entry.told = false;
  entry.lacks_model = false;
  entry.max_running = entry.max_waiting = 0;
  entry.traits = {};
  entry.probed = absl::InfinitePast();
  model.choice->Replace(index, endpoint);
  return index;
}

void VerifierPool::SetConfigured(size_t model_index, const std::vector<std::string>& endpoints) {
  Model& model = models_[model_index];
  bool new_name = false;
  {
    absl::MutexLock lock(model.mutex.get());
    model.configured.clear();
    std::set<size_t> used;
    for (const std::string& endpoint : endpoints) {
      absl::StatusOr<std::optional<DnsName>> name = ParseDnsName(endpoint);
      if (!name.ok() || !name->has_value()) {
        model.configured.insert(endpoint);
        continue;
      }
      size_t index = 0;
      while (index < model.names.size() && (model.names[index].name.host != (*name)->host ||
                                            model.names[index].name.port != (*name)->port)) {
        ++index;
      }
      if (index == model.names.size()) model.names.push_back({.name = *std::move(*name), .used = false});
      new_name = new_name || !model.names[index].used;
      used.insert(index);
    }
    for (size_t index = 0; index < model.names.size(); ++index) {
      model.names[index].used = used.count(index) > 0;
      if (!model.names[index].used) model.wanted[index].clear();
    }
    ListWanted(model);
  }
  if (!new_name) return;
  absl::MutexLock lock(&mutex_);
  names_changed_ = true;
}

std::vector<std::pair<size_t, DnsName>> VerifierPool::UsedNames(const Model& model) {
  std::vector<std::pair<size_t, DnsName>> names;
  absl::MutexLock lock(model.mutex.get());
  for (size_t index = 0; index < model.names.size(); ++index) {
    if (model.names[index].used) names.emplace_back(index, model.names[index].name);
  }
  return names;
}

void VerifierPool::ResolveNames() {
  // By name, to log what is new only.
  std::map<std::pair<size_t, size_t>, std::string> errors;
  const auto due = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || names_changed_; };
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      names_changed_ = false;
    }
    for (Model& model : models_) {
      for (const auto& [index, name] : UsedNames(model)) {
        {
          // A name server that does not answer holds up the end for one name, not for all.
          absl::MutexLock lock(&mutex_);
          if (stopping_) return;
        }
        const absl::StatusOr<std::vector<std::string>> addresses = options_.resolve(name);
        std::string& error = errors[{model.index, index}];
        if (addresses.ok()) {
          error.clear();
          SetAddresses(model, index, *addresses);
        } else if (std::exchange(error, std::string(addresses.status().message())) != error) {
          LogError("a verifier's name cannot be resolved; keeping the known verifiers", {{"error", error}});
        }
      }
    }
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&due), options_.resolve_period);
    if (stopping_) return;
  }
}

void VerifierPool::SetAddresses(Model& model, size_t name, const std::vector<std::string>& addresses) {
  absl::MutexLock lock(model.mutex.get());
  // Taken away while it was asked for.
  if (!model.names[name].used) return;
  model.wanted[name] = std::set<std::string>(addresses.begin(), addresses.end());
  ListWanted(model);
}

void VerifierPool::SetRegistered(size_t model_index, const std::vector<RegisteredEndpoint>& verifiers) {
  Model& model = models_[model_index];
  absl::MutexLock lock(model.mutex.get());
  std::set<std::string>& wanted = model.wanted[kRegistered];
  wanted.clear();
  model.room.clear();
  for (const RegisteredEndpoint& verifier : verifiers) {
    wanted.insert(verifier.address);
    model.room[verifier.address] = verifier.max_in_flight;
  }
  ListWanted(model);
}

void VerifierPool::ListWanted(Model& model) {
  // What registered and is configured too, now or no longer, is the same verifier.
  for (const auto& entry : model.entries) {
    const std::string& endpoint = entry->verifier->endpoint;
    const bool is_configured = model.configured.count(endpoint) > 0;
    if (entry->name == kRegistered && is_configured) entry->name = kNoName;
    if (entry->name == kNoName && !is_configured && model.wanted[kRegistered].count(endpoint) > 0) {
      entry->name = kRegistered;
    }
  }
  // An address counts for the first that has it: the configuration, then its names, then who registered.
  ListOnly(model, kNoName, model.configured);
  std::set<std::string> taken = model.configured;
  for (const auto& [name, addresses] : model.wanted) {
    std::set<std::string> free;
    std::set_difference(addresses.begin(), addresses.end(), taken.begin(), taken.end(),
                        std::inserter(free, free.begin()));
    taken.insert(free.begin(), free.end());
    ListOnly(model, name, std::move(free));
  }
}

void VerifierPool::ListOnly(Model& model, size_t name, std::set<std::string> wanted) {
  for (size_t i = 0; i < model.entries.size(); ++i) {
    Attempt::Entry& entry = *model.entries[i];
    if (entry.name != name) continue;
    const std::string& endpoint = entry.verifier->endpoint;
    const bool was_listed = model.choice->listed(i);
    const bool is_listed = wanted.erase(endpoint) > 0;
    model.choice->SetListed(i, is_listed);
    if (is_listed) SetRoom(model, i);
    if (was_listed != is_listed) {
      LogInfo(is_listed ? "verifier is back" : "verifier is gone", {{"verifier", endpoint}});
    }
    // Perhaps another process by now.
    if (is_listed && !was_listed) {
      entry.probed = absl::InfinitePast();
      entry.confirmed = false;
    }
  }
  for (const std::string& endpoint : wanted) {
    LogInfo("verifier added", {{"verifier", endpoint},
                               {"name", name == kNoName       ? "configured"
                                        : name == kRegistered ? "registered"
                                                              : model.names[name].name.host}});
    SetRoom(model, AddEntry(model, endpoint, name));
  }
}

void VerifierPool::SetRoom(Model& model, size_t index) {
  const Attempt::Entry& entry = *model.entries[index];
  const auto room = model.room.find(entry.verifier->endpoint);
  uint64_t most = options_.choice.max_in_flight;
  if (room != model.room.end()) most = std::min<uint64_t>(most, room->second);
  if (entry.max_running > 0) most = std::min(most, uint64_t{entry.max_running} + entry.max_waiting);
  model.choice->SetMaxInFlight(index, static_cast<uint32_t>(most));
}

}  // namespace tandem::router
