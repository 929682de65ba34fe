#pragma once

#include <cstdint>
#include <utility>

#include "tandem/v1/generation.pb.h"

namespace tandem::cli {

// A request whose stream may break: the request with which another router can continue it, and a filter for
// that router's events. No I/O.
class Resumption {
 public:
  explicit Resumption(v1::GenerateRequest request) : request_(std::move(request)) {}

  // The request to send now, with the seed, id and token limit that the first router assigned, and the tokens
  // so far.
  const v1::GenerateRequest& request() const { return request_; }

  // Takes an event. False for a repeated one: another router's `started`, or its parts of the prompt, which
  // all routers cut in the same way.
  bool OnEvent(const v1::GenerateResponse& event);
  bool finished() const { return finished_; }

 private:
  v1::GenerateRequest request_;
  bool started_ = false;
  uint32_t prompt_told_ = 0;
  bool finished_ = false;
};

}  // namespace tandem::cli
