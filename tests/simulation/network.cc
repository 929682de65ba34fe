#include "tests/simulation/network.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace tandem::simulation {
namespace {

constexpr absl::Duration kLatestDuplicate = absl::Milliseconds(20);

}  // namespace

void Link::Connect() {
  connection_ = ++last_connection_;
  verifiers_connection_ = connection_;
  last_request_ = last_response_ = queue_->now();
  ends_.on_up();
}

void Link::Break() {
  if (connection_ == 0) return;
  const uint64_t broken = std::exchange(connection_, 0);
  const absl::Duration verifier_notices = random_.Between(absl::ZeroDuration(), conditions_.longest_notice);
  queue_->After(verifier_notices, [this] {
    verifiers_connection_ = 0;
    ends_.on_down();
  });
  queue_->After(random_.Between(absl::ZeroDuration(), conditions_.longest_notice),
                [this, broken] { ends_.on_closed(broken); });
  queue_->After(verifier_notices + random_.Between(absl::ZeroDuration(), conditions_.longest_outage),
                [this] { Connect(); });
}

absl::Time Link::Arrival(absl::Time departure, absl::Time* last) {
  *last = std::max(*last, departure + random_.Between(conditions_.least_latency, conditions_.most_latency));
  return *last;
}

template <typename Deliver>
void Link::Transmit(uint64_t connection, absl::Time arrival, bool may_come_late, Deliver deliver) {
  const auto arrive = [this, connection, deliver] {
    if (connection == connection_) deliver();
  };
  queue_->At(arrival, arrive);
  if (!random_.Chance(conditions_.duplicated)) return;
  ++num_duplicates_;
  const absl::Duration late = random_.Between(absl::ZeroDuration(), kLatestDuplicate);
  queue_->At(may_come_late ? arrival + late : arrival, arrive);
}

void Link::SendRequest(absl::Time departure, DraftRequest request) {
  const uint64_t connection = verifiers_connection_;
  if (connection == 0) return;
  // An Open that came again after its Close would be a session that nobody closes.
  const bool may_come_late = !std::holds_alternative<OpenSession>(request.event);
  Transmit(connection, Arrival(departure, &last_request_), may_come_late,
           [this, connection, request = std::move(request)] { ends_.on_request(connection, request); });
}

void Link::SendResponse(absl::Time departure, uint64_t connection, DraftResponse response) {
  Transmit(connection, Arrival(departure, &last_response_), /*may_come_late=*/true,
           [this, response = std::move(response)] { ends_.on_response(response); });
}

}  // namespace tandem::simulation
