#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/config/secret.h"
#include "common/rpc/client_bidi.h"
#include "common/rpc/tls_files.h"
#include "etcd/rpc.grpc.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"

namespace tandem::router {

// Credentials for an etcd.
struct EtcdAccess {
  TlsFiles tls;           // None: without TLS.
  bool insecure = false;  // Without TLS even where other machines are asked, but showing them no password.
  bool insecure_password = false;  // So with a password, too.
  std::string username;            // Empty: without.
  std::string password_file;       // What it holds, without the line's end, is the password.
};

// Calls to one etcd, one member at a time. Calls block until they are answered, so do not make them on gRPC's
// threads. Errors name the member. A member that does not answer in time is Unavailable, like one that cannot
// be reached. Thread-safe.
class EtcdClient {
 public:
  struct Options {
    std::vector<std::string> endpoints;  // "host:port", at least one.
    std::shared_ptr<grpc::ChannelCredentials> credentials;
    std::string username;
    Secret password;
  };
  using WatchStream = ClientBidi<etcdserverpb::WatchRequest, etcdserverpb::WatchResponse>;

  // Reads the files of `access`. InvalidArgument, naming the flag, if they cannot be used, or if a member on
  // another machine would be used without TLS and no flag allows that.
  static absl::StatusOr<Options> MakeOptions(std::vector<std::string> endpoints, const EtcdAccess& access,
                                             absl::Time now);

  explicit EtcdClient(Options options);

  size_t num_endpoints() const { return members_.size(); }
  // The member in use.
  const std::string& endpoint() const;
  // Switches to the next member.
  void TryNext();

  absl::StatusOr<etcdserverpb::RangeResponse> Range(const etcdserverpb::RangeRequest& request,
                                                    absl::Time deadline);
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request, absl::Time deadline);

  absl::StatusOr<etcdserverpb::LeaseGrantResponse> GrantLease(const etcdserverpb::LeaseGrantRequest& request,
                                                              absl::Time deadline);
  absl::StatusOr<etcdserverpb::LeaseRevokeResponse> RevokeLease(
      const etcdserverpb::LeaseRevokeRequest& request, absl::Time deadline);
  // Renews one lease, once.
  absl::StatusOr<etcdserverpb::LeaseKeepAliveResponse> KeepLeaseAlive(
      const etcdserverpb::LeaseKeepAliveRequest& request, absl::Time deadline);

  // Starts a watch. Its events go to the callbacks, on gRPC's threads. A member that has lost its leader ends
  // the watch. An error if the member refuses user and password.
  absl::StatusOr<std::shared_ptr<WatchStream>> Watch(const etcdserverpb::WatchCreateRequest& request,
                                                     WatchStream::Callbacks callbacks, absl::Time deadline);

 private:
  struct Member {
    std::string endpoint;
    std::unique_ptr<etcdserverpb::KV::Stub> kv;
    std::unique_ptr<etcdserverpb::Watch::Stub> watch;
    std::unique_ptr<etcdserverpb::Lease::Stub> lease;
    std::unique_ptr<etcdserverpb::Auth::Stub> auth;
  };

  Member& member() const;
  // The token for calls; empty if there is no user name. Asks etcd for a token if there is none yet.
  absl::StatusOr<Secret> Token(const Member& member, absl::Time deadline);
  // Runs `call(context)`. If etcd refuses the token, runs it once more with a new one.
  template <class Call>
  absl::Status Perform(const Member& member, absl::Time deadline, const Call& call);

  const Options options_;
  std::vector<std::unique_ptr<Member>> members_;
  mutable absl::Mutex mutex_;
  size_t current_ ABSL_GUARDED_BY(mutex_) = 0;
  Secret token_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::router
