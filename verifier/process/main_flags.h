#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/config/flags.h"
#include "common/rpc/constraint_service.h"
#include "common/rpc/registration.h"
#include "common/rpc/server_flags.h"
#include "common/speculation/policies/window_policy.h"
#include "common/speculation/policies/window_policy_options.h"
#include "common/speculation/rules/verification_rule.h"

namespace tandem {

// The flags of tandem-verifier; --help explains each.
struct VerifierFlags {
  std::vector<std::string> models;
  ServerFlags server{.listen = "127.0.0.1:7002",
                     .metrics_listen = "127.0.0.1:9102",
                     // A router sends all its requests over one connection.
                     .limits = {.max_streams = 4096},
                     .drain_grace = absl::Seconds(30)};
  std::string metrics_compat = "none";
  uint32_t threads = 1;
  std::string cpu_list;
  std::string instruction_set = "auto";
  std::string weight_dtype = "auto";
  std::string kv_type = "auto";
  uint64_t kv_tokens = 0;  // As many as the memory has room for.
  std::vector<std::string> kv_shares;
  std::string models_folder;  // Empty: models are not loaded at run time.
  uint32_t max_models = 8;
  std::vector<std::string> adapters;
  std::string adapters_folder;  // Empty: adapters are not loaded at run time.
  uint32_t max_adapters = 32;
  uint64_t feature_memory_mib = 4096;
  uint32_t max_running = 64;
  uint32_t max_waiting = 256;
  uint32_t prefill_chunk = 128;
  bool prefix_cache = true;
  std::string window_policy = "goodput";
  std::string window_policy_file;
  WindowPolicyOptions policy_options;  // As the file has them.
  WindowLimits limits;
  std::string tree_shape = "best-first";
  std::string verification_rule = "seeded";
  VerificationRuleKind rule = VerificationRuleKind::kSeeded;  // What that says.
  std::string local_drafter = "ngram";
  double control_share = 0.01;
  std::string local_sockets;
  absl::Duration max_draft_wait = absl::Milliseconds(100);
  std::string simulated_pace;
  std::string device = "cpu";
  uint64_t gpu_memory_mib = 0;
  bool gpu_low_priority = false;
  uint32_t num_gpus = 1;
  uint32_t gpu_rank = 0;
  std::string gpu_rendezvous;
  RegistrationFlags registration;
  ConstraintFlags constraints;
};

// Whether a verifier may serve more than one model, now or later.
inline bool ServesSeveral(const VerifierFlags& options) {
  return options.models.size() > 1 || !options.models_folder.empty();
}

void DeclareVerifierFlags(VerifierFlags& options, Flags& flags);

}  // namespace tandem
