#include "common/rpc/local_sockets.h"

#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/base/temporary_folder.h"
#include "common/rpc/access.h"
#include "common/rpc/channel.h"
#include "common/rpc/security.h"
#include "common/rpc/server.h"
#include "common/rpc/testing/certificates_fixture.h"
#include "common/rpc/unix_socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tandem/v1/admin.grpc.pb.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

// A server that says that its socket has `said`, and listens at that of `listens`.
std::unique_ptr<ServerRunner> StartServer(const std::string& folder, const std::string& said,
                                          const std::string& listens,
                                          std::shared_ptr<grpc::ServerCredentials> credentials = nullptr) {
  ServerOptions options{.listen_address = "127.0.0.1:0", .credentials = std::move(credentials)};
  if (!listens.empty()) options.local_socket = LocalSocketPath(folder, listens).value();
  return ServerRunner::Start(options, {},
                             {.server_info =
                                  [said] {
                                    v1::ServerInfo info;
                                    info.set_local_socket(said);
                                    return info;
                                  }})
      .value();
}

// The channel that is found, or null.
std::shared_ptr<grpc::Channel> Search(const std::string& folder, const std::string& endpoint,
                                      std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr) {
  absl::Notification done;
  std::shared_ptr<grpc::Channel> found;
  const auto finder = LocalSocketFinder::Start({.folder = folder,
                                                .endpoint = endpoint,
                                                .credentials = credentials,
                                                .channel = tandem::CreateChannel(endpoint, credentials)},
                                               [&](std::shared_ptr<grpc::Channel> channel) {
                                                 found = std::move(channel);
                                                 done.Notify();
                                               });
  done.WaitForNotification();
  return found;
}

TEST(LocalSocketsTest, AServerIsFoundByTheIdThatItTells) {
  const TemporaryFolder folder;
  const std::string id = DrawSocketId();
  const auto server = StartServer(folder.path(), id, id);
  const std::shared_ptr<grpc::Channel> channel = Search(folder.path(), server->address());
  ASSERT_NE(channel, nullptr);
  grpc::ClientContext context;
  v1::ServerInfo info;
  EXPECT_TRUE(v1::Admin::NewStub(channel)->GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.local_socket(), id);
}

TEST(LocalSocketsTest, WithoutAFolderNobodyIsAsked) {
  const TemporaryFolder folder;
  EXPECT_EQ(Search("", "127.0.0.1:1"), nullptr);
  EXPECT_EQ(Search(folder.path(), "unix:/no/such/socket"), nullptr);
}

TEST(LocalSocketsTest, WhoDoesNotAnswerOrHasNoSocketIsCalledOverTcp) {
  const TemporaryFolder folder;
  EXPECT_EQ(Search(folder.path(), "127.0.0.1:1"), nullptr);
  const auto silent = StartServer(folder.path(), "", "");
  EXPECT_EQ(Search(folder.path(), silent->address()), nullptr);
  // On another machine: the id is true, and the socket is not in this folder.
  const TemporaryFolder elsewhere;
  const std::string id = DrawSocketId();
  const auto remote = StartServer(elsewhere.path(), id, id);
  EXPECT_EQ(Search(folder.path(), remote->address()), nullptr);
}

// What a peer says becomes a name in the folder and nothing else.
TEST(LocalSocketsTest, AHostileServerCannotNameOtherSockets) {
  const TemporaryFolder outer;
  ASSERT_EQ(mkdir(outer.PathOf("sockets").c_str(), 0700), 0);
  const std::string folder = outer.PathOf("sockets");
  const auto victim = UnixSocket::Listen(outer.PathOf("victim.sock"));
  ASSERT_TRUE(victim.ok()) << victim.status();
  for (const std::string& id :
       {std::string("../victim"), std::string("../victim.sock\0\0", 16), std::string(15, 'a'),
        std::string(17, 'a'), std::string("/"), std::string(4096, '/')}) {
    const auto server = StartServer(folder, id, "");
    EXPECT_EQ(Search(folder, server->address()), nullptr) << id;
  }
}

