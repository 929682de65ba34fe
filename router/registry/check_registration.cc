#include "router/registry/check_registration.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace tandem::router {
namespace {

constexpr size_t kShownBytes = 64;
constexpr size_t kMaxVersionBytes = 64;
// Of a model's description: the widest that is served, by far.
constexpr size_t kMaxTextBytes = 256;
// Longer than any pass takes.
constexpr double kMaxSeconds = 3600.0;

template <class... Parts>
absl::Status Wrong(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("server.", parts...));
}

absl::Status CheckSeconds(absl::string_view path, double seconds) {
  // Written so that NaN fails.
  if (seconds >= 0.0 && seconds <= kMaxSeconds) return absl::OkStatus();
  return Wrong(path, ": ", seconds, ", expected 0 to ", kMaxSeconds, " seconds");
}

// Hosts that gRPC would take for the scheme of another kind of target.
constexpr absl::string_view kSchemes[] = {"dns",  "google-c2p",    "ipv4",  "ipv6",
                                          "unix", "unix-abstract", "vsock", "xds"};

// "host:port", the host being a name, an IPv4 address or one of IPv6 in brackets.
absl::Status CheckAddress(absl::string_view address) {
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  const bool has_port = colon != absl::string_view::npos && colon > 0 &&
                        absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 1 && port <= 65535;
  const bool in_brackets = has_port && address.front() == '[' && address[colon - 1] == ']';
  const absl::string_view host = has_port ? address.substr(0, colon) : absl::string_view();
  const auto is_host_character = [in_brackets](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.' ||
           (in_brackets && (c == ':' || c == '[' || c == ']' || c == '%'));
  };
  if (has_port && address.size() <= kMaxAddressBytes &&
      std::all_of(host.begin(), host.end(), is_host_character) &&
      std::find(std::begin(kSchemes), std::end(kSchemes), absl::AsciiStrToLower(host)) ==
          std::end(kSchemes)) {
    return absl::OkStatus();
  }
  return Wrong("address: \"", Shown(address), "\", expected \"host:port\"");
}

absl::Status CheckModel(absl::string_view path, const v1::ModelInfo& model, bool is_source) {
  if (!IsGoodName(model.name())) {
    return Wrong(path, ".name: \"", Shown(model.name()), "\", expected at most ", kMaxNameBytes,
                 " printable ASCII characters without blanks");
  }
  if (model.weight_type().size() > kMaxTextBytes || model.architecture().size() > kMaxTextBytes ||
      model.head_kind().size() > kMaxTextBytes) {
    return Wrong(path, ": weight_type, architecture or head_kind is longer than ", kMaxTextBytes, " bytes");
  }
  if (!model.version().empty() && !IsGoodName(model.version())) {
    return Wrong(path, ".version: \"", Shown(model.version()), "\", expected at most ", kMaxNameBytes,
                 " printable ASCII characters without blanks");
  }
  if (!is_source && model.vocabulary_fingerprint() == 0) {
    return Wrong(path, ".vocabulary_fingerprint: missing");
  }
  if (model.bridged_vocabularies_size() > kMaxBridgedVocabularies) {
    return Wrong(path, ".bridged_vocabularies: ", model.bridged_vocabularies_size(),
                 " entries, expected at most ", kMaxBridgedVocabularies);
  }
  return absl::OkStatus();
}

absl::Status CheckDigest(absl::string_view path, absl::string_view digest) {
  if (digest.size() == kDigestBytes) return absl::OkStatus();
  return Wrong(path, ".weights_sha256: ", digest.size(), " bytes, expected ", kDigestBytes);
}

absl::Status CheckVerifier(const v1::RegisteredVerifier& verifier) {
  TANDEM_RETURN_IF_ERROR(CheckModel("verifier.model", verifier.model(), /*is_source=*/false));
  TANDEM_RETURN_IF_ERROR(CheckDigest("verifier", verifier.weights_sha256()));
  if (verifier.round_seconds_size() > kMaxRoundSeconds) {
    return Wrong("verifier.round_seconds: ", verifier.round_seconds_size(), " entries, expected at most ",
                 kMaxRoundSeconds);
  }
  if (verifier.arithmetic().size() > kMaxTextBytes) {
    return Wrong("verifier.arithmetic: longer than ", kMaxTextBytes, " bytes");
  }
  uint32_t rows = 0;
  for (const v1::RoundSeconds& round : verifier.round_seconds()) {
    if (round.rows() <= rows) {
      return Wrong("verifier.round_seconds: ", round.rows(), " rows after ", rows, ", expected more");
    }
    rows = round.rows();
    TANDEM_RETURN_IF_ERROR(CheckSeconds("verifier.round_seconds", round.seconds()));
  }
  return absl::OkStatus();
}

