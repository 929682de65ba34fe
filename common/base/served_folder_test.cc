#include "common/base/served_folder.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

TEST(ServedFolderTest, OnlyWhatIsBelowTheRootIsServed) {
  const TemporaryFolder root;
  const TemporaryFolder outside;
  std::filesystem::create_directories(root.PathOf("models/a"));
  std::filesystem::create_directories(outside.PathOf("b"));
  root.Write("models/a/config.json", "{}");
  outside.Write("b/config.json", "{}");
  std::filesystem::create_directory_symlink(outside.path(), absl::StrCat(root.path(), "/models/link"));
  const std::string models = absl::StrCat(root.path(), "/models");
  const auto found = ServedFolder("drafter", "--models-folder", models, "a");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, std::filesystem::canonical(models + "/a"));
  EXPECT_EQ(*ServedFolder("drafter", "--models-folder", models, "./a/../a"), *found);
  for (const std::string& path : {std::string(), std::string("."), std::string(".."), std::string("link"),
                                  std::string("link/b"), std::string("nobody"), std::string("/"),
                                  absl::StrCat(outside.path(), "/b"), std::string("a\0b", 3)}) {
    const absl::Status status = ServedFolder("drafter", "--models-folder", models, path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("does not exist below the drafter's --models-folder"));
  }
  EXPECT_EQ(ServedFolder("drafter", "--models-folder", models + "/gone", "a").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(ServedFolderTest, NamesArePrintable) {
  EXPECT_TRUE(CheckServedName("name", "acme-2026.11").ok());
  for (const std::string& name : {std::string(), std::string("a b"), std::string("a\n"),
                                  std::string("\xc3\xa9"), std::string(129, 'x'), std::string(1, '\0')}) {
    EXPECT_EQ(CheckServedName("name", name).code(), absl::StatusCode::kInvalidArgument) << name;
  }
  EXPECT_THAT(std::string(CheckServedName("version", "a b").message()), HasSubstr("version: \"a b\""));
}

}  // namespace
}  // namespace tandem
