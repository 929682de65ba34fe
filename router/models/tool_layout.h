#pragma once

#include <vector>

#include "common/chat/output_format.h"
#include "common/tokenizer/chat_template.h"
#include "common/tokenizer/template_trials.h"

namespace tandem::router {

// Puts into texts what the model's chat template does not lay out, so that nothing that the client sent is
// lost:
//
//   tools      JSON in the system's text, which asks for calls in the model's output format
//   documents  JSON in the system's text
//   calls      text of the assistant, as the model would write it
//   results    text of the user
//
// Without a system message there is a new one, or, where the template takes none, the user's first text has
// it in front. The rest of the conversation stays as it is.
void LayOutInTexts(const TemplateTraits& traits, const OutputFormat& format,
                   std::vector<ChatMessage>& messages, ChatTemplateOptions& options);

}  // namespace tandem::router
