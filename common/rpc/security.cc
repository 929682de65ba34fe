#include "common/rpc/security.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/config/secret.h"
#include "common/rpc/access.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"

// Newer versions of gRPC would have each provider named by what it provides, which 1.51 does not know.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace tandem {
namespace {

constexpr size_t kMaxPemBytes = size_t{1} << 20;

template <auto kFree>
struct Freed {
  template <class T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Bio = std::unique_ptr<BIO, Freed<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Freed<GENERAL_NAMES_free>>;

// A file that a flag names.
struct FlaggedFile {
  absl::string_view flag;
  const std::string& path;

  template <class... Parts>
  absl::Status Error(const Parts&... parts) const {
    ERR_clear_error();
    return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", path, ": ", parts...));
  }
};

absl::StatusOr<std::string> Content(const FlaggedFile& file) {
  absl::StatusOr<std::string> content = ReadFile(file.path, kMaxPemBytes);
  if (content.ok()) return content;
  return absl::InvalidArgumentError(absl::StrCat("--", file.flag, ": ", content.status().message()));
}

Bio Reader(const std::string& content) {
  return Bio(BIO_new_mem_buf(content.data(), static_cast<int>(content.size())));
}

absl::StatusOr<std::vector<Certificate>> ReadCertificates(const FlaggedFile& file) {
  TANDEM_ASSIGN_OR_RETURN(const std::string content, Content(file));
  const Bio reader = Reader(content);
  std::vector<Certificate> certificates;
  while (X509* certificate = PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(certificate);
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (certificates.empty() || !at_end) {
    return file.Error("expected certificates in PEM form, found ", certificates.size(), " that can be read");
  }
  return certificates;
}

// There is nobody to ask for a pass phrase.
int NoPassPhrase(char*, int, int, void*) {
  return 0;
}

absl::StatusOr<PrivateKey> ReadKey(const FlaggedFile& file) {
  TANDEM_ASSIGN_OR_RETURN(std::string content, Content(file));
  PrivateKey key(PEM_read_bio_PrivateKey(Reader(content).get(), nullptr, NoPassPhrase, nullptr));
  Cleanse(content);
  if (key == nullptr) return file.Error("expected a private key in PEM form, without a pass phrase");
  return key;
}

std::string Text(const ASN1_TIME* time) {
  const Bio writer(BIO_new(BIO_s_mem()));
  ASN1_TIME_print(writer.get(), time);
  char* text = nullptr;
  const long size = BIO_get_mem_data(writer.get(), &text);
  return std::string(text, static_cast<size_t>(size));
}

absl::Status CheckValidity(const FlaggedFile& file, const X509& certificate, absl::Time now) {
  time_t seconds = absl::ToTimeT(now);
  const ASN1_TIME* const begins = X509_get0_notBefore(&certificate);
  const ASN1_TIME* const ends = X509_get0_notAfter(&certificate);
  if (X509_cmp_time(ends, &seconds) <= 0) return file.Error("the certificate expired at ", Text(ends));
  if (X509_cmp_time(begins, &seconds) > 0)
    return file.Error("the certificate is valid only from ", Text(begins));
  return absl::OkStatus();
}

bool HasUri(const X509& certificate, absl::string_view uri) {
  const Names names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* const text = name->d.uniformResourceIdentifier;
    if (absl::string_view(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                          static_cast<size_t>(ASN1_STRING_length(text))) == uri) {
      return true;
    }
  }
  return false;
}

// The certificates to show, leaf first, of which the key is there.
absl::StatusOr<std::vector<Certificate>> ReadIdentity(const TlsFiles& files) {
  if (files.certificate.empty() || files.key.empty()) {
    return absl::InvalidArgumentError(
        "--tls-certificate, --tls-key: both are required if any TLS flag is given");
  }
  TANDEM_ASSIGN_OR_RETURN(std::vector<Certificate> chain,
                          ReadCertificates({"tls-certificate", files.certificate}));
  const FlaggedFile key_file{"tls-key", files.key};
  TANDEM_ASSIGN_OR_RETURN(const PrivateKey key, ReadKey(key_file));
  if (X509_check_private_key(chain.front().get(), key.get()) != 1) {
    return key_file.Error("this is not the key of the certificate in ", files.certificate);
  }
  return chain;
}

// `role`: the URI that the certificate must have; empty: none.
absl::Status CheckIdentity(const TlsFiles& files, const std::string& role, absl::Time now) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<Certificate> chain, ReadIdentity(files));
  const FlaggedFile certificate_file{"tls-certificate", files.certificate};
  TANDEM_RETURN_IF_ERROR(CheckValidity(certificate_file, *chain.front(), now));
  if (!role.empty() && !HasUri(*chain.front(), role)) {
    return certificate_file.Error(
        "expected the URI ", role,
        " among the certificate's alternative names, by which other servers know its role");
  }
  return absl::OkStatus();
}

