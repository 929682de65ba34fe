#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/config/secret.h"
#include "router/admission/admission.h"
#include "router/config/config.h"
#include "router/drafters/choice/drafter_chooser.h"
#include "router/drafters/policy_memory.h"
#include "router/drafters/selection.h"
#include "router/generation/generation.h"
#include "router/generation/generation_facts.h"
#include "router/models/parsed_output.h"
#include "router/models/served_model.h"
#include "router/serving/preparation_services.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/verifier.pb.h"

namespace tandem::router {

// Turns a call into a verifier's request, in the stages of Stage, one method for each:
//
//   Receive -> Route -> Admit -> (a place) -> Place -> Encode -> Choose -> Complete -> Generation::OnPrepared
//
// Each error ends the call with that status. Receive, Route, Admit, Place and Complete add to the
// generation's facts: call them under the call's mutex. Encode and Choose take time proportional to the
// prompt: call them on a worker and without the mutex. They only read facts of earlier stages, which nothing
// changes any more, and put what they find into `Found`, which Complete takes.
//
// Also holds what the request uses of its tenant's limits, its place and its tokens, until GiveUpPlace and
// Release. `services` and `facts` outlive it.
class Preparation {
 public:
  using Request = std::shared_ptr<const v1::GenerateRequest>;

  Preparation(const PreparationServices* services, GenerationFacts* facts)
      : services_(*services), facts_(*facts) {}

  const GenerationFacts& facts() const { return facts_; }

  // Authenticates the caller. `read` returns the request or what is wrong with it; it is called only if the
  // caller is authenticated.
  absl::Status Receive(const std::optional<Secret>& authorization,
                       absl::FunctionRef<absl::StatusOr<Request>()> read);
  // Checks the request and finds its model, adapter and id.
  absl::Status Route();
  // Asks the tenant's policy for a drafter and takes a place, or joins the queue for one; `on_place` is
  // Admission's.
  absl::Status Admit(Admission::OnPlace on_place);
  // The request has its place: whether it may still run.
  absl::Status Place(absl::Time deadline);

  // What the worker finds.
  struct Found {
    absl::StatusOr<v1::VerifierGenerateRequest> request = v1::VerifierGenerateRequest();
    uint64_t tokenized = 0;  // Tokens made from text, even of a request that is refused.
    absl::Time encoded;      // When that was over,
    absl::Time chosen;       // and when Choose was.
    DrafterSelection selection;
    PromptHandle prompt;
    DrafterDecision decision;
    Generation::Prepared prepared;
  };
  // Validates the rest and tokenizes the prompt.
  Found Encode() const;
  // Of a request that Encode accepted: computes the prompt's features and, if the drafter depends on them,
  // chooses it.
  void Choose(Found& found) const;
  // Charges for a request that goes no further, since its text was tokenized.
  void Charge(const Found& found);
  // Reserves the request's tokens and completes what the verifier gets.
  absl::Status Complete(Found& found);

  // The key of what the request's window policy learns, after Complete.
  static PolicyKey PolicyKeyOf(const GenerationFacts& facts);

  // The work is done: only the delivery is left. `num_sent`: tokens that the client gets.
  void GiveUpPlace(uint32_t num_sent);
  // Nothing is left.
  void Release() { ticket_ = Admission::Ticket(); }

 private:
  const RoutingTable& table() const { return facts_.routing->table(); }
  const ServedModel& model() const { return (*services_.models)[facts_.model]; }
  void ChooseDrafter(Found& found) const;
  void SetDrafters();
  // Whom else the tenant may use, in case the drafter is lost.
  void AddAlternates(size_t drafter);
  absl::Status ReserveTokens(uint64_t tokenized);

  const PreparationServices& services_;
  GenerationFacts& facts_;
  Admission::Ticket ticket_;
  // Tokens reserved from the tenant's quota, once they are; and how many of them are used before any output.
  std::optional<uint64_t> reserved_tokens_;
  uint64_t used_tokens_ = 0;
};

}  // namespace tandem::router
