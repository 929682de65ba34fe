#include "common/config/version.h"

namespace tandem {

absl::string_view Version() {
  return TANDEM_VERSION;
}

}  // namespace tandem
