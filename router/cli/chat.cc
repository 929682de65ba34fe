#include <istream>
#include <ostream>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "common/config/flags.h"
#include "router/cli/commands.h"
#include "router/cli/text_renderer.h"
#include "router/cli/transcript.h"

namespace tandem::cli {
namespace {

class Conversation {
 public:
  Conversation(const ChatCommand& command, Terminal& terminal, const Clock& clock, Interrupts& interrupts)
      : command_(command), terminal_(terminal), clock_(clock), client_(command.connection, interrupts) {
    Reset();
  }

  void Reset() {
    prompt_.Clear();
    if (!command_.system.empty()) Append("system", command_.system);
  }

  // Sends a message, shows the answer, and adds both to the conversation, or nothing if the request fails.
  // After an interrupt, the part of the answer that has arrived is kept.
  absl::Status Ask(const std::string& message) {
    Append("user", message);
    v1::GenerateRequest request = command_.generation.request;
    *request.mutable_chat() = prompt_;
    TextRenderer renderer(terminal_.out, {.color = UseColor(command_.generation, terminal_),
                                          .replace_controls = terminal_.out_is_terminal});
    Transcript transcript(clock_.Now());
    const absl::Status status = client_.Generate(request, [&](const v1::GenerateResponse& event) {
      transcript.Add(event, clock_.Now());
      renderer.Write(event);
      return terminal_.out.good();
    });
    transcript.End(clock_.Now());
    renderer.EndLine();
    stats_ = transcript.DescribeStats();
    if (command_.generation.stats) terminal_.err << stats_ << std::flush;
    const bool keep =
        status.ok() || (status.code() == absl::StatusCode::kCancelled && !transcript.text().empty());
    if (keep) {
      Append("assistant", transcript.text());
    } else {
      prompt_.mutable_messages()->RemoveLast();
    }
    return status;
  }

  void ShowStats() { terminal_.err << (stats_.empty() ? "No answer yet.\n" : stats_) << std::flush; }

 private:
  void Append(const std::string& role, const std::string& content) {
    v1::ChatMessage& message = *prompt_.add_messages();
    message.set_role(role);
    message.set_content(content);
  }

  const ChatCommand& command_;
  Terminal& terminal_;
  const Clock& clock_;
  Client client_;
  v1::ChatPrompt prompt_;
  std::string stats_;
};

}  // namespace

int RunChat(const ChatCommand& command, Terminal& terminal, const Clock& clock, Interrupts& interrupts) {
  Conversation conversation(command, terminal, clock, interrupts);
  const bool interactive = terminal.in_is_terminal;
  if (interactive)
    terminal.err
        << "/exit ends the chat, /reset starts a new conversation, /stats explains the last answer.\n";
  bool failed = false;
  std::string line;
  while (terminal.out.good()) {
    if (interactive) terminal.err << "> " << std::flush;
    if (!std::getline(terminal.in, line)) break;
    const absl::string_view command_word = absl::StripAsciiWhitespace(line);
    if (command_word.empty()) continue;
    if (command_word == "/exit") break;
    if (command_word == "/reset") {
      conversation.Reset();
    } else if (command_word == "/stats") {
      conversation.ShowStats();
    } else if (command_word[0] == '/') {
      terminal.err << "Unknown command; the commands are /exit, /reset and /stats.\n";
    } else if (const absl::Status status = conversation.Ask(line); !status.ok()) {
      ReportFailure(status, terminal.err);
      failed = true;
    }
  }
  // A person has seen the failure and continued; a script needs the exit code.
  return failed && !interactive ? kExitFailure : kExitOk;
}

}  // namespace tandem::cli
