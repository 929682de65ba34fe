#include "common/rpc/certificate_watch.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "common/rpc/security.h"

namespace tandem {
namespace {

double UnixSeconds(absl::Time time) {
  return absl::ToDoubleSeconds(time - absl::UnixEpoch());
}

}  // namespace

CertificateWatch::CertificateWatch(const TlsFiles& files, MetricsRegistry* metrics) : files_(files) {
  GaugeFamily& expiry =
      metrics->AddGauge({"tandem_tls_certificate_expiry_timestamp_seconds",
                         "Unix time at which the first certificate in a file expires: the server's own "
                         "certificates (identity) or the certificate authorities of peers (ca).",
                         {"use"}});
  if (!files.certificate.empty()) identity_ = expiry.With({"identity"});
  if (!files.ca.empty()) ca_ = expiry.With({"ca"});
  Look();
  thread_ = std::thread([this] { Run(); });
}

CertificateWatch::~CertificateWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void CertificateWatch::Look() {
  const absl::StatusOr<CertificateExpiry> expiry = ReadCertificateExpiry(files_);
  absl::MutexLock lock(&mutex_);
  const std::string error(expiry.status().message());
  if (error != last_error_ && !error.empty()) {
    LogWarning("TLS files cannot be used; new connections may fail", {{"error", error}});
  }
  last_error_ = error;
  if (!expiry.ok()) return;
  const double identity = UnixSeconds(expiry->identity);
  if (identity_.value() != 0.0 && identity_.value() != identity) {
    LogInfo("certificate reloaded", {{"expires", absl::FormatTime(expiry->identity, absl::UTCTimeZone())}});
  }
  identity_.Set(identity);
  ca_.Set(UnixSeconds(expiry->ca));
}

void CertificateWatch::Run() {
  const absl::Duration period = absl::Seconds(std::max(files_.refresh_seconds, uint32_t{1}));
  const auto stopping = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_; };
  absl::MutexLock lock(&mutex_);
  while (!mutex_.AwaitWithTimeout(absl::Condition(&stopping), period)) {
    mutex_.Unlock();
    Look();
    mutex_.Lock();
  }
}

}  // namespace tandem
