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

// Local sockets: clients on the same machine as a server can use a Unix socket instead of TCP, in a folder
// that the operator gives to both (--local-sockets; docs/inside/decisions/0016-sockets-are-found.md). No peer
// tells another the path of a socket. A server draws random bytes, its socket's id, and listens in the folder
// under a name made of them. A client that has called it over TCP asks for the id, and checks whether its own
// folder has that socket.

inline constexpr size_t kSocketIdBytes = 16;

// Draws the id of a server that starts.
std::string DrawSocketId();

// The path of the server's socket with this id. InvalidArgument for an id of another size, or if the path is
// too long for a socket.
absl::StatusOr<std::string> LocalSocketPath(absl::string_view folder, absl::string_view id);

// Creates the folder, for this user alone, if it does not exist, and removes sockets of dead servers.
// InvalidArgument, naming the flag, if the path is no folder, is writable by everybody, or is too long.
absl::Status PrepareLocalSockets(const std::string& folder);

// The inputs of a search for a server's socket.
struct LocalSocketSearch {
  std::string folder;                                     // Empty: there is none.
  std::string endpoint;                                   // Of the server, as it is called over TCP.
  std::string server_name;                                // As CreateChannel has it.
  std::shared_ptr<grpc::ChannelCredentials> credentials;  // Of both channels; null: without TLS.
  std::shared_ptr<grpc::Channel> channel;                 // To the endpoint.
};

// Asks a server over TCP for its socket's id (Admin.GetServerInfo). If the folder has that socket, asks over
// the socket too, and takes it only if both answers are equal. With TLS both connections must show a
// certificate for the endpoint.
//
//   Start --TCP: id--> is in the folder --socket: the same id--> done(channel)
//     '------- no folder, no id, no such socket, another id, no answer in time ----> done(null)
//
// `done` is called once, on one of gRPC's threads or, if there is nothing to ask, by Start itself. After
// Cancel it comes soon. Thread-safe.
class LocalSocketFinder {
 public:
  using Done = std::function<void(std::shared_ptr<grpc::Channel>)>;

  static std::shared_ptr<LocalSocketFinder> Start(LocalSocketSearch search, Done done);
  virtual ~LocalSocketFinder() = default;
  virtual void Cancel() = 0;
};

}  // namespace tandem
