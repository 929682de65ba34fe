#include "common/config/sealed_bytes.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/config/token_digest.h"

namespace tandem {
namespace {

constexpr absl::string_view kMark = "\xfa\x7c\x30TNDMSEAL";
constexpr size_t kSizeBytes = 8;
constexpr size_t kSealBytes = kMark.size() + kSizeBytes + sizeof(Sha256Digest);
static_assert(kSealBytes == 3 + 48 && ((kSealField << 3) | 2) == 0x7a + (0x7c << 7));

std::string SealOf(absl::string_view message) {
  std::string seal(kMark.data(), kMark.size());
  for (size_t i = 0; i < kSizeBytes; ++i) {
    seal.push_back(static_cast<char>(static_cast<uint64_t>(message.size()) >> (8 * i)));
  }
  const Sha256Digest digest = Sha256(message);
  seal.append(digest.begin(), digest.end());
  return seal;
}

}  // namespace

std::string Seal(absl::string_view message) {
  return absl::StrCat(SealOf(message), message);
}

absl::StatusOr<absl::string_view> Unseal(absl::string_view bytes) {
  if (!absl::StartsWith(bytes, kMark)) return bytes;
  if (bytes.size() < kSealBytes) return absl::DataLossError("cut short within its seal");
  uint64_t size = 0;
  for (size_t i = 0; i < kSizeBytes; ++i) {
    size |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[kMark.size() + i])) << (8 * i);
  }
  const absl::string_view message = bytes.substr(kSealBytes);
  if (message.size() < size) {
    return absl::DataLossError(absl::StrCat(message.size(), " bytes of ", size, ", so it was cut short"));
  }
  if (!absl::StartsWith(bytes, SealOf(message))) {
    return absl::DataLossError("its bytes differ from those that were written (SHA-256)");
  }
  return message;
}

}  // namespace tandem
