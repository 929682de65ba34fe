#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/speculation/draft_messages.h"
#include "tests/simulation/random.h"

namespace tandem::simulation {

// Makes a drafter byzantine: it follows the messages, so that it knows what a valid one looks like, and sends
// damaged and invented ones. Half of them follow the letter of the protocol, so that they are not detected.
class Liar {
 public:
  Liar(Random random, int32_t vocab_size)
      : random_(random), vocab_size_(vocab_size), well_formed_(random_.Chance(0.5)) {}

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
  const bool well_formed_;
  std::map<SessionId, Known> known_;
};

}  // namespace tandem::simulation
