#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/engine/block_pool.h"
#include "common/engine/engine.h"
#include "common/engine/engine_turns.h"
#include "common/engine/kv_type.h"
#include "common/engine/weight_type.h"
#include "common/model/lora_adapter.h"
#include "common/model/model.h"
#include "verifier/process/main_flags.h"
#include "verifier/process/model_plan.h"
#include "verifier/rpc/request_wire.h"
#include "verifier/scheduler/warm_up.h"
#include "verifier/session/held_adapters.h"

// Turns a model's folder into an engine that serves it.
namespace tandem {

// A target's opened and checked files. --check-config stops here; serving goes on from here.
struct OpenedTarget {
  std::shared_ptr<const Model> model;
  WeightType weight_type = WeightType::kAsInFile;
  KvType kv_type = KvType::kAuto;
  ServedTarget served;
  uint64_t vocabulary_fingerprint = 0;
  uint64_t kv_tokens = 0;  // To hold,
  uint64_t kv_bytes = 0;   // and what they take once they are all used.
  struct Adapter {
    std::string name;
    std::shared_ptr<const LoraAdapter> adapter;
  };
  std::vector<Adapter> adapters;  // Loaded at the start.
};

// The handle for requests of an adapter that the engine holds under this id.
AdapterHandle HandleOf(const std::string& name, const LoraAdapter& adapter, AdapterId id);

// Opens and checks the files that `plans` name, and chooses how many tokens of keys and values each target
// holds; the log says which and why. `promised_bytes`: what keys and values of other models of the process
// may still take. Errors name the flag or the file.
absl::StatusOr<std::vector<OpenedTarget>> OpenTargets(const VerifierFlags& options,
                                                      absl::Span<const ModelPlan> plans,
                                                      uint64_t promised_bytes = 0);

// A target in memory, which has made one pass. The warm-up makes the others.
struct TargetEngine {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<BlockPool> pool;
  std::unique_ptr<WarmUp> warm_up;
};

// Loads the target. Cancelled if `stopped`, which is called between tensors, returns true. `turns`: taken for
// each step if other engines share the cores or the device; otherwise null. `clock` outlives what it returns.
absl::StatusOr<TargetEngine> StartEngine(const VerifierFlags& options, const OpenedTarget& target,
                                         const std::shared_ptr<EngineTurns>& turns, const Clock* clock,
                                         const std::function<bool()>& stopped);

// Runs a rank other than 0: it has no server, and ends with rank 0. Cancelled if `stopped` returns true while
// it loads.
absl::Status FollowRankZero(const VerifierFlags& options, const ModelPlan& plan,
                            const std::function<bool()>& stopped);

}  // namespace tandem
