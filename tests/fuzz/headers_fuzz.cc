// Short texts of others: trace headers, statuses' details, names and addresses.

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/rpc/dns_name.h"
#include "common/rpc/security.h"
#include "common/rpc/status.h"
#include "common/tokenizer/unicode/unicode.h"
#include "common/tracing/trace_context.h"
#include "grpcpp/support/status.h"
#include "router/state/etcd/etcd_address.h"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

bool ReadTraceHeaders(absl::string_view input) {
  InputReader reader(input);
  const absl::string_view traceparent = reader.Part();
  const std::string states(reader.Rest());
  const std::vector<absl::string_view> headers = absl::StrSplit(states, '\n');
  const std::string combined = CombineTracestate(headers);
  Require(combined.size() <= kMaxTracestateBytes, "a state within the bounds");
  Require(CombineTracestate({combined}) == combined, "a state that stays as it is");
  const TraceContext context = ParseTraceContext(traceparent, combined);
  const std::optional<TraceContext> read = ParseTraceparent(traceparent);
  Require(context.valid() == read.has_value(), "the same answer");
  if (!read.has_value()) return false;
  const std::string written = FormatTraceparent(*read);
  const std::optional<TraceContext> again = ParseTraceparent(written);
  Require(again.has_value() && FormatTraceparent(*again) == written && TraceIdText(*again).size() == 32,
          "the same again");
  return true;
}

bool ReadStatus(absl::string_view input) {
  InputReader reader(input);
  const auto code = static_cast<grpc::StatusCode>(reader.Below(32));
  const std::string message(reader.Part());
  const absl::Status status = FromGrpcStatus(grpc::Status(code, message, std::string(reader.Rest())));
  Require(status.ok() == (code == grpc::OK), "an error stays one");
  const std::optional<absl::Duration> delay = RetryAfter(status);
  if (delay.has_value())
    Require(*delay >= absl::ZeroDuration() && *delay <= absl::Hours(24 * 3660), "a delay that ends");
  const grpc::Status sent = ToGrpcStatus(status);
  Require(sent.error_message().size() <= kMaxStatusMessage, "a message that fits a trailer");
  const absl::Status again = FromGrpcStatus(sent);
  Require(again.code() == status.code(), "the same code again");
  Require(RetryAfter(WithRetryAfter(status, absl::Seconds(5))).has_value() != status.ok(),
          "a delay of every error");
  return delay.has_value();
}

bool ReadAddresses(absl::string_view input) {
  const absl::StatusOr<std::optional<DnsName>> name = ParseDnsName(input);
  if (!name.ok()) Refused(name.status(), "dns:");
  const bool loopback = IsLoopback(input);
  Require(CheckListenAddress(input, false, false).ok() == loopback, "other addresses refused");
  const absl::StatusOr<router::EtcdAddress> address = router::ParseEtcdAddress(input);
  if (!address.ok()) return Refused(address.status(), "");
  Require(!address->endpoints.empty() && absl::EndsWith(address->prefix, "/v1/"), "endpoints and a prefix");
  return true;
}

bool RunHeaders(absl::string_view input) {
  InputReader reader(input);
  switch (reader.Below(3)) {
    case 0:
      return ReadTraceHeaders(reader.Rest());
    case 1:
      return ReadStatus(reader.Rest());
    default:
      return ReadAddresses(reader.Rest());
  }
}

std::vector<std::string> HeadersSeeds() {
  std::vector<std::string> seeds = {
      absl::StrCat(std::string(1, '\0'), Parts({"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                                                "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE\na@b=1"})),
      "\2"
      "dns:///verifier.tandem.svc:7002",
      "\2[::1]:7002",
      "\2unix:/run/x",
      "\2"
      "127.0.0.1:80",
      "\2"
      "etcd://etcd-0.etcd:2379,[fd00::1]:2379/a.b/c-d_e/"};
  const grpc::Status status =
      ToGrpcStatus(WithRetryAfter(absl::UnavailableError("busy"), absl::Milliseconds(1500)));
  seeds.push_back(absl::StrCat("\1\x0e", Parts({"busy", status.error_details()})));
  return seeds;
}

const Registration kHeaders({.name = "headers", .run = RunHeaders, .seeds = HeadersSeeds, .spoilt = 30'000});

}  // namespace
}  // namespace tandem::fuzz
