#define PCRE2_CODE_UNIT_WIDTH 8

#include "common/tokenizer/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/regex_translator.h"
#include "common/tokenizer/unicode/unicode.h"
#include "common/tokenizer/unicode/unicode_tables.h"

namespace tandem {
namespace {

constexpr size_t kMaxPatternBytes = 64 * 1024;
constexpr uint32_t kMatchLimit = 20'000'000;
// Steps of PCRE2 that every match may take without being counted.
constexpr uint32_t kFreeSteps = 4096;
// Counted steps that a text may take: for each of its bytes, and in all.
constexpr int64_t kStepsPerByte = 2000;
constexpr int64_t kStepsPerText = kMatchLimit;
constexpr uint32_t kHeapLimitKibibytes = 256 * 1024;

std::string ErrorText(int code) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof(buffer)) < 0) return absl::StrCat("PCRE2 error ", code);
  return reinterpret_cast<const char*>(buffer);
}

// For characters that PCRE2 does not know yet: the older characters that replace them.
struct ChosenStandIn {
  uint32_t first;
  uint32_t last;
  uint32_t stand_in;
};

// The first two bytes of characters that have stand-ins. All of these are three or four bytes long.
constexpr size_t kNumLeads = 0x10000;

std::bitset<kNumLeads> MakeNewerLeads() {
  std::bitset<kNumLeads> leads;
  for (const StandIn& run : StandIns()) {
    for (uint32_t code_point = run.first; code_point <= run.last; ++code_point) {
      std::string character;
      AppendUtf8(code_point, character);
      leads.set((static_cast<unsigned char>(character[0]) << 8) | static_cast<unsigned char>(character[1]));
    }
  }
  return leads;
}

// Chooses a stand-in for each run of newer characters. The pattern must not distinguish the two by naming
// only one of them.
absl::StatusOr<std::vector<ChosenStandIn>> ChooseStandIns(const TranslatedPattern& pattern) {
  std::vector<ChosenStandIn> chosen;
  for (const StandIn& run : StandIns()) {
    const auto agrees = [&](uint32_t candidate) {
      for (const CodePointRange& range : pattern.named) {
        const bool holds_all = range.first <= run.first && run.last <= range.last;
        const bool holds_none = range.last < run.first || run.last < range.first;
        const bool holds_candidate = range.first <= candidate && candidate <= range.last;
        if (holds_candidate ? !holds_all : !holds_none) return false;
      }
      return true;
    };
    const auto end =
        pattern.names_script ? run.candidates.begin() + StandIn::kNumOfScript : run.candidates.end();
    const auto candidate = std::find_if(run.candidates.begin(), end, agrees);
    if (candidate == end) {
      return absl::UnimplementedError(
          absl::StrCat("regular expression names some characters of U+", absl::Hex(run.first), " to U+",
                       absl::Hex(run.last), ", which are newer than PCRE2's tables; that is not supported"));
    }
    chosen.push_back({run.first, run.last, *candidate});
  }
  return chosen;
}

// Returns `text` with stand-ins. If there are any, the result is in `storage`.
absl::string_view WithStandIns(absl::string_view text, const std::vector<ChosenStandIn>& stand_ins,
                               std::string& storage) {
  static const auto& newer_leads = *new std::bitset<kNumLeads>(MakeNewerLeads());
  for (size_t at = 0; at + 2 < text.size(); ++at) {
    const auto lead = static_cast<unsigned char>(text[at]);
    if (lead < 0xE0 || !newer_leads.test((lead << 8) | static_cast<unsigned char>(text[at + 1]))) continue;
    const uint32_t code_point = ReadUtf8(text.substr(at)).code_point;
    const auto run = std::lower_bound(stand_ins.begin(), stand_ins.end(), code_point,
                                      [](const ChosenStandIn& r, uint32_t c) { return r.last < c; });
    if (run == stand_ins.end() || code_point < run->first) continue;
    if (storage.empty()) storage = std::string(text);
    std::string stand_in;
    AppendUtf8(run->stand_in, stand_in);
    storage.replace(at, stand_in.size(), stand_in);
  }
  return storage.empty() ? text : storage;
}

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeMatchContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

// Matches a text within a number of steps. A limit for each match alone would allow a pattern as much again
// at every byte.
class Matcher {
 public:
  Matcher(const pcre2_code* code, bool names_search_begin, absl::string_view text)
      : code_(code),
        names_search_begin_(names_search_begin),
        text_(text),
        data_(pcre2_match_data_create_from_pattern(code, nullptr)),
        context_(pcre2_match_context_create(nullptr)) {
    if (has_memory()) pcre2_set_heap_limit(context_.get(), kHeapLimitKibibytes);
  }
  bool has_memory() const { return data_ != nullptr && context_ != nullptr; }
  const PCRE2_SIZE* bounds() const { return pcre2_get_ovector_pointer(data_.get()); }

