#pragma once

#include <cstdlib>
#include <memory>

#include "common/engine/cuda/open_device.h"
#include "common/engine/cuda/testing/host_ops.h"
#include "gtest/gtest.h"

namespace tandem {

// The GPU of these tests: an emulated one, or a real one that the environment names, as in
// TANDEM_TEST_GPU=cuda:0. Null, and a failure, if that one cannot be opened.
inline std::unique_ptr<DeviceOps> TestGpu(const HostOps::Options& emulation) {
  const char* const name = std::getenv("TANDEM_TEST_GPU");
  if (name == nullptr) return std::make_unique<HostOps>(emulation);
  const auto device = ParseDeviceSpec(name);
  EXPECT_TRUE(device.ok() && device->is_cuda) << "TANDEM_TEST_GPU=" << name << ": expected cuda:N";
  if (!device.ok() || !device->is_cuda) return nullptr;
  auto opened = OpenCudaDevice({.index = device->index});
  EXPECT_TRUE(opened.ok()) << opened.status();
  return opened.ok() ? *std::move(opened) : nullptr;
}

}  // namespace tandem
