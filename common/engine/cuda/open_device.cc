#include "common/engine/cuda/open_device.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/base/const_init.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status_macros.h"
#include "common/engine/cuda/cuda_module.h"

namespace tandem {
namespace {

constexpr char kPathVariable[] = "TANDEM_CUDA_MODULE";

ABSL_CONST_INIT absl::Mutex module_mutex(absl::kConstInit);
const CudaModule* loaded_module ABSL_GUARDED_BY(module_mutex) = nullptr;

// Where the module may be, best first: docs/operate/gpu.md.
std::vector<std::string> ModulePaths() {
  if (const char* named = std::getenv(kPathVariable); named != nullptr && named[0] != '\0') return {named};
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const std::filesystem::path folder = program.parent_path();
  return {folder / kCudaModuleFile, (folder.parent_path() / "lib" / "tandem" / kCudaModuleFile).string()};
}

absl::StatusOr<const CudaModule*> LoadFrom(const std::string& path) {
  const auto fail = [&path](absl::string_view what) {
    return absl::FailedPreconditionError(absl::StrCat("cannot load the CUDA module ", path, ": ", what));
  };
  // dlopen looks for a name without a folder in the folders of libraries.
  std::error_code error;
  const std::string absolute = std::filesystem::absolute(path, error).string();
  if (error) return fail(error.message());
  // Never unloaded: there is no way to know when the last of CUDA's threads has left it.
  void* const library = dlopen(absolute.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) return fail(dlerror());
  void* const entry = dlsym(library, kCudaModuleEntry);
  if (entry == nullptr) return fail(absl::StrCat("it has no ", kCudaModuleEntry));
  const CudaModule* const module = reinterpret_cast<CudaModuleEntry*>(entry)();
  if (module == nullptr) return fail("it returns nothing");
  TANDEM_RETURN_IF_ERROR(CheckCudaModule(*module, path));
  return module;
}

}  // namespace

absl::Status CheckCudaModule(const CudaModule& module, absl::string_view path) {
  if (module.version == kCudaModuleVersion && module.fingerprint == CudaModuleFingerprint()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the CUDA module ", path, " is from a different build: its interface is ", module.version, "-",
      absl::Hex(module.fingerprint, absl::kZeroPad16), ", this binary expects ", kCudaModuleVersion, "-",
      absl::Hex(CudaModuleFingerprint(), absl::kZeroPad16), "; build both together"));
}

absl::StatusOr<const CudaModule*> LoadCudaModule() {
  absl::MutexLock lock(&module_mutex);
  if (loaded_module != nullptr) return loaded_module;
  const std::vector<std::string> paths = ModulePaths();
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) continue;
    TANDEM_ASSIGN_OR_RETURN(loaded_module, LoadFrom(path));
    return loaded_module;
  }
  return absl::NotFoundError(absl::StrCat("GPUs need the CUDA module ", kCudaModuleFile,
                                          ", which was not found; looked for ", absl::StrJoin(paths, " and "),
                                          ". It is built with -DTANDEM_CUDA=ON; ", kPathVariable,
                                          " sets another path (docs/operate/gpu.md)"));
}

absl::Status PrepareDevice(const DeviceSpec& device) {
  if (!device.is_cuda) return absl::OkStatus();
  const absl::Status status = LoadCudaModule().status();
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat("--device: ", status.message()));
}

absl::StatusOr<std::unique_ptr<DeviceOps>> OpenCudaDevice(const CudaDeviceOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const CudaModule* const module, LoadCudaModule());
  return module->open(options);
}

absl::StatusOr<double> MeasureCudaCopyBandwidth(int index) {
  TANDEM_ASSIGN_OR_RETURN(const CudaModule* const module, LoadCudaModule());
  return module->measure_copy_bandwidth(index);
}

}  // namespace tandem
