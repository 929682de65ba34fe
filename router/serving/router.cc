#include "router/serving/router.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>
#include <vector>

namespace tandem::router {
namespace {

// Before a drain's end, for the last messages to leave.
constexpr absl::Duration kEndingTime = absl::Seconds(1);

// The same, and passes the times of verifiers' rounds to the chooser.
VerifierPool::Options TellingOfRounds(VerifierPool::Options options, DrafterChooser* chooser) {
  options.on_info = [chooser](size_t model, const v1::ServerInfo& info) {
    std::vector<DrafterChooser::RoundPoint> rounds;
    for (const v1::RoundSeconds& round : info.round_seconds()) {
      rounds.push_back({.rows = round.rows(), .seconds = round.seconds()});
    }
    chooser->TellRoundSeconds(model, rounds);
  };
  return options;
}

}  // namespace

std::vector<DrafterChooser::Model> ChooserModels(const std::vector<ServedModel>& models) {
  std::vector<DrafterChooser::Model> described;
  for (const ServedModel& model : models) {
    described.push_back({.name = model.name,
                         .vocab_size = static_cast<uint32_t>(model.vocab_size),
                         .vocabulary_fingerprint = model.vocabulary_fingerprint});
  }
  return described;
}

Router::Router(Options options)
    : options_(std::move(options)),
      admission_(options_.clock, options_.spare_percent),
      own_chooser_(
          options_.chooser != nullptr
              ? nullptr
              : std::make_unique<DrafterChooser>(DrafterChooser::Options{}, ChooserModels(options_.models))),
      chooser_(options_.chooser != nullptr ? options_.chooser : own_chooser_.get()),
      verifiers_(options_.routing->snapshot()->table(), TellingOfRounds(options_.verifiers, chooser_),
                 options_.clock),
      policies_(options_.policies != nullptr ? options_.policies : &own_policies_),
      preparation_{.clock = options_.clock,
                   .models = &options_.models,
                   .admission = &admission_,
                   .chooser = chooser_,
                   .policies = policies_,
                   .draw = options_.draw},
      workers_(options_.tokenizer_threads) {
  assert(options_.models.size() == snapshot()->table().models.size());
  options_.routing->TellVerifiers([this](const RoutingTable& table) {
    for (size_t model = 0; model < table.models.size(); ++model) {
      verifiers_.SetConfigured(model, table.models[model].verifiers);
    }
  });
}

Router::~Router() {
  options_.routing->TellVerifiers(nullptr);
  const auto none_left = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return leases_ == 0; };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&none_left));
}

void Router::Drain(absl::Time deadline) {
  const absl::Duration rest = std::max(deadline - clock().Now(), absl::ZeroDuration());
  admission_.Drain(deadline - std::min(kEndingTime, rest / 2));
  running_calls_.EndAll(absl::UnavailableError("the router is shutting down"));
  admission_.Drain(deadline);
}

void Router::ChangeLeases(int by) {
  absl::MutexLock lock(&mutex_);
  leases_ += by;
}

}  // namespace tandem::router
