#include <algorithm>
#include <cstdint>
#include <memory>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/config/flags.h"
#include "nlohmann/json.hpp"
#include "router/cli/commands.h"
#include "router/cli/prompt_input.h"
#include "router/cli/text_renderer.h"
#include "router/cli/transcript.h"

namespace tandem::cli {
namespace {

// Of any request: more than a router accepts.
constexpr size_t kMaxPredictionBytes = size_t{4} << 20;

absl::StatusOr<v1::GenerateRequest> BuildRequest(const GenerateCommand& command, std::istream& in) {
  v1::GenerateRequest request = command.generation.request;
  if (command.prediction.has_value()) {
    absl::StatusOr<std::string> prediction = ReadFile(*command.prediction, kMaxPredictionBytes);
    if (!prediction.ok()) return prediction.status();
    request.mutable_prediction()->set_text(*std::move(prediction));
  }
  if (command.token_ids.has_value()) {
    request.mutable_token_ids()->mutable_ids()->Add(command.token_ids->begin(), command.token_ids->end());
    return request;
  }
  const absl::StatusOr<std::string> prompt = ReadPromptText(command.file, command.prompt, in);
  if (!prompt.ok()) return prompt.status();
  SetPrompt(*prompt, command.chat, &request);
  return request;
}

// Collects a request's outputs. The text of the first is written as it arrives, that of the others when all
// have ended.
class Outputs {
 public:
  Outputs(const GenerateCommand& command, const TextRenderer::Options& options, std::ostream& out,
          absl::Time begin)
      : options_(options), begin_(begin), writes_text_(command.output == GenerateCommand::Output::kText) {
    outputs_.push_back(std::make_unique<One>(out, options, begin));
  }

  void Add(const v1::GenerateResponse& event, absl::Time now) {
    while (outputs_.size() <= std::min(event.output(), kMostOutputs - 1))
      outputs_.push_back(std::make_unique<One>(options_, begin_));
    One& one = *outputs_[std::min(event.output(), kMostOutputs - 1)];
    one.transcript.Add(event, now);
    if (writes_text_) one.renderer.Write(event);
  }

  void End(absl::Time now, std::ostream& out) {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      outputs_[i]->transcript.End(now);
      outputs_[i]->renderer.EndLine();
      if (i > 0 && writes_text_)
        out << "--- output " << i << " ---\n" << outputs_[i]->text.str() << std::flush;
    }
  }

  nlohmann::json ToJson(bool logprobs, const absl::Status& status) const {
    nlohmann::json json = outputs_[0]->transcript.ToJson(logprobs, status);
    for (size_t i = 1; i < outputs_.size(); ++i)
      json["others"].push_back(outputs_[i]->transcript.ToJson(logprobs, absl::OkStatus()));
    return json;
  }
  std::string DescribeStats() const {
    std::string text;
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (i > 0) absl::StrAppend(&text, "--- output ", i, " ---\n");
      text += outputs_[i]->transcript.DescribeStats();
    }
    return text;
  }

 private:
  static constexpr uint32_t kMostOutputs = 16;

  struct One {
    One(std::ostream& out, const TextRenderer::Options& options, absl::Time begin)
        : renderer(out, options), transcript(begin) {}
    One(const TextRenderer::Options& options, absl::Time begin) : One(text, options, begin) {}

    std::ostringstream text;
    TextRenderer renderer;
    Transcript transcript;
  };

  const TextRenderer::Options options_;
  const absl::Time begin_;
  const bool writes_text_;
  std::vector<std::unique_ptr<One>> outputs_;
};

}  // namespace

int RunGenerate(const GenerateCommand& command, Terminal& terminal, const Clock& clock,
                Interrupts& interrupts) {
  using Output = GenerateCommand::Output;
  const absl::StatusOr<v1::GenerateRequest> request = BuildRequest(command, terminal.in);
  if (!request.ok()) {
    ReportFailure(request.status(), terminal.err);
    return kExitUsage;
  }
  const bool logprobs = request->output().has_logprobs();
  const bool color = UseColor(command.generation, terminal);
  Outputs outputs(command,
                  {.color = color,
                   .replace_controls = terminal.out_is_terminal,
                   .parsed = !request->chat().tools().empty()},
                  terminal.out, clock.Now());
  Client client(command.connection, interrupts);
  const auto on_event = [&](const v1::GenerateResponse& event) {
    outputs.Add(event, clock.Now());
    if (command.output == Output::kJsonStream)
      terminal.out << DumpJson(EventJson(event, logprobs)) << std::flush;
    return terminal.out.good();
  };
  const absl::Status status =
      command.retry ? client.GenerateWithRetry(*request, on_event) : client.Generate(*request, on_event);
  outputs.End(clock.Now(), terminal.out);
  if (command.output == Output::kJson)
    terminal.out << DumpJson(outputs.ToJson(logprobs, status)) << std::flush;
  if (command.output == Output::kJsonStream && !status.ok()) {
    terminal.out << DumpJson({{"event", "error"}, {"error", ErrorJson(status)}}) << std::flush;
  }
  if (!status.ok()) ReportFailure(status, terminal.err);
  if (command.generation.stats) {
    if (color && command.output == Output::kText) terminal.err << TextRenderer::Legend();
    terminal.err << outputs.DescribeStats() << std::flush;
  }
  return status.ok() ? kExitOk : kExitFailure;
}

}  // namespace tandem::cli
