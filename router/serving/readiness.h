#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace tandem::router {

// Whether a router is ready for requests: every model that a tenant may use has a verifier that serves. One
// that loses its last verifier counts as served for `patience` longer, since requests wait that long for it
// anyhow and a verifier that is slow to answer once would otherwise take all routers out of their Service at
// the same moment. Plain logic: time is passed in, not thread-safe.
class Readiness {
 public:
  struct Options {
    // Otherwise one such model is enough.
    bool every_model = true;
    absl::Duration patience = absl::Seconds(3);
  };
  explicit Readiness(const Options& options) : options_(options) {}

  struct Model {
    std::string name;
    bool wanted = false;  // Some tenant may use it.
    bool served = false;  // A verifier of it serves.
  };
  // What is so now, of the same models every time. Returns whether the router is ready, which it is if nobody
  // wants any model.
  bool Update(absl::Span<const Model> models, absl::Time now);

  // Those wanted that do not count as served.
  const std::vector<std::string>& unserved() const { return unserved_; }

 private:
  const Options options_;
  std::vector<absl::Time> served_;  // When each was last.
  std::vector<std::string> unserved_;
};

}  // namespace tandem::router
