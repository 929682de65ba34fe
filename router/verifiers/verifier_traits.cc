#include "router/verifiers/verifier_traits.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/arithmetic.h"
#include "common/rpc/status.h"

namespace tandem::router {
namespace {

bool HasRoom(const VerifierTraits& traits, const VerifierNeeds& needs) {
  return !traits.most_tokens.has_value() || needs.tokens <= *traits.most_tokens;
}

bool HasAdapter(const VerifierTraits& traits, const VerifierNeeds& needs) {
  return needs.adapter.empty() || traits.adapters.count(needs.adapter) > 0;
}

}  // namespace

v1::ServerInfo InfoOfModel(v1::ServerInfo info, absl::string_view model) {
  for (const v1::HeldModel& held : info.held_models()) {
    if (held.name() != model) continue;
    const v1::HeldModel own = held;
    *info.mutable_capacity() = own.capacity();
    info.set_arithmetic(own.arithmetic());
    *info.mutable_end_tokens() = own.end_tokens();
    *info.mutable_round_seconds() = own.round_seconds();
    break;
  }
  return info;
}

bool LacksModel(const v1::ServerInfo& info, absl::string_view model) {
  return !info.models().empty() && std::none_of(info.models().begin(), info.models().end(),
                                                [model](const auto& held) { return held.name() == model; });
}

VerifierTraits TraitsOf(const v1::ServerInfo& info, absl::string_view model) {
  VerifierTraits traits;
  for (const v1::ModelInfo& held : info.models()) {
    if (held.name() != model || held.context_length() == 0) continue;
    traits.most_tokens = held.context_length();
    if (info.capacity().kv_tokens() > 0) {
      traits.most_tokens = std::min<uint64_t>(*traits.most_tokens, info.capacity().kv_tokens());
    }
    traits.computes = ComputesInWords(info, held);
    traits.arithmetic = ArithmeticOf(traits.computes);
    for (const v1::AdapterInfo& adapter : held.adapters()) traits.adapters[adapter.name()] = adapter;
  }
  return traits;
}

uint64_t VerifierTraits::ArithmeticWith(const std::string& adapter) const {
  const auto held = adapters.find(adapter);
  if (arithmetic == 0 || held == adapters.end()) return arithmetic;
  return ArithmeticWithAdapter(arithmetic, held->second.fingerprint());
}

bool Suits(const VerifierTraits& traits, const VerifierNeeds& needs) {
  return HasRoom(traits, needs) && HasAdapter(traits, needs) &&
         (needs.arithmetic == 0 || needs.arithmetic == traits.ArithmeticWith(needs.adapter));
}

absl::Status NoAdapter(absl::string_view adapter) {
  return absl::NotFoundError(absl::StrCat("adapter: \"", absl::CHexEscape(adapter.substr(0, 128)),
                                          "\" is held by no verifier of the model"));
}

bool Differ(const VerifierTraits& a, const VerifierTraits& b) {
  return a.arithmetic != 0 && b.arithmetic != 0 && a.arithmetic != b.arithmetic;
}

absl::Status CheckAnySuits(absl::Span<const VerifierTraits> verifiers, const VerifierNeeds& needs) {
  uint64_t most = 0;
  bool any_room = false;
  bool any_adapter = false;
  bool all_known = !verifiers.empty();
  for (const VerifierTraits& traits : verifiers) {
    if (Suits(traits, needs)) return absl::OkStatus();
    any_room = any_room || HasRoom(traits, needs);
    any_adapter = any_adapter || HasAdapter(traits, needs);
    all_known = all_known && traits.most_tokens.has_value();
    most = std::max(most, traits.most_tokens.value_or(0));
  }
  if (needs.arithmetic == 0 && !any_room) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat("stopping.max_tokens: ", needs.tokens,
                                                              " tokens with the prompt, expected at most ",
                                                              most, ": more do not fit the context")),
                      kContextLengthExceeded);
  }
  if (needs.arithmetic == 0 && !any_adapter && all_known) return NoAdapter(needs.adapter);
  return absl::UnavailableError(
      absl::StrCat("no verifier is known that has room for ", needs.tokens, " tokens",
                   needs.adapter.empty() ? "" : absl::StrCat(", holds the adapter \"", needs.adapter, "\""),
                   needs.arithmetic == 0 ? "" : " and has the arithmetic of the one that began the output"));
}

}  // namespace tandem::router
