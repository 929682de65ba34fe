#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"

namespace tandem {

// Servers of one machine that are called over TCP, and by those on the same machine over sockets in a folder
// that the operator gives to both (--local-sockets; docs/inside/decisions/0016-sockets-are-found.md). No peer
// says where a socket is. A server draws random bytes, its socket's id, and listens in the folder under a
// name made of them; who has called it over TCP asks for the id and looks whether its own folder has that
// socket.

inline constexpr size_t kSocketIdBytes = 16;

// Of a server that starts.
std::string DrawSocketId();

// Where the server with this id listens. InvalidArgument for an id of another size, or where the path would
// be too long for a socket.
absl::StatusOr<std::string> LocalSocketPath(absl::string_view folder, absl::string_view id);

// Makes the folder for this user alone if it is not there, and removes sockets of servers that died.
// InvalidArgument, naming the flag, for what is no folder, can be written to by everybody, or has too long a
// path.
absl::Status PrepareLocalSockets(const std::string& folder);

// What to look for a server's socket with.
struct LocalSocketSearch {
  std::string folder;                                     // Empty: there is none.
  std::string endpoint;                                   // Of the server, as it is called over TCP.
  std::string server_name;                                // As CreateChannel has it.
  std::shared_ptr<grpc::ChannelCredentials> credentials;  // Of both channels; null: without TLS.
  std::shared_ptr<grpc::Channel> channel;                 // To the endpoint.
};

// Asks a server over TCP for its socket's id (Admin.GetServerInfo) and, where the folder has the socket, over
// the socket too: only where both answers are alike is it taken. With TLS both show a certificate for the
// endpoint.
//
//   Start --TCP: id--> is in the folder --socket: the same id--> done(channel)
//     '------- no folder, no id, no such socket, another id, no answer in time ----> done(null)
//
// `done` is called once, on a thread of gRPC's or, where there is nothing to ask, by Start itself. Cancel
// makes it come soon. Thread-safe.
class LocalSocketFinder {
 public:
  using Done = std::function<void(std::shared_ptr<grpc::Channel>)>;

  static std::shared_ptr<LocalSocketFinder> Start(LocalSocketSearch search, Done done);
  virtual ~LocalSocketFinder() = default;
  virtual void Cancel() = 0;
};

}  // namespace tandem
