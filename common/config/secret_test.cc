#include "common/config/secret.h"

#include <algorithm>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::string_view kToken = "a token that is much too long for a string's own memory";

// The content of memory when it was freed.
std::vector<std::string>& Freed() {
  static auto& freed = *new std::vector<std::string>;
  return freed;
}

struct RecordingAllocator {
  char* allocate(size_t size) { return std::allocator<char>().allocate(size); }
  void deallocate(char* bytes, size_t size) {
    Freed().emplace_back(bytes, size);
    std::allocator<char>().deallocate(bytes, size);
  }
};
using RecordedSecret = BasicSecret<RecordingAllocator>;

std::string Zeros(size_t size) {
  return std::string(size, '\0');
}

class SecretTest : public testing::Test {
 protected:
  SecretTest() { Freed().clear(); }
};

TEST_F(SecretTest, IsOverwrittenBeforeItsMemoryIsFreed) {
  {
    const RecordedSecret secret(kToken);
    EXPECT_EQ(secret.Reveal(), kToken);
    const RecordedSecret short_one("x");
    const RecordedSecret none("");
    EXPECT_TRUE(none.empty());
  }
  EXPECT_THAT(Freed(), ElementsAre(Zeros(1), Zeros(kToken.size())));
}

TEST_F(SecretTest, IsOverwrittenWhenAnotherOneIsAssigned) {
  RecordedSecret secret(kToken);
  secret = RecordedSecret("a short one");
  EXPECT_THAT(Freed(), ElementsAre(Zeros(kToken.size())));
  EXPECT_EQ(secret.Reveal(), "a short one");
  const RecordedSecret other("other");
  secret = other;
  EXPECT_THAT(Freed(), ElementsAre(Zeros(kToken.size()), Zeros(11)));
  EXPECT_EQ(secret.Reveal(), "other");
  EXPECT_EQ(other.Reveal(), "other");
  secret = RecordedSecret();
  EXPECT_TRUE(secret.empty());
  EXPECT_THAT(Freed(), ElementsAre(Zeros(kToken.size()), Zeros(11), Zeros(5)));
}

TEST_F(SecretTest, AMoveLeavesNothingBehind) {
  RecordedSecret source(kToken);
  const char* const bytes = source.Reveal().data();
  RecordedSecret moved(std::move(source));
  EXPECT_EQ(moved.Reveal().data(), bytes) << "moved, not copied";
  EXPECT_TRUE(source.empty());  // NOLINT(bugprone-use-after-move)
  EXPECT_THAT(Freed(), IsEmpty());
  RecordedSecret& itself = moved;
  moved = itself;
  EXPECT_EQ(moved.Reveal(), kToken);
  EXPECT_THAT(Freed(), ElementsAre(Zeros(kToken.size()))) << "the bytes from before the assignment";
}

TEST_F(SecretTest, CopiesLiveOnTheirOwn) {
  auto first = std::make_unique<RecordedSecret>(kToken);
  const RecordedSecret copy(*first);
  first.reset();
  EXPECT_THAT(Freed(), ElementsAre(Zeros(kToken.size())));
  EXPECT_EQ(copy.Reveal(), kToken);
}

TEST_F(SecretTest, AnArrayIsOverwrittenInPlace) {
  using Key = SecretArray<32>;
  alignas(Key) unsigned char memory[sizeof(Key)];
  Key* const key = new (memory) Key;
  key->fill(0x5a);
  const Key copy = *key;
  key->~Key();
  EXPECT_TRUE(
      std::all_of(std::begin(memory), std::end(memory), [](unsigned char byte) { return byte == 0; }));
  EXPECT_EQ(copy.Reveal(), std::string(32, 'Z'));
}

TEST_F(SecretTest, ComparesEveryByte) {
  EXPECT_EQ(Secret("secret"), Secret("secret"));
  EXPECT_EQ(Secret(), Secret(""));
  const std::vector<absl::string_view> others = {"", "secre", "secrets", "Secret", "secreT", {"sec\0et", 6}};
  for (const absl::string_view other : others) {
    EXPECT_FALSE(Secret("secret") == Secret(other)) << other;
  }
  SecretArray<4> key{{1, 2, 3, 4}};
  SecretArray<4> same = key;
  EXPECT_TRUE(key == same);
  same[3] = 5;
  EXPECT_FALSE(key == same);
  EXPECT_TRUE(EqualInConstantTime(absl::string_view("a\0b", 3), absl::string_view("a\0b", 3)));
  EXPECT_FALSE(EqualInConstantTime(absl::string_view("a\0b", 3), absl::string_view("a\0c", 3)));
}

TEST_F(SecretTest, CleansesAStringThatAnotherLibraryOwns) {
  std::string text(kToken);
  text.resize(10);
  const absl::string_view memory(text.data(), kToken.size());
  ASSERT_EQ(memory.substr(11), kToken.substr(11)) << "cut off, and still there";
  Cleanse(text);
  EXPECT_TRUE(text.empty());
  EXPECT_EQ(memory, Zeros(kToken.size()));
}

// A secret cannot come into a log line, a message or a test's output by accident.
template <class T>
concept Printable = requires(std::ostream& out, const T& value) {
  out << value;
};
struct AnySink {};
template <class T>
concept Formattable = requires(AnySink& sink, const T& value) {
  AbslStringify(sink, value);
};
static_assert(Printable<std::string>);
static_assert(!Printable<Secret> && !Printable<SecretArray<32>>);
static_assert(!Formattable<Secret> && !Formattable<SecretArray<32>>);
static_assert(!std::is_convertible_v<Secret, std::string> &&
              !std::is_convertible_v<Secret, absl::string_view>);
static_assert(!std::is_convertible_v<std::string, Secret>);

}  // namespace
}  // namespace tandem
