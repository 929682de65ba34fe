#include "router/state/open_store.h"

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "router/state/memory_store.h"
#include "router/state/sqlite_store.h"

namespace tandem::router {
namespace {

constexpr absl::string_view kBlobPrefix = "blobs/";

}  // namespace

absl::StatusOr<std::unique_ptr<RoutingStore>> OpenStore(absl::string_view uri) {
  if (uri == "memory:") return std::make_unique<MemoryStore>();
  absl::string_view path = uri;
  if (absl::ConsumePrefix(&path, "sqlite://") && absl::StartsWith(path, "/") && path.size() > 1) {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<SqliteStore> store,
                            SqliteStore::Open(std::string(path.data(), path.size())));
    return store;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("state: \"", uri, "\", expected memory: or sqlite:///path/of/file"));
}

absl::Status PutBlob(RoutingStore& store, absl::string_view name, absl::string_view bytes) {
  return store
      .Update({{.key = absl::StrCat(kBlobPrefix, name), .value = std::string(bytes.data(), bytes.size())}})
      .status();
}

absl::StatusOr<std::optional<std::string>> GetBlob(RoutingStore& store, absl::string_view name) {
  TANDEM_ASSIGN_OR_RETURN(std::optional<StoredEntry> entry, store.Get(absl::StrCat(kBlobPrefix, name)));
  if (!entry.has_value()) return std::nullopt;
  return std::move(entry->value);
}

}  // namespace tandem::router
