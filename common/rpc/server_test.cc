#include "common/rpc/server.h"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/mailbox.h"
#include "common/rpc/access.h"
#include "common/rpc/security.h"
#include "common/rpc/server_bidi.h"
#include "common/rpc/status.h"
#include "common/rpc/testing/certificates_fixture.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/unknown_field_set.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/impl/client_unary_call.h"
#include "gtest/gtest.h"
#include "tandem/v1/admin.grpc.pb.h"
#include "tandem/v1/drafter.grpc.pb.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

// Any method with opaque messages, to reach services whose protos we do not have.
grpc::Status CallRaw(grpc::Channel* channel, const std::string& method, const std::string& request,
                     std::string* response) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  const grpc::Slice slice(request);
  grpc::ByteBuffer in(&slice, 1);
  grpc::ByteBuffer out;
  const grpc::internal::RpcMethod rpc(method.c_str(), grpc::internal::RpcMethod::NORMAL_RPC);
  const grpc::Status status = grpc::internal::BlockingUnaryCall(channel, rpc, &context, in, &out);
  std::vector<grpc::Slice> slices;
  if (status.ok() && out.Dump(&slices).ok()) {
    response->clear();
    for (const grpc::Slice& part : slices)
      response->append(reinterpret_cast<const char*>(part.begin()), part.size());
  }
  return status;
}

// grpc.health.v1's answer for a service: "SERVING", "NOT_SERVING", or the call's error.
std::string Health(grpc::Channel* channel, const std::string& service) {
  std::string request;
  if (!service.empty())
    request = absl::StrCat("\x0a", std::string(1, static_cast<char>(service.size())), service);
  std::string response;
  const grpc::Status status = CallRaw(channel, "/grpc.health.v1.Health/Check", request, &response);
  if (!status.ok()) return absl::StatusCodeToString(FromGrpcStatus(status).code());
  if (response == std::string("\x08\x01")) return "SERVING";
  return response == std::string("\x08\x02") ? "NOT_SERVING" : "?";
}

class EchoDrafter final : public v1::Drafter::CallbackService {
 public:
  grpc::ServerBidiReactor<v1::DraftRequest, v1::DraftResponse>* Draft(
      grpc::CallbackServerContext* context) override {
    auto stream = ServerBidi<v1::DraftRequest, v1::DraftResponse>::Create(context);
    return stream->Start({.on_message = [stream](v1::DraftRequest) { stream->Write({}); },
                          .on_closed = [this](absl::Status status) { closed.Push(status); }});
  }
  Mailbox<absl::Status> closed;
};

struct Running {
  EchoDrafter drafter;
  MetricsRegistry metrics;
  std::unique_ptr<ServerRunner> server;
  std::shared_ptr<grpc::Channel> channel;
};

std::unique_ptr<Running> StartServer(bool reflection = false, AdminCallbacks admin = {},
                                     const std::string& metrics_address = "") {
  auto running = std::make_unique<Running>();
  auto server =
      ServerRunner::Start({.listen_address = "127.0.0.1:0",
                           .metrics_address = metrics_address,
                           .metrics = &running->metrics,
                           .reflection = reflection},
                          {{v1::Drafter::service_full_name(), &running->drafter}}, std::move(admin));
  EXPECT_TRUE(server.ok()) << server.status();
  running->server = *std::move(server);
  running->channel = CreateChannel(running->server->address());
  return running;
}

TEST(ServerTest, ReportsThePortsItBound) {
  auto running = StartServer(/*reflection=*/false, {}, "127.0.0.1:0");
  EXPECT_GT(running->server->port(), 0);
  EXPECT_EQ(running->server->address(), absl::StrCat("127.0.0.1:", running->server->port()));
  EXPECT_GT(running->server->metrics_port(), 0);
  EXPECT_NE(running->server->metrics_port(), running->server->port());
}

