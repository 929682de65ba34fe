#pragma once

#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/metrics/metrics.h"
#include "common/rpc/tls_files.h"

namespace tandem {

// Reports by metrics and log when a server's certificates expire, from construction to destruction. It reads
// the files as often as gRPC does, so that it reports the certificates that new connections use.
//
//   tandem_tls_certificate_expiry_timestamp_seconds{use}   "identity" (--tls-certificate), "ca" (--tls-ca)
//
// If the files cannot be used, the metric stays and the log gets a warning, so that a failed renewal is
// noticed at the latest when the alert for the old certificate fires. Any thread may call Look.
class CertificateWatch {
 public:
  // `metrics` outlives this, and may have only one. The constructor has read the files when it returns.
  CertificateWatch(const TlsFiles& files, MetricsRegistry* metrics);
  ~CertificateWatch();
  CertificateWatch(const CertificateWatch&) = delete;
  CertificateWatch& operator=(const CertificateWatch&) = delete;

  // Reads the files now.
  void Look();

 private:
  void Run();

  const TlsFiles files_;
  Gauge identity_;
  Gauge ca_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::string last_error_ ABSL_GUARDED_BY(mutex_);  // Each is logged once.
  std::thread thread_;
};

}  // namespace tandem