absl::Status CheckDrafter(const v1::RegisteredDrafter& drafter) {
  if (drafter.models().empty() || drafter.models_size() > kMaxDraftModels) {
    return Wrong("drafter.models: ", drafter.models_size(), " entries, expected 1 to ", kMaxDraftModels);
  }
  std::set<std::string> names;
  for (int i = 0; i < drafter.models_size(); ++i) {
    const v1::RegisteredDraftModel& model = drafter.models(i);
    const std::string path = absl::StrCat("drafter.models[", i, "]");
    const bool is_source = model.weights_sha256().empty() && model.model().vocabulary_fingerprint() == 0;
    TANDEM_RETURN_IF_ERROR(CheckModel(absl::StrCat(path, ".model"), model.model(), is_source));
    if (!is_source) TANDEM_RETURN_IF_ERROR(CheckDigest(path, model.weights_sha256()));
    if (model.model().has_level_seconds()) {
      TANDEM_RETURN_IF_ERROR(
          CheckSeconds(absl::StrCat(path, ".model.level_seconds"), model.model().level_seconds()));
    }
    if (!names.insert(model.model().name()).second) {
      return Wrong(path, ".model.name: \"", model.model().name(), "\" is used twice");
    }
  }
  return absl::OkStatus();
}

std::string ServedNames(absl::Span<const RegistrableModel> models) {
  return absl::StrJoin(models, ", ",
                       [](std::string* out, const RegistrableModel& model) { out->append(model.name); });
}

bool DraftsFor(const v1::ModelInfo& drafter, const RegistrableModel& model) {
  if (drafter.vocabulary_fingerprint() == model.vocabulary_fingerprint) return true;
  const auto& bridged = drafter.bridged_vocabularies();
  return std::any_of(bridged.begin(), bridged.end(), [&](const v1::BridgedVocabulary& vocabulary) {
    return vocabulary.fingerprint() == model.vocabulary_fingerprint;
  });
}

absl::Status CheckVerifierUse(const v1::ModelInfo& model, absl::Span<const RegistrableModel> models) {
  for (const RegistrableModel& served : models) {
    if (served.name != model.name()) continue;
    if (served.vocabulary_fingerprint == model.vocabulary_fingerprint()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("model \"", model.name(), "\" has another vocabulary here: fingerprint ",
                     absl::Hex(served.vocabulary_fingerprint, absl::kZeroPad16), ", found ",
                     absl::Hex(model.vocabulary_fingerprint(), absl::kZeroPad16)));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "model \"", model.name(), "\" is not served here, expected one of: ", ServedNames(models)));
}

}  // namespace

std::string Shown(absl::string_view bytes) {
  return absl::StrCat(absl::CHexEscape(bytes.substr(0, kShownBytes)),
                      bytes.size() > kShownBytes ? "..." : "");
}

absl::Status CheckInstance(const v1::ServerInstance& instance) {
  if (!IsGoodName(instance.name())) {
    return Wrong("instance.name: \"", Shown(instance.name()), "\", expected at most ", kMaxNameBytes,
                 " printable ASCII characters without blanks");
  }
  if (instance.instance().size() != kInstanceBytes) {
    return Wrong("instance.instance: ", instance.instance().size(), " bytes, expected ", kInstanceBytes);
  }
  return absl::OkStatus();
}

absl::Status CheckRegistration(const v1::ServerRegistration& server) {
  TANDEM_RETURN_IF_ERROR(CheckInstance(server.instance()));
  TANDEM_RETURN_IF_ERROR(CheckAddress(server.address()));
  if (server.version().size() > kMaxVersionBytes) {
    return Wrong("version: ", server.version().size(), " bytes, expected at most ", kMaxVersionBytes);
  }
  if (server.capacity().max_running() == 0) return Wrong("capacity.max_running: 0, expected at least 1");
  switch (server.kind_case()) {
    case v1::ServerRegistration::kVerifier:
      return CheckVerifier(server.verifier());
    case v1::ServerRegistration::kDrafter:
      return CheckDrafter(server.drafter());
    default:
      return Wrong("kind: none, expected verifier or drafter");
  }
}

absl::Status CheckUse(const v1::ServerRegistration& server, const Registration& registration,
                      absl::Span<const RegistrableModel> models) {
  const bool is_verifier = server.has_verifier();
  if (is_verifier ? !registration.verifiers : !registration.drafters) {
    const absl::string_view kind = is_verifier ? "verifiers" : "drafters";
    return absl::FailedPreconditionError(absl::StrCat("this router accepts no registrations of ", kind,
                                                      "; its configuration lacks `registration: {", kind,
                                                      ": true}`"));
  }
  if (is_verifier) return CheckVerifierUse(server.verifier().model(), models);
  for (const v1::RegisteredDraftModel& drafter : server.drafter().models()) {
    const uint64_t fingerprint = drafter.model().vocabulary_fingerprint();
    const bool fits = fingerprint == 0 || std::any_of(models.begin(), models.end(), [&](const auto& model) {
                        return DraftsFor(drafter.model(), model);
                      });
    if (fits) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "draft model \"", drafter.model().name(), "\" has the vocabulary ",
        absl::Hex(fingerprint, absl::kZeroPad16), ", which no model served here has, and bridges ",
        drafter.model().bridged_vocabularies_size(),
        " others, none of which belongs to one of these models: ", ServedNames(models)));
  }
  return absl::OkStatus();
}

}  // namespace tandem::router