TEST(ServerTest, ATakenAddressIsAnErrorThatNamesIt) {
  auto running = StartServer(/*reflection=*/false, {}, "127.0.0.1:0");
  const auto second = ServerRunner::Start({.listen_address = running->server->address()}, {}, {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(running->server->address()));
  const std::string metrics_address = absl::StrCat("127.0.0.1:", running->server->metrics_port());
  const auto third = ServerRunner::Start(
      {.listen_address = "127.0.0.1:0", .metrics_address = metrics_address, .metrics = &running->metrics}, {},
      {});
  EXPECT_EQ(third.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(third.status().message()), HasSubstr(metrics_address));
  EXPECT_EQ(ServerRunner::Start({}, {}, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ServerTest, HealthIsOverallAndPerService) {
  auto running = StartServer();
  grpc::Channel* channel = running->channel.get();
  EXPECT_EQ(Health(channel, ""), "SERVING");
  EXPECT_EQ(Health(channel, "tandem.v1.Drafter"), "SERVING");
  EXPECT_EQ(Health(channel, "tandem.v1.Admin"), "SERVING");
  EXPECT_EQ(Health(channel, "tandem.v1.Nothing"), "NOT_FOUND");
  running->server->SetServing("tandem.v1.Drafter", false);
  EXPECT_EQ(Health(channel, "tandem.v1.Drafter"), "NOT_SERVING");
  EXPECT_EQ(Health(channel, ""), "SERVING");
  running->server->SetServing(false);
  EXPECT_EQ(Health(channel, ""), "NOT_SERVING");
  running->server->SetServing(true);
  EXPECT_EQ(Health(channel, "tandem.v1.Drafter"), "SERVING");
}

TEST(ServerTest, AdminAnswersThoseItLetsIn) {
  auto running =
      StartServer(false, {.server_info =
                              [] {
                                v1::ServerInfo info;
                                info.set_version("1.2.3");
                                return info;
                              },
                          .authorize =
                              [](const CallMetadata& metadata) {
                                const auto token = metadata.find("authorization");
                                const bool known = token != metadata.end() && token->second == "Bearer a";
                                return known ? absl::OkStatus() : absl::UnauthenticatedError("no token");
                              }});
  auto stub = v1::Admin::NewStub(running->channel);
  v1::ServerInfo info;
  grpc::ClientContext stranger;
  EXPECT_EQ(stub->GetServerInfo(&stranger, {}, &info).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(info.version(), "");
  grpc::ClientContext known;
  known.AddMetadata("authorization", "Bearer a");
  EXPECT_TRUE(stub->GetServerInfo(&known, {}, &info).ok());
  EXPECT_EQ(info.version(), "1.2.3");
}

TEST(ServerTest, ReflectionIsThereOnlyWhenAsked) {
  // A streaming method called as a unary one still tells whether it exists.
  const std::string method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  std::string response;
  auto with = StartServer(/*reflection=*/true);
  EXPECT_TRUE(CallRaw(with->channel.get(), method, std::string("\x3a\x01*"), &response).ok());
  EXPECT_THAT(response, HasSubstr("tandem.v1.Drafter"));
  auto without = StartServer(/*reflection=*/false);
  EXPECT_EQ(CallRaw(without->channel.get(), method, std::string("\x3a\x01*"), &response).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

// What stands under a number in a message whose form is not linked.
std::vector<std::string> FieldsOf(const std::string& message, int number) {
  google::protobuf::UnknownFieldSet fields;
  EXPECT_TRUE(fields.ParseFromString(message));
  std::vector<std::string> found;
  for (int i = 0; i < fields.field_count(); ++i) {
    const google::protobuf::UnknownField& field = fields.field(i);
    if (field.number() == number) found.push_back(field.length_delimited());
  }
  return found;
}

// As grpcurl does: from the names of services to files, and from files to those that they import.
TEST(ServerTest, ReflectionDescribesEveryServiceThatItLists) {
  auto running = StartServer(/*reflection=*/true);
  // A field of ServerReflectionRequest, and the one of ServerReflectionResponse that answers it.
  const auto ask = [&](int field, const std::string& value, int answer) -> std::string {
    const std::string request = absl::StrCat(std::string(1, static_cast<char>(field << 3 | 2)),
                                             std::string(1, static_cast<char>(value.size())), value);
    std::string response;
    EXPECT_TRUE(CallRaw(running->channel.get(),
                        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", request, &response)
                    .ok());
    const std::vector<std::string> answers = FieldsOf(response, answer);
    return answers.size() == 1 ? answers[0] : "";
  };
  constexpr int kFileByName = 3;
  constexpr int kFileOfSymbol = 4;
  constexpr int kListServices = 7;
  constexpr int kFiles = 4;
  constexpr int kServices = 6;
  google::protobuf::DescriptorPool pool;
  const std::function<void(const std::string&)> add = [&](const std::string& files) {
    for (const std::string& bytes : FieldsOf(files, 1)) {
      google::protobuf::FileDescriptorProto file;
      ASSERT_TRUE(file.ParseFromString(bytes));
      if (pool.FindFileByName(file.name()) != nullptr) continue;
      for (const std::string& imported : file.dependency()) {
        if (pool.FindFileByName(imported) == nullptr) add(ask(kFileByName, imported, kFiles));
      }
      if (pool.FindFileByName(file.name()) == nullptr)
        EXPECT_NE(pool.BuildFile(file), nullptr) << file.name();
    }
  };
  std::vector<std::string> names;
  for (const std::string& service : FieldsOf(ask(kListServices, "*", kServices), 1)) {
    const std::string name = FieldsOf(service, 1).at(0);
    names.push_back(name);
    add(ask(kFileOfSymbol, name, kFiles));
    const google::protobuf::ServiceDescriptor* const described = pool.FindServiceByName(name);
    ASSERT_NE(described, nullptr) << name;
    EXPECT_GT(described->method_count(), 0) << name;
  }
  EXPECT_THAT(names,
              ::testing::IsSupersetOf({"tandem.v1.Drafter", "tandem.v1.Admin", "grpc.health.v1.Health"}));
  EXPECT_NE(pool.FindMessageTypeByName("grpc.health.v1.HealthCheckResponse"), nullptr);
}

TEST(ServerTest, OversizedMessagesAreRefused) {
  auto running = StartServer();
  std::string response;
  const grpc::Status status = CallRaw(running->channel.get(), "/tandem.v1.Admin/GetServerInfo",
                                      std::string(kMaxMessageBytes + 1, 'x'), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST(ServerTest, DrainTellsHealthFirstAndCancelsWhatRemains) {
  auto running = StartServer();
  auto stub = v1::Drafter::NewStub(running->channel);
  grpc::ClientContext context;
  auto call = stub->Draft(&context);
  ASSERT_TRUE(call->Write({}));
  v1::DraftResponse response;
  ASSERT_TRUE(call->Read(&response));
  std::string health;
  running->server->Drain({.grace = absl::Seconds(30)}, [&](absl::Time deadline) {
    EXPECT_GT(deadline, absl::Now());
    health = Health(running->channel.get(), "");
    running->server->SetServing(true);
    EXPECT_EQ(Health(running->channel.get(), "tandem.v1.Drafter"), "NOT_SERVING");
  });
  EXPECT_EQ(health, "NOT_SERVING");
  std::vector<absl::Status> closed;
  running->drafter.closed.Drain(&closed);
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_EQ(closed[0].code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(call->Read(&response));
  EXPECT_FALSE(call->Finish().ok());
  running->server->Drain({.grace = absl::Seconds(30)}, [](absl::Time) { FAIL() << "drained twice"; });
}

// Returns once `condition` holds; a test that waits this long has failed.
template <class Condition>
bool Eventually(Condition condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return true;
}

TEST(ServerTest, LivenessFollowsTheWorkAndNotReadiness) {
  std::atomic<int64_t> stalled_seconds{0};
  EchoDrafter drafter;
  const auto server = ServerRunner::Start({.listen_address = "127.0.0.1:0",
                                           .health_address = "127.0.0.1:0",
                                           .stalled = [&] { return absl::Seconds(stalled_seconds.load()); },
                                           .liveness_timeout = absl::Milliseconds(40)},
                                          {{v1::Drafter::service_full_name(), &drafter}}, {})
                          .value();
  const auto channel = CreateChannel(server->address());
  const auto probes = CreateChannel(absl::StrCat("127.0.0.1:", server->health_port()));
  EXPECT_EQ(Health(channel.get(), "liveness"), "SERVING");
  server->SetServing(false);
  EXPECT_EQ(Health(channel.get(), ""), "NOT_SERVING");
  EXPECT_EQ(Health(channel.get(), "liveness"), "SERVING");
  stalled_seconds = 3600;
  EXPECT_TRUE(Eventually([&] { return Health(channel.get(), "liveness") == "NOT_SERVING"; }));
  EXPECT_TRUE(Eventually([&] { return Health(probes.get(), "liveness") == "NOT_SERVING"; }));
  stalled_seconds = 0;
  EXPECT_TRUE(Eventually([&] { return Health(channel.get(), "liveness") == "SERVING"; }));
  server->SetServing(true);
  // A process that drains is to be let live.
  std::string liveness, readiness;
  server->Drain({.delay = absl::Milliseconds(1), .grace = absl::Seconds(30)}, [&](absl::Time) {
    liveness = Health(probes.get(), "liveness");
    readiness = Health(probes.get(), "tandem.v1.Drafter");
  });
  EXPECT_EQ(liveness, "SERVING");
  EXPECT_EQ(readiness, "NOT_SERVING");
}

TEST(ServerTest, TheHealthPortServesNothingElse) {
  const auto server =
      ServerRunner::Start(
          {.listen_address = "127.0.0.1:0", .reflection = true, .health_address = "127.0.0.1:0"}, {}, {})
          .value();
  const auto probes = CreateChannel(absl::StrCat("127.0.0.1:", server->health_port()));
  EXPECT_EQ(Health(probes.get(), ""), "SERVING");
  std::string response;
  for (const char* method : {"/tandem.v1.Admin/GetServerInfo",
                             "/grpc.reflection.v1alpha.ServerReflection/"
                             "ServerReflectionInfo"}) {
    EXPECT_EQ(CallRaw(probes.get(), method, "", &response).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  }
}

TEST(SecurityTest, WithoutTlsOnlyLoopbackIsListenedOn) {
  for (const char* address :
       {"127.0.0.1:0", "127.8.9.1:7001", "[::1]:7001", "localhost:7001", "unix:/run/a"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address :
       {"0.0.0.0:7001", "[::]:7001", "10.0.0.1:7001", "router:7001", "127.0.0.1.example.com:1", "localhost",
        "", "128.0.0.1:1", "[::ffff:127.0.0.1]:1", "127.1:1", "ipv4:127.0.0.1:1", "*:7001"}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
  const auto refused = ServerRunner::Start({.listen_address = "0.0.0.0:0"}, {}, {});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--insecure"));
  EXPECT_TRUE(ServerRunner::Start({.listen_address = "0.0.0.0:0", .insecure = true}, {}, {}).ok());
}

// What protoc wrote about all of our protocols, those included that nobody serves yet.
TEST(AccessTest, EveryMethodHasARule) {
  google::protobuf::FileDescriptorSet protocols;
  const std::string path = absl::StrCat(TANDEM_BINARY_DIR, "/proto/tandem.protoset");
  ASSERT_TRUE(protocols.ParseFromString(ReadFile(path, size_t{1} << 24).value()));
  std::vector<std::string> methods;
  for (const auto& file : protocols.file()) {
    for (const auto& service : file.service()) {
      for (const auto& method : service.method()) {
        methods.push_back(absl::StrCat("/", file.package(), ".", service.name(), "/", method.name()));
      }
    }
  }
  ASSERT_GE(methods.size(), 8u);
  std::vector<std::string> with_rules;
  for (const AccessRule& rule : AccessRules()) {
    EXPECT_NE(rule.allowed, 0) << rule.method;
    if (!absl::EndsWith(rule.method, "/")) with_rules.emplace_back(rule.method);
  }
  for (const std::string& method : methods) EXPECT_THAT(with_rules, ::testing::Contains(method));
  for (const std::string& method : with_rules) EXPECT_THAT(methods, ::testing::Contains(method));
}

TEST(AccessTest, WhatHasNoRuleNobodyMayCall) {
  constexpr PeerRoles kAll = 0xff;
  EXPECT_FALSE(MayCall(v1::SERVER_ROLE_VERIFIER, "/tandem.v1.Verifier/Novelty", kAll));
  EXPECT_FALSE(MayCall(v1::SERVER_ROLE_VERIFIER, "/tandem.v1.Verifier/", kAll));
  EXPECT_FALSE(MayCall(v1::SERVER_ROLE_VERIFIER, "/tandem.v1.Verifier/GenerateMore", kAll));
  EXPECT_FALSE(MayCall(v1::SERVER_ROLE_VERIFIER, "/grpc.health.v1.Healthy/Check", kAll));
  EXPECT_FALSE(MayCall(v1::SERVER_ROLE_VERIFIER, "", kAll));
  // The rules are those of the server that is called.
  EXPECT_FALSE(MayCall(v1::SERVER_ROLE_VERIFIER, "/tandem.v1.Drafter/Draft", kAll));
  EXPECT_FALSE(MayCall(v1::SERVER_ROLE_VERIFIER, "/tandem.v1.Admin/GetServerInfo", kNoRole | kClientRole));
  EXPECT_TRUE(MayCall(v1::SERVER_ROLE_ROUTER, "/tandem.v1.Admin/GetServerInfo", kNoRole));
  EXPECT_EQ(RoleOfUri("spiffe://tandem/role/verifier"), kVerifierRole);
  for (const char* uri : {"spiffe://tandem/role/", "spiffe://tandem/role/verifier/",
                          "spiffe://other/role/verifier", "SPIFFE://tandem/role/verifier", "verifier", ""}) {
    EXPECT_EQ(RoleOfUri(uri), 0) << uri;
  }
}

constexpr char kRouterUri[] = "spiffe://tandem/role/router";
constexpr char kVerifierUri[] = "spiffe://tandem/role/verifier";
constexpr char kInfo[] = "/tandem.v1.Admin/GetServerInfo";

struct TlsServer {
  EchoDrafter drafter;
  MetricsRegistry metrics;
  std::unique_ptr<ServerRunner> server;

  TlsServer(const TlsFiles& files, v1::ServerRole role) {
    server = ServerRunner::Start({.listen_address = "127.0.0.1:0",
                                  .metrics = &metrics,
                                  .credentials = OpenServerSecurity(files, role, absl::Now()).value().server,
                                  .tls = files},
                                 {{v1::Drafter::service_full_name(), &drafter}}, {})
                 .value();
  }
  grpc::Status Call(const TlsFiles& files, const std::string& method = kInfo) {
    const auto channel =
        tandem::CreateChannel(server->address(), OpenClientSecurity(files, absl::Now()).value());
    std::string response;
    return CallRaw(channel.get(), method, "", &response);
  }
};

TEST(SecurityTest, RolesInCertificatesDecide) {
  Certificates certificates;
  const TlsFiles verifier = certificates.Make("verifier", kVerifierUri);
  const TlsFiles router = certificates.Make("router", kRouterUri);
  const TlsFiles nobody = certificates.Make("nobody", "");
  TlsServer drafter(certificates.Make("drafter", ""), v1::SERVER_ROLE_DRAFTER);
  EXPECT_TRUE(drafter.Call(verifier).ok());
  EXPECT_TRUE(drafter.Call(router).ok());
  const grpc::Status denied = drafter.Call(nobody);
  EXPECT_EQ(denied.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(denied.error_message(), "the caller's certificate does not allow this call");
  EXPECT_EQ(drafter.Call(router, "/tandem.v1.Drafter/Draft").error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(drafter.Call(verifier, "/tandem.v1.Drafter/Novelty").error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  // Streams as well, from the first message on.
  const auto stub = v1::Drafter::NewStub(
      tandem::CreateChannel(drafter.server->address(), OpenClientSecurity(verifier, absl::Now()).value()));
  grpc::ClientContext context;
  auto stream = stub->Draft(&context);
  v1::DraftResponse response;
  EXPECT_TRUE(stream->Write({}) && stream->Read(&response));
  context.TryCancel();
  stream->Finish();
}

TEST(SecurityTest, WhoHasNoCertificateOfTheCaIsNotHeard) {
  Certificates certificates, others;
  const TlsFiles drafter_files = certificates.Make("drafter", "");
  TlsServer drafter(drafter_files, v1::SERVER_ROLE_DRAFTER);
  const auto unavailable = grpc::StatusCode::UNAVAILABLE;
  EXPECT_EQ(drafter.Call({.ca = drafter_files.ca}).error_code(), unavailable);
  TlsFiles foreign = others.Make("verifier", kVerifierUri);
  EXPECT_EQ(drafter.Call(foreign).error_code(), unavailable) << "the client does not know the server";
  foreign.ca = drafter_files.ca;
  EXPECT_EQ(drafter.Call(foreign).error_code(), unavailable) << "the server does not know the client";
  const auto plain = tandem::CreateChannel(drafter.server->address());
  std::string response;
  EXPECT_EQ(CallRaw(plain.get(), kInfo, "", &response).error_code(), unavailable);
  // A router has tenants' tokens to go by.
  TlsServer router(certificates.Make("router", kRouterUri), v1::SERVER_ROLE_ROUTER);
  EXPECT_TRUE(router.Call({.ca = drafter_files.ca}).ok());
  EXPECT_EQ(router.Call(certificates.Make("verifier", kVerifierUri)).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  foreign.ca = drafter_files.ca;
  EXPECT_EQ(router.Call(foreign).error_code(), unavailable);
}

TEST(SecurityTest, RenewedCertificatesAreTakenWithoutRestart) {
  Certificates certificates;
  const TlsFiles files = certificates.Make("drafter", "");
  TlsServer drafter(files, v1::SERVER_ROLE_DRAFTER);
  const TlsFiles old_verifier = certificates.Make("verifier", kVerifierUri);
  const auto client = OpenClientSecurity(old_verifier, absl::Now()).value();
  std::string response;
  EXPECT_TRUE(
      CallRaw(tandem::CreateChannel(drafter.server->address(), client).get(), kInfo, "", &response).ok());
  const std::string told = drafter.metrics.Expose();
  // All of them anew, so that nothing of before can be what is believed.
  certificates.MakeCa();
  certificates.Make("drafter", "", /*days=*/30);
  certificates.Make("verifier", kVerifierUri);
  EXPECT_TRUE(Eventually([&] {
    return drafter.Call(old_verifier).ok() &&
           CallRaw(tandem::CreateChannel(drafter.server->address(), client).get(), kInfo, "", &response).ok();
  }));
  EXPECT_TRUE(Eventually([&] { return drafter.metrics.Expose() != told; })) << "when they expire: " << told;
}

TEST(SecurityTest, FilesAreCheckedAtTheStart) {
  Certificates certificates;
  const TlsFiles good = certificates.Make("verifier", kVerifierUri);
  const TlsFiles other = certificates.Make("other", "");
  const auto error = [](const TlsFiles& files, v1::ServerRole role = v1::SERVER_ROLE_VERIFIER,
                        absl::Time now = absl::Now()) {
    const auto opened = OpenServerSecurity(files, role, now);
    EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(opened.status().message());
  };
  EXPECT_TRUE(OpenServerSecurity(good, v1::SERVER_ROLE_VERIFIER, absl::Now()).ok());
  EXPECT_EQ(OpenServerSecurity({}, v1::SERVER_ROLE_VERIFIER, absl::Now()).value().server, nullptr);
  TlsFiles files = good;
  files.key = "";
  EXPECT_THAT(error(files), HasSubstr("--tls-key"));
  files.key = other.key;
  EXPECT_THAT(error(files), HasSubstr("not the key of the certificate"));
  files.key = good.certificate;
  EXPECT_THAT(error(files), HasSubstr("--tls-key: " + good.certificate));
  files = good;
  files.certificate = good.key;
  EXPECT_THAT(error(files), HasSubstr("expected certificates in PEM form"));
  files.certificate = "/nonexistent/tls.crt";
  EXPECT_THAT(error(files), HasSubstr("--tls-certificate: /nonexistent/tls.crt"));
  files = good;
  files.ca = "";
  EXPECT_THAT(error(files), HasSubstr("--tls-ca"));
  files.ca = good.key;
  EXPECT_THAT(error(files), HasSubstr("--tls-ca: " + good.key));
  EXPECT_THAT(error(good, v1::SERVER_ROLE_VERIFIER, absl::Now() + absl::Hours(1000)),
              HasSubstr("expired at"));
  EXPECT_THAT(error(good, v1::SERVER_ROLE_VERIFIER, absl::Now() - absl::Hours(1000)),
              HasSubstr("valid only from"));
  EXPECT_THAT(error(good, v1::SERVER_ROLE_ROUTER), HasSubstr(kRouterUri));
  EXPECT_FALSE(OpenClientSecurity({.certificate = good.certificate, .key = good.key}, absl::Now()).ok());
}

TEST(ServerTest, SignalsAreWaitedFor) {
  for (int number : {SIGTERM, SIGINT}) {
    ShutdownSignals signals;
    std::thread sender([&] { raise(number); });
    EXPECT_EQ(signals.Wait(), number);
    sender.join();
  }
  // Each instance leaves the default behind.
  struct sigaction action = {};
  sigaction(SIGTERM, nullptr, &action);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
}

}  // namespace
}  // namespace tandem