  // PCRE2's result for the first match from `position` on. Positions never decrease from one call to the
  // next.
  int Match(size_t position) {
    const int result = MatchWithin(position, kFreeSteps, 0);
    if (result != PCRE2_ERROR_MATCHLIMIT) return result;
    // \G matches where the search begins, so the search must begin only here.
    if (names_search_begin_) return MatchWithin(position, kMatchLimit, 0);
    // PCRE2 counts steps anew for each position where a match may begin, so they are tried one by one.
    for (size_t begin = position; begin <= text_.size();
         begin += begin < text_.size() ? ReadUtf8(text_.substr(begin)).length : 1) {
      if (const int at_begin = MatchAt(begin); at_begin != PCRE2_ERROR_NOMATCH) return at_begin;
    }
    return PCRE2_ERROR_NOMATCH;
  }

 private:
  // Tries a match that begins here. The number of steps that it needs is unknown, so the limit grows.
  int MatchAt(size_t begin) {
    const int64_t allowed = kStepsPerText + static_cast<int64_t>(begin) * kStepsPerByte;
    for (int64_t limit = kFreeSteps;; limit = std::min<int64_t>(limit * 32, kMatchLimit)) {
      const int result = MatchWithin(begin, static_cast<uint32_t>(limit), PCRE2_ANCHORED);
      if (limit > kFreeSteps) spent_ += limit;
      if (result != PCRE2_ERROR_MATCHLIMIT || limit == kMatchLimit || spent_ >= allowed) return result;
    }
  }

  int MatchWithin(size_t position, uint32_t limit, uint32_t options) {
    pcre2_set_match_limit(context_.get(), limit);
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text_.data());
    const auto match = [&](uint32_t more) {
      return pcre2_match(code_, subject, text_.size(), position, PCRE2_NO_UTF_CHECK | options | more,
                         data_.get(), context_.get());
    };
    const int result = match(0);
    // The interpreter keeps its backtracking points on the heap.
    return result == PCRE2_ERROR_JIT_STACKLIMIT ? match(PCRE2_NO_JIT) : result;
  }

  const pcre2_code* const code_;
  const bool names_search_begin_;
  const absl::string_view text_;
  const std::unique_ptr<pcre2_match_data, FreeMatchData> data_;
  const std::unique_ptr<pcre2_match_context, FreeMatchContext> context_;
  int64_t spent_ = 0;
};

}  // namespace

struct Regex::Compiled {
  std::unique_ptr<pcre2_code, FreeCode> code;
  std::vector<ChosenStandIn> stand_ins;
  bool names_search_begin = false;  // It has a \G.
};

absl::StatusOr<Regex> Regex::Compile(absl::string_view oniguruma_pattern) {
  if (oniguruma_pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("regular expression is longer than ", kMaxPatternBytes, " bytes"));
  }
  TANDEM_ASSIGN_OR_RETURN(const TranslatedPattern translated, TranslatePattern(oniguruma_pattern));
  const std::string& pattern = translated.pattern;
  auto compiled = std::make_shared<Compiled>();
  TANDEM_ASSIGN_OR_RETURN(compiled->stand_ins, ChooseStandIns(translated));
  compiled->names_search_begin = absl::StrContains(pattern, "\\G");
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  // In Ruby, ^ and $ match at every line.
  compiled->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                                     &error, &error_offset, nullptr));
  if (compiled->code == nullptr) {
    const std::string what = absl::StrCat("regular expression '", oniguruma_pattern, "', for PCRE2 '",
                                          pattern, "': ", ErrorText(error), " near offset ", error_offset);
    // Patterns that Oniguruma accepts and PCRE2 does not: unknown properties, look-behinds of several
    // lengths.
    const bool is_limit =
        error == PCRE2_ERROR_UNKNOWN_UNICODE_PROPERTY || error == PCRE2_ERROR_LOOKBEHIND_NOT_FIXED_LENGTH;
    return is_limit ? absl::UnimplementedError(what) : absl::InvalidArgumentError(what);
  }
  // Without just-in-time compilation (on an unusual processor), PCRE2 interprets.
  pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE);
  return Regex(std::move(compiled));
}

absl::Status Regex::ForEachMatch(absl::string_view text,
                                 absl::FunctionRef<absl::Status(size_t, size_t)> on_match) const {
  std::string storage;
  text = WithStandIns(text, compiled_->stand_ins, storage);
  Matcher matcher(compiled_->code.get(), compiled_->names_search_begin, text);
  if (!matcher.has_memory()) return absl::ResourceExhaustedError("out of memory for PCRE2");
  size_t position = 0;
  size_t last_end = static_cast<size_t>(-1);
  while (position <= text.size()) {
    const int result = matcher.Match(position);
    if (result == PCRE2_ERROR_NOMATCH) return absl::OkStatus();
    if (result < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("regular expression failed at byte ", position, ": ", ErrorText(result)));
    }
    const PCRE2_SIZE* bounds = matcher.bounds();
    const size_t begin = bounds[0];
    const size_t end = bounds[1];
    if (end < begin || begin < position) {
      return absl::InvalidArgumentError("regular expression moves the start of its match with \\K");
    }
    if (begin == end) {
      if (begin != last_end) TANDEM_RETURN_IF_ERROR(on_match(begin, end));
      last_end = begin;
      if (end >= text.size()) return absl::OkStatus();
      position = end + ReadUtf8(text.substr(end)).length;
      continue;
    }
    TANDEM_RETURN_IF_ERROR(on_match(begin, end));
    position = end;
    last_end = end;
  }
  return absl::OkStatus();
}

}  // namespace tandem
