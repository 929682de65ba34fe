#include "bench/plan/acceptance.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/json_fields.h"
#include "common/model/config/strict_json.h"

namespace tandem::plan {
namespace {

using Json = nlohmann::json;

// The sum of rounded probabilities may exceed 1 by this much.
constexpr double kSumSlack = 1e-3;

absl::Status BadRecord(absl::string_view where, const Json& found) {
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": found ", PrintableValue(found),
                   ", expected [right, p1, p2, ...]: which guess was right, 0 for none, and 1 to ",
                   kMostGuesses, " probabilities in (0, 1], falling, that add up to at most 1"));
}

absl::StatusOr<GuessRecord> ReadRecord(const Json& json, absl::string_view where) {
  if (!json.is_array() || json.size() < 2 || json.size() > 1 + kMostGuesses) return BadRecord(where, json);
  const size_t guesses = json.size() - 1;
  if (!json[0].is_number_unsigned() || json[0].get<uint64_t>() > guesses) return BadRecord(where, json);
  GuessRecord record;
  const auto right = json[0].get<uint64_t>();
  if (right > 0) record.right = static_cast<uint8_t>(right - 1);
  double sum = 0.0;
  double before = 1.0;
  for (size_t i = 0; i < guesses; ++i) {
    if (!json[1 + i].is_number()) return BadRecord(where, json);
    const double probability = json[1 + i].get<double>();
    if (!(probability > 0.0 && probability <= before + kSumSlack)) return BadRecord(where, json);
    record.probabilities[i] = static_cast<float>(probability);
    sum += probability;
    before = probability;
  }
  if (sum > 1.0 + kSumSlack) return BadRecord(where, json);
  return record;
}

}  // namespace

Acceptance::Acceptance(std::vector<GuessRecord> recorded) : records_(std::move(recorded)) {
  rates_.assign(kMostGuesses, 0.0);
  for (const GuessRecord& record : records_) {
    if (record.right < kMostGuesses) rates_[record.right] += 1.0 / static_cast<double>(records_.size());
  }
}

absl::StatusOr<Acceptance> Acceptance::OfRates(const std::vector<double>& rates) {
  double sum = 0.0;
  bool valid = !rates.empty() && rates.size() <= kMostGuesses;
  for (const double rate : rates) {
    valid = valid && rate >= 0.0 && rate <= 1.0;
    sum += rate;
  }
  if (!valid || sum > 1.0 + kSumSlack) {
    return absl::InvalidArgumentError(absl::StrCat("found ", rates.size(), " rates with a sum of ", sum,
                                                   ", expected 1 to ", kMostGuesses,
                                                   " numbers in [0, 1] with a sum of at most 1"));
  }
  Acceptance acceptance;
  acceptance.rates_ = rates;
  return acceptance;
}

GuessRecord Acceptance::Draw(double uniform) const {
  GuessRecord record;
  for (size_t i = 0; i < rates_.size(); ++i) {
    record.probabilities[i] = static_cast<float>(rates_[i]);
    if (record.right == GuessRecord::kNone && uniform < rates_[i]) record.right = static_cast<uint8_t>(i);
    uniform -= rates_[i];
  }
  return record;
}

double Acceptance::Rate(size_t guesses) const {
  double rate = 0.0;
  for (size_t i = 0; i < std::min(guesses, rates_.size()); ++i) rate += rates_[i];
  return rate;
}

void AcceptanceBook::Add(absl::string_view kind, absl::string_view drafter, Acceptance acceptance) {
  entries_.insert_or_assign(std::pair(std::string(kind), std::string(drafter)), std::move(acceptance));
}

const Acceptance* AcceptanceBook::Find(absl::string_view kind, absl::string_view drafter) const {
  const auto found = entries_.find(std::pair(std::string(kind), std::string(drafter)));
  return found == entries_.end() ? nullptr : &found->second;
}

std::vector<std::pair<std::string, std::string>> AcceptanceBook::Known() const {
  std::vector<std::pair<std::string, std::string>> known;
  for (const auto& [key, acceptance] : entries_) known.push_back(key);
  return known;
}

absl::Status AcceptanceBook::AddFile(absl::string_view text, absl::string_view path) {
  TANDEM_ASSIGN_OR_RETURN(const Json json,
                          ParseStrictJson(text, path, 0, {.max_depth = 8, .max_values = 40'000'000}));
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": found ", PrintableValue(json), ", expected an object"));
  }
  const JsonFields fields(json, path);
  TANDEM_RETURN_IF_ERROR(fields.RequiredInt("format", 1, 1).status());
  const Json* const guesses = fields.Find("guesses");
  if (guesses == nullptr || !guesses->is_array()) return fields.Unexpected("guesses", "a list");
  std::map<std::pair<std::string, std::string>, std::vector<GuessRecord>> read;
  for (size_t i = 0; i < guesses->size(); ++i) {
    const std::string where = absl::StrCat(path, ": guesses[", i, "]");
    const Json& entry = (*guesses)[i];
    if (!entry.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": found ", PrintableValue(entry), ", expected an object"));
    }
    const JsonFields of_entry(entry, where);
    TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> kind, of_entry.String("kind"));
    if (!kind.has_value()) return of_entry.Unexpected("kind", "the kind of text");
    TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> drafter, of_entry.String("drafter"));
    if (!drafter.has_value()) return of_entry.Unexpected("drafter", "the drafter's name");
    const Json* const outputs = of_entry.Find("outputs");
    if (outputs == nullptr || !outputs->is_array()) return of_entry.Unexpected("outputs", "a list");
    for (size_t j = 0; j < outputs->size(); ++j) {
      const std::string at = absl::StrCat(where, ".outputs[", j, "]");
      if (!(*outputs)[j].is_array()) {
        return absl::InvalidArgumentError(
            absl::StrCat(at, ": found ", PrintableValue((*outputs)[j]), ", expected a list of positions"));
      }
      for (size_t k = 0; k < (*outputs)[j].size(); ++k) {
        TANDEM_ASSIGN_OR_RETURN(const GuessRecord record,
                                ReadRecord((*outputs)[j][k], absl::StrCat(at, "[", k, "]")));
        read[{*kind, *drafter}].push_back(record);
      }
    }
    if (read[{*kind, *drafter}].empty()) return of_entry.Unexpected("outputs", "at least one position");
  }
  for (auto& [key, records] : read) Add(key.first, key.second, Acceptance(std::move(records)));
  return absl::OkStatus();
}

}  // namespace tandem::plan
