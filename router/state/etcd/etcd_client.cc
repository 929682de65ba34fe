#include "router/state/etcd/etcd_client.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "common/rpc/security.h"
#include "common/rpc/status.h"
#include "grpcpp/client_context.h"

namespace tandem::router {
namespace {

constexpr size_t kMaxPasswordBytes = 4096;

absl::Status Named(const absl::Status& status, const std::string& endpoint) {
  if (status.ok()) return status;
  // To callers, a timeout and a cancellation are the same.
  const bool unavailable = absl::IsDeadlineExceeded(status) || absl::IsCancelled(status);
  return absl::Status(unavailable ? absl::StatusCode::kUnavailable : status.code(),
                      absl::StrCat("etcd at ", endpoint, ": ", status.message()));
}

// Whether etcd refuses the token that was shown, and nothing was done: it ended some minutes after it was
// last shown, or with the member that gave it; users or roles were changed since it was given, which tokens
// that are signed (JWT) record; or the member knows nobody by it. The last two share their code with other
// refusals, so their words tell them apart, as they do for etcd's own client.
bool RefusesToken(const absl::Status& status) {
  if (absl::IsUnauthenticated(status)) return true;
  return absl::IsInvalidArgument(status) &&
         (status.message() == "etcdserver: revision of auth store is old" ||
          status.message() == "etcdserver: user name is empty");
}

absl::StatusOr<Secret> ReadPassword(const std::string& path) {
  absl::StatusOr<std::string> content = ReadFile(path, kMaxPasswordBytes);
  if (!content.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--state-password-file: ", content.status().message()));
  }
  Secret password(absl::StripTrailingAsciiWhitespace(*content));
  Cleanse(*content);
  if (password.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--state-password-file: ", path, " is empty"));
  }
  return password;
}

void ShowToken(const Secret& token, grpc::ClientContext& context) {
  if (!token.empty()) context.AddMetadata("token", std::string(token.Reveal()));
}

// Whether `endpoint` may be asked without TLS.
absl::Status CheckOpenConnection(const std::string& endpoint, const EtcdAccess& access) {
  if (IsLoopback(endpoint) || access.insecure_password) return absl::OkStatus();
  if (!access.username.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--state-username: the password would cross the network to the etcd at ", endpoint,
        " in the clear; expected --state-tls-ca, or the setting state-insecure if this is intended"));
  }
  if (access.insecure) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--state: the etcd at ", endpoint,
                                                 " is on another machine, and there is no TLS; expected "
                                                 "--state-tls-ca, or --insecure if this is intended"));
}

}  // namespace

absl::StatusOr<EtcdClient::Options> EtcdClient::MakeOptions(std::vector<std::string> endpoints,
                                                            const EtcdAccess& access, absl::Time now) {
  Options options{.endpoints = std::move(endpoints), .username = access.username};
  absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials = OpenClientSecurity(access.tls, now);
  if (!credentials.ok()) {
    // The files are those of flags with longer names.
    return absl::Status(credentials.status().code(),
                        absl::StrReplaceAll(credentials.status().message(), {{"--tls-", "--state-tls-"}}));
  }
  options.credentials = *std::move(credentials);
  if (options.credentials == nullptr) {
    for (const std::string& endpoint : options.endpoints) {
      TANDEM_RETURN_IF_ERROR(CheckOpenConnection(endpoint, access));
    }
  }
  if (access.username.empty() != access.password_file.empty()) {
    return absl::InvalidArgumentError("--state-username, --state-password-file: expected both or none");
  }
  if (!access.username.empty()) {
    TANDEM_ASSIGN_OR_RETURN(options.password, ReadPassword(access.password_file));
  }
  return options;
}

EtcdClient::EtcdClient(Options options) : options_(std::move(options)) {
  for (const std::string& endpoint : options_.endpoints) {
    const std::shared_ptr<grpc::Channel> channel = tandem::CreateChannel(endpoint, options_.credentials);
    members_.push_back(std::make_unique<Member>(Member{.endpoint = endpoint,
                                                       .kv = etcdserverpb::KV::NewStub(channel),
                                                       .watch = etcdserverpb::Watch::NewStub(channel),
                                                       .lease = etcdserverpb::Lease::NewStub(channel),
                                                       .auth = etcdserverpb::Auth::NewStub(channel)}));
  }
}

EtcdClient::Member& EtcdClient::member() const {
  absl::MutexLock lock(&mutex_);
  return *members_[current_];
}

const std::string& EtcdClient::endpoint() const {
  return member().endpoint;
}

void EtcdClient::TryNext() {
  absl::MutexLock lock(&mutex_);
  current_ = (current_ + 1) % members_.size();
}

