#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/engine/cuda/open_device.h"

namespace tandem {

absl::StatusOr<DeviceSpec> ParseDeviceSpec(absl::string_view text) {
  if (text == "cpu") return DeviceSpec{};
  if (text == "cuda") return DeviceSpec{.is_cuda = true};
  absl::string_view number = text;
  int index = 0;
  constexpr int kMostDevices = 1024;
  if (absl::ConsumePrefix(&number, "cuda:") && !number.empty() &&
      number.find_first_not_of("0123456789") == absl::string_view::npos && absl::SimpleAtoi(number, &index) &&
      index < kMostDevices) {
    return DeviceSpec{.is_cuda = true, .index = index};
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--device: '", text, "', expected cpu, cuda, or cuda:N with the number of a device"));
}

}  // namespace tandem
