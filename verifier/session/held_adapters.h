#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/engine/engine.h"

namespace tandem {

// An adapter that the target's engine holds. A holder of a handle may compute with it. The engine drops the
// adapter once only the engine's thread has a handle.
struct HeldAdapter {
  std::string name;
  AdapterId id = kNoAdapter;
  uint64_t fingerprint = 0;  // As LoraAdapter has it.
  uint32_t rank = 0;         // The greatest.
  uint64_t num_parameters = 0;
};
using AdapterHandle = std::shared_ptr<const HeldAdapter>;

// The adapters that requests for a model may name:
//
//   Add --> Find gives handles --Remove--> Find refuses; who has a handle goes on
//
// Thread-safe.
class HeldAdapters {
 public:
  // `most`: the bound on adapters held at once.
  explicit HeldAdapters(size_t most) : most_(most) {}

  // Whether an adapter of this name could be added now. AlreadyExists or ResourceExhausted if not.
  absl::Status CheckRoom(const std::string& name) const;
  // Adds an adapter. Errors as in CheckRoom.
  absl::Status Add(AdapterHandle adapter);
  // NotFound lists the adapters that exist.
  absl::StatusOr<AdapterHandle> Find(const std::string& name) const;
  absl::StatusOr<AdapterHandle> Remove(const std::string& name);
  // By name.
  std::vector<AdapterHandle> List() const;

 private:
  absl::Status CheckRoomLocked(const std::string& name) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status NotHere(const std::string& name) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const size_t most_;
  mutable absl::Mutex mutex_;
  std::map<std::string, AdapterHandle> adapters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
