#include "common/gguf/gguf_file.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/temporary_folder.h"
#include "common/gguf/testing/gguf_writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string SmallFile() {
  GgufWriter writer;
  writer.AddString("general.architecture", "llama");
  writer.AddUint32("llama.block_count", 2);
  writer.AddFloat("llama.rope.freq_base", 500000);
  writer.AddBool("tokenizer.ggml.add_bos_token", true);
  writer.AddStrings("tokenizer.ggml.tokens", {"a", "b", "ab"});
  writer.AddInts("tokenizer.ggml.token_type", {1, 1, 3});
  writer.AddFloats("tokenizer.ggml.scores", {-1, -2, 0});
  writer.AddTensor("vector", {3}, 0, std::string(12, 'x'));
  writer.AddTensor("matrix", {2, 32}, 8, std::string(68, 'y'));
  return writer.Bytes();
}

class GgufFileTest : public testing::Test {
 protected:
  absl::StatusOr<GgufFile> Open(const std::string& bytes) {
    folder_.Write("model.gguf", bytes);
    return GgufFile::Open(absl::StrCat(folder_.path(), "/model.gguf"));
  }

  TemporaryFolder folder_;
};

TEST_F(GgufFileTest, ReadsKeysAndTensors) {
  const absl::StatusOr<GgufFile> file = Open(SmallFile());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata().at("general.architecture"), "llama");
  EXPECT_EQ(file->metadata().at("llama.block_count"), 2);
  EXPECT_EQ(file->metadata().at("llama.rope.freq_base"), 500000);
  EXPECT_EQ(file->metadata().at("tokenizer.ggml.add_bos_token"), true);
  EXPECT_EQ(file->metadata().at("tokenizer.ggml.tokens"), nlohmann::json({"a", "b", "ab"}));
  EXPECT_EQ(file->metadata().at("tokenizer.ggml.scores"), nlohmann::json({-1.0, -2.0, 0.0}));
  EXPECT_THAT(file->names(), ElementsAre("matrix", "vector"));
  ASSERT_NE(file->Find("matrix"), nullptr);
  EXPECT_EQ(file->Find("matrix")->type, GgufType::kQ8_0);
  EXPECT_THAT(file->Find("matrix")->shape, ElementsAre(2, 32));
  EXPECT_EQ(file->Find("matrix")->bytes, std::string(68, 'y'));
  EXPECT_EQ(file->Find("vector")->bytes, std::string(12, 'x'));
  EXPECT_EQ(file->Find("other"), nullptr);
}

TEST_F(GgufFileTest, NamesWhatIsWrong) {
  const std::string whole = SmallFile();
  const auto replaced = [&](size_t at, auto value) {
    std::string bytes = whole;
    std::memcpy(bytes.data() + at, &value, sizeof(value));
    return bytes;
  };
  const auto tensor = [](const std::vector<int64_t>& shape, uint32_t type, size_t num_bytes) {
    GgufWriter writer;
    writer.AddTensor("t", shape, type, std::string(num_bytes, 'x'));
    return writer.Bytes();
  };
  GgufWriter twice;
  twice.AddUint32("key", 1);
  twice.AddUint32("key", 2);
  const struct {
    std::string bytes;
    const char* message;
  } kCases[] = {
      {"", "expected"},
      {"GGUG" + whole.substr(4), "byte 0: expected the four bytes GGUF"},
      {replaced(4, uint32_t{1}), "version 1, supported: 2 and 3"},
      {replaced(8, uint64_t{1} << 60), "tensors, expected at most"},
      {replaced(16, uint64_t{1} << 60), "keys, expected at most"},
      {replaced(24, uint64_t{1} << 60), "a string of"},
      {whole.substr(0, 30), "the file ends, expected 8 more bytes"},
      {whole.substr(0, whole.size() - 96), "expected within the data's"},
      {twice.Bytes(), "the key \"key\" occurs twice"},
      {tensor({2, 31}, 8, 68), "rows of 31 numbers, expected a multiple of 32 for Q8_0"},
      {tensor({2}, 4, 8), "type 4 of the format, supported: F32"},
      {tensor({1, 1, 1, 1, 1}, 0, 4), "5 dimensions, expected at most 4"},
      {tensor({int64_t{1} << 40, int64_t{1} << 40}, 0, 4), "expected 1 to 2^63 - 1 elements"},
      {tensor({int64_t{1} << 62}, 0, 4), "expected fewer than 2^63 bytes"},
      {tensor({0}, 0, 4), "expected 1 to 2^63 - 1 elements"},
      {tensor({1000}, 0, 4), "expected within the data's"},
  };
  for (const auto& test_case : kCases) {
    const absl::Status status = Open(test_case.bytes).status();
    EXPECT_FALSE(status.ok()) << test_case.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr("model.gguf"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(test_case.message));
  }
}

