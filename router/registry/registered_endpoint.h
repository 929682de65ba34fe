#pragma once

#include <cstdint>
#include <string>

namespace tandem::router {

// A registered verifier, in the form that VerifierPool takes.
struct RegisteredEndpoint {
  std::string address;
  uint32_t max_in_flight = 0;  // Requests that it has room for.

  bool operator==(const RegisteredEndpoint& other) const {
    return address == other.address && max_in_flight == other.max_in_flight;
  }
};

}  // namespace tandem::router
