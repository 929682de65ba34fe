#include "common/rpc/text_fields.h"

#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tandem/v1/generation.pb.h"

namespace tandem {
namespace {

constexpr char kPlaceholder[] = "PLACEHOLDER";

// Encoded with bytes that protobuf would not encode: its text is replaced by as many bytes that are no UTF-8.
std::string WithBadBytes(const v1::GenerateRequest& request) {
  std::string bytes = request.SerializeAsString();
  for (size_t at = bytes.find(kPlaceholder); at != std::string::npos; at = bytes.find(kPlaceholder)) {
    bytes.replace(at, sizeof(kPlaceholder) - 1, std::string(sizeof(kPlaceholder) - 1, '\xff'));
  }
  return bytes;
}

std::optional<std::string> Found(const std::string& bytes) {
  return FieldThatIsNotUtf8(*v1::GenerateRequest::descriptor(), bytes);
}

TEST(TextFieldsTest, NamesTheField) {
  v1::GenerateRequest text;
  text.set_text(kPlaceholder);
  EXPECT_EQ(Found(WithBadBytes(text)), "text");
  v1::GenerateRequest id;
  id.set_request_id(kPlaceholder);
  id.mutable_token_ids()->add_ids(7);
  EXPECT_EQ(Found(WithBadBytes(id)), "request_id");
  v1::GenerateRequest stop;
  stop.set_text("fine");
  stop.mutable_stopping()->add_stop("fine");
  stop.mutable_stopping()->add_stop(kPlaceholder);
  EXPECT_EQ(Found(WithBadBytes(stop)), "stopping.stop[1]");
  v1::GenerateRequest drafter;
  drafter.mutable_speculation()->set_drafter(kPlaceholder);
  EXPECT_EQ(Found(WithBadBytes(drafter)), "speculation.drafter");
  v1::GenerateRequest chat;
  for (const char* content : {"fine", kPlaceholder, kPlaceholder}) {
    v1::ChatMessage& message = *chat.mutable_chat()->add_messages();
    message.set_role("user");
    message.set_content(content);
  }
  EXPECT_EQ(Found(WithBadBytes(chat)), "chat.messages[1].content") << "the first one";
  v1::GenerateRequest parsed;
  EXPECT_FALSE(parsed.ParseFromString(WithBadBytes(chat))) << "what this is for";
}

TEST(TextFieldsTest, FindsNothingWhereNothingIsWrong) {
  v1::GenerateRequest request;
  request.mutable_chat()->add_messages()->set_content("Gr\u00fc\u00dfe");
  request.mutable_sampling()->set_temperature(0.5f);
  request.mutable_stopping()->add_stop_token_ids(300);
  EXPECT_EQ(Found(request.SerializeAsString()), std::nullopt);
  EXPECT_EQ(Found(""), std::nullopt);
  EXPECT_EQ(Found("\xff\xff"), std::nullopt) << "no message at all";
  // Fields that the type lacks are skipped, whatever they hold.
  EXPECT_EQ(Found(std::string("\xfa\x07\x02\xff\xff", 5)), std::nullopt);
}

// Nothing that a caller sends reads beyond it or never ends.
TEST(TextFieldsTest, SurvivesWhateverIsSent) {
  v1::GenerateRequest request;
  for (int i = 0; i < 5; ++i) request.mutable_chat()->add_messages()->set_content(kPlaceholder);
  const std::string whole = WithBadBytes(request);
  for (size_t length = 0; length < whole.size(); ++length) Found(whole.substr(0, length));
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    std::string mangled = whole;
    for (int i = 0; i < 4; ++i) mangled[random() % mangled.size()] = static_cast<char>(random());
    const std::optional<std::string> found = Found(mangled);
    if (found.has_value()) {
      EXPECT_FALSE(v1::GenerateRequest().ParseFromString(mangled)) << *found;
    }
  }
}

}  // namespace
}  // namespace tandem
