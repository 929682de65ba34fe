#include "router/http/field_names.h"

#include "gtest/gtest.h"

namespace tandem::router {
namespace {

std::string Told(const FieldNames& names, const std::string& message) {
  const FieldNames::Error error = names.Describe(absl::InvalidArgumentError(message));
  return error.field.value_or("-") + " | " + error.message;
}

TEST(FieldNamesTest, EveryApiHasItsOwnNames) {
  const FieldNames text(HttpApi::kText);
  const FieldNames chat(HttpApi::kChat);
  const FieldNames responses(HttpApi::kResponses);
  const FieldNames messages(HttpApi::kMessages);
  EXPECT_EQ(Told(messages, "prompt: 40 tokens"), "messages | messages: 40 tokens");
  EXPECT_EQ(Told(messages, "chat: no role pirate"), "messages | messages: no role pirate");
  EXPECT_EQ(Told(messages, "stopping.stop[1]: 0 bytes"), "stop_sequences[1] | stop_sequences[1]: 0 bytes");
  EXPECT_EQ(Told(messages, "chat.tool_choice.single_call: set"),
            "tool_choice.disable_parallel_tool_use | tool_choice.disable_parallel_tool_use: set");
  EXPECT_EQ(Told(text, "sampling.top_p: 2, expected [0, 1]"), "top_p | top_p: 2, expected [0, 1]");
  EXPECT_EQ(Told(text, "sampling.allowed_tokens: token 5 twice"),
            "allowed_token_ids | allowed_token_ids: token 5 twice");
  EXPECT_EQ(Told(text, "sampling.bad_words[1]: 0 bytes"), "bad_words[1] | bad_words[1]: 0 bytes");
  EXPECT_EQ(Told(text, "stopping.stop[1]: 0 bytes"), "stop[1] | stop[1]: 0 bytes");
  EXPECT_EQ(Told(text, "token_ids.ids[3]: 900"), "prompt[3] | prompt[3]: 900");
  EXPECT_EQ(Told(text, "text: empty"), "prompt | prompt: empty");
  EXPECT_EQ(Told(text, "prompt: 40 tokens"), "prompt | prompt: 40 tokens");
  EXPECT_EQ(Told(chat, "prompt: 40 tokens"), "messages | messages: 40 tokens");
  EXPECT_EQ(Told(responses, "prompt: 40 tokens"), "input | input: 40 tokens");
  EXPECT_EQ(Told(chat, "output.logprobs: 30"), "top_logprobs | top_logprobs: 30");
  EXPECT_EQ(Told(text, "output.logprobs: 30"), "logprobs | logprobs: 30");
  EXPECT_EQ(Told(chat, "chat: no role pirate"), "messages | messages: no role pirate");
  EXPECT_EQ(Told(chat, "chat.messages[2].role: empty"), "messages[2].role | messages[2].role: empty");
  EXPECT_EQ(Told(responses, "chat.messages[2].role: empty"), "input[2].role | input[2].role: empty");
  EXPECT_EQ(Told(responses, "stopping.max_tokens: 0"), "max_output_tokens | max_output_tokens: 0");
  EXPECT_EQ(Told(chat, "chat.template_variables: byte 3"),
            "chat_template_kwargs | chat_template_kwargs: byte 3");
  EXPECT_EQ(Told(chat, "speculation.drafter: \"x\" is unknown"),
            "tandem.drafter | tandem.drafter: \"x\" is unknown");
  EXPECT_EQ(Told(chat, "num_outputs: 17"), "n | n: 17");
  EXPECT_EQ(Told(chat, "constraint: too many states"), "response_format | response_format: too many states");
  EXPECT_EQ(Told(responses, "constraint.json_schema.schema: byte 3"), "text.format | text.format: byte 3");
}

TEST(FieldNamesTest, AFieldIsCalledWhatTheClientCalledIt) {
  FieldNames names(HttpApi::kChat);
  names.Set("stopping.max_tokens", "max_completion_tokens");
  names.Set("chat.tools[2]", "tools[2].function");
  names.SetConstraint("guided_json");
  EXPECT_EQ(Told(names, "stopping.max_tokens: 0"), "max_completion_tokens | max_completion_tokens: 0");
  EXPECT_EQ(Told(names, "chat.tools[2].name: \"a b\""),
            "tools[2].function.name | tools[2].function.name: \"a b\"");
  EXPECT_EQ(Told(names, "chat.tools[12].name: \"a b\""), "tools[12].name | tools[12].name: \"a b\"")
      << "another tool";
  EXPECT_EQ(Told(names, "constraint.json_schema.schema: #/items: no"),
            "guided_json.items | guided_json.items: no");
}

TEST(FieldNamesTest, PlacesInSchemasArePartsOfTheField) {
  FieldNames names(HttpApi::kChat);
  names.Set("chat.tools[2]", "tools[2].function");
  EXPECT_EQ(Told(names, "chat.tools[2].parameters: #/properties/when/pattern: bad"),
            "tools[2].function.parameters.properties.when.pattern | "
            "tools[2].function.parameters.properties.when.pattern: bad");
  EXPECT_EQ(Told(names, "chat.tools[2].parameters: #: bad"),
            "tools[2].function.parameters | tools[2].function.parameters: bad");
  EXPECT_EQ(Told(names, "constraint.json_schema.schema: #/anyOf/1/properties/a~1b c: bad"),
            "response_format.anyOf[1].properties[\"a/b c\"] | "
            "response_format.anyOf[1].properties[\"a/b c\"]: bad");
  names.SetConstraint("structural_tag");
  names.Set("constraint.structural_tags.tags[1]", "structural_tag.structures[1]");
  names.Set("constraint.structural_tags.tags[1].content", "structural_tag.structures[1].schema");
  EXPECT_EQ(Told(names, "constraint.structural_tags: tags[1].content: #/not: no"),
            "structural_tag.structures[1].schema.not | structural_tag.structures[1].schema.not: no");
  EXPECT_EQ(Told(names, "constraint.structural_tags: tags[1].begin: begins with none of the triggers"),
            "structural_tag.structures[1].begin | "
            "structural_tag.structures[1].begin: begins with none of the triggers");
}

TEST(FieldNamesTest, OtherFieldsInAMessageAreRenamedToo) {
  const FieldNames names(HttpApi::kChat);
  EXPECT_EQ(Told(names, "prediction: set, but speculation.mode is OFF"),
            "prediction | prediction: set, but tandem.speculation is OFF");
  EXPECT_EQ(Told(names, "chat.tool_choice.name: \"chat.tools\", expected one of chat.tools."),
            "tool_choice.name | tool_choice.name: \"chat.tools\", expected one of tools.")
      << "what is quoted is the client's";
  EXPECT_EQ(Told(names, "sampling: no token can go on"), "- | sampling: no token can go on");
  EXPECT_EQ(Told(names, "it is over"), "- | it is over");
}

TEST(FieldNamesTest, ErrorsOfTheServerAreAboutNoField) {
  const FieldNames names(HttpApi::kChat);
  EXPECT_FALSE(names.Describe(absl::UnavailableError("prompt: x")).field.has_value());
  EXPECT_FALSE(FieldNames::AsTold(absl::InvalidArgumentError("body: byte 3: no JSON")).field.has_value());
  EXPECT_EQ(FieldNames::AsTold(absl::InvalidArgumentError("text.format.type: x")).field, "text.format.type");
  EXPECT_FALSE(FieldNames::AsTold(absl::InvalidArgumentError("no field: x")).field.has_value());
}

}  // namespace
}  // namespace tandem::router
