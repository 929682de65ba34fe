#pragma once

#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/metrics/metrics.h"
#include "common/rpc/tls_files.h"

namespace tandem {

// Tells by metrics and log when a server's certificates expire, from construction to destruction: it reads
// the files as often as gRPC does, so that what it tells is of the certificates that new connections are made
// with.
//
//   tandem_tls_certificate_expiry_timestamp_seconds{use}   "identity" (--tls-certificate), "ca" (--tls-ca)
//
// Files that cannot be used leave the metric as it was and a warning in the log, so that a renewal that went
// wrong is seen at the latest when the alert for the certificate of before fires. Any thread may call Look.
class CertificateWatch {
 public:
  // `metrics` outlives it, and has no other. Files have been looked at when it returns.
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
