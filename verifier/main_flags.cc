#include "verifier/main_flags.h"

#include "common/engine/cpu/kernels.h"
#include "common/engine/cuda/shard.h"
#include "common/engine/kv_type.h"
#include "common/engine/weight_type.h"
#include "common/speculation/draft_messages.h"

namespace tandem {
namespace {

void DeclareGpu(VerifierFlags& options, Flags& flags) {
  flags.Group("GPU")
      .Add("device", &options.device, "What computes: cpu, or a GPU as cuda or cuda:N.")
      .Add("gpu-memory-limit", &options.gpu_memory_mib,
           "MiB of GPU memory to take at most, keys and values included; 0 for what there is.")
      .InRange(0, 1e7)
      .Add("gpu-low-priority", &options.gpu_low_priority, "Let other work on the GPU go first.")
      .Add("gpus", &options.num_gpus,
           "GPUs that share the model by tensor parallelism, each with a process of its own: that of rank 0 "
           "serves, the others follow it.")
      .InRange(1, kMostRanks)
      .Add("gpu-rank", &options.gpu_rank, "Which of the GPUs this process has.")
      .InRange(0, kMostRanks - 1)
      .Add("gpu-rendezvous", &options.gpu_rendezvous,
           "With several GPUs: a file through which the processes find one another; it must not exist "
           "before.");
}

}  // namespace

void DeclareVerifierFlags(VerifierFlags& options, Flags& flags) {
  flags.Group("Model")
      .Add("model", &options.models,
           "Target model: a Hugging Face folder, or NAME=FOLDER to serve it as NAME. Repeat for several, "
           "which "
           "have the threads or the device in turns; what flags say of requests is of each.")
      .Required()
      .Add("threads", &options.threads, "Threads of the engine.")
      .InRange(1, 1024)
      .Add("cpu-list", &options.cpu_list,
           "CPUs to pin the threads to, one for each, as in 0-3,8; empty to let the system place them.")
      .AddChoice("instruction-set", &options.instruction_set, InstructionSetNames(),
                 "Kernels to use; auto takes the best this machine has. Outputs go on byte for byte only at "
                 "verifiers whose kernels agree, as amx and avx512-bf16 do.")
      .AddChoice(
          "weight-dtype", &options.weight_dtype, WeightTypeNames(),
          "Numbers to keep the model's matrices in; auto keeps them as in its files, int8 and int4 take "
          "8.25 and 4.25 bits a weight, w8a8 and w4a8, on a CPU, besides round inputs to 8 bits, and on a "
          "GPU fp8 (a scale for each output) and fp8-tensor (one for each matrix) take 8. Outputs are the "
          "same again only with the same choice.")
      .AddChoice(
          "kv-type", &options.kv_type, KvTypeNames(),
          "Numbers to keep keys and values in; auto is f32 on a CPU and bf16 on a GPU. bf16 takes half "
          "of f32's memory, int8 a quarter. Outputs are the same again only with the same choice.")
      .Add("kv-tokens", &options.kv_tokens,
           "Tokens of keys and values to hold, over all requests and the cache. Requests take what they need "
           "as they grow; when it runs out, the youngest give theirs up and compute them again later. Of "
           "several "
           "models, each has its share.")
      .InRange(256, 1e9)
      .Add(
          "kv-share", &options.kv_shares,
          "NAME=WEIGHT: the model's share of --kv-tokens, as its weight over the sum of all. 1 where none is "
          "given. Repeat for several.")
      .Add("models-folder", &options.models_folder,
           "Folder below which more models may be loaded from while this runs, and models unloaded "
           "(`tandem models`); empty for neither.")
      .Add("max-models", &options.max_models, "Models held at once, with --models-folder.")
      .InRange(1, 64)
      .Add("adapter", &options.adapters,
           "NAME=FOLDER: a LoRA adapter, in a folder as PEFT writes it, that requests may name; of several "
           "models MODEL:NAME=FOLDER. Repeat for several. On a CPU.")
      .Add("adapters-folder", &options.adapters_folder,
           "Folder below which more adapters may be loaded from while this runs, and adapters unloaded "
           "(`tandem adapters`); empty for neither.")
      .Add("max-adapters", &options.max_adapters, "Adapters held at once, of each model.")
      .InRange(1, 4096)
      .Add("prefix-cache", &options.prefix_cache,
           "Keep keys and values of finished requests for later prompts.")
      .Add(
          "feature-memory", &options.feature_memory_mib,
          "MiB of memory for hidden states, at most, which drafters that are heads of this model read. It is "
          "taken as they are computed, once such a drafter has asked: for every token of --kv-tokens and "
          "every "
          "layer that heads read, two bytes for each number of a state. 0 serves no heads.")
      .InRange(0, 1 << 24);
  DeclareGpu(options, flags);
  flags.Group("Measurements")
      .Add("simulate-target-ms", &options.simulated_pace,
           "Make a forward pass last at least this many milliseconds, as FIRST or FIRST+FURTHER for one row "
           "and "
           "each further row: what a larger target would do to everything else. Never for service.");
  DeclareServerFlags(options.server, flags);
  DeclareRegistrationFlags(options.registration, flags);
  flags.Group("Metrics").AddChoice("metrics-compat", &options.metrics_compat, {"none", "vllm"},
                                   "Whose names to tell metrics under besides Tandem's own.");
  flags.Group("Batching")
      .Add("max-running", &options.max_running, "Requests computed at once.")
      .InRange(1, 256)
      .Add("max-waiting", &options.max_waiting, "Requests that may wait; more are refused.")
      .InRange(0, 1e6)
      .Add("prefill-chunk", &options.prefill_chunk, "Prompt tokens computed in one step, over all prompts.")
      .InRange(1, 4096);
  flags.Group("Speculation")
      .AddChoice("window-policy", &options.window_policy, WindowPolicyNames(), "How windows are chosen.")
      .Add("window-policy-file", &options.window_policy_file,
           "JSON file with the policy and the options of all policies; it overrides --window-policy and is "
           "taken again whenever it changes.")
      .Add("max-window", &options.limits.max_depth, "Deepest window.")
      .InRange(1, kMaxTreeDepth / 2)
      .Add("nodes-per-level", &options.limits.nodes_per_level,
           "Tree nodes verified for each level of the window.")
      .InRange(1, 64)
      .Add("max-nodes", &options.limits.max_nodes, "Tree nodes verified in one round.")
      .InRange(1, 256)
      .Add("branching", &options.limits.branching, "Candidates for one position below one node.")
      .InRange(1, 64)
      .Add("lookahead", &options.limits.lookahead,
           "Levels drafted ahead while a round is verified; 0 drafts and verifies in turns.")
      .InRange(0, kMaxTreeDepth / 2)
      .Add("ahead-nodes", &options.limits.ahead_nodes,
           "Candidates drafted ahead for whatever a round may end with; 0: as many as --lookahead has levels "
           "for.")
      .InRange(0, kMaxTreeNodes)
      .Add("ahead-branching", &options.limits.ahead_branching,
           "Candidates for one position below one node that are drafted ahead.")
      .InRange(1, 32)
      .AddChoice(
          "tree-shape", &options.tree_shape, TreeShapeNames(),
          "What drafters try first: the best candidate, one for each level, or the best of each level.")
      .AddChoice(
          "verification-rule", &options.verification_rule, VerificationRuleNames(),
          "How drafts are accepted above temperature 0: by the target's seeded choice, which makes outputs "
          "depend on nothing that drafters do; or by ratio of probabilities, token by token or for a whole "
          "chain, which only drafters marked as trusted can be used with.")
      .AddChoice("local-drafter", &options.local_drafter, {"none", "ngram", "suffix"},
                 "Source that drafts in the verifier where no drafter has sent anything.")
      .Add("local-sockets", &options.local_sockets,
           "Folder that drafters of this machine have been given too: those that have a socket there are "
           "spoken "
           "with over it instead of TCP. Made for this user alone if it is not there; empty for none.")
      .Add("max-draft-wait", &options.max_draft_wait, "Longest wait of a round for its drafter.");
  DeclareConstraintFlags(options.constraints, flags);
}

}  // namespace tandem
