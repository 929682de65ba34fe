// Files in the safetensors format: every tensor that a file is said to have lies within it.

#include "common/model/safetensors.h"
#include "common/model/testing/model_folder_fixture.h"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

bool RunSafetensors(absl::string_view input) {
  const std::string path = ScratchFile("weights.safetensors", input);
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (!file.ok()) return Refused(file.status(), path);
  unsigned sum = 0;
  for (const std::string& name : file->names()) {
    const absl::StatusOr<StoredTensor> stored = file->Stored(name);
    Require(stored.ok(), "a tensor that is listed is there");
    for (const char byte : stored->bytes) sum += static_cast<unsigned char>(byte);
    const absl::StatusOr<TensorView> tensor = file->Tensor(name);
    if (!tensor.ok()) Refused(tensor.status(), path);
    if (const auto bytes = file->Bytes(name, stored->shape); !bytes.ok()) Refused(bytes.status(), path);
    if (const auto numbers = file->Integers(name, 2); !numbers.ok()) Refused(numbers.status(), path);
  }
  Require(!file->Tensor("no such tensor").ok() && sum + 1 > 0, "no tensor of another name");
  return true;
}

std::vector<std::string> SafetensorsSeeds() {
  return {SafetensorsBytes(TensorShapes{}), SafetensorsBytes({{"a", {2, 3}}, {"b", {1}}}),
          SafetensorsBytes(SmallTensors()),
          SafetensorsBytes(R"({"g":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},)"
                           R"("s":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[16,20]},)"
                           R"("z":{"dtype":"F32","shape":[],"data_offsets":[20,24]}})",
                           std::string(24, '\1'))};
}

const Registration kSafetensors(
    {.name = "safetensors", .run = RunSafetensors, .seeds = SafetensorsSeeds, .spoilt = 800});

}  // namespace
}  // namespace tandem::fuzz
