#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/spool/spool.h"

namespace tandem {
class Flags;
}  // namespace tandem

namespace tandem::router {

// Where a router keeps records of tenants that opted in, and how many.
struct SpoolFlags {
  std::string folder;  // Empty: nothing is kept.
  std::string keys;
  absl::Duration max_age = absl::Hours(24 * 7);
  uint64_t max_mib = 256;
  uint64_t rate_kib = 256;

  bool any() const { return !folder.empty(); }
  Spool::Options options() const;
};

// Adds the flags. `options` outlives the parsing.
void DeclareSpoolFlags(SpoolFlags& options, Flags& flags);
// InvalidArgument, naming the flag.
absl::Status CheckSpoolFlags(const SpoolFlags& options);

}  // namespace tandem::router