TEST_F(GgufFileTest, RefusesBigEndianByName) {
  std::string bytes = SmallFile();
  std::swap(bytes[4], bytes[7]);
  const absl::Status status = Open(bytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("version 3, big endian; supported: 2 and 3, little"));
}

// One of three files with a tensor each.
std::string Part(uint32_t number, uint32_t count, const std::string& tensor) {
  GgufWriter writer;
  if (number == 0) writer.AddString("general.architecture", "llama");
  writer.AddUint32("split.no", number);
  writer.AddUint32("split.count", count);
  writer.AddUint32("split.tensors.count", 3);
  writer.AddTensor(tensor, {2}, 0, std::string(8, static_cast<char>('a' + number)));
  return writer.Bytes();
}

TEST_F(GgufFileTest, ReadsSplitFilesAsOne) {
  const auto path = [&](int number) {
    return absl::StrCat(folder_.path(), "/model-0000", number, "-of-00003.gguf");
  };
  for (uint32_t i = 0; i < 3; ++i) {
    folder_.Write(absl::StrCat("model-0000", i + 1, "-of-00003.gguf"), Part(i, 3, absl::StrCat("t", 2 - i)));
  }
  const absl::StatusOr<GgufFile> file = GgufFile::Open(path(1));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->path(), path(1));
  EXPECT_THAT(file->names(), ElementsAre("t0", "t1", "t2"));
  EXPECT_EQ(file->Find("t0")->bytes, "cccccccc");
  EXPECT_EQ(file->Find("t2")->bytes, "aaaaaaaa");

  EXPECT_THAT(std::string(GgufFile::Open(path(2)).status().message()),
              HasSubstr("one of 3 files, number 2, expected the first, whose name ends in "
                        "-00001-of-00003.gguf"));
  // Under another name the others would not be found.
  EXPECT_THAT(std::string(Open(Part(0, 3, "t0")).status().message()),
              HasSubstr("model.gguf: one of 3 files, number 1, expected the first, whose name"));
  const struct {
    std::string second;
    const char* message;
  } kCases[] = {
      {Part(2, 3, "t1"), "keys split.no and split.count: 2 and 3, expected 1 and 3"},
      {Part(1, 4, "t1"), "keys split.no and split.count: 1 and 4, expected 1 and 3"},
      {Part(1, 3, "t2"), "00002-of-00003.gguf: tensor \"t2\" is in another file too"},
      {"GGUF", "00002-of-00003.gguf: byte 4: the file ends"},
  };
  for (const auto& test_case : kCases) {
    folder_.Write("model-00002-of-00003.gguf", test_case.second);
    EXPECT_THAT(std::string(GgufFile::Open(path(1)).status().message()), HasSubstr(test_case.message));
  }
  GgufWriter more;
  more.AddUint32("split.no", 1);
  more.AddUint32("split.count", 3);
  folder_.Write("model-00002-of-00003.gguf", more.Bytes());
  EXPECT_THAT(std::string(GgufFile::Open(path(1)).status().message()),
              HasSubstr("key split.tensors.count: 3, but the files have 2"));
}

TEST_F(GgufFileTest, NamesTheFileThatIsMissing) {
  folder_.Write("model-00001-of-00002.gguf", Part(0, 2, "t0"));
  const absl::Status status =
      GgufFile::Open(absl::StrCat(folder_.path(), "/model-00001-of-00002.gguf")).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("model-00002-of-00002.gguf"));
  folder_.Write("model.gguf", Part(0, 5000, "t0"));
  EXPECT_THAT(std::string(GgufFile::Open(absl::StrCat(folder_.path(), "/model.gguf")).status().message()),
              HasSubstr("key split.count: 5000, expected at most 1024"));
}

// Whatever happens to the bytes, reading gives a file or an error, and no tensor lies outside of the file.
TEST_F(GgufFileTest, SpoiltFilesNeverCrash) {
  const std::string whole = SmallFile();
  std::mt19937_64 random(7);
  int num_read = 0;
  int num_refused = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string bytes = whole;
    for (uint64_t j = 1 + random() % 3; j > 0; --j) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
          break;
        case 2:
          bytes.resize(std::max<size_t>(at, 1));
          break;
        case 3:
          bytes.insert(at, bytes.substr(at, 1 + random() % 16));
          break;
      }
    }
    const absl::StatusOr<GgufFile> file = Open(bytes);
    if (!file.ok()) {
      ++num_refused;
      continue;
    }
    ++num_read;
    unsigned sum = 0;
    for (const std::string& name : file->names()) {
      for (char byte : file->Find(name)->bytes) sum += static_cast<unsigned char>(byte);
    }
    RecordProperty("sum", std::to_string(sum));
  }
  EXPECT_GT(num_read, 100);
  EXPECT_GT(num_refused, 400);
}

}  // namespace
}  // namespace tandem
