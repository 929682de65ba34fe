// GGUF files: keys, tensors in every type that is read, the model and the tokenizer that they describe.

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/gguf/gguf_file.h"
#include "common/gguf/testing/gguf_writer.h"
#include "common/model/gguf_config.h"
#include "common/model/model.h"
#include "common/model/testing/model_folder_fixture.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

bool RunGguf(absl::string_view input) {
  const std::string path = ScratchFile("model.gguf", input);
  const absl::StatusOr<GgufFile> file = GgufFile::Open(path);
  if (!file.ok()) return Refused(file.status(), path);
  unsigned sum = 0;
  for (const std::string& name : file->names()) {
    for (const char byte : file->Find(name)->bytes) sum += static_cast<unsigned char>(byte);
  }
  Require(file->Find("no such tensor") == nullptr && sum + 1 > 0, "no tensor of another name");
  if (const auto config = ReadGgufConfig(*file); !config.ok()) Refused(config.status(), path);
  const auto tokenizer = Tokenizer::Load(path);
  if (tokenizer.ok()) {
    if (const auto ids = (*tokenizer)->Encode("Hello <s> w\xc3\xb6rld", {}); ids.ok())
      (*tokenizer)->Decode(*ids, false);
  } else {
    Refused(tokenizer.status(), path);
  }
  const absl::StatusOr<std::shared_ptr<const Model>> model = Model::Load(path);
  if (!model.ok()) {
    Refused(model.status(), path);
    return tokenizer.ok();
  }
  SumOfWeights(**model);
  return true;
}

// A model of one layer with its matrices in one type, and a tokenizer.
std::string GgufModel(const std::string& architecture, const char* tokenizer, GgufType type, int64_t hidden,
                      const char* pre_tokenizer = "llama-bpe") {
  GgufWriter writer;
  writer.AddString("general.architecture", architecture);
  const std::pair<const char*, uint32_t> sizes[] = {
      {".embedding_length", hidden},    {".block_count", 1},
      {".attention.head_count", 2},     {".attention.head_count_kv", 1},
      {".feed_forward_length", hidden}, {".context_length", 64}};
  for (const auto& [key, size] : sizes) writer.AddUint32(architecture + key, size);
  writer.AddFloat(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f);
  writer.AddString("tokenizer.ggml.model", tokenizer);
  writer.AddString("tokenizer.ggml.pre", pre_tokenizer);
  writer.AddStrings("tokenizer.ggml.tokens",
                    {"<unk>", "<s>", "</s>", "H", "e", "l", "o", "He", "ll", "\xe2\x96\x81"});
  writer.AddInts("tokenizer.ggml.token_type", {2, 3, 3, 1, 1, 1, 1, 1, 1, 1});
  writer.AddFloats("tokenizer.ggml.scores", {0, 0, 0, -5, -5, -5, -5, -1, -2, -3});
  writer.AddStrings("tokenizer.ggml.merges", {"H e", "l l"});
  writer.AddUint32("tokenizer.ggml.eos_token_id", 2);
  writer.AddString("tokenizer.chat_template", "{{ messages[0].content }}");
  const GgufTypeInfo& info = InfoOf(type);
  const auto add = [&](const std::string& name, int64_t rows, int64_t columns) {
    if (rows == 0)
      return writer.AddTensor(name, {columns}, 0, std::string(static_cast<size_t>(columns) * 4, '\0'));
    const int64_t bytes = rows * columns / info.block_size * info.block_bytes;
    writer.AddTensor(name, {rows, columns}, static_cast<uint32_t>(type),
                     std::string(static_cast<size_t>(bytes), '\x11'));
  };
  add("token_embd.weight", 10, hidden);
  add("output.weight", 10, hidden);
  add("output_norm.weight", 0, hidden);
  add("blk.0.attn_norm.weight", 0, hidden);
  add("blk.0.ffn_norm.weight", 0, hidden);
  add("blk.0.attn_q.weight", hidden, hidden);
  add("blk.0.attn_k.weight", hidden / 2, hidden);
  add("blk.0.attn_v.weight", hidden / 2, hidden);
  add("blk.0.attn_output.weight", hidden, hidden);
  for (const char* const matrix : {"gate", "up", "down"})
    add(absl::StrCat("blk.0.ffn_", matrix, ".weight"), hidden, hidden);
  return writer.Bytes();
}

std::vector<std::string> GgufSeeds() {
  std::vector<std::string> seeds = {GgufModel("llama", "llama", GgufType::kF32, 8),
                                    GgufModel("llama", "gpt2", GgufType::kBF16, 8),
                                    GgufModel("mistral", "gpt2", GgufType::kF16, 8)};
  GgufWriter blocks;
  blocks.AddString("general.architecture", "llama");
  for (const GgufTypeInfo& info : GgufTypes()) {
    if (info.block_size == 32) seeds.push_back(GgufModel("llama", "llama", info.type, 32));
    if (info.block_size <= 32) continue;
    blocks.AddTensor(std::string(info.name), {1, info.block_size}, static_cast<uint32_t>(info.type),
                     std::string(static_cast<size_t>(info.block_bytes), '\x21'));
  }
  seeds.push_back(blocks.Bytes());
  // Keys and tensors that only these architectures have; the first file of two, the second of which is
  // missing.
  for (const char* const name : {"gemma3", "phi4-mini", "starcoder2", "gpt-neox", "granite"}) {
    seeds.push_back(RepositoryFile(absl::StrCat("common/model/testdata/gguf/", name, ".gguf")));
  }
  GgufWriter split;
  split.AddUint32("split.count", 2);
  split.AddUint32("split.no", 0);
  seeds.push_back(split.Bytes());
  for (const char* const pre : {"default", "deepseek-v3", "superbpe", "kimi-k2"}) {
    seeds.push_back(GgufModel("llama", "gpt2", GgufType::kF32, 8, pre));
  }
  seeds.push_back(GgufModel("llama", "t5", GgufType::kF32, 8));
  return seeds;
}

const Registration kGguf({.name = "gguf", .run = RunGguf, .seeds = GgufSeeds, .spoilt = 600});

}  // namespace
}  // namespace tandem::fuzz
