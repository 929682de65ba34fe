#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/rpc/tls_files.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "tandem/v1/admin.pb.h"

namespace tandem {

// Null credentials: without TLS.
struct Security {
  std::shared_ptr<grpc::ServerCredentials> server;
  std::shared_ptr<grpc::ChannelCredentials> channel;
};

// A server's credentials, and those of its calls to other servers. With a certificate, all of its connections
// use TLS. Verifiers and drafters require every caller to have a certificate signed by `ca`. A router, whose
// callers have tenants' tokens, requires none but checks one that is shown. common/rpc/access.h says what
// roles in certificates allow.
//
// InvalidArgument, naming flag and file, if files are missing, are not PEM, do not belong together or are not
// valid at `now`, or if the certificate lacks the role that other servers require.
absl::StatusOr<Security> OpenServerSecurity(const TlsFiles& files, v1::ServerRole role, absl::Time now);

// Credentials of a client: null without files. `ca` alone is enough, because some servers do not require a
// client certificate. The same errors.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> OpenClientSecurity(const TlsFiles& files,
                                                                             absl::Time now);

// When certificates expire: of each file, the first one to expire; infinite without a file.
struct CertificateExpiry {
  absl::Time identity = absl::InfiniteFuture();  // Of what is shown, and those between it and the CA.
  absl::Time ca = absl::InfiniteFuture();        // Of those that sign peers'.
};

// Reads the current files. The same errors, except for certificates that are not valid now.
absl::StatusOr<CertificateExpiry> ReadCertificateExpiry(const TlsFiles& files);

// Whether only this machine can reach the address: 127.0.0.0/8, ::1, localhost, or a unix socket.
bool IsLoopback(absl::string_view listen_address);

// InvalidArgument if other machines can reach `listen_address`, and neither `tls` nor `insecure` is set.
absl::Status CheckListenAddress(absl::string_view listen_address, bool tls, bool insecure);

}  // namespace tandem
