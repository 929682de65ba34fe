#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/tokenizer/chat_template.h"

namespace tandem {

// What a chat template does with conversations, found by rendering a fixed set of them.
struct TemplateTraits {
  // Why the template cannot be used at all; then the rest has no meaning.
  absl::Status problem;
  ChatSpelling spelling;
  bool takes_system = false;     // The text of a system message gets into the prompt.
  bool takes_tools = false;      // Likewise, the tools that are offered;
  bool takes_calls = false;      // the assistant's calls;
  bool takes_results = false;    // their results;
  bool takes_documents = false;  // documents.
};

using ChatRenderer =
    std::function<absl::StatusOr<std::string>(absl::Span<const ChatMessage>, const ChatTemplateOptions&)>;

// Renders the conversations with `render`, which applies the template with the text `source`. Of the
// spellings of ChatSpelling it chooses the first with which the fewest renderings fail, print Python's words
// for a value (None, or a dict), or lose what was said. About a hundred renderings, each within bounds that
// no template of a model reaches. `problem` is the error of the plainest conversation.
TemplateTraits TryTemplate(const ChatRenderer& render, absl::string_view source);

// The traits in words, in one line.
std::string DescribeTraits(const TemplateTraits& traits);

}  // namespace tandem
