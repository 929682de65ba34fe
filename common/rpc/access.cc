#include "common/rpc/access.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "grpc/grpc_security_constants.h"
#include "grpcpp/security/auth_context.h"

namespace tandem {
namespace {

constexpr v1::ServerRole kRouter = v1::SERVER_ROLE_ROUTER;
constexpr v1::ServerRole kVerifier = v1::SERVER_ROLE_VERIFIER;
constexpr v1::ServerRole kDrafter = v1::SERVER_ROLE_DRAFTER;

constexpr PeerRoles kAnyone =
    kNoRole | kRouterRole | kVerifierRole | kDrafterRole | kClientRole | kOperatorRole;
// Tenants, whom the router knows by their tokens. A certificate of another server is no tenant's.
constexpr PeerRoles kTenants = kNoRole | kClientRole | kOperatorRole;

constexpr AccessRule kRules[] = {
    {kRouter, "/tandem.v1.Generation/Generate", kTenants},
    {kRouter, "/tandem.v1.Generation/GenerateOnce", kTenants},
    {kRouter, "/tandem.v1.Generation/Tokenize", kTenants},
    {kRouter, "/tandem.v1.Generation/Detokenize", kTenants},
    {kRouter, "/tandem.v1.Generation/ListModels", kTenants},
    {kRouter, "/tandem.v1.Routing/ExplainChoice", kTenants},
    {kRouter, "/tandem.v1.Routing/Calibrate", kTenants},
    {kRouter, "/tandem.v1.Admin/GetServerInfo", kTenants},
    // The token decides: tenants marked as `admin`.
    {kRouter, "/tandem.v1.RouterAdmin/ListTenants", kTenants},
    {kRouter, "/tandem.v1.RouterAdmin/GetTenant", kTenants},
    {kRouter, "/tandem.v1.RouterAdmin/SetTenant", kTenants},
    {kRouter, "/tandem.v1.RouterAdmin/DeleteTenant", kTenants},
    {kRouter, "/tandem.v1.RouterAdmin/ListDrafters", kTenants},
    {kRouter, "/tandem.v1.RouterAdmin/GetDrafter", kTenants},
    {kRouter, "/tandem.v1.RouterAdmin/SetDrafter", kTenants},
    {kRouter, "/tandem.v1.RouterAdmin/DeleteDrafter", kTenants},
    {kRouter, "/tandem.v1.RouterAdmin/SwapTenantDrafter", kTenants},
    {kRouter, "/tandem.v1.RouterAdmin/DrainDrafter", kTenants},
    {kRouter, "/tandem.v1.RouterAdmin/ListVerifiers", kTenants},
    {kRouter, "/tandem.v1.RouterAdmin/AddVerifier", kTenants},
    {kRouter, "/tandem.v1.RouterAdmin/RemoveVerifier", kTenants},
    {kRouter, "/tandem.v1.RouterAdmin/ListServers", kTenants},
    {kRouter, "/tandem.v1.RouterAdmin/DeleteRecords", kTenants},
    {kRouter, "/tandem.v1.RouterAdmin/Watch", kTenants},
    // The service checks that the role is that of the registered server.
    {kRouter, "/tandem.v1.Registry/Register", kVerifierRole | kDrafterRole},
    {kRouter, "/tandem.v1.Registry/Deregister", kVerifierRole | kDrafterRole},
    // A verifier believes what its caller says about tenants.
    {kVerifier, "/tandem.v1.Verifier/Generate", kRouterRole},
    {kVerifier, "/tandem.v1.Verifier/SwapDrafter", kRouterRole | kOperatorRole},
    {kVerifier, "/tandem.v1.Verifier/LoadModel", kOperatorRole},
    {kVerifier, "/tandem.v1.Verifier/UnloadModel", kOperatorRole},
    {kVerifier, "/tandem.v1.Verifier/LoadAdapter", kOperatorRole},
    {kVerifier, "/tandem.v1.Verifier/UnloadAdapter", kOperatorRole},
    {kVerifier, "/tandem.v1.Admin/GetServerInfo", kRouterRole | kOperatorRole},
    {kDrafter, "/tandem.v1.Drafter/Draft", kVerifierRole},
    {kDrafter, "/tandem.v1.Drafter/Score", kRouterRole},
    {kDrafter, "/tandem.v1.Drafter/LoadDraftModel", kOperatorRole},
    {kDrafter, "/tandem.v1.Drafter/UnloadDraftModel", kOperatorRole},
    {kDrafter, "/tandem.v1.Admin/GetServerInfo", kRouterRole | kVerifierRole | kOperatorRole},
    // Health says nothing but whether to call, and routers and probes of every kind ask for it.
    {kRouter, "/grpc.health.v1.Health/", kAnyone},
    {kVerifier, "/grpc.health.v1.Health/", kAnyone},
    {kDrafter, "/grpc.health.v1.Health/", kAnyone},
    // The list of methods; only served with the setting reflection.
    {kRouter, "/grpc.reflection.v1alpha.ServerReflection/", kClientRole | kOperatorRole},
    {kVerifier, "/grpc.reflection.v1alpha.ServerReflection/", kOperatorRole},
    {kDrafter, "/grpc.reflection.v1alpha.ServerReflection/", kOperatorRole},
    {kRouter, "/grpc.reflection.v1.ServerReflection/", kClientRole | kOperatorRole},
    {kVerifier, "/grpc.reflection.v1.ServerReflection/", kOperatorRole},
    {kDrafter, "/grpc.reflection.v1.ServerReflection/", kOperatorRole},
};

constexpr absl::string_view kRolePrefix = "spiffe://tandem/role/";

absl::string_view View(const grpc::string_ref& text) {
  return {text.data(), text.size()};
}

class AccessProcessor final : public grpc::AuthMetadataProcessor {
 public:
  explicit AccessProcessor(v1::ServerRole server) : server_(server) {}

