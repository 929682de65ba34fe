#include "common/grammar/schema/formats.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace tandem {
namespace {

struct Format {
  absl::string_view name;
  std::string pattern;
};

// RFC 3339 with the days that each month has. Its year 0000 is left out, which many libraries do not take.
constexpr char kDate[] =
    "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
    "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29";
// Without leap seconds, which depend on the day.
constexpr char kTime[] =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
constexpr char kDuration[] =
    "P(?:[0-9]{1,9}W|(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D)"
    "(?:T<clock>)?|T<clock>)";
constexpr char kClock[] =
    "(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S)";
constexpr char kOctet[] = "(?:[0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])";
constexpr char kLabel[] = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
constexpr char kAtom[] = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
constexpr char kUuid[] = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}";
constexpr char kPercent[] = "%[0-9A-Fa-f]{2}";
// RFC 6901.
constexpr char kPointer[] = "(?:/(?:[^/~]|~[01])*)*";

std::string Ipv4() {
  return absl::StrCat("(?:", kOctet, "\\.){3}", kOctet);
}

// A whole name has 253 characters at most. One automaton for all names within that has too many states to
// compile, so a name has up to eight labels of up to thirty characters.
std::string Hostname() {
  const std::string label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,28}[A-Za-z0-9])?";
  return absl::StrCat(label, "(?:\\.", label, "){0,7}");
}

// RFC 4291: eight groups, of which one run may be left out; the last two may be an IPv4 address.
std::string Ipv6() {
  const std::string group = "[0-9a-fA-F]{1,4}";
  const std::string last = absl::StrCat("(?:", group, ":", group, "|", Ipv4(), ")");
  std::vector<std::string> forms = {absl::StrCat("(?:", group, ":){6}", last)};
  // With `before` groups at most in front of "::" and `after` exactly behind it, seven together at most.
  for (int after = 0; after <= 7; ++after) {
    const int before = 7 - after;
    const std::string front =
        before == 0 ? "" : absl::StrCat("(?:", group, "(?::", group, "){0,", before - 1, "})?");
    const std::string behind = after == 0   ? ""
                               : after == 1 ? group
                                            : absl::StrCat("(?:", group, ":){", after - 2, "}", last);
    forms.push_back(absl::StrCat(front, "::", behind));
  }
  return absl::StrJoin(forms, "|");
}

// RFC 3986. A host in brackets is an IPv6 address.
std::string UriParts(absl::string_view form) {
  const std::string character = absl::StrCat("(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|", kPercent, ")");
  const std::string no_colon = absl::StrCat("(?:[A-Za-z0-9._~!$&'()*+,;=@-]|", kPercent, ")");
  const std::string user = absl::StrCat("(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|", kPercent, ")*@)?");
  const std::string host =
      absl::StrCat("(?:\\[(?:", Ipv6(), ")\\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|", kPercent, ")*)");
  const std::string authority = absl::StrCat("//", user, host, "(?::[0-9]*)?(?:/", character, "*)*");
  const std::string absolute = absl::StrCat("/(?:", character, "+(?:/", character, "*)*)?");
  const std::string rootless = absl::StrCat(character, "+(?:/", character, "*)*");
  const std::string relative = absl::StrCat(no_colon, "+(?:/", character, "*)*");
  const std::string tail = absl::StrCat("(?:\\?(?:", character, "|[/?])*)?(?:#(?:", character, "|[/?])*)?");
  const std::string uri =
      absl::StrCat("[A-Za-z][A-Za-z0-9+.-]*:(?:", authority, "|", absolute, "|", rootless, ")?", tail);
  if (form == "uri") return uri;
  return absl::StrCat(uri, "|(?:", authority, "|", absolute, "|", relative, ")?", tail);
}

// RFC 6570.
std::string UriTemplate() {
  const std::string name =
      absl::StrCat("(?:[A-Za-z0-9_]|", kPercent, ")(?:\\.?(?:[A-Za-z0-9_]|", kPercent, "))*");
  const std::string one = absl::StrCat(name, "(?::[1-9][0-9]{0,3}|\\*)?");
  return absl::StrCat("(?:[!#$&()*+,./0-9:;=?@A-Z\\[\\]_a-z~\\u00a0-\\ud7ff\\uf900-\\ufdcf\\ufdf0-\\uffef-]|",
                      kPercent, "|\\{[+#./;?&=,!@|]?", one, "(?:,", one, ")*\\})*");
}

const std::vector<Format>& Formats() {
  static const std::vector<Format>& formats = *[] {
    auto* const all = new std::vector<Format>{
        {"date", kDate},
        {"date-time", absl::StrCat("(?:", kDate, ")T", kTime)},
        {"time", kTime},
        {"duration", absl::StrReplaceAll(kDuration, {{"<clock>", kClock}})},
        {"email", absl::StrCat(kAtom, "(?:\\.", kAtom, ")*@", kLabel, "(?:\\.", kLabel, ")*")},
        {"hostname", Hostname()},
        {"ipv4", Ipv4()},
        {"ipv6", Ipv6()},
        {"uuid", kUuid},
        {"uri", UriParts("uri")},
        {"uri-reference", UriParts("uri-reference")},
        {"uri-template", UriTemplate()},
        {"json-pointer", kPointer},
        {"relative-json-pointer", absl::StrCat("(?:0|[1-9][0-9]*)(?:#|", kPointer, ")")},
        // Base64, as OpenAPI names it.
        {"byte", "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"},
    };
    for (Format& format : *all) format.pattern = absl::StrCat("^(?:", format.pattern, ")$");
    return all;
  }();
  return formats;
}

}  // namespace

std::optional<absl::string_view> PatternOfFormat(absl::string_view name) {
  // Each text of the second is a text of the first, which may take more scripts.
  static constexpr std::pair<absl::string_view, absl::string_view> kWithin[] = {
      {"idn-email", "email"},
      {"idn-hostname", "hostname"},
      // As draft 3 names them.
      {"host-name", "hostname"},
      {"ip-address", "ipv4"},
      {"iri", "uri"},
      {"iri-reference", "uri-reference"}};
  for (const auto& [wide, narrow] : kWithin) {
    if (name == wide) name = narrow;
  }
  for (const Format& format : Formats()) {
    if (format.name == name) return format.pattern;
  }
  return std::nullopt;
}

bool IsStandardFormat(absl::string_view name) {
  // Which texts are expressions depends on who reads them.
  return name == "regex" || PatternOfFormat(name).has_value();
}

absl::string_view KnownFormats() {
  static const std::string& names = *[] {
    std::vector<absl::string_view> all;
    for (const Format& format : Formats()) all.push_back(format.name);
    return new std::string(absl::StrJoin(all, ", "));
  }();
  return names;
}

}  // namespace tandem
