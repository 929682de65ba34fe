#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "grpcpp/security/auth_context.h"
#include "grpcpp/security/auth_metadata_processor.h"
#include "tandem/v1/admin.pb.h"

namespace tandem {

// The roles in a caller's certificate, given by URIs such as spiffe://tandem/role/router among its
// alternative names. A set of bits, because a certificate may have several roles.
using PeerRoles = uint8_t;
inline constexpr PeerRoles kNoRole = 1;  // No certificate, or one without a role.
inline constexpr PeerRoles kRouterRole = 2;
inline constexpr PeerRoles kVerifierRole = 4;
inline constexpr PeerRoles kDrafterRole = 8;
inline constexpr PeerRoles kClientRole = 16;
inline constexpr PeerRoles kOperatorRole = 32;

// Who may call a method of a server.
struct AccessRule {
  v1::ServerRole server = v1::SERVER_ROLE_UNSPECIFIED;
  absl::string_view method;  // "/package.Service/Method", or a prefix that ends with "/".
  PeerRoles allowed = 0;
};

// The rules for every method of every server. Nobody may call a method without a rule.
absl::Span<const AccessRule> AccessRules();

// Whether a caller with these roles may call the method ("/package.Service/Method").
bool MayCall(v1::ServerRole server, absl::string_view method, PeerRoles roles);

// The role in one alternative name; 0 for other URIs.
PeerRoles RoleOfUri(absl::string_view uri);

// The roles of a call's peer; 0 without TLS, or without a certificate that has a role.
PeerRoles RolesOf(const grpc::AuthContext& context);

// "spiffe://tandem/role/router" for a router.
std::string RoleUri(v1::ServerRole role);

// Applies the rules to every call of a server with TLS, before any service sees it. Forbidden calls get
// PERMISSION_DENIED, with the same message for all. The certificate has been validated before.
std::shared_ptr<grpc::AuthMetadataProcessor> MakeAccessProcessor(v1::ServerRole server);

}  // namespace tandem
