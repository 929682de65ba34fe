// Files of certificates and keys.

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/rpc/security.h"
#include "common/rpc/testing/certificates_fixture.h"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

bool RunCertificates(absl::string_view input) {
  InputReader reader(input);
  const uint8_t kind = reader.Below(4);
  TlsFiles files{.certificate = ScratchFile("tls.crt", reader.Part()),
                 .key = ScratchFile("tls.key", reader.Part())};
  const std::string ca = ScratchFile("ca.crt", reader.Rest());
  if (kind != 0) files.ca = ca;
  const absl::StatusOr<CertificateExpiry> expiry = ReadCertificateExpiry(files);
  if (!expiry.ok()) Refused(expiry.status(), "--tls-");
  // At times when no certificate of ours is valid yet, or any more: what is read is all that is tried here.
  for (const absl::Time now : {absl::FromUnixSeconds(0), absl::FromUnixSeconds(int64_t{1} << 40)}) {
    const auto role = kind == 1   ? v1::SERVER_ROLE_DRAFTER
                      : kind == 2 ? v1::SERVER_ROLE_VERIFIER
                                  : v1::SERVER_ROLE_ROUTER;
    const absl::StatusOr<Security> security = OpenServerSecurity(files, role, now);
    if (!security.ok()) Refused(security.status(), "--tls-");
    Require(!security.ok() || expiry.ok(), "files that are used can be read");
  }
  return expiry.ok();
}

std::vector<std::string> CertificatesSeeds() {
  Certificates certificates;
  certificates.MakeCa(3000);
  const TlsFiles files = certificates.Make("server", "urn:tandem:role:verifier", 3000);
  const auto text = [](const std::string& path) {
    const absl::StatusOr<std::string> content = ReadFile(path, 1 << 20);
    Require(content.ok(), content.status().message());
    return *content;
  };
  std::vector<std::string> seeds;
  for (const char kind : {'\0', '\1', '\2', '\3'}) {
    seeds.push_back(std::string(1, kind) + Parts({text(files.certificate), text(files.key), text(files.ca)}));
  }
  // A chain, and texts in between.
  seeds.push_back("\2" + Parts({absl::StrCat("leaf\n", text(files.certificate), "\nca\n", text(files.ca)),
                                text(files.key), absl::StrCat(text(files.ca), text(files.certificate))}));
  return seeds;
}

const Registration kCertificates(
    {.name = "certificates", .run = RunCertificates, .seeds = CertificatesSeeds, .spoilt = 300});

}  // namespace
}  // namespace tandem::fuzz
