#include "common/rpc/weights_digest.h"

#include <openssl/evp.h>

#include <array>
#include <fstream>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/model/weight_files.h"

namespace tandem {
namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;

class Sha256Stream {
 public:
  Sha256Stream() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr);
  }
  void Add(absl::string_view bytes) { EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()); }
  std::string Finish() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest = {};
    unsigned int size = 0;
    EVP_DigestFinal_ex(context_.get(), digest.data(), &size);
    return std::string(reinterpret_cast<const char*>(digest.data()), size);
  }

 private:
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

absl::StatusOr<std::string> FileDigest(const std::string& path, const std::function<bool()>& stopped) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  Sha256Stream digest;
  std::vector<char> piece(kPieceBytes);
  while (file) {
    if (stopped != nullptr && stopped()) return absl::CancelledError(absl::StrCat(path, ": not digested"));
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    digest.Add(absl::string_view(piece.data(), static_cast<size_t>(file.gcount())));
  }
  if (!file.eof()) return absl::UnavailableError(absl::StrCat(path, ": cannot be read completely"));
  return digest.Finish();
}

}  // namespace

absl::StatusOr<std::string> WeightsDigest(const std::string& folder, const std::function<bool()>& stopped) {
  TANDEM_ASSIGN_OR_RETURN(const WeightFiles weights, WeightFiles::Open(folder));
  std::set<std::string> paths;
  for (const std::string& name : weights.names()) paths.insert(weights.FileOf(name));
  Sha256Stream digests;
  TANDEM_ASSIGN_OR_RETURN(const std::string config,
                          FileDigest(absl::StrCat(folder, "/config.json"), stopped));
  digests.Add(config);
  for (const std::string& path : paths) {
    TANDEM_ASSIGN_OR_RETURN(const std::string digest, FileDigest(path, stopped));
    digests.Add(digest);
  }
  return digests.Finish();
}

}  // namespace tandem