  // A look into a table needs no thread of its own.
  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata*,
                       OutputMetadata*) override {
    const auto path = metadata.find(":path");
    const PeerRoles roles = RolesOf(*context);
    if (path != metadata.end() && MayCall(server_, View(path->second), roles == 0 ? kNoRole : roles)) {
      return grpc::Status::OK;
    }
    return {grpc::StatusCode::PERMISSION_DENIED, "the caller's certificate does not allow this call"};
  }

 private:
  const v1::ServerRole server_;
};

}  // namespace

absl::Span<const AccessRule> AccessRules() {
  return kRules;
}

bool MayCall(v1::ServerRole server, absl::string_view method, PeerRoles roles) {
  for (const AccessRule& rule : kRules) {
    if (rule.server != server || (rule.allowed & roles) == 0) continue;
    if (absl::EndsWith(rule.method, "/") ? absl::StartsWith(method, rule.method) : method == rule.method) {
      return true;
    }
  }
  return false;
}

PeerRoles RoleOfUri(absl::string_view uri) {
  if (!absl::ConsumePrefix(&uri, kRolePrefix)) return 0;
  if (uri == "router") return kRouterRole;
  if (uri == "verifier") return kVerifierRole;
  if (uri == "drafter") return kDrafterRole;
  if (uri == "client") return kClientRole;
  if (uri == "operator") return kOperatorRole;
  return 0;
}

PeerRoles RolesOf(const grpc::AuthContext& context) {
  PeerRoles roles = 0;
  for (const grpc::string_ref& uri : context.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    roles |= RoleOfUri(View(uri));
  }
  return roles;
}

std::string RoleUri(v1::ServerRole role) {
  const absl::string_view name = role == kRouter ? "router" : role == kVerifier ? "verifier" : "drafter";
  return absl::StrCat(kRolePrefix, name);
}

std::shared_ptr<grpc::AuthMetadataProcessor> MakeAccessProcessor(v1::ServerRole server) {
  return std::make_shared<AccessProcessor>(server);
}

}  // namespace tandem
