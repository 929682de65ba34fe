#include "verifier/process/main_flags.h"

#include "common/engine/cpu/kernels.h"
#include "common/engine/cuda/shard.h"
#include "common/engine/kv_type.h"
#include "common/engine/weight_type.h"
#include "common/speculation/draft_messages.h"

namespace tandem {
namespace {

void DeclareGpu(VerifierFlags& options, Flags& flags) {
  flags.Group("GPU")
      .Add("device", &options.device, "Device to compute on: cpu, or a GPU as cuda or cuda:N.")
      .Add("gpu-memory-limit", &options.gpu_memory_mib,
           "Most MiB of GPU memory to use, including keys and values; 0: all that is free.")
      .InRange(0, 1e7)
      .Add("gpus", &options.num_gpus,
           "Number of GPUs that share the model with tensor parallelism. Each has its own process: rank 0 "
           "serves, the others follow it.")
      .InRange(1, kMostRanks)
      .Add("gpu-rank", &options.gpu_rank, "Rank of this process, from 0.")
      .InRange(0, kMostRanks - 1)
      .Add("gpu-rendezvous", &options.gpu_rendezvous,
           "With --gpus: file through which the processes find each other. It must not exist yet.");
}

}  // namespace

void DeclareVerifierFlags(VerifierFlags& options, Flags& flags) {
  flags.Group("Model")
      .Add("model", &options.models,
           "Target model: a Hugging Face folder, or NAME=FOLDER to serve it as NAME. Repeat for several: "
           "they take turns on the threads or the device, and limits on requests apply to each model.")
      .Required()
      .Add("threads", &options.threads, "Threads to compute with.")
      .InRange(1, 1024)
      .Add("cpu-list", &options.cpu_list,
           "CPUs to pin the threads to, one for each thread, for example 0-3,8; empty: the system places "
           "them.")
      .AddChoice(
          "instruction-set", &options.instruction_set, InstructionSetNames(),
          "CPU kernels to use; auto picks the best for this machine. A verifier can continue another one's "
          "output byte for byte only if their kernels give equal results, as amx and avx512-bf16 do.")
      .AddChoice("weight-dtype", &options.weight_dtype, WeightTypeNames(),
                 "Number format of the model's matrices. auto: as in the files; on a CPU, products with a "
                 "quantised file's integers round inputs to 8 bits. int8 and int4: 8.25 and 4.25 bits per "
                 "weight. CPU only: exact, which rounds nothing; w8a8 and w4a8, which also round inputs to 8 "
                 "bits. GPU only, 8 bits: fp8 (a scale per output) and fp8-tensor (a scale per matrix). "
                 "Outputs differ between formats.")
      .AddChoice(
          "kv-type", &options.kv_type, KvTypeNames(),
          "Number format of keys and values. auto: bf16, but on a CPU f32 for keys with large biases. f32 "
          "takes twice the memory of bf16, int8 half. Outputs differ between formats.")
      .Add("kv-tokens", &options.kv_tokens,
           "KV cache size in tokens, for all requests and the prefix cache. Requests allocate as they grow. "
           "When it is full, the youngest requests are preempted and recompute their tokens later. Several "
           "models share it (--kv-share). 0: on a CPU the model's context, at least 65536, as far as half of "
           "the memory that is free beside the weights has room; on a GPU 65536. Otherwise at least 256.")
      .InRange(0, 1e9)
      .Add("kv-share", &options.kv_shares,
           "NAME=WEIGHT: a model's share of --kv-tokens, or if that is 0 of the memory, as its weight over "
           "the "
           "sum of all weights. Models without one have weight 1. Repeat for several.")
      .Add("models-folder", &options.models_folder,
           "Folder below which `tandem models` may load further models at run time; also allows it to unload "
           "models. Empty: neither.")
      .Add("adapter", &options.adapters,
           "NAME=FOLDER: a LoRA adapter in PEFT's format that requests may name. With several models: "
           "MODEL:NAME=FOLDER. Repeat for several. Not on several GPUs.")
      .Add("adapters-folder", &options.adapters_folder,
           "Folder below which `tandem adapters` may load further adapters at run time; also allows it to "
           "unload adapters. Empty: neither.")
      .Add("prefix-cache", &options.prefix_cache,
           "Cache keys and values of finished requests for later prompts with the same beginning.");
  DeclareGpu(options, flags);
  flags.Group("Measurements")
      .Add("simulate-target-ms", &options.simulated_pace,
           "Make every forward pass last at least this many milliseconds, to simulate a larger target. "
           "FIRST, or FIRST+FURTHER for the first row and each further row. Only for measurements.");
  DeclareServerFlags(options.server, flags);
  DeclareRegistrationFlags(options.registration, flags);
  flags.Group("Metrics").AddChoice("metrics-compat", &options.metrics_compat, {"none", "vllm"},
                                   "Also export metrics under the names of this server.");
  flags.Group("Batching")
      .Add("max-running", &options.max_running, "Most requests that run at once.")
      .InRange(1, 256);
  flags.Group("Speculation")
      .AddChoice("window-policy", &options.window_policy, WindowPolicyNames(),
                 "Window policy: the rule that chooses the draft length of each round.")
      .Add("window-policy-file", &options.window_policy_file,
           "JSON file with the policy and the options of all policies. Overrides --window-policy; reloaded "
           "whenever it changes.")
      .Add("max-window", &options.limits.max_depth, "Longest window (draft length).")
      .InRange(1, kMaxTreeDepth / 2)
      .Add("nodes-per-level", &options.limits.nodes_per_level,
           "Tree nodes to verify for each level of the window.")
      .InRange(1, 64)
      .Add("max-nodes", &options.limits.max_nodes, "Most tree nodes to verify in one round.")
      .InRange(1, 256)
      .Add("branching", &options.limits.branching, "Most children of a tree node.")
      .InRange(1, 64)
      .Add("lookahead", &options.limits.lookahead,
           "Levels to draft ahead while a round is verified; 0: draft and verify in turns.")
      .InRange(0, kMaxTreeDepth / 2)
      .AddChoice("tree-shape", &options.tree_shape, TreeShapeNames(),
                 "Order in which drafters try candidates: the best overall (best-first), one per level "
                 "(chain), or the best of each level (eagle2).")
      .AddChoice("verification-rule", &options.verification_rule, VerificationRuleNames(),
                 "How drafts are accepted above temperature 0. seeded: by the target's seeded choice; "
                 "outputs do not depend on drafters. rejection, block: by ratio of probabilities, token by "
                 "token or for a whole chain; only for drafters marked as trusted.")
      .AddChoice("local-drafter", &options.local_drafter, {"none", "ngram", "suffix"},
                 "Source that drafts inside the verifier when no drafter has sent anything.")
      .Add("local-sockets", &options.local_sockets,
           "Folder of Unix domain sockets, shared with drafters on this machine. The verifier uses a "
           "drafter's socket there in place of TCP. Created with access for this user only if it does not "
           "exist; empty: off.")
      .Add("max-draft-wait", &options.max_draft_wait, "Longest time that a round waits for its drafter.");
  flags.Settings("Model")
      .Add("max-models", &options.max_models, "With --models-folder: most models held at once.")
      .InRange(1, 64)
      .Add("max-adapters", &options.max_adapters, "Most adapters held at once, for each model.")
      .InRange(1, 4096)
      .Add("feature-memory", &options.feature_memory_mib,
           "Most MiB of memory for hidden states, which draft heads read. The verifier allocates it as it "
           "computes states, once a head has asked for them: two bytes per number, for every token of "
           "--kv-tokens and every layer that heads read. 0: serve no heads.")
      .InRange(0, 1 << 24)
      .Add("gpu-low-priority", &options.gpu_low_priority, "Give other work on the GPU priority.");
  flags.Settings("Batching")
      .Add("max-waiting", &options.max_waiting, "Most requests that wait; further ones are refused.")
      .InRange(0, 1e6)
      .Add("prefill-chunk", &options.prefill_chunk, "Most prompt tokens in one step, over all prompts.")
      .InRange(1, 4096);
  flags.Settings("Speculation")
      .Add("control-share", &options.control_share,
           "Share of the time that steps without drafts may lose, which measure what drafts gain "
           "(tandem_speculation_speedup); 0: measure nothing.")
      .InRange(0.0, 0.1)
      .Add("ahead-nodes", &options.limits.ahead_nodes,
           "Most nodes to draft ahead, below the tokens that a round may end with; 0: as many as --lookahead "
           "has levels for.")
      .InRange(0, kMaxTreeNodes)
      .Add("ahead-branching", &options.limits.ahead_branching,
           "Most children of a node that is drafted ahead.")
      .InRange(1, 32);
  DeclareConstraintFlags(options.constraints, flags);
}

}  // namespace tandem
