#include "common/rpc/local_sockets.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "common/rpc/release.h"
#include "common/rpc/unix_socket.h"
#include "tandem/v1/admin.grpc.pb.h"

namespace tandem {
namespace {

// For an answer over the socket. A server that is stopped leaves one that takes connections and is silent.
constexpr absl::Duration kAnswerTime = absl::Milliseconds(500);
constexpr absl::string_view kSuffix = ".sock";

absl::Status WrongFolder(const std::string& folder, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("--local-sockets: ", folder, ": ", what));
}

bool IsSocketName(absl::string_view name) {
  if (name.size() != 2 * kSocketIdBytes + kSuffix.size() || !absl::EndsWith(name, kSuffix)) return false;
  for (const char c : name.substr(0, 2 * kSocketIdBytes)) {
    if (!absl::ascii_isdigit(c) && !(c >= 'a' && c <= 'f')) return false;
  }
  return true;
}

// Sockets are renamed into place once they listen, so one where nobody does is of a process that died.
void RemoveDeadSockets(const std::string& folder) {
  DIR* const listing = opendir(folder.c_str());
  if (listing == nullptr) return;
  while (const dirent* entry = readdir(listing)) {
    if (!IsSocketName(entry->d_name)) continue;
    const std::string path = absl::StrCat(folder, "/", entry->d_name);
    if (!IsListening(path)) unlink(path.c_str());
  }
  closedir(listing);
}

bool IsSocket(const std::string& path) {
  struct stat found = {};
  return lstat(path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode);
}

// What a certificate names: "host" of "host:port" or "dns:///host:port", without brackets.
std::string HostOf(const std::string& endpoint) {
  std::string host = endpoint.substr(0, endpoint.rfind(':'));
  for (const absl::string_view scheme : {"dns:", "ipv4:", "ipv6:"}) {
    if (absl::StartsWith(host, scheme)) host = host.substr(scheme.size());
  }
  host = host.substr(host.rfind('/') + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return host;
}

class Finder final : public LocalSocketFinder, public std::enable_shared_from_this<Finder> {
 public:
  Finder(LocalSocketSearch search, Done done) : search_(std::move(search)), done_(std::move(done)) {}

  void Ask(std::shared_ptr<grpc::Channel> channel, void (Finder::*answered)(bool ok)) {
    bool cancelled = false;
    {
      absl::MutexLock lock(&mutex_);
      cancelled = cancelled_;
      if (!cancelled) {
        context_ = std::make_shared<grpc::ClientContext>();
        context_->set_deadline(absl::ToChronoTime(absl::Now() + kAnswerTime));
      }
    }
    if (cancelled) return Finish(nullptr);
    info_.Clear();
    stub_ = v1::Admin::NewStub(channel);
    stub_->async()->GetServerInfo(context_.get(), &request_, &info_,
                                  [self = shared_from_this(), answered](const grpc::Status& status) mutable {
                                    std::shared_ptr<Finder> finder = std::move(self);
                                    ((*finder).*answered)(status.ok());
                                    ReleaseElsewhere(std::move(finder));
                                  });
  }

  void OverTcp(bool ok) {
    const absl::StatusOr<std::string> path = LocalSocketPath(search_.folder, info_.local_socket());
    if (!ok || !path.ok() || !IsSocket(*path)) return Finish(nullptr);
    id_ = info_.local_socket();
    local_ =
        tandem::CreateChannel(absl::StrCat("unix:", *path), search_.credentials,
                              search_.server_name.empty() ? HostOf(search_.endpoint) : search_.server_name);
    Ask(local_, &Finder::OverSocket);
  }

  void OverSocket(bool ok) { Finish(ok && info_.local_socket() == id_ ? local_ : nullptr); }

  void Finish(std::shared_ptr<grpc::Channel> channel) {
    Done done = std::exchange(done_, nullptr);
    done(std::move(channel));
  }

  void Cancel() override {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    if (context_ != nullptr) context_->TryCancel();
  }

 private:
  const LocalSocketSearch search_;
  Done done_;
  std::string id_;
  std::shared_ptr<grpc::Channel> local_;
  std::unique_ptr<v1::Admin::Stub> stub_;
  const v1::GetServerInfoRequest request_;
  v1::ServerInfo info_;
  absl::Mutex mutex_;
  std::shared_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::string DrawSocketId() {
  std::random_device entropy;
  std::string id;
  while (id.size() < kSocketIdBytes) id.push_back(static_cast<char>(entropy() & 0xff));
  return id;
}

absl::StatusOr<std::string> LocalSocketPath(absl::string_view folder, absl::string_view id) {
  if (id.size() != kSocketIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("local_socket: ", id.size(), " bytes, expected ", kSocketIdBytes));
  }
  std::string path = absl::StrCat(folder, "/", absl::BytesToHexString(id), kSuffix);
  if (path.size() < kMaxSocketPath) return path;
  return absl::InvalidArgumentError(absl::StrCat("--local-sockets: ", folder, ": a path of ", folder.size(),
                                                 " bytes, expected at most ",
                                                 kMaxSocketPath - 1 - (path.size() - folder.size()),
                                                 ", because the system limits the path of a socket"));
}

absl::Status PrepareLocalSockets(const std::string& folder) {
  if (folder.empty() || folder.front() != '/') {
    return WrongFolder(folder, "expected an absolute path, because other processes use the same folder");
  }
  TANDEM_RETURN_IF_ERROR(LocalSocketPath(folder, std::string(kSocketIdBytes, '\0')).status());
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return WrongFolder(folder, absl::StrCat("cannot be created: ", std::strerror(errno)));
  }
  struct stat found = {};
  if (stat(folder.c_str(), &found) != 0) return WrongFolder(folder, std::strerror(errno));
  if (!S_ISDIR(found.st_mode)) return WrongFolder(folder, "is not a folder");
  if ((found.st_mode & S_IWOTH) != 0) {
    return WrongFolder(folder,
                       "everybody can write to it; expected a folder of one user or group, such as one below "
                       "it, which is created if it does not exist");
  }
  RemoveDeadSockets(folder);
  return absl::OkStatus();
}

std::shared_ptr<LocalSocketFinder> LocalSocketFinder::Start(LocalSocketSearch search, Done done) {
  const bool nothing_to_ask = search.folder.empty() || absl::StartsWith(search.endpoint, "unix:") ||
                              absl::StartsWith(search.endpoint, "unix-abstract:");
  const std::shared_ptr<grpc::Channel> channel = search.channel;
  auto finder = std::make_shared<Finder>(std::move(search), std::move(done));
  if (nothing_to_ask) {
    finder->Finish(nullptr);
  } else {
    finder->Ask(channel, &Finder::OverTcp);
  }
  return finder;
}

}  // namespace tandem
