#include "common/base/temporary_folder.h"

#include <filesystem>
#include <string>

#include "common/base/file.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

TEST(TemporaryFolderTest, GoesWithItsContent) {
  std::string path;
  {
    const TemporaryFolder folder;
    const TemporaryFolder other;
    path = folder.path();
    EXPECT_NE(path, other.path());
    EXPECT_EQ(folder.PathOf(""), path);
    const std::string file = folder.Write("file", "long content");
    EXPECT_EQ(file, path + "/file");
    folder.Write("file", "short");
    EXPECT_EQ(ReadFile(file, 100).value(), "short");
    folder.Remove("file");
    EXPECT_FALSE(std::filesystem::exists(file));
    folder.Remove("file");
    folder.Write("left", "");
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(TemporaryFolderDeathTest, ALostWriteIsNotSilent) {
  const TemporaryFolder folder;
  EXPECT_DEATH(folder.Write("missing/file", "content"), "cannot write .*missing/file");
}

}  // namespace
}  // namespace tandem
