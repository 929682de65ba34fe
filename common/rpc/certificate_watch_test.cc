#include "common/rpc/certificate_watch.h"

#include <fstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/rpc/security.h"
#include "common/rpc/testing/certificates_fixture.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

// The expiry of `use` that the registry shows; the infinite past when it shows none.
absl::Time ShownExpiry(const MetricsRegistry& metrics, absl::string_view use) {
  const std::string text = metrics.Expose();
  const std::string name =
      absl::StrCat("\ntandem_tls_certificate_expiry_timestamp_seconds{use=\"", use, "\"} ");
  const size_t at = text.find(name);
  if (at == std::string::npos) return absl::InfinitePast();
  const size_t begin = at + name.size();
  double seconds = 0.0;
  if (!absl::SimpleAtod(text.substr(begin, text.find('\n', begin) - begin), &seconds)) {
    return absl::InfinitePast();
  }
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

// Whether it lies `days` ahead, the time that making the certificate took aside.
bool IsAhead(absl::Time expiry, int days) {
  const absl::Duration off = absl::Now() + absl::Hours(24 * days) - expiry;
  return off > -absl::Minutes(1) && off < absl::Minutes(10);
}

// For those that look when they are told to, not by themselves.
TlsFiles Unhurried(TlsFiles files) {
  files.refresh_seconds = 3600;
  return files;
}

TEST(CertificateWatchTest, TellsTheFirstExpiryOfEachFile) {
  Certificates certificates;
  certificates.MakeCa(/*days=*/90);
  const TlsFiles files = Unhurried(certificates.Make("server", "", /*days=*/20));
  MetricsRegistry metrics;
  CertificateWatch watch(files, &metrics);
  EXPECT_TRUE(IsAhead(ShownExpiry(metrics, "identity"), 20)) << metrics.Expose();
  EXPECT_TRUE(IsAhead(ShownExpiry(metrics, "ca"), 90)) << metrics.Expose();

  // Of what stands between the leaf and the CA too.
  const TlsFiles shorter = certificates.Make("between", "", /*days=*/7);
  std::ofstream(files.certificate, std::ios::app) << ReadFile(shorter.certificate, size_t{1} << 20).value();
  watch.Look();
  EXPECT_TRUE(IsAhead(ShownExpiry(metrics, "identity"), 7)) << metrics.Expose();
}

TEST(CertificateWatchTest, FollowsRenewalsAndSurvivesBadOnes) {
  Certificates certificates;
  const TlsFiles files = Unhurried(certificates.Make("server", "", /*days=*/3));
  MetricsRegistry metrics;
  CertificateWatch watch(files, &metrics);
  certificates.Make("server", "", /*days=*/40);
  EXPECT_TRUE(IsAhead(ShownExpiry(metrics, "identity"), 3)) << "nobody has looked";
  watch.Look();
  EXPECT_TRUE(IsAhead(ShownExpiry(metrics, "identity"), 40));

  // Half a renewal: the certificate of another key. What is told is what was good.
  const TlsFiles other = certificates.Make("other", "", /*days=*/50);
  const std::string key = ReadFile(files.key, size_t{1} << 20).value();
  std::ofstream(files.key, std::ios::trunc) << ReadFile(other.key, size_t{1} << 20).value();
  watch.Look();
  EXPECT_TRUE(IsAhead(ShownExpiry(metrics, "identity"), 40));
  std::ofstream(files.key, std::ios::trunc) << "no key";
  watch.Look();
  EXPECT_TRUE(IsAhead(ShownExpiry(metrics, "identity"), 40));
  std::ofstream(files.key, std::ios::trunc) << key;

  // What signs peers' is renewed by itself.
  certificates.MakeCa(/*days=*/1);
  watch.Look();
  EXPECT_TRUE(IsAhead(ShownExpiry(metrics, "ca"), 1));
}

TEST(CertificateWatchTest, WithoutACaThereIsNoneToTell) {
  Certificates certificates;
  TlsFiles files = Unhurried(certificates.Make("server", ""));
  files.ca.clear();
  MetricsRegistry metrics;
  CertificateWatch watch(files, &metrics);
  EXPECT_TRUE(IsAhead(ShownExpiry(metrics, "identity"), 2));
  EXPECT_EQ(ShownExpiry(metrics, "ca"), absl::InfinitePast());
}

TEST(CertificateExpiryTest, FilesThatCannotBeUsedAreErrors) {
  Certificates certificates;
  TlsFiles files = certificates.Make("server", "");
  files.ca = files.key;
  EXPECT_EQ(ReadCertificateExpiry(files).status().code(), absl::StatusCode::kInvalidArgument);
  files.ca = "/nonexistent/ca.pem";
  EXPECT_EQ(ReadCertificateExpiry(files).status().code(), absl::StatusCode::kInvalidArgument);
  files.ca.clear();
  files.key.clear();
  EXPECT_EQ(ReadCertificateExpiry(files).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadCertificateExpiry({}).value().identity, absl::InfiniteFuture());
}

}  // namespace
}  // namespace tandem
