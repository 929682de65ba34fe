#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/speculation/draft_messages.h"
#include "tests/simulation/random.h"

namespace tandem::simulation {

// What makes a drafter byzantine: it reads along, so that it knows what a valid message looks like, and sends
// damaged and invented ones.
class Liar {
 public:
  Liar(Random random, int32_t vocab_size) : random_(random), vocab_size_(vocab_size) {}

  void Observe(const DraftRequest& request);
  // Damages `response`, or leaves it as it is.
  void Damage(DraftResponse* response);
  // Messages nobody asked for.
  std::vector<DraftResponse> Invent();

 private:
  struct Known {
    uint32_t epoch = 0;
    uint32_t commit_no = 0;
    uint64_t prefix_hash = 0;
    NodeId next_id = 1;
  };
  void DamageGrow(Grow* grow);
  TokenId AnyToken();
  Grow InventGrow(Known* known);

  Random random_;
  const int32_t vocab_size_;
  std::map<SessionId, Known> known_;
};

}  // namespace tandem::simulation
