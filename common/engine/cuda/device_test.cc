#include "common/engine/cuda/device.h"

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

// Runs without a GPU too: then the reason has to be said.
TEST(CudaDeviceTest, ListsDevicesOrSaysWhyNot) {
  const auto devices = ListCudaDevices();
  if (!devices.ok()) {
    EXPECT_EQ(devices.status().code(), absl::StatusCode::kUnavailable) << devices.status();
    EXPECT_THAT(std::string(devices.status().message()), HasSubstr("counting CUDA devices"));
    return;
  }
  for (const CudaDevice& device : *devices) {
    EXPECT_FALSE(device.name.empty());
    EXPECT_GT(device.memory_bytes, 0u);
    EXPECT_GT(device.compute_major, 0);
  }
}

TEST(CudaDeviceTest, MemoryKeepsWhatIsCopiedIntoIt) {
  if (!ListCudaDevices().ok()) GTEST_SKIP() << "needs a GPU: " << ListCudaDevices().status();
  std::vector<int> values(1000);
  std::iota(values.begin(), values.end(), -500);
  const size_t bytes = values.size() * sizeof(int);
  auto buffer = CudaBuffer::Allocate(bytes);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_TRUE(buffer->CopyFromHost(values.data(), bytes).ok());
  EXPECT_EQ(buffer->CopyFromHost(values.data(), bytes + 1).code(), absl::StatusCode::kOutOfRange);
  std::vector<int> copy(values.size());
  const CudaBuffer moved = *std::move(buffer);
  EXPECT_TRUE(moved.CopyToHost(copy.data(), bytes).ok());
  EXPECT_EQ(copy, values);
  EXPECT_EQ(CudaBuffer::Allocate(size_t{1} << 60).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace tandem
