#pragma once

#include <cstdint>
#include <utility>

#include "tandem/v1/generation.pb.h"

namespace tandem::cli {

// A request whose stream may break: what has to be asked so that another router goes on with it, and what of
// that router's events is new. No I/O.
class Resumption {
 public:
  explicit Resumption(v1::GenerateRequest request) : request_(std::move(request)) {}

  // What to ask now: the request, with the seed, the id and the token limit that the first router gave it,
  // and the tokens that have come.
  const v1::GenerateRequest& request() const { return request_; }

  // Takes an event in. False for one that has been there before: another router's `started`, or its parts of
  // the prompt, which all routers cut alike.
  bool OnEvent(const v1::GenerateResponse& event);
  bool finished() const { return finished_; }

 private:
  v1::GenerateRequest request_;
  bool started_ = false;
  uint32_t prompt_told_ = 0;
  bool finished_ = false;
};

}  // namespace tandem::cli
