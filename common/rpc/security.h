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

// A server's credentials and those of its calls to other servers. With a certificate all of its connections
// use TLS. Verifiers and drafters ask every caller for a certificate signed by `ca`; a router, whose callers
// have tenants' tokens, asks for none but checks one that is shown. What roles in certificates allow is said
// in common/rpc/access.h.
//
// InvalidArgument, naming flag and file, when files are missing, are not PEM, do not belong together, are not
// valid at `now`, or when the certificate lacks the role that other servers will want to see.
absl::StatusOr<Security> OpenServerSecurity(const TlsFiles& files, v1::ServerRole role, absl::Time now);

// Credentials of a client: null without files. `ca` alone is enough, since servers may go without the
// client's certificate. The same errors.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> OpenClientSecurity(const TlsFiles& files,
                                                                             absl::Time now);

// When certificates end: of each file the one that does so first; never, where there is no file.
struct CertificateExpiry {
  absl::Time identity = absl::InfiniteFuture();  // Of what is shown, and those between it and the CA.
  absl::Time ca = absl::InfiniteFuture();        // Of those that sign peers'.
};

// Of the files as they are now. The same errors, but none for certificates that are not valid at the moment.
absl::StatusOr<CertificateExpiry> ReadCertificateExpiry(const TlsFiles& files);

// Whether only this machine can reach what listens there: 127.0.0.0/8, ::1, localhost, or a unix socket.
bool IsLoopback(absl::string_view listen_address);

// InvalidArgument when `listen_address` can be reached from elsewhere, there is no TLS and nobody said that
// this is meant.
absl::Status CheckListenAddress(absl::string_view listen_address, bool tls, bool insecure);

}  // namespace tandem