// The socket's own answer decides, not what leads there: another process's socket is not taken.
TEST(LocalSocketsTest, ASocketThatSaysAnotherIdIsNotTaken) {
  const TemporaryFolder folder;
  const std::string id = DrawSocketId();
  const auto other = StartServer(folder.path(), DrawSocketId(), id);
  const auto server = StartServer(folder.path(), id, "");
  EXPECT_EQ(Search(folder.path(), server->address()), nullptr);
}

TEST(LocalSocketsTest, WhatIsNoSocketOrDeadIsNotTaken) {
  const TemporaryFolder folder;
  const std::string id = DrawSocketId();
  const std::string path = LocalSocketPath(folder.path(), id).value();
  const auto server = StartServer(folder.path(), id, "");
  folder.Write(path.substr(path.rfind('/') + 1), "a file");
  EXPECT_EQ(Search(folder.path(), server->address()), nullptr);
  unlink(path.c_str());
  auto dead = UnixSocket::Listen(path).value();
  close(dead->Release());
  EXPECT_EQ(Search(folder.path(), server->address()), nullptr);
}

// With TLS the socket asks for certificates as the port does.
TEST(LocalSocketsTest, WithTlsBothShowTheCertificateOfTheEndpoint) {
  const TemporaryFolder folder;
  Certificates certificates;
  const auto security = [&](const std::string& name, v1::ServerRole role) {
    // First, since they are valid only from now on.
    const TlsFiles files = certificates.Make(name, RoleUri(role));
    return OpenServerSecurity(files, role, absl::Now()).value();
  };
  const std::string id = DrawSocketId();
  const auto server = StartServer(folder.path(), id, id, security("drafter", v1::SERVER_ROLE_DRAFTER).server);
  const Security verifier = security("verifier", v1::SERVER_ROLE_VERIFIER);
  EXPECT_NE(Search(folder.path(), server->address(), verifier.channel), nullptr);
  // Without a certificate neither port nor socket can be spoken with.
  EXPECT_EQ(Search(folder.path(), server->address()), nullptr);
  EXPECT_EQ(Search(folder.path(), "unix:" + LocalSocketPath(folder.path(), id).value()), nullptr);
}

TEST(LocalSocketsTest, AFolderIsMadeForOneUserAndSweptOfTheDead) {
  const TemporaryFolder outer;
  const std::string folder = outer.PathOf("sockets");
  ASSERT_TRUE(PrepareLocalSockets(folder).ok());
  struct stat made = {};
  ASSERT_EQ(stat(folder.c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 07777, 0700u);

  const auto lives = UnixSocket::Listen(LocalSocketPath(folder, DrawSocketId()).value());
  ASSERT_TRUE(lives.ok()) << lives.status();
  const std::string dead = LocalSocketPath(folder, DrawSocketId()).value();
  auto ended = UnixSocket::Listen(dead).value();
  close(ended->Release());
  const std::string not_ours = absl::StrCat(folder, "/other.sock");
  auto stranger = UnixSocket::Listen(not_ours).value();
  close(stranger->Release());
  ASSERT_TRUE(PrepareLocalSockets(folder).ok());
  EXPECT_NE(access((*lives)->path().c_str(), F_OK), -1);
  EXPECT_EQ(access(dead.c_str(), F_OK), -1);
  EXPECT_NE(access(not_ours.c_str(), F_OK), -1);
}

TEST(LocalSocketsTest, FoldersThatCannotBeUsedAreNamed) {
  const TemporaryFolder outer;
  const auto error = [](const std::string& folder) {
    const absl::Status status = PrepareLocalSockets(folder);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << folder;
    return std::string(status.message());
  };
  EXPECT_THAT(error("relative"), HasSubstr("expected an absolute path"));
  EXPECT_THAT(error(outer.Write("file", "")), HasSubstr("is not a folder"));
  EXPECT_THAT(error(outer.PathOf("no/such")), HasSubstr("cannot be created"));
  EXPECT_THAT(error(outer.PathOf(std::string(80, 'a'))), HasSubstr("expected at most 68"));
  ASSERT_EQ(chmod(outer.path().c_str(), 0777), 0);
  EXPECT_THAT(error(outer.path()), HasSubstr("everybody can write to it"));
}

}  // namespace
}  // namespace tandem
