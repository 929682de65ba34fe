#include "common/model/safetensors.h"

#include <cstring>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/model/testing/model_folder_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A header of one tensor "t" with these fields.
std::string OneTensor(absl::string_view fields) {
  return absl::StrCat("{\"t\":{", fields, "}}");
}

TEST(SafetensorsTest, GivesViewsOfTheMappedData) {
  const TemporaryFolder folder;
  // The header's length puts the data at an odd address.
  const std::string header =
      R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[6,14]},"a":{"dtype":"F16","shape":[3,1],"data_offsets":[0,6]},)"
      R"("__metadata__":{"format":"pt"},"scalar":{"dtype":"BF16","shape":[],"data_offsets":[14,16]},)"
      R"("none":{"dtype":"F32","shape":[0,5],"data_offsets":[14,14]},"i":{"dtype":"I64","shape":[1],"data_offsets":[16,24]}})"
      " ";
  const float b[] = {1.5f, -2.25f};
  std::string data(24, '\0');
  std::memcpy(data.data() + 6, b, sizeof(b));
  const auto file = SafetensorsFile::Open(folder.Write("x.safetensors", SafetensorsBytes(header, data)));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->names(), ElementsAre("a", "b", "i", "none", "scalar"));

  const auto view = file->Tensor("b");
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->dtype, TensorView::DType::kF32);
  EXPECT_THAT(view->shape, ElementsAre(2));
  EXPECT_EQ(std::memcmp(view->data, b, sizeof(b)), 0);
  EXPECT_EQ(view->num_bytes(), 8u);
  EXPECT_THAT(file->Tensor("a")->shape, ElementsAre(3, 1));
  EXPECT_EQ(file->Tensor("scalar")->num_elements(), 1);
  EXPECT_EQ(file->Tensor("none")->num_elements(), 0);
  EXPECT_TRUE(file->Tensor("none")->exists());

  EXPECT_EQ(file->Tensor("c").status().code(), absl::StatusCode::kNotFound);
  const absl::Status integers = file->Tensor("i").status();
  EXPECT_EQ(integers.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(integers.message()),
              HasSubstr("tensor \"i\": dtype I64, expected F32, F16 or BF16"));
}

TEST(SafetensorsTest, AcceptsAFileOfNoTensors) {
  const TemporaryFolder folder;
  const auto file = SafetensorsFile::Open(folder.Write("x", SafetensorsBytes("{}", "")));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->names().empty());
}

TEST(SafetensorsTest, EveryTruncationAndAnyTrailingByteIsRefused) {
  const TemporaryFolder folder;
  const std::string bytes = SafetensorsBytes(TensorShapes{{"a", {3}}, {"b", {2, 2}}});
  ASSERT_TRUE(SafetensorsFile::Open(folder.Write("x", bytes)).ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const absl::Status status = SafetensorsFile::Open(folder.Write("x", bytes.substr(0, size))).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << "cut to " << size << ": " << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(folder.PathOf("x")), HasSubstr("expected")));
  }
  const absl::Status longer = SafetensorsFile::Open(folder.Write("x", bytes + "!")).status();
  EXPECT_THAT(std::string(longer.message()), HasSubstr("expected the end of the file"));
}

struct Hostile {
  const char* name;
  std::string header;
  size_t data_bytes;
  const char* message;
};

void PrintTo(const Hostile& hostile, std::ostream* out) {
  *out << hostile.name;
}

class HostileHeaderTest : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileHeaderTest, IsRefusedSayingWhatWasExpected) {
  const TemporaryFolder folder;
  const std::string data(GetParam().data_bytes, 'x');
  const std::string path = folder.Write("hostile.safetensors", SafetensorsBytes(GetParam().header, data));
  const absl::Status status = SafetensorsFile::Open(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(path), HasSubstr(GetParam().message)));
  EXPECT_LT(status.message().size(), path.size() + 400);
}

