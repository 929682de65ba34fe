#include "router/spool/spool_flags.h"

#include "absl/strings/str_cat.h"
#include "common/config/flags.h"

namespace tandem::router {

void DeclareSpoolFlags(SpoolFlags& options, Flags& flags) {
  flags.Group("Spool")
      .Add("spool", &options.folder,
           "Folder to keep prompts and outputs in of tenants whose configuration says `record_traffic`, for "
           "drafters to learn from; of this router alone. Empty: nothing is kept.")
      .Add("spool-keys", &options.keys,
           "Folder of the keys that they are encrypted with, one for each tenant; needed with --spool, and "
           "not "
           "below it. A key that is missing is made.")
      .Add("spool-max-age", &options.max_age, "How long they are kept.")
      .Add("spool-max-mib", &options.max_mib, "MiB of each tenant; the oldest go first.")
      .InRange(1, 1e7)
      .Add("spool-rate-kib", &options.rate_kib,
           "KiB a second of each tenant on average over a minute; what goes beyond is not kept.")
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
