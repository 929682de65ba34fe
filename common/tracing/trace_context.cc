#include "common/tracing/trace_context.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace tandem {
namespace {

constexpr size_t kVersion00Bytes = 55;
constexpr size_t kLongMemberBytes = 128;
constexpr size_t kMaxKeyBytes = 256;
constexpr size_t kMaxTenantBytes = 241;
constexpr size_t kMaxSystemBytes = 14;
constexpr size_t kMaxValueBytes = 256;

// Unlike absl's: no signs, blanks, prefixes or upper case.
std::optional<uint64_t> ParseHex(absl::string_view digits) {
  uint64_t value = 0;
  for (char c : digits) {
    uint64_t digit = 0;
    if (c >= '0' && c <= '9') {
      digit = static_cast<uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<uint64_t>(c - 'a' + 10);
    } else {
      return std::nullopt;
    }
    value = value << 4 | digit;
  }
  return value;
}

bool IsLower(char c) {
  return c >= 'a' && c <= 'z';
}

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

bool AreKeyCharacters(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return IsLower(c) || IsDigit(c) || c == '_' || c == '-' || c == '*' || c == '/';
  });
}

bool IsKey(absl::string_view key) {
  const size_t at = key.find('@');
  if (at == absl::string_view::npos) {
    return !key.empty() && key.size() <= kMaxKeyBytes && IsLower(key[0]) && AreKeyCharacters(key);
  }
  const absl::string_view tenant = key.substr(0, at);
  const absl::string_view system = key.substr(at + 1);
  return !tenant.empty() && tenant.size() <= kMaxTenantBytes && (IsLower(tenant[0]) || IsDigit(tenant[0])) &&
         AreKeyCharacters(tenant) && !system.empty() && system.size() <= kMaxSystemBytes &&
         IsLower(system[0]) && AreKeyCharacters(system);
}

bool IsValue(absl::string_view value) {
  if (value.empty() || value.size() > kMaxValueBytes || value.back() == ' ') return false;
  return std::all_of(value.begin(), value.end(),
                     [](char c) { return c >= 0x20 && c <= 0x7e && c != ',' && c != '='; });
}

absl::string_view WithoutBlanks(absl::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

absl::string_view KeyOf(absl::string_view member) {
  return member.substr(0, member.find('='));
}

size_t JoinedBytes(const std::vector<absl::string_view>& members) {
  size_t bytes = members.empty() ? 0 : members.size() - 1;
  for (absl::string_view member : members) bytes += member.size();
  return bytes;
}

}  // namespace

std::optional<TraceContext> ParseTraceparent(absl::string_view traceparent) {
  if (traceparent.size() < kVersion00Bytes || traceparent.size() > kMaxTraceparentBytes) return std::nullopt;
  if (traceparent[2] != '-' || traceparent[35] != '-' || traceparent[52] != '-') return std::nullopt;
  const std::optional<uint64_t> version = ParseHex(traceparent.substr(0, 2));
  const std::optional<uint64_t> high = ParseHex(traceparent.substr(3, 16));
  const std::optional<uint64_t> low = ParseHex(traceparent.substr(19, 16));
  const std::optional<uint64_t> span = ParseHex(traceparent.substr(36, 16));
  const std::optional<uint64_t> flags = ParseHex(traceparent.substr(53, 2));
  if (!version || !high || !low || !span || !flags || *version == 0xff) return std::nullopt;
  if (traceparent.size() > kVersion00Bytes && (*version == 0 || traceparent[kVersion00Bytes] != '-')) {
    return std::nullopt;
  }
  TraceContext context{
      .trace_high = *high, .trace_low = *low, .span_id = *span, .sampled = (*flags & 1) != 0, .state = ""};
  if (!context.valid()) return std::nullopt;
  return context;
}

std::string FormatTraceparent(const TraceContext& context) {
  return absl::StrFormat("00-%016x%016x-%016x-%02x", context.trace_high, context.trace_low, context.span_id,
                         context.sampled ? 1 : 0);
}

std::string CombineTracestate(absl::Span<const absl::string_view> headers) {
  std::vector<absl::string_view> members;
  for (absl::string_view header : headers) {
    for (absl::string_view part : absl::StrSplit(header, ',')) {
      const absl::string_view member = WithoutBlanks(part);
      if (member.empty()) continue;  // Allowed, and of no meaning.
      const size_t equals = member.find('=');
      if (equals == absl::string_view::npos || !IsKey(member.substr(0, equals)) ||
          !IsValue(member.substr(equals + 1))) {
        return "";
      }
      const bool again = std::any_of(members.begin(), members.end(), [&](absl::string_view other) {
        return KeyOf(other) == member.substr(0, equals);
      });
      if (again || members.size() == kMaxTracestateMembers) return "";
      members.push_back(member);
    }
  }
  if (JoinedBytes(members) > kMaxTracestateBytes) {
    std::erase_if(members, [](absl::string_view member) { return member.size() > kLongMemberBytes; });
  }
  while (JoinedBytes(members) > kMaxTracestateBytes) members.pop_back();
  return absl::StrJoin(members, ",");
}

TraceContext ParseTraceContext(absl::string_view traceparent, absl::string_view tracestate) {
  std::optional<TraceContext> context = ParseTraceparent(traceparent);
  if (!context.has_value()) return {};
  context->state = CombineTracestate({tracestate});
  return *std::move(context);
}

std::string TraceIdText(const TraceContext& context) {
  if (!context.valid()) return "";
  return absl::StrFormat("%016x%016x", context.trace_high, context.trace_low);
}

}  // namespace tandem