INSTANTIATE_TEST_SUITE_P(
    All, HostileHeaderTest,
    ::testing::Values(
        Hostile{"Empty", "", 0, "byte 8: expected a header starting with '{'"},
        Hostile{"LeadingBlank", " {}", 0, "byte 8: expected a header starting with '{'"},
        Hostile{"NotJson", "{\"t\":", 0, "byte 13: expected JSON"},
        Hostile{"TwoObjects", "{}{}", 0, "expected JSON"},
        Hostile{"InvalidUtf8", "{\"\xff\xfe\":1}", 0, "expected JSON"},
        Hostile{
            "DuplicateTensor",
            R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
            2, "key \"t\" occurs twice in one object, expected once"},
        Hostile{"DuplicateField", OneTensor(R"("dtype":"U8","shape":[1],"shape":[2],"data_offsets":[0,2])"),
                2, ": t.shape: key \"shape\" occurs twice"},
        Hostile{"Deep", "{\"t\":" + std::string(100'000, '['), 0,
                "nested too deep, expected at most 32 levels"},
        Hostile{"DeepObjects",
                [] {
                  std::string text;
                  for (int i = 0; i < 1000; ++i) text += "{\"a\":";
                  return text;
                }(),
                0, "nested too deep"},
        Hostile{"NotAnObject", "{\"t\":5}", 0, "tensor \"t\": expected an object, found 5"},
        Hostile{"NoDtype", OneTensor(R"("shape":[1],"data_offsets":[0,1])"), 1,
                "expected a string \"dtype\""},
        Hostile{"NumberDtype", OneTensor(R"("dtype":7,"shape":[1],"data_offsets":[0,1])"), 1, "\"dtype\""},
        Hostile{"UnknownDtype", OneTensor(R"("dtype":"F7","shape":[1],"data_offsets":[0,1])"), 1,
                "tensor \"t\": dtype \"F7\", expected one of the format's"},
        Hostile{"WrongDtypeSize", OneTensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4,
                "data_offsets span 4 bytes, expected 2 x 4 for F32 [2]"},
        Hostile{"NoShape", OneTensor(R"("dtype":"U8","data_offsets":[0,1])"), 1, "expected a list \"shape\""},
        Hostile{"NegativeDimension", OneTensor(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])"), 1,
                "shape [-1], expected whole numbers"},
        Hostile{"FloatDimension", OneTensor(R"("dtype":"U8","shape":[1.0],"data_offsets":[0,1])"), 1,
                "shape [1.0], expected whole numbers"},
        Hostile{"BoolDimension", OneTensor(R"("dtype":"U8","shape":[true],"data_offsets":[0,1])"), 1,
                "expected whole numbers"},
        Hostile{"HugeDimension",
                OneTensor(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1])"), 1,
                "expected whole numbers from 0 to 2^63 - 1"},
        Hostile{"BeyondUnsigned",
                OneTensor(R"("dtype":"U8","shape":[18446744073709551617],"data_offsets":[0,1])"), 1,
                "expected whole numbers"},
        // 2^32 * 2^32 is 0 in 64 bits, which would match an empty range.
        Hostile{"ProductWraps",
                OneTensor(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0,
                "expected fewer than 2^63 elements"},
        Hostile{"ProductWrapsBesideZero",
                OneTensor(R"("dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0])"), 0,
                "expected fewer than 2^63 elements"},
        // 2^62 elements of 4 bytes are 0 in 64 bits.
        Hostile{"BytesWrap", OneTensor(R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0])"),
                0, "data_offsets span 0 bytes, expected 4611686018427387904 x 4"},
        Hostile{"Rank", OneTensor(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])"), 1,
                "shape of 9 dimensions, expected at most 8"},
        Hostile{"NoOffsets", OneTensor(R"("dtype":"U8","shape":[1])"), 1,
                "expected \"data_offsets\" [begin, end]"},
        Hostile{"OneOffset", OneTensor(R"("dtype":"U8","shape":[1],"data_offsets":[0])"), 1, "[begin, end]"},
        Hostile{"OffsetsBackwards", OneTensor(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])"), 1,
                "data_offsets [1,0], expected 0 <= begin <= end <= 1"},
        Hostile{"OffsetsBeyondTheFile", OneTensor(R"("dtype":"U8","shape":[2],"data_offsets":[0,2])"), 1,
                "data_offsets [0,2], expected 0 <= begin <= end <= 1"},
        Hostile{"NegativeOffset", OneTensor(R"("dtype":"U8","shape":[2],"data_offsets":[-1,1])"), 1,
                "data_offsets [-1,1]"},
        Hostile{"OffsetOverflows",
                OneTensor(
                    R"("dtype":"U8","shape":[1],"data_offsets":[18446744073709551615,18446744073709551615])"),
                1, "expected 0 <= begin"},
        Hostile{
            "Overlap",
            R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
            4, "(overlap)"},
        Hostile{
            "SameRange",
            R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
            2, "(overlap)"},
        Hostile{
            "Hole",
            R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
            3, "(hole)"},
        Hostile{"HoleInFront", OneTensor(R"("dtype":"U8","shape":[1],"data_offsets":[1,2])"), 2, "(hole)"},
        Hostile{"TrailingData", OneTensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1])"), 2,
                "expected the end of the file"},
        Hostile{"MetadataNotAnObject", R"({"__metadata__":[1]})", 0,
                "\"__metadata__\": expected an object of strings"},
        Hostile{"MetadataOfNumbers", R"({"__metadata__":{"a":1}})", 0, "expected an object of strings"},
        Hostile{"LongName", absl::StrCat("{\"", std::string(100'000, 'n'), "\":1}"), 0,
                "nnn...\": expected an object"}),
    [](const auto& instance) { return instance.param.name; });

TEST(SafetensorsTest, HeaderLengthIsBoundedBeforeItIsUsed) {
  const TemporaryFolder folder;
  for (const char* length :
       {"\x03\0\0\0\0\0\0\0", "\xff\xff\xff\xff\xff\xff\xff\xff", "\0\0\0\0\0\0\0\x80"}) {
    const std::string bytes = std::string(length, 8) + "{}";
    const absl::Status status = SafetensorsFile::Open(folder.Write("x", bytes)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("byte 0: header of "), HasSubstr("expected at most 2 (the file has 10)")));
  }
  // A sparse file long enough for the header it announces, which is longer than the format allows.
  const std::string path = folder.Write("x", std::string("\x01\xe1\xf5\x05\0\0\0\0{", 9));
  std::filesystem::resize_file(path, 200'000'000);
  EXPECT_THAT(std::string(SafetensorsFile::Open(path).status().message()),
              HasSubstr("header of 100000001 bytes, expected at most 100000000"));
}

TEST(SafetensorsTest, MissingFilesAndFoldersAreNamed) {
  const TemporaryFolder folder;
  EXPECT_EQ(SafetensorsFile::Open(folder.PathOf("none")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(SafetensorsFile::Open(folder.path()).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem
