// Whole model folders: config.json and the weights that go with it, or do not. Every number of a model that
// loads can be read.

#include "absl/strings/str_cat.h"
#include "common/model/model.h"
#include "common/model/testing/model_folder_fixture.h"
#include "common/model/testing/quantized_fixture.h"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

// What loads in a fuzzer's time and memory; larger models are refused or not by the same code.
constexpr uint64_t kMostNumbers = uint64_t{1} << 22;

bool RunModelFolder(absl::string_view input) {
  InputReader reader(input);
  ScratchFile("config.json", reader.Part());
  ScratchFile("model.safetensors", reader.Rest());
  const std::string folder = ScratchFolder();
  if (const auto is_head = Model::IsHead(folder); !is_head.ok()) Refused(is_head.status(), folder);
  const absl::StatusOr<std::shared_ptr<const Model>> model = Model::Load(folder);
  if (!model.ok()) return Refused(model.status(), folder);
  Require((*model)->num_parameters() < kMostNumbers, "no more numbers than the file has");
  SumOfWeights(**model);
  if ((*model)->config().num_next_token_modules == 0) return true;
  const absl::StatusOr<std::shared_ptr<const Model>> head = Model::LoadHead(folder, *model);
  if (!head.ok()) return Refused(head.status(), folder);
  SumOfWeights(**head);
  return true;
}

std::vector<std::string> ModelFolderSeeds() {
  std::vector<std::string> seeds = {Parts({SmallConfig().dump(), SafetensorsBytes(SmallTensors())})};
  for (const std::string& name : QuantizedModelNames()) {
    const nlohmann::json golden = QuantizedGolden(name);
    seeds.push_back(Parts({golden.at("config").dump(), QuantizedWeights(golden)}));
  }
  const std::string heads = "common/model/testdata/heads/";
  for (const char* const head :
       {"eagle3-specforge", "eagle31-speculators", "eagle31-specforge", "eagle3-modelopt-final",
        "eagle3-deep-llama", "medusa-vllm", "mimo", "dflash-specforge", "dflash-speculators",
        "dspark-speculators", "dspark-deepspec"}) {
    seeds.push_back(Parts({RepositoryFile(absl::StrCat(heads, head, "/config.json")),
                           RepositoryFile(absl::StrCat(heads, head, "/model.safetensors"))}));
  }
  return seeds;
}

const Registration kModelFolder(
    {.name = "model_folder", .run = RunModelFolder, .seeds = ModelFolderSeeds, .spoilt = 300});

}  // namespace
}  // namespace tandem::fuzz
