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
// Requests to generate come as bytes and are parsed here, once their caller is known: gRPC would refuse a
// message whose text is not UTF-8 with UNIMPLEMENTED and no message, while here INVALID_ARGUMENT names the
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

// The names under which health is not to say SERVING before a ReadinessWatch does: the server as a whole, and
// what clients call. The others serve from the start: verifiers have to register before any is there.
std::vector<std::string> NamesOfReadiness();

// How the router's Admin service answers: to callers with a tenant's token, with every model and the drafters
// that the tenant may use; to those who may administer it, with all drafters and where they are. Keeps a
// reference to `router`.
AdminCallbacks MakeAdminCallbacks(Router& router, absl::Time started_at);

}  // namespace tandem::router