absl::StatusOr<Secret> EtcdClient::Token(const Member& member, absl::Time deadline) {
  if (options_.username.empty()) return Secret();
  {
    absl::MutexLock lock(&mutex_);
    if (!token_.empty()) return token_;
  }
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(deadline));
  etcdserverpb::AuthenticateRequest request;
  request.set_name(options_.username);
  request.set_password(std::string(options_.password.Reveal()));
  etcdserverpb::AuthenticateResponse response;
  const grpc::Status status = member.auth->Authenticate(&context, request, &response);
  Cleanse(*request.mutable_password());
  TANDEM_RETURN_IF_ERROR(FromGrpcStatus(status));
  Secret token(response.token());
  Cleanse(*response.mutable_token());
  absl::MutexLock lock(&mutex_);
  token_ = std::move(token);
  return token_;
}

template <class Call>
absl::Status EtcdClient::Perform(const Member& member, absl::Time deadline, const Call& call) {
  absl::Status status;
  for (int attempt = 0; attempt < 2; ++attempt) {
    const absl::StatusOr<Secret> token = Token(member, deadline);
    if (!token.ok()) return Named(token.status(), member.endpoint);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    ShowToken(*token, context);
    status = FromGrpcStatus(call(context));
    if (!RefusesToken(status) || token->empty()) break;
    absl::MutexLock lock(&mutex_);
    if (token_ == *token) token_ = Secret();
  }
  return Named(status, member.endpoint);
}

absl::StatusOr<etcdserverpb::RangeResponse> EtcdClient::Range(const etcdserverpb::RangeRequest& request,
                                                              absl::Time deadline) {
  const Member& to = member();
  etcdserverpb::RangeResponse response;
  TANDEM_RETURN_IF_ERROR(Perform(to, deadline, [&](grpc::ClientContext& context) {
    return to.kv->Range(&context, request, &response);
  }));
  return response;
}

absl::StatusOr<etcdserverpb::TxnResponse> EtcdClient::Txn(const etcdserverpb::TxnRequest& request,
                                                          absl::Time deadline) {
  const Member& to = member();
  etcdserverpb::TxnResponse response;
  TANDEM_RETURN_IF_ERROR(Perform(
      to, deadline, [&](grpc::ClientContext& context) { return to.kv->Txn(&context, request, &response); }));
  return response;
}

absl::StatusOr<etcdserverpb::LeaseGrantResponse> EtcdClient::GrantLease(
    const etcdserverpb::LeaseGrantRequest& request, absl::Time deadline) {
  const Member& to = member();
  etcdserverpb::LeaseGrantResponse response;
  TANDEM_RETURN_IF_ERROR(Perform(to, deadline, [&](grpc::ClientContext& context) {
    return to.lease->LeaseGrant(&context, request, &response);
  }));
  return response;
}

absl::StatusOr<etcdserverpb::LeaseRevokeResponse> EtcdClient::RevokeLease(
    const etcdserverpb::LeaseRevokeRequest& request, absl::Time deadline) {
  const Member& to = member();
  etcdserverpb::LeaseRevokeResponse response;
  TANDEM_RETURN_IF_ERROR(Perform(to, deadline, [&](grpc::ClientContext& context) {
    return to.lease->LeaseRevoke(&context, request, &response);
  }));
  return response;
}

absl::StatusOr<etcdserverpb::LeaseKeepAliveResponse> EtcdClient::KeepLeaseAlive(
    const etcdserverpb::LeaseKeepAliveRequest& request, absl::Time deadline) {
  const Member& to = member();
  etcdserverpb::LeaseKeepAliveResponse response;
  TANDEM_RETURN_IF_ERROR(Perform(to, deadline, [&](grpc::ClientContext& context) {
    const auto stream = to.lease->LeaseKeepAlive(&context);
    const bool answered = stream->Write(request) && stream->Read(&response);
    // The answer is all that is wanted of the stream, however that ends.
    if (answered) context.TryCancel();
    const grpc::Status ended = stream->Finish();
    if (answered) return grpc::Status::OK;
    return !ended.ok() ? ended : grpc::Status(grpc::StatusCode::UNAVAILABLE, "no answer about the lease");
  }));
  return response;
}

absl::StatusOr<std::shared_ptr<EtcdClient::WatchStream>> EtcdClient::Watch(
    const etcdserverpb::WatchCreateRequest& request, WatchStream::Callbacks callbacks, absl::Time deadline) {
  const Member& to = member();
  const absl::StatusOr<Secret> token = Token(to, deadline);
  if (!token.ok()) return Named(token.status(), to.endpoint);
  auto stream = WatchStream::Create();
  ShowToken(*token, stream->context());
  stream->context().AddMetadata("hasleader", "true");
  callbacks.on_closed = [on_closed = std::move(callbacks.on_closed), endpoint = to.endpoint](
                            const absl::Status& status) { on_closed(Named(status, endpoint)); };
  etcdserverpb::WatchRequest create;
  *create.mutable_create_request() = request;
  stream->Write(std::move(create));
  stream->Start(
      [&to](grpc::ClientContext* context, auto* reactor) { to.watch->async()->Watch(context, reactor); },
      std::move(callbacks));
  return stream;
}

}  // namespace tandem::router
