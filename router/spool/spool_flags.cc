#include "router/spool/spool_flags.h"

#include "absl/strings/str_cat.h"
#include "common/config/flags.h"

namespace tandem::router {

void DeclareSpoolFlags(SpoolFlags& options, Flags& flags) {
  flags.Group("Spool")
      .Add("spool", &options.folder,
           "Folder in which the router keeps prompts and outputs of tenants with `record_traffic`, for "
           "drafters to learn from. Each router needs its own. Empty: keep none.")
      .Add("spool-keys", &options.keys,
           "Folder of the encryption keys, one per tenant. Required with --spool, and must not be below it. "
           "Missing keys are created.")
      .Add("spool-max-age", &options.max_age, "How long to keep prompts and outputs.");
  flags.Settings("Spool")
      .Add("spool-max-mib", &options.max_mib, "Most MiB per tenant; the oldest records are deleted first.")
      .InRange(1, 1e7)
      .Add("spool-rate-kib", &options.rate_kib,
           "Most KiB per second and tenant, averaged over a minute; anything beyond is not kept.")
      .InRange(1, 1e7);
}

absl::Status CheckSpoolFlags(const SpoolFlags& options) {
  if (options.any() != !options.keys.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(options.any() ? "--spool-keys" : "--spool",
                                                   ": missing, expected both --spool and --spool-keys"));
  }
  if (options.max_age < absl::Minutes(1)) {
    return absl::InvalidArgumentError("--spool-max-age: expected at least 1m");
  }
  return absl::OkStatus();
}

Spool::Options SpoolFlags::options() const {
  Spool::Options options;
  options.folder = {.folder = folder, .keys = keys, .max_age = max_age, .max_bytes = max_mib << 20};
  options.bytes_per_second = rate_kib << 10;
  return options;
}

}  // namespace tandem::router
