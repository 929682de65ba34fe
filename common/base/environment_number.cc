#include "common/base/environment_number.h"

#include <cstdlib>
#include <iostream>
#include <string>

#include "absl/strings/numbers.h"

namespace tandem {

uint64_t NumberFromEnvironment(absl::string_view name, uint64_t otherwise, uint64_t least, uint64_t most) {
  const char* const value = std::getenv(std::string(name).c_str());
  if (value == nullptr) return otherwise;
  uint64_t number = 0;
  if (!absl::SimpleAtoi(value, &number) || number < least || number > most) {
    std::cerr << name << "='" << value << "': expected a whole number from " << least << " to " << most
              << std::endl;
    std::exit(2);
  }
  return number;
}

}  // namespace tandem
