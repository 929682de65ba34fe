#include "bench/machine_rates.h"

#include <algorithm>
#include <cstring>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/instruction_loops.h"
#include "common/base/status_macros.h"
#include "common/engine/cpu/aligned_buffer.h"

namespace tandem {
namespace {

constexpr uint64_t kMostReadBytes = uint64_t{1} << 30;
constexpr uint64_t kLeastReadBytesPerThread = 4096;
constexpr int kRounds = 5;
constexpr double kRoundSeconds = 0.01;

double Seconds(absl::FunctionRef<void()> body) {
  const absl::Time start = absl::Now();
  body();
  return absl::ToDoubleSeconds(absl::Now() - start);
}

double MeasurePeak(const InstructionLoop& loop, ThreadTeam* team) {
  std::vector<float> sinks(static_cast<size_t>(team->num_threads()) * 16);
  const auto run = [&](uint64_t iterations) {
    return Seconds([&] {
      team->Run([&](int thread) { sinks[static_cast<size_t>(thread) * 16] = loop.run(iterations); });
    });
  };
  uint64_t iterations = 1000;
  while (run(iterations) < kRoundSeconds) iterations *= 2;
  double best = 0.0;
  for (int round = 0; round < kRounds; ++round) {
    const double operations = static_cast<double>(loop.operations_per_iteration) *
                              static_cast<double>(iterations) * team->num_threads();
    best = std::max(best, operations / run(iterations));
  }
  return best;
}

const PeakRate* FindRate(absl::string_view name, const std::vector<PeakRate>& rates) {
  for (const PeakRate& rate : rates) {
    if (rate.name == name) return &rate;
  }
  return nullptr;
}

}  // namespace

std::vector<PeakRate> MeasurePeakRates(ThreadTeam* team) {
  std::vector<PeakRate> rates;
  for (const InstructionLoop& loop : SupportedInstructionLoops()) {
    rates.push_back({.name = loop.name, .operations_per_second = MeasurePeak(loop, team)});
  }
  return rates;
}

absl::StatusOr<PeakRate> PeakRateFor(absl::string_view kernels, absl::string_view weight_dtype,
                                     const std::vector<PeakRate>& rates) {
  // As products with quantised files' own codes have.
  const bool has_byte_inputs = absl::EndsWith(weight_dtype, "a8") || weight_dtype == "auto";
  const bool is_integer = absl::StartsWith(weight_dtype, "int") || has_byte_inputs;
  // The numbers that their codes stand for.
  const bool is_float32 = weight_dtype == "exact";
  std::string name = "f32-portable";
  if (is_float32 && (absl::StrContains(kernels, "avx512") || absl::StrContains(kernels, "amx"))) {
    name = "f32-avx512";
  } else if (absl::StrContains(kernels, "amx")) {
    name = is_integer ? "int8-amx" : "bf16-amx";
  } else if (is_integer && absl::StrContains(kernels, "avx512") &&
             FindRate("int8-avx512", rates) != nullptr) {
    name = "int8-avx512";
  } else if (kernels == "avx512-bf16" && !is_integer) {
    // Its products go the faster of two ways.
    const PeakRate* dot_products = FindRate("bf16-avx512", rates);
    const PeakRate* multiply_adds = FindRate("f32-avx512", rates);
    const bool is_dot = dot_products != nullptr &&
                        (multiply_adds == nullptr ||
                         dot_products->operations_per_second > multiply_adds->operations_per_second);
    name = is_dot ? dot_products->name : "f32-avx512";
  } else if (absl::StrContains(kernels, "avx512")) {
    name = "f32-avx512";
  } else if (absl::StrContains(kernels, "avx2")) {
    name = "f32-avx2";
  }
  if (const PeakRate* rate = FindRate(name, rates)) {
    PeakRate found = *rate;
    // An input of 15 bits is two of 8.
    if (absl::StartsWith(name, "int8") && !has_byte_inputs) found.operations_per_second /= 2;
    return found;
  }
  return absl::NotFoundError(
      absl::StrCat("no peak rate ", name, " was measured for kernels \"", kernels, "\""));
}

absl::StatusOr<double> MeasureReadBandwidth(uint64_t num_bytes, ThreadTeam* team) {
  const auto threads = static_cast<uint64_t>(team->num_threads());
  const uint64_t wanted = std::max(std::min(num_bytes, kMostReadBytes) / threads, kLeastReadBytesPerThread);
  const uint64_t per_thread = wanted / kReadGranularity * kReadGranularity;
  TANDEM_ASSIGN_OR_RETURN(AlignedBuffer buffer,
                          AlignedBuffer::Allocate(threads * per_thread, 1, "the read bandwidth's buffer"));
  // Written, so that every page is memory of its own, each by the thread that reads it.
  team->Run([&](int thread) {
    std::memset(buffer.data<char>() + static_cast<uint64_t>(thread) * per_thread, 1, per_thread);
  });
  const ReadLoop read = BestReadLoop();
  std::vector<uint64_t> sinks(static_cast<size_t>(threads) * 8);
  // Small buffers are read often enough for the clock.
  const uint64_t passes = std::max<uint64_t>(1, (uint64_t{32} << 20) / per_thread);
  double best = 0.0;
  for (int round = 0; round < kRounds; ++round) {
    const double seconds = Seconds([&] {
      team->Run([&](int thread) {
        const char* const begin = buffer.data<char>() + static_cast<uint64_t>(thread) * per_thread;
        for (uint64_t pass = 0; pass < passes; ++pass) {
          sinks[static_cast<size_t>(thread) * 8] += read(begin, per_thread);
        }
      });
    });
    best = std::max(best, static_cast<double>(threads * per_thread * passes) / seconds);
  }
  return best;
}

}  // namespace tandem
