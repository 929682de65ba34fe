#include "common/tokenizer/template_trials.h"

#include <initializer_list>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/civil_time.h"
#include "absl/time/time.h"

namespace tandem {
namespace {

using Blank = ChatSpelling::Blank;
using Messages = std::vector<ChatMessage>;

// Words that no template has.
constexpr char kSystem[] = "systemprobe";
constexpr char kAsked[] = "userprobe";
constexpr char kSaid[] = "saidprobe";
constexpr char kThought[] = "thoughtprobe";
constexpr char kTool[] = "toolprobe";
constexpr char kKey[] = "keyprobe";
constexpr char kValue[] = "valueprobe";
constexpr char kResult[] = "resultprobe";
constexpr char kPart[] = "partprobe";
constexpr char kDocument[] = "documentprobe";

// Some templates check that an id has nine letters or digits.
constexpr char kFirstId[] = "abcDEF019";
constexpr char kSecondId[] = "abcDEF029";

constexpr int64_t kMaxTrialSteps = 100'000;
constexpr size_t kMaxTrialBytes = size_t{1} << 17;

// How bad it is for a prompt, from worst.
constexpr int kFails = 8;
constexpr int kGarbles = 4;
constexpr int kLoses = 2;

ChatToolCall Call(const char* id) {
  return {.id = id, .name = kTool, .arguments = absl::StrCat("{\"", kKey, "\": \"", kValue, "\"}")};
}

ChatMessage User() {
  return {.role = "user", .content = kAsked};
}

ChatMessage Calling(std::optional<std::string> content, std::initializer_list<const char*> ids,
                    std::string reasoning = "") {
  ChatMessage message{.role = "assistant", .content = std::move(content), .reasoning = std::move(reasoning)};
  for (const char* id : ids) message.tool_calls.push_back(Call(id));
  return message;
}

ChatMessage ToolResult(const char* id) {
  return {.role = "tool", .content = kResult, .tool_call_id = id, .name = kTool};
}

// Histories with a call whose message has this content: alone, with its result, with an answer and a question
// behind that, two at once, and with reasoning.
std::vector<Messages> CallHistories(const std::optional<std::string>& content) {
  const ChatMessage one = Calling(content, {kFirstId});
  const ChatMessage answer{.role = "assistant", .content = "It is done."};
  return {{User(), one},
          {User(), one, ToolResult(kFirstId)},
          {User(), one, ToolResult(kFirstId), answer, User()},
          {User(), Calling(content, {kFirstId, kSecondId}), ToolResult(kFirstId), ToolResult(kSecondId)},
          {User(), Calling(content, {kFirstId}, kThought), ToolResult(kFirstId)}};
}

size_t CountOf(absl::string_view text, absl::string_view word) {
  size_t count = 0;
  for (size_t at = text.find(word); at != absl::string_view::npos; at = text.find(word, at + word.size()))
    ++count;
  return count;
}

class Trials {
 public:
  Trials(const ChatRenderer& render, absl::string_view source) : render_(render), source_(source) {}

  TemplateTraits Run() {
    TemplateTraits traits;
    FindForm();
    traits.problem = Render({User()}, /*tools=*/false).status();
    if (!traits.problem.ok() && Render(Told(), /*tools=*/false).ok()) traits.problem = absl::OkStatus();
    if (!traits.problem.ok()) return traits;
    FindArguments();
    FindEmptyContent();
    FindReasoning();
    FindParts();
    traits.spelling = spelling_;
    traits.takes_system = Shows(Told(), kSystem, /*tools=*/false);
    traits.takes_tools = TakesTools();
    const std::vector<Messages> histories = CallHistories(std::nullopt);
    traits.takes_calls = Shows(histories[0], kValue) || Shows(histories[1], kValue);
    traits.takes_results = Shows(histories[1], kResult);
    traits.takes_documents = TakesDocuments();
    return traits;
  }

 private:
  ChatTemplateOptions Options() const {
    ChatTemplateOptions options;
    options.spelling = spelling_;
    options.now = absl::FromCivil(absl::CivilDay(2026, 1, 2), absl::UTCTimeZone());
    options.max_steps = kMaxTrialSteps;
    options.max_output_bytes = kMaxTrialBytes;
    return options;
  }

