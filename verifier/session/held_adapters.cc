#include "verifier/session/held_adapters.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

constexpr size_t kShownAdapterName = 128;

}  // namespace

absl::Status HeldAdapters::CheckRoomLocked(const std::string& name) const {
  if (adapters_.count(name) > 0) {
    return absl::AlreadyExistsError(absl::StrCat("name: the model has an adapter \"", name, "\" already"));
  }
  if (adapters_.size() < most_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the model has ", adapters_.size(), " adapters, which is the limit (max-adapters)"));
}

absl::Status HeldAdapters::CheckRoom(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  return CheckRoomLocked(name);
}

absl::Status HeldAdapters::Add(AdapterHandle adapter) {
  absl::MutexLock lock(&mutex_);
  TANDEM_RETURN_IF_ERROR(CheckRoomLocked(adapter->name));
  adapters_[adapter->name] = std::move(adapter);
  return absl::OkStatus();
}

absl::Status HeldAdapters::NotHere(const std::string& name) const {
  std::string names;
  for (const auto& [other, adapter] : adapters_) absl::StrAppend(&names, names.empty() ? "" : ", ", other);
  return absl::NotFoundError(absl::StrCat("adapter: \"", absl::CHexEscape(name.substr(0, kShownAdapterName)),
                                          "\", but this verifier's model has ",
                                          names.empty() ? "none" : names));
}

absl::StatusOr<AdapterHandle> HeldAdapters::Find(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  const auto found = adapters_.find(name);
  if (found == adapters_.end()) return NotHere(name);
  return found->second;
}

absl::StatusOr<AdapterHandle> HeldAdapters::Remove(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  const auto found = adapters_.find(name);
  if (found == adapters_.end()) return NotHere(name);
  AdapterHandle adapter = std::move(found->second);
  adapters_.erase(found);
  return adapter;
}

std::vector<AdapterHandle> HeldAdapters::List() const {
  absl::MutexLock lock(&mutex_);
  std::vector<AdapterHandle> list;
  for (const auto& [name, adapter] : adapters_) list.push_back(adapter);
  return list;
}

}  // namespace tandem
