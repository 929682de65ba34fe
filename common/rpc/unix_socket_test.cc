#include "common/rpc/unix_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "absl/time/clock.h"
#include "common/base/temporary_folder.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tandem/v1/admin.grpc.pb.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

// What a process leaves behind that dies: a socket file at which nobody listens.
void LeaveDeadSocket(const std::string& path) {
  const int made = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(made, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0)
      << std::strerror(errno);
  ASSERT_EQ(listen(made, 1), 0);
  close(made);
}

mode_t ModeOf(const std::string& path) {
  struct stat found = {};
  EXPECT_EQ(lstat(path.c_str(), &found), 0) << path;
  return found.st_mode & 07777;
}

bool Exists(const std::string& path) {
  struct stat found = {};
  return lstat(path.c_str(), &found) == 0;
}

grpc::Status AskAt(const std::string& address) {
  const auto stub = v1::Admin::NewStub(CreateChannel(address));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
  v1::ServerInfo info;
  return stub->GetServerInfo(&context, {}, &info);
}

TEST(UnixSocketTest, AddressesOfPathsAreTold) {
  EXPECT_EQ(UnixSocketPath("unix:/run/a"), "/run/a");
  EXPECT_EQ(UnixSocketPath("unix:///run/a"), "/run/a");
  EXPECT_EQ(UnixSocketPath("unix:a"), "a");
  for (const char* other : {"127.0.0.1:7003", "unix-abstract:a", "unixhost:7003", ""}) {
    EXPECT_EQ(UnixSocketPath(other), std::nullopt) << other;
  }
}

TEST(UnixSocketTest, IsThereWhileItListensAndForThisUserAlone) {
  const TemporaryFolder folder;
  const std::string path = folder.PathOf("a.sock");
  EXPECT_FALSE(IsListening(path));
  {
    const auto made = UnixSocket::Listen(path);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_TRUE(IsListening(path));
    EXPECT_EQ(ModeOf(path), 0600u);
    const auto second = UnixSocket::Listen(path);
    EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(second.status().message(), HasSubstr("another process listens there"));
    EXPECT_TRUE(IsListening(path));
  }
  EXPECT_FALSE(Exists(path));
}

TEST(UnixSocketTest, AFolderOfAGroupMakesItTheGroupsToo) {
  const TemporaryFolder folder;
  ASSERT_EQ(chmod(folder.path().c_str(), 02770), 0);
  const std::string path = folder.PathOf("a.sock");
  const auto made = UnixSocket::Listen(path);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(ModeOf(path), 0660u);
}

TEST(UnixSocketTest, TakesThePlaceOfADeadSocketOnly) {
  const TemporaryFolder folder;
  const std::string path = folder.PathOf("a.sock");
  LeaveDeadSocket(path);
  auto made = UnixSocket::Listen(path);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(IsListening(path));

  const std::string file = folder.Write("file", "not to be lost");
  EXPECT_THAT(UnixSocket::Listen(file).status().message(), HasSubstr("not a socket"));
  EXPECT_TRUE(Exists(file));
  EXPECT_THAT(UnixSocket::Listen(folder.PathOf("none/a.sock")).status().message(), HasSubstr("its folder"));
}

TEST(UnixSocketTest, LeavesAloneWhatHasTakenItsPath) {
  const TemporaryFolder folder;
  const std::string path = folder.PathOf("a.sock");
  auto made = UnixSocket::Listen(path);
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_EQ(unlink(path.c_str()), 0);
  const auto other = UnixSocket::Listen(path);
  ASSERT_TRUE(other.ok()) << other.status();
  *made = nullptr;
  EXPECT_TRUE(IsListening(path));
}

TEST(UnixSocketTest, APathThatIsTooLongIsNamed) {
  const TemporaryFolder folder;
  const std::string path = folder.PathOf(std::string(kMaxSocketPath, 'a'));
  const auto made = UnixSocket::Listen(path);
  EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(made.status().message(), HasSubstr("expected 1 to 107"));
  EXPECT_THAT(made.status().message(), HasSubstr(path));
  // The longest that is possible, less the character of the name that it is made under.
  const std::string longest = folder.PathOf(std::string(kMaxSocketPath - 1 - folder.path().size() - 1, 'a'));
  EXPECT_TRUE(UnixSocket::Listen(longest).ok());
}

TEST(UnixSocketTest, AServerListensAtAnAddressAndASocketAtOnce) {
  const TemporaryFolder folder;
  const std::string path = folder.PathOf("server.sock");
  {
    const auto server =
        ServerRunner::Start({.listen_address = "127.0.0.1:0", .local_socket = path}, {}, {}).value();
    EXPECT_TRUE(AskAt(server->address()).ok());
    const grpc::Status over_socket = AskAt("unix:" + path);
    EXPECT_TRUE(over_socket.ok()) << over_socket.error_message();
  }
  EXPECT_FALSE(Exists(path));
}

TEST(UnixSocketTest, AServerListensAtASocketAlone) {
  const TemporaryFolder folder;
  const std::string path = folder.PathOf("server.sock");
  LeaveDeadSocket(path);
  const auto server = ServerRunner::Start({.listen_address = "unix:" + path}, {}, {});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ((*server)->address(), "unix:" + path);
  EXPECT_EQ((*server)->port(), 0);
  EXPECT_TRUE(AskAt((*server)->address()).ok());
  const auto second = ServerRunner::Start({.listen_address = "unix:" + path}, {}, {});
  EXPECT_THAT(second.status().message(), HasSubstr("another process listens there"));
}

}  // namespace
}  // namespace tandem