  absl::StatusOr<std::string> Render(const Messages& messages, bool tools) const {
    ChatTemplateOptions options = Options();
    if (tools) {
      options.tools = {
          {.name = kTool,
           .description = "Looks it up.",
           .parameters = absl::StrCat(R"({"type": "object", "properties": {")", kKey,
                                      R"(": {"type": "string", "description": "What to look for."}}})")}};
    }
    return render_(messages, options);
  }

  bool Shows(const Messages& messages, absl::string_view word, bool tools = true) const {
    const absl::StatusOr<std::string> prompt = Render(messages, tools);
    return prompt.ok() && absl::StrContains(*prompt, word);
  }

  // How bad the prompt of a history with calls is. `nones`: how often it may have the word None.
  int BadnessOf(const Messages& messages, size_t nones) const {
    const absl::StatusOr<std::string> prompt = Render(messages, /*tools=*/true);
    if (!prompt.ok()) return kFails;
    int badness = 0;
    if (CountOf(*prompt, "None") > nones) badness += kGarbles;
    // A dict as Python prints it, and JSON within a JSON string.
    if (absl::StrContains(*prompt, absl::StrCat("'", kKey, "'")) ||
        absl::StrContains(*prompt, absl::StrCat("\\\"", kKey)))
      badness += kGarbles;
    if (!absl::StrContains(*prompt, kTool) || !absl::StrContains(*prompt, kValue)) badness += kLoses;
    for (const ChatMessage& message : messages) {
      if (message.content == kResult && !absl::StrContains(*prompt, kResult)) badness += kLoses;
      if (message.content == kSaid && !absl::StrContains(*prompt, kSaid)) badness += 1;
    }
    return badness;
  }

  // Of all of these, with the same number of calls' messages in each.
  int BadnessOf(const std::vector<Messages>& histories) const {
    const absl::StatusOr<std::string> plain =
        Render({User(), {.role = "assistant", .content = kSaid}, User()}, /*tools=*/true);
    const size_t nones = plain.ok() ? CountOf(*plain, "None") : 0;
    int badness = 0;
    for (const Messages& messages : histories) badness += BadnessOf(messages, nones);
    return badness;
  }

  // Keeps the first of the candidates that is the least bad.
  template <typename Badness>
  void Choose(const std::vector<ChatSpelling>& candidates, Badness badness_of) {
    int least = std::numeric_limits<int>::max();
    ChatSpelling best = spelling_;
    for (const ChatSpelling& candidate : candidates) {
      spelling_ = candidate;
      const int badness = badness_of();
      if (badness >= least) continue;
      least = badness;
      best = candidate;
    }
    spelling_ = best;
  }

  // Some templates know only lists of parts, and lose a text.
  void FindForm() {
    ChatSpelling parts = spelling_;
    parts.text_as_parts = true;
    Choose({spelling_, parts}, [this] { return Shows({User()}, kAsked, /*tools=*/false) ? 0 : kLoses; });
  }

  void FindArguments() {
    std::vector<ChatSpelling> candidates;
    for (const Blank blank : {Blank::kNone, Blank::kEmpty, Blank::kAbsent}) {
      for (const bool as_text : {false, true}) {
        ChatSpelling candidate = spelling_;
        candidate.arguments_as_text = as_text;
        candidate.no_content = blank;
        candidates.push_back(std::move(candidate));
      }
    }
    std::vector<Messages> histories = CallHistories(std::nullopt);
    for (Messages& messages : CallHistories(kSaid)) histories.push_back(std::move(messages));
    Choose(candidates, [&] { return BadnessOf(histories); });
  }

  void FindEmptyContent() {
    std::vector<ChatSpelling> candidates;
    for (const Blank blank : {Blank::kEmpty, Blank::kNone, Blank::kAbsent}) {
      candidates.push_back(spelling_);
      candidates.back().empty_content = blank;
    }
    const std::vector<Messages> histories = CallHistories("");
    Choose(candidates, [&] { return BadnessOf(histories); });
  }

