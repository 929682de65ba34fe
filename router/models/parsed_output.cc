#include "router/models/parsed_output.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/base/hash.h"
#include "router/models/tool_choice.h"

namespace tandem::router {
namespace {

constexpr size_t kIdLetters = 24;
constexpr size_t kShortIdLetters = 9;

// What of the last message, which is continued, is reasoning that is not over.
bool ContinuesReasoning(const v1::ChatPrompt& chat) {
  if (!chat.continue_final_message() || chat.messages().empty()) return false;
  const v1::ChatMessage& last = *chat.messages().rbegin();
  const std::string joined =
      last.content_parts().empty() ? last.content() : absl::StrJoin(last.content_parts(), "\n");
  const absl::string_view content = joined;
  const size_t begin = content.rfind(kReasoningBegin);
  const size_t end = content.rfind(kReasoningEnd);
  return begin != absl::string_view::npos && (end == absl::string_view::npos || end < begin);
}

}  // namespace

std::optional<ParsedOutput> ParsedOutput::Begin(const v1::GenerateRequest& request,
                                                const v1::VerifierGenerateRequest& prepared,
                                                const ServedModel& model) {
  if (!request.has_chat()) return std::nullopt;
  const v1::ChatPrompt& chat = request.chat();
  if (!chat.parse_output() && !OffersTools(chat)) return std::nullopt;
  const TokenIds prompt(prepared.prompt().ids().begin(), prepared.prompt().ids().end());
  OutputParser::Options options{
      .format = model.output_format,
      .tools = {},
      .in_reasoning = ContinuesReasoning(chat) || OpensReasoning(*model.encoder, prompt)};
  if (OffersTools(chat)) {
    for (const v1::Tool& tool : chat.tools()) options.tools.push_back(tool.name());
  }
  ParsedOutput parsed(std::move(options),
                      HashCombine(ExtendPrefixHash(kEmptyPrefixHash, prompt), prepared.sampling().seed()),
                      model.output_format.calls == CallSyntax::kMistral);
  const TokenIds emitted(prepared.emitted().ids().begin(), prepared.emitted().ids().end());
  if (emitted.empty()) return parsed;
  const std::vector<std::string> stop(prepared.stopping().stop().begin(), prepared.stopping().stop().end());
  const bool special = prepared.output().include_special_tokens();
  parsed.delivered_ = model.encoder->DeliveredText(emitted, stop, special);
  parsed.delivered_before_last_ =
      model.encoder->DeliveredText(absl::MakeConstSpan(emitted).subspan(0, emitted.size() - 1), stop, special)
          .size();
  return parsed;
}

void ParsedOutput::OnEvent(v1::GenerateResponse& event) {
  if (!event.has_chunk() && !event.has_finished()) return;
  if (delivered_.has_value()) {
    // An output that is over already comes with the text of its last token.
    absl::string_view text = *delivered_;
    if (event.has_finished()) text = text.substr(0, delivered_before_last_);
    parser_.Push(text);
    delivered_.reset();
  }
  if (event.has_chunk()) {
    v1::GenerationChunk& chunk = *event.mutable_chunk();
    Add(parser_.Push(chunk.text()), *chunk.mutable_deltas());
    return;
  }
  v1::GenerationFinished& finished = *event.mutable_finished();
  Add(parser_.Push(finished.text()), *finished.mutable_deltas());
  Add(parser_.Finish(), *finished.mutable_deltas());
}

std::string ParsedOutput::IdOf(uint32_t call) const {
  static constexpr char kLetters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string id = short_ids_ ? "" : "call_";
  const size_t length = id.size() + (short_ids_ ? kShortIdLetters : kIdLetters);
  uint64_t word = HashCombine(id_seed_, call);
  while (id.size() < length) {
    word = Mix64(word);
    id.push_back(kLetters[word % 62]);
  }
  return id;
}

void ParsedOutput::Add(std::vector<OutputDelta> deltas,
                       google::protobuf::RepeatedPtrField<v1::OutputDelta>& to) const {
  for (OutputDelta& delta : deltas) {
    v1::OutputDelta& added = *to.Add();
    switch (delta.kind) {
      case OutputDelta::Kind::kContent:
        added.set_content(std::move(delta.text));
        break;
      case OutputDelta::Kind::kReasoning:
        added.set_reasoning(std::move(delta.text));
        break;
      case OutputDelta::Kind::kCall: {
        v1::ToolCallDelta& call = *added.mutable_tool_call();
        call.set_index(delta.call);
        if (!delta.name.empty()) {
          call.set_id(IdOf(delta.call));
          call.set_name(std::move(delta.name));
        }
        call.set_arguments(std::move(delta.text));
      }
    }
  }
}

}  // namespace tandem::router