absl::Time FirstExpiry(const std::vector<Certificate>& certificates) {
  absl::Time first = absl::InfiniteFuture();
  for (const Certificate& certificate : certificates) {
    tm parts = {};
    // An unreadable time does not count as being in the future.
    const bool readable = ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &parts) == 1;
    first = std::min(first, readable ? absl::FromTM(parts, absl::UTCTimeZone()) : absl::InfinitePast());
  }
  return first;
}

absl::Status CheckCa(const TlsFiles& files) {
  return ReadCertificates({"tls-ca", files.ca}).status();
}

std::shared_ptr<grpc::experimental::FileWatcherCertificateProvider> Watch(const TlsFiles& files) {
  return std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      files.key, files.certificate, files.ca, files.refresh_seconds);
}

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const TlsFiles& files) {
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(Watch(files));
  // Without a CA gRPC believes what the system does.
  if (!files.ca.empty()) options.watch_root_certs();
  if (!files.certificate.empty()) options.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const TlsFiles& files, v1::ServerRole role) {
  grpc::experimental::TlsServerCredentialsOptions options(Watch(files));
  options.watch_identity_key_cert_pairs();
  if (files.ca.empty()) {
    options.set_cert_request_type(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  } else {
    options.watch_root_certs();
    options.set_cert_request_type(role == v1::SERVER_ROLE_ROUTER
                                      ? GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY
                                      : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::experimental::TlsServerCredentials(options);
  if (credentials != nullptr) credentials->SetAuthMetadataProcessor(MakeAccessProcessor(role));
  return credentials;
}

}  // namespace

absl::StatusOr<Security> OpenServerSecurity(const TlsFiles& files, v1::ServerRole role, absl::Time now) {
  if (!files.any()) return Security{};
  // A drafter makes no calls, so no server checks its role.
  TANDEM_RETURN_IF_ERROR(CheckIdentity(files, role == v1::SERVER_ROLE_DRAFTER ? "" : RoleUri(role), now));
  if (files.ca.empty()) {
    if (role != v1::SERVER_ROLE_ROUTER) {
      return absl::InvalidArgumentError(
          "--tls-ca: expected with --tls-certificate, because only callers with a certificate may be served");
    }
  } else {
    TANDEM_RETURN_IF_ERROR(CheckCa(files));
  }
  Security security{.server = ServerCredentialsOf(files, role), .channel = ChannelCredentialsOf(files)};
  if (security.server == nullptr || security.channel == nullptr) {
    return absl::InternalError("gRPC does not accept the TLS files");
  }
  return security;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> OpenClientSecurity(const TlsFiles& files,
                                                                             absl::Time now) {
  if (!files.any()) return nullptr;
  if (files.ca.empty()) return absl::InvalidArgumentError("--tls-ca: expected with --tls-certificate");
  TANDEM_RETURN_IF_ERROR(CheckCa(files));
  if (!files.certificate.empty() || !files.key.empty()) {
    TANDEM_RETURN_IF_ERROR(CheckIdentity(files, /*role=*/"", now));
  }
  std::shared_ptr<grpc::ChannelCredentials> credentials = ChannelCredentialsOf(files);
  if (credentials == nullptr) return absl::InternalError("gRPC does not accept the TLS files");
  return credentials;
}

absl::StatusOr<CertificateExpiry> ReadCertificateExpiry(const TlsFiles& files) {
  CertificateExpiry expiry;
  if (!files.certificate.empty() || !files.key.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<Certificate> chain, ReadIdentity(files));
    expiry.identity = FirstExpiry(chain);
  }
  if (!files.ca.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<Certificate> signers, ReadCertificates({"tls-ca", files.ca}));
    expiry.ca = FirstExpiry(signers);
  }
  return expiry;
}

bool IsLoopback(absl::string_view listen_address) {
  if (absl::StartsWith(listen_address, "unix:") || absl::StartsWith(listen_address, "unix-abstract:")) {
    return true;
  }
  const size_t colon = listen_address.rfind(':');
  if (colon == absl::string_view::npos) return false;
  std::string host(listen_address.substr(0, colon));
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host == "localhost") return true;
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6;
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::Status CheckListenAddress(absl::string_view listen_address, bool tls, bool insecure) {
  if (tls || insecure || IsLoopback(listen_address)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--listen: other machines can reach \"", listen_address,
                   "\", and there is no TLS; expected --tls-certificate and --tls-key, a loopback address "
                   "such as 127.0.0.1, or --insecure if this is intended"));
}

}  // namespace tandem
