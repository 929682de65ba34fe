#include "common/drafting/source_host.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/drafting/blended_source.h"

namespace tandem {
namespace {

struct Setting {
  absl::string_view key;
  uint32_t* value;
  uint32_t least;
  uint32_t most;
};

// Where the settings of `spec`'s kind go.
std::vector<Setting> SettingsOf(SourceSpec* spec) {
  switch (spec->kind) {
    case SourceSpec::Kind::kNgram:
      return {{"min", &spec->ngram.min_n, 1, 16},
              {"max", &spec->ngram.max_n, 1, 16},
              {"tokens", &spec->ngram.max_tokens, 64, 1 << 20}};
    case SourceSpec::Kind::kSuffix:
      return {{"min", &spec->suffix.min_length, 1, 1024}, {"tokens", &spec->suffix.max_tokens, 64, 1 << 20}};
    case SourceSpec::Kind::kTrie:
      break;
  }
  return {{"context", &spec->trie.max_context, 1, 16},
          {"branch", &spec->trie.branch, 2, 64},
          {"nodes", &spec->tries.max_nodes, 64, 1 << 24},
          {"tenants", &spec->tries.max_tenants, 1, 65536}};
}

absl::Status ApplySetting(absl::string_view text, absl::string_view one, const std::vector<Setting>& known) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(one, absl::MaxSplits('=', 1));
  for (const Setting& setting : known) {
    if (setting.key != parts.first) continue;
    uint32_t value = 0;
    if (!absl::SimpleAtoi(parts.second, &value) || value < setting.least || value > setting.most) {
      return absl::InvalidArgumentError(absl::StrCat("source \"", text, "\": ", setting.key, " is \"",
                                                     parts.second, "\", expected a number in [",
                                                     setting.least, ", ", setting.most, "]"));
    }
    *setting.value = value;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "source \"", text, "\": \"", one, "\", expected KEY=NUMBER with one of the keys ",
      absl::StrJoin(known, ", ", [](std::string* out, const Setting& s) { absl::StrAppend(out, s.key); })));
}

absl::string_view KindOf(absl::string_view text) {
  return text.substr(0, text.find(':'));
}

}  // namespace

bool NamesSource(absl::string_view text) {
  const absl::string_view kind = KindOf(text);
  return kind == "ngram" || kind == "suffix" || kind == "trie";
}

absl::StatusOr<SourceSpec> ParseSourceSpec(absl::string_view text) {
  if (!NamesSource(text)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "source \"", text, "\", expected ngram, suffix or trie, optionally with :KEY=NUMBER,..."));
  }
  const absl::string_view kind = KindOf(text);
  SourceSpec spec;
  if (kind == "suffix") spec.kind = SourceSpec::Kind::kSuffix;
  if (kind == "trie") spec.kind = SourceSpec::Kind::kTrie;
  if (kind.size() == text.size()) return spec;
  const std::vector<Setting> known = SettingsOf(&spec);
  for (absl::string_view one : absl::StrSplit(text.substr(kind.size() + 1), ',')) {
    TANDEM_RETURN_IF_ERROR(ApplySetting(text, one, known));
  }
  if (spec.ngram.min_n > spec.ngram.max_n) {
    return absl::InvalidArgumentError(absl::StrCat("source \"", text, "\": min is ", spec.ngram.min_n,
                                                   ", expected at most max, ", spec.ngram.max_n));
  }
  if (spec.trie.max_context >= spec.trie.branch) {
    return absl::InvalidArgumentError(absl::StrCat("source \"", text, "\": context is ",
                                                   spec.trie.max_context, ", expected less than branch, ",
                                                   spec.trie.branch));
  }
  return spec;
}

std::unique_ptr<DraftSource> SourceHost::NewSession(uint64_t cache_salt, uint64_t vocabulary_fingerprint) {
  return Make(cache_salt, vocabulary_fingerprint, /*teaches=*/true);
}

std::unique_ptr<DraftSource> SourceHost::NewReplay(uint64_t cache_salt, uint64_t vocabulary_fingerprint) {
  return Make(cache_salt, vocabulary_fingerprint, /*teaches=*/false);
}

std::unique_ptr<DraftSource> SourceHost::Make(uint64_t cache_salt, uint64_t vocabulary_fingerprint,
                                              bool teaches) {
  switch (spec_.kind) {
    case SourceSpec::Kind::kNgram:
      return std::make_unique<BlendedSource<NgramIndex>>(NgramIndex(spec_.ngram), &acceptance_, teaches);
    case SourceSpec::Kind::kSuffix:
      return std::make_unique<BlendedSource<SuffixIndex>>(SuffixIndex(spec_.suffix), &acceptance_, teaches);
    case SourceSpec::Kind::kTrie:
      break;
  }
  std::shared_ptr<LearnedTrie> trie = teaches ? tries_.ForTenant(cache_salt, vocabulary_fingerprint)
                                              : tries_.Peek(cache_salt, vocabulary_fingerprint);
  return std::make_unique<BlendedSource<TrieIndex>>(TrieIndex(spec_.trie, std::move(trie), teaches),
                                                    &acceptance_, teaches);
}

}  // namespace tandem
