#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace tandem::router {

// Decides whether a router is ready: every model that a tenant may use has a verifier that serves. A model
// that loses its last verifier still counts as served for `patience`: requests wait that long for a verifier
// anyhow, and without it one late health answer would take all routers out of their Kubernetes Service at
// once. Plain logic: time is passed in. Not thread-safe.
class Readiness {
 public:
  struct Options {
    // Whether all models must be served. If false, one is enough.
    bool every_model = true;
    absl::Duration patience = absl::Seconds(3);
  };
  explicit Readiness(const Options& options) : options_(options) {}

  struct Model {
    std::string name;
    bool wanted = false;  // Some tenant may use it.
    bool served = false;  // A verifier of it serves.
  };
  // Updates the state of all models, the same ones in every call. Returns whether the router is ready. It is
  // also ready if no tenant may use any model.
  bool Update(absl::Span<const Model> models, absl::Time now);

  // Wanted models that do not count as served.
  const std::vector<std::string>& unserved() const { return unserved_; }

 private:
  const Options options_;
  std::vector<absl::Time> served_;  // When each was last.
  std::vector<std::string> unserved_;
};

}  // namespace tandem::router
