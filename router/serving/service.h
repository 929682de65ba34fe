#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/rpc/server.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "router/serving/router.h"
#include "tandem/v1/generation.grpc.pb.h"

namespace tandem::router {

// tandem.v1.Generation on a router. Thread-safe.
//
// Generate requests arrive as bytes and are parsed here, after the caller is authenticated. gRPC's own parser
// would answer text that is not UTF-8 with UNIMPLEMENTED and no explanation; here INVALID_ARGUMENT names the
// field.
class GenerationService final
    : public v1::Generation::WithCallbackMethod_Tokenize<v1::Generation::WithCallbackMethod_Detokenize<
          v1::Generation::WithCallbackMethod_ListModels<v1::Generation::Service>>> {
 public:
  // Keeps a reference to `router`.
  explicit GenerationService(Router& router);

  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;

 private:
  Router& router_;
};

// The health names that must not be SERVING before ReadinessWatch says so: the server as a whole, and the
// services that clients call. The other services serve from the start, because verifiers must be able to
// register first.
std::vector<std::string> NamesOfReadiness();

// The answers of the router's Admin service. A caller with a tenant's token gets every model and the drafters
// that the tenant may use; an administrator gets all drafters and their addresses. Keeps a reference to
// `router`.
AdminCallbacks MakeAdminCallbacks(Router& router, absl::Time started_at);

}  // namespace tandem::router