  void FindReasoning() {
    std::vector<ChatSpelling> candidates;
    for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
      candidates.push_back(spelling_);
      candidates.back().reasoning_name = name;
    }
    // Many templates keep the reasoning of a turn that is not over alone.
    const Messages history = CallHistories(std::nullopt).back();
    Choose(candidates, [&] {
      return Shows(history, kThought) ||
                     Shows({User(), {.role = "assistant", .content = kSaid, .reasoning = kThought}}, kThought)
                 ? 0
                 : kLoses;
    });
  }

  // Whether the text of a list of two parts gets into the prompt whole, whoever says it.
  void FindParts() {
    ChatSpelling parts = spelling_;
    parts.takes_parts = true;
    std::swap(parts, spelling_);
    const std::vector<std::string> two = {kPart, absl::StrCat("second", kPart)};
    bool takes = true;
    for (const char* role : {"user", "assistant", "system", "tool"}) {
      // What the template cannot do with a text says nothing about lists.
      if (!Shows(HistoryOf({.role = role, .content = kPart}), kPart)) continue;
      const absl::StatusOr<std::string> prompt =
          Render(HistoryOf({.role = role, .parts = two}), /*tools=*/true);
      takes = takes && prompt.ok() && CountOf(*prompt, kPart) == 2 && !absl::StrContains(*prompt, "'text'");
    }
    if (!takes) std::swap(parts, spelling_);
  }

  static Messages Told() { return {{.role = "system", .content = kSystem}, User()}; }

  static Messages HistoryOf(ChatMessage message) {
    if (message.role == "system") return {std::move(message), User()};
    if (message.role == "assistant") return {User(), std::move(message), User()};
    if (message.role == "user") return {std::move(message)};
    message.tool_call_id = kFirstId;
    message.name = kTool;
    return {User(), Calling("", {kFirstId}), std::move(message)};
  }

  bool TakesTools() const {
    if (Shows({User()}, kTool) || Shows(Told(), kTool)) return true;
    // A template that refuses both may still know what to do with the caller's.
    return !Render({User()}, true).ok() && !Render(Told(), true).ok() && absl::StrContains(source_, "tools");
  }

  bool TakesDocuments() const {
    ChatTemplateOptions options = Options();
    options.documents =
        absl::StrCat(R"([{"doc_id": 1, "title": "A", "text": ")", kDocument, R"(", "content": ")", kDocument,
                     R"(", "contents": ")", kDocument, R"("}])");
    const absl::StatusOr<std::string> prompt = render_({User()}, options);
    return prompt.ok() && absl::StrContains(*prompt, kDocument);
  }

  const ChatRenderer& render_;
  const absl::string_view source_;
  ChatSpelling spelling_;
};

const char* NameOf(Blank blank) {
  return blank == Blank::kNone ? "none" : blank == Blank::kEmpty ? "\"\"" : "absent";
}

}  // namespace

TemplateTraits TryTemplate(const ChatRenderer& render, absl::string_view source) {
  return Trials(render, source).Run();
}

std::string DescribeTraits(const TemplateTraits& traits) {
  if (!traits.problem.ok()) return std::string(traits.problem.message());
  const ChatSpelling& spelling = traits.spelling;
  std::vector<std::string> known;
  for (const auto& [name, takes] : {std::pair<const char*, bool>{"system", traits.takes_system},
                                    {"tools", traits.takes_tools},
                                    {"calls", traits.takes_calls},
                                    {"results", traits.takes_results},
                                    {"documents", traits.takes_documents}}) {
    if (takes) known.push_back(name);
  }
  return absl::StrCat("chat template: lays out ",
                      known.empty() ? "messages alone" : absl::StrJoin(known, ", "), "; arguments are ",
                      spelling.arguments_as_text ? "text" : "objects", ", contents ",
                      spelling.text_as_parts ? "lists"
                      : spelling.takes_parts ? "text or lists"
                                             : "text",
                      ", no content is ", NameOf(spelling.no_content), ", an empty one beside calls ",
                      NameOf(spelling.empty_content), ", reasoning is ", spelling.reasoning_name);
}

}  // namespace tandem
