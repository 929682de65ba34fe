#include "router/cli/options.h"

#include <ostream>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/config/flags.h"
#include "common/config/version.h"
#include "router/cli/admin_options.h"
#include "router/cli/constraint_options.h"
#include "router/cli/tool_options.h"

namespace tandem::cli {
namespace {

constexpr char kExamples[] = R"(Examples:
  tandem serve smollm2-135m
  tandem generate "def fibonacci(n):" --max-tokens 64
  tandem generate --chat "Why is the sky blue?" --temperature 0 --stats
  cat prompt.txt | tandem generate - --json
  tandem chat --system "Answer in one sentence."
  tandem info
  tandem servers
  tandem tenants list
  tandem explain "def fibonacci(n):"
  tandem calibrate --prompts prompts.jsonl --output routing.state

`tandem serve` starts a model on this machine; `tandem serve --help` says how. All other commands need a router that
runs. Its address comes from --endpoint or TANDEM_ENDPOINT, the tenant's token from --token or TANDEM_TOKEN. Exit
codes: 0 done, 1 the request failed, 2 the command line is wrong.)";

constexpr char kGenerateExamples[] = R"(Examples:
  tandem generate "Once upon a time" --temperature 0.8 --seed 7
  tandem generate "One, two, three," --stop ten --max-tokens 40
  tandem generate --chat "Write a haiku" --stats
  tandem generate --file prompt.txt --drafter code --json
  tandem generate --chat "Is it raining in Bern?" --tools tools.json --tool-choice required
  tandem generate --token-ids 1,15,42 --logprobs 5 --json-stream
  tandem generate "A long story" --retry --endpoint router-0:7001 --endpoint router-1:7001

On a terminal, text that a drafter guessed and the target accepted is green. Speculation changes the speed, never
the output: the same seed gives the same text with any drafter and with --no-speculation.)";

constexpr char kChatExamples[] = R"(Within the chat:
  /stats   show what speculation did for the last answer
  /reset   forget the conversation
  /exit    leave (so does Ctrl-D); Ctrl-C stops an answer
Also reads a pipe, one message per line: printf 'Hello\nAnd you?\n' | tandem chat)";

// Values that CLI11 fills as text and that are turned into options afterwards.
struct RawFlags {
  std::string timeout;
  std::optional<std::string> token_ids;
  std::vector<std::string> logit_bias;
  std::optional<std::string> stop_token_ids;
  std::optional<std::string> allowed_token_ids;
  std::optional<std::string> banned_token_ids;
  std::string color = "auto";
  bool no_speculation = false;
  bool json = false;
  bool json_stream = false;
  ConstraintOptions constraint;
  ToolOptions tools;
};

void AddConnection(CLI::App* app, ConnectionOptions* connection, RawFlags* raw) {
  app->add_option_function<std::vector<std::string>>(
         "--endpoint",
         [connection](const std::vector<std::string>& endpoints) {
           connection->endpoint = endpoints.front();
           connection->other_endpoints.assign(endpoints.begin() + 1, endpoints.end());
         },
         "Address of the router; repeat it with the router's replicas for `generate --retry`")
      ->allow_extra_args(false)
      ->envname("TANDEM_ENDPOINT")
      ->default_str(connection->endpoint)
      ->group("Connection");
  app->add_option_function<std::string>(
         "--token", [connection](const std::string& token) { connection->token = Secret(token); },
         "The tenant's token")
      ->envname("TANDEM_TOKEN")
      ->group("Connection");
  app->add_option("--tls-ca", connection->tls.ca,
                  "PEM file of the router's certificate authorities; if given, the connection uses TLS")
      ->envname("TANDEM_TLS_CA")
      ->group("Connection");
  app->add_option("--tls-certificate", connection->tls.certificate, "PEM file of the client's certificate")
      ->envname("TANDEM_TLS_CERTIFICATE")
      ->group("Connection");
  app->add_option("--tls-key", connection->tls.key, "PEM file of that certificate's private key")
      ->envname("TANDEM_TLS_KEY")
      ->group("Connection");
  app->add_option("--timeout", raw->timeout,
                  "Cancel a request after this long, such as 30s or 2m; default: never")
      ->group("Connection");
}

// An option that sets a field of a message when it is given. The value is parsed by CLI11 as T.
template <class T, class Set>
CLI::Option* AddField(CLI::App* app, const std::string& name, Set set, const std::string& help,
                      const std::string& group) {
  return app->add_option_function<T>(name, set, help)->group(group);
}

void AddSampling(CLI::App* app, v1::GenerateRequest* request, RawFlags* raw) {
  v1::SamplingParameters* sampling = request->mutable_sampling();
  const std::string group = "Sampling (default: the model's own settings)";
  AddField<float>(
      app, "--temperature", [=](float v) { sampling->set_temperature(v); },
      "Randomness; 0 always takes the most likely token", group);
  AddField<uint32_t>(
      app, "--top-k", [=](uint32_t v) { sampling->set_top_k(v); },
      "Choose among the K most likely tokens; 0: all tokens", group);
  AddField<float>(
      app, "--top-p", [=](float v) { sampling->set_top_p(v); },
      "Choose among the most likely tokens whose probabilities add up to P", group);
  AddField<float>(
      app, "--min-p", [=](float v) { sampling->set_min_p(v); },
      "Drop tokens below this share of the most likely one's probability", group);
  AddField<uint64_t>(
      app, "--seed", [=](uint64_t v) { sampling->set_seed(v); },
      "Seed of the random choices; the same seed repeats an output; default: random", group);
  AddField<float>(
      app, "--repetition-penalty", [=](float v) { sampling->set_repetition_penalty(v); },
      "Above 1: make tokens of the prompt and the output less likely", group);
  AddField<float>(
      app, "--presence-penalty", [=](float v) { sampling->set_presence_penalty(v); },
      "Subtract this from the logit of every token that is in the output", group);
  AddField<float>(
      app, "--frequency-penalty", [=](float v) { sampling->set_frequency_penalty(v); },
      "The same, once for each time that the token is in the output", group);
  app->add_option("--allowed-token-ids", raw->allowed_token_ids, "Choose among these tokens, such as 5,7")
      ->group(group);
  app->add_option("--banned-token-ids", raw->banned_token_ids, "Never choose these tokens")->group(group);
  app->add_option("--logit-bias", raw->logit_bias, "ID=V: add V to a token's logit (repeatable)")
      ->allow_extra_args(false)
      ->group(group);
}

void AddGeneration(CLI::App* app, GenerationOptions* generation, RawFlags* raw) {
  v1::GenerateRequest* request = &generation->request;
  AddField<std::string>(
      app, "--model", [=](const std::string& v) { request->set_model(v); },
      "Target model; default: the tenant's", "Generation");
  AddField<std::string>(
      app, "--adapter", [=](const std::string& v) { request->set_adapter(v); },
      "Adapter of the model, by name; empty: none; default: the tenant's", "Generation");
  AddField<uint32_t>(
      app, "--max-tokens", [=](uint32_t v) { request->mutable_stopping()->set_max_tokens(v); },
      "Generate at most this many tokens", "Generation");
  AddField<uint32_t>(
      app, "--min-tokens", [=](uint32_t v) { request->mutable_stopping()->set_min_tokens(v); },
      "Generate at least this many tokens", "Generation");
  AddField<int32_t>(
      app, "--priority", [=](int32_t v) { request->set_priority(v); },
      "Order of the tenant's waiting requests, from -100 to 100; the lowest goes first", "Generation");
  app->add_option_function<std::vector<std::string>>(
         "--stop",
         [=](const std::vector<std::string>& values) {
           for (const std::string& value : values) request->mutable_stopping()->add_stop(value);
         },
         "End the output before this text (repeatable)")
      ->allow_extra_args(false)
      ->group("Generation");
  app->add_option("--stop-token-ids", raw->stop_token_ids, "End the output at these tokens, such as 5,7")
      ->group("Generation");
  app->add_flag_callback(
         "--ignore-eos", [=] { request->mutable_stopping()->set_ignore_eos(true); },
         "Do not stop at the model's end of text")
      ->group("Generation");
  AddSampling(app, request, raw);
  AddConstraint(app, &raw->constraint);

  v1::SpeculationOptions* speculation = request->mutable_speculation();
  const std::string group = "Speculation (changes the speed, never the output)";
  CLI::Option* off =
      app->add_flag("--no-speculation", raw->no_speculation, "Decode without a drafter")->group(group);
  AddField<std::string>(
      app, "--drafter", [=](const std::string& v) { speculation->set_drafter(v); },
      "Drafter to use; `tandem info` lists them; default: the tenant's", group)
      ->excludes(off);
  AddField<std::string>(
      app, "--partner", [=](const std::string& v) { speculation->set_partner(v); },
      "Second drafter; its candidates are merged with those of --drafter", group)
      ->excludes(off);
  AddField<std::string>(
      app, "--window-policy", [=](const std::string& v) { speculation->set_window_policy(v); },
      "Rule that chooses the draft length: goodput, analytic, fixed, ...", group);
  AddField<uint32_t>(
      app, "--max-window", [=](uint32_t v) { speculation->set_max_window(v); }, "Longest draft length",
      group);

  app->add_flag_callback(
         "--live-page", [=] { request->mutable_output()->set_live_page(true); },
         "Show this request, including its text, on the router's live page")
      ->group("Output");
  app->add_flag("--stats", generation->stats, "Print statistics of speculation and speed to standard error")
      ->group("Output");
  app->add_option("--color", raw->color, "Colour accepted drafts; auto: on terminals, unless NO_COLOR is set")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->capture_default_str()
      ->group("Output");
}

void AddGenerate(CLI::App* app, GenerateCommand* command, RawFlags* raw) {
  app->footer(kGenerateExamples);
  app->add_option("PROMPT", command->prompt, "The prompt; - reads standard input")->group("Prompt");
  app->add_option("--file", command->file, "Read the prompt from a file; - reads standard input")
      ->group("Prompt");
  app->add_option("--token-ids", raw->token_ids, "The prompt as token ids, such as 1,15,42")->group("Prompt");
  app->add_flag("--chat", command->chat, "Send the prompt as one message of a chat")->group("Prompt");
  AddTools(app, &raw->tools);
  AddGeneration(app, &command->generation, raw);
  v1::GenerateRequest* request = &command->generation.request;
  AddField<uint32_t>(
      app, "--num-outputs", [=](uint32_t v) { request->set_num_outputs(v); },
      "Generate this many outputs, up to 16; the seed of each is one higher than that of the one before",
      "Generation");
  app->add_option("--prediction", command->prediction,
                  "File with text that the output is expected to repeat, such as the file that it edits; "
                  "used as a draft")
      ->group("Speculation (changes the speed, never the output)");
  AddField<uint32_t>(
      app, "--prompt-logprobs", [=](uint32_t v) { request->mutable_output()->set_prompt_logprobs(v); },
      "With --json or --json-stream: the same for the prompt's tokens", "Output");
  AddField<uint32_t>(
      app, "--logprobs", [=](uint32_t v) { request->mutable_output()->set_logprobs(v); },
      "With --json or --json-stream: log probabilities of the tokens and of this many alternatives",
      "Output");
  app->add_flag_callback(
         "--include-special-tokens", [=] { request->mutable_output()->set_include_special_tokens(true); },
         "Keep special tokens in the text")
      ->group("Output");
  AddField<std::string>(
      app, "--request-id", [=](const std::string& v) { request->set_request_id(v); },
      "Id of the request in logs", "Output");
  CLI::Option* as_json =
      app->add_flag("--json", raw->json, "Print one JSON object at the end")->group("Output");
  app->add_flag("--json-stream", raw->json_stream, "Print one JSON object per line as events arrive")
      ->excludes(as_json)
      ->group("Output");
  AddConnection(app, &command->connection, raw);
  app->add_flag("--retry", command->retry,
                "When the router is lost, resume the output on the next --endpoint, or on the same one")
      ->group("Connection");
}

void AddExplain(CLI::App* app, ExplainCommand* command, RawFlags* raw) {
  app->add_option("PROMPT,--prompt", command->prompt, "The prompt; - reads standard input")->group("Prompt");
  app->add_option("--file", command->file, "Read the prompt from a file; - reads standard input")
      ->group("Prompt");
  app->add_flag("--chat", command->chat, "Treat the prompt as one message of a chat")->group("Prompt");
  v1::GenerateRequest* request = &command->request;
  AddField<std::string>(
      app, "--model", [=](const std::string& v) { request->set_model(v); },
      "Target model; default: the tenant's", "Choice");
  app->add_flag("--json", command->json, "Print one JSON object")->group("Output");
  AddConnection(app, &command->connection, raw);
}

void AddCalibrate(CLI::App* app, CalibrateCommand* command, RawFlags* raw) {
  app->add_option(
         "--prompts", command->prompts,
         "File of prompts, one per line: text, or JSON with the text under prompt, question, chat ...")
      ->required()
      ->group("Prompts");
  v1::GenerateRequest* request = &command->request;
  request->mutable_stopping()->set_max_tokens(64);
  request->mutable_sampling()->set_seed(1);
  AddField<std::string>(
      app, "--model", [=](const std::string& v) { request->set_model(v); },
      "Target model; default: the tenant's", "Generation");
  AddField<uint32_t>(
      app, "--max-tokens", [=](uint32_t v) { request->mutable_stopping()->set_max_tokens(v); },
      "Tokens to generate for each prompt and drafter; default 64", "Generation");
  AddField<float>(
      app, "--temperature", [=](float v) { request->mutable_sampling()->set_temperature(v); },
      "Temperature, as for generate; default: the model's", "Generation");
  AddField<std::string>(
      app, "--window-policy",
      [=](const std::string& v) { request->mutable_speculation()->set_window_policy(v); },
      "Window policy to use; default: the tenant's", "Generation");
  app->add_option("--drafters", command->drafters, "Drafters to try, separated by commas; default: all")
      ->delimiter(',')
      ->group("Generation");
  app->add_option("--output", command->output,
                  "File to write the calibration to, for tandem-router --calibration")
      ->group("Output");
  app->add_flag("--portable", command->portable,
                "Leave out times, for routers on other machines, which measure their own")
      ->group("Output");
  AddConnection(app, &command->connection, raw);
}

absl::Status Finish(const RawFlags& raw, ConnectionOptions& connection) {
  if (raw.timeout.empty()) return absl::OkStatus();
  double seconds = 0;
  // A bare number is taken as seconds.
  const bool parsed = absl::SimpleAtod(raw.timeout, &seconds)
                          ? (connection.timeout = absl::Seconds(seconds), true)
                          : absl::ParseDuration(raw.timeout, &connection.timeout);
  if (!parsed || connection.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--timeout: ", raw.timeout, ", expected a time such as 30s or 2m"));
  }
  return absl::OkStatus();
}

absl::Status Finish(const RawFlags& raw, GenerationOptions& generation) {
  using Color = GenerationOptions::Color;
  generation.color = raw.color == "always"  ? Color::kAlways
                     : raw.color == "never" ? Color::kNever
                                            : Color::kAuto;
  if (raw.no_speculation) generation.request.mutable_speculation()->set_mode(v1::SPECULATION_MODE_OFF);
  for (const std::string& text : raw.logit_bias) {
    const auto bias = ParseLogitBias(text);
    if (!bias.ok()) return bias.status();
    (*generation.request.mutable_sampling()->mutable_logit_bias())[bias->first] = bias->second;
  }
  // Messages that nothing is said in stay absent.
  const auto read = [](absl::string_view flag, const std::optional<std::string>& text, const auto& tokens) {
    if (!text.has_value()) return absl::OkStatus();
    const auto ids = ParseTokenIds(*text);
    if (!ids.ok()) return absl::InvalidArgumentError(absl::StrCat(flag, ": ", ids.status().message()));
    tokens()->Add(ids->begin(), ids->end());
    return absl::OkStatus();
  };
  v1::GenerateRequest& request = generation.request;
  absl::Status lists = read("--stop-token-ids", raw.stop_token_ids,
                            [&] { return request.mutable_stopping()->mutable_stop_token_ids(); });
  lists.Update(read("--allowed-token-ids", raw.allowed_token_ids,
                    [&] { return request.mutable_sampling()->mutable_allowed_tokens(); }));
  lists.Update(read("--banned-token-ids", raw.banned_token_ids,
                    [&] { return request.mutable_sampling()->mutable_banned_tokens(); }));
  if (!lists.ok()) return lists;
  absl::StatusOr<std::optional<v1::Constraint>> constraint = ReadConstraint(raw.constraint);
  if (!constraint.ok()) return constraint.status();
  if (constraint->has_value()) *generation.request.mutable_constraint() = **std::move(constraint);
  return absl::OkStatus();
}

absl::Status Finish(const RawFlags& raw, GenerateCommand& command) {
  if (raw.token_ids.has_value()) {
    auto ids = ParseTokenIds(*raw.token_ids);
    if (!ids.ok()) return absl::InvalidArgumentError(absl::StrCat("--token-ids: ", ids.status().message()));
    command.token_ids = *std::move(ids);
  }
  const int prompts = command.prompt.has_value() + command.file.has_value() + command.token_ids.has_value();
  if (prompts != 1) {
    return absl::InvalidArgumentError(
        prompts == 0 ? "no prompt: expected an argument, --file or --token-ids; - reads standard input"
                     : "several prompts: expected one argument, --file or --token-ids");
  }
  if (command.chat && command.token_ids.has_value()) {
    return absl::InvalidArgumentError(
        "--chat formats text; expected a prompt or --file in place of --token-ids");
  }
  using Output = GenerateCommand::Output;
  command.output = raw.json ? Output::kJson : raw.json_stream ? Output::kJsonStream : Output::kText;
  if (command.generation.request.output().has_logprobs() && command.output == Output::kText) {
    return absl::InvalidArgumentError("--logprobs: expected --json or --json-stream as well");
  }
  if (command.generation.request.output().has_prompt_logprobs() && command.output == Output::kText) {
    return absl::InvalidArgumentError("--prompt-logprobs: expected --json or --json-stream as well");
  }
  if (command.generation.request.num_outputs() > 1 && command.retry) {
    return absl::InvalidArgumentError(
        "--num-outputs: --retry cannot resume several outputs; expected one of the two flags");
  }
  if (absl::Status status = ReadTools(raw.tools, command.chat, &command.generation.request); !status.ok())
    return status;
  if (absl::Status status = Finish(raw, command.generation); !status.ok()) return status;
  return Finish(raw, command.connection);
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> ParseTokenIds(const std::string& text) {
  std::vector<uint32_t> ids;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    uint32_t id = 0;
    if (!absl::SimpleAtoi(part, &id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", part, "\" is not a token id; expected numbers separated by commas"));
    }
    ids.push_back(id);
  }
  return ids;
}

absl::StatusOr<std::pair<uint32_t, float>> ParseLogitBias(const std::string& text) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
  uint32_t id = 0;
  float bias = 0;
  if (!absl::SimpleAtoi(parts.first, &id) || !absl::SimpleAtof(parts.second, &bias)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--logit-bias: \"", text, "\", expected ID=V such as 17=-2.5"));
  }
  return std::make_pair(id, bias);
}

std::variant<Command, int> ParseCommandLine(const std::vector<std::string>& arguments, std::ostream& out,
                                            std::ostream& err) {
  CLI::App app("Generates text through a Tandem router: a large model's output, sped up by small ones.",
               "tandem");
  app.footer(kExamples);
  app.set_version_flag("--version", std::string(Version().data(), Version().size()));
  app.require_subcommand(1);
  app.set_help_flag("--help,-h", "Print this help and exit");

  RawFlags raw;
  GenerateCommand generate;
  ChatCommand chat;
  InfoCommand info;
  CLI::App* generate_app = app.add_subcommand("generate", "Generate from one prompt");
  AddGenerate(generate_app, &generate, &raw);
  CLI::App* chat_app = app.add_subcommand("chat", "Hold a conversation");
  chat_app->footer(kChatExamples);
  chat_app->add_option("--system", chat.system, "System message: instructions for the model")
      ->group("Prompt");
  AddGeneration(chat_app, &chat.generation, &raw);
  AddConnection(chat_app, &chat.connection, &raw);
  CLI::App* info_app = app.add_subcommand("info", "Show models and drafters of a running server");
  info_app->add_flag("--json", info.json, "Print one JSON object")->group("Output");
  AddConnection(info_app, &info.connection, &raw);
  ServersCommand servers;
  CLI::App* servers_app =
      app.add_subcommand("servers", "Show the verifiers and drafters that a router uses, and their state");
  servers_app->add_flag("--json", servers.json, "Print one JSON array")->group("Output");
  AddConnection(servers_app, &servers.connection, &raw);
  ExplainCommand explain;
  CLI::App* explain_app =
      app.add_subcommand("explain", "Show which drafter the router would choose for a prompt, and why");
  AddExplain(explain_app, &explain, &raw);
  CalibrateCommand calibrate;
  CLI::App* calibrate_app =
      app.add_subcommand("calibrate", "Teach a router which drafter suits which prompts");
  AddCalibrate(calibrate_app, &calibrate, &raw);
  HashTokenCommand hash_token;
  CLI::App* hash_token_app = app.add_subcommand(
      "hash-token", "Hash a tenant's token, read from standard input, for a router's configuration");
  hash_token_app->add_flag("--generate", hash_token.generate, "Generate a new token and print it as well");

  AdminCommand admin;
  AddAdminCommands(&app, &admin, [&](CLI::App* added) { AddConnection(added, &admin.connection, &raw); });
  ModelsCommand models;
  CLI::App* models_app = AddModelsCommands(
      &app, &models, [&](CLI::App* added) { AddConnection(added, &models.connection, &raw); });
  CLI::App* adapters_app = AddAdaptersCommands(
      &app, &models, [&](CLI::App* added) { AddConnection(added, &models.connection, &raw); });

  const std::function<bool()> is_draft_model = AddDraftModelCommands(
      &app, &models, [&](CLI::App* added) { AddConnection(added, &models.connection, &raw); });

  // CLI11 would only say that a subcommand is missing.
  const bool is_word = !arguments.empty() && !arguments[0].empty() && arguments[0][0] != '-';
  const auto is_first = [&](CLI::App* command) { return command->get_name() == arguments[0]; };
  if (is_word && app.get_subcommands(is_first).empty()) {
    err << "unknown command \"" << arguments[0]
        << "\"; expected generate, chat, info, explain, calibrate, hash-token, servers, tenants, drafters, "
           "verifiers, models or adapters\n"
        << "Run `tandem --help` for more information.\n";
    return kExitUsage;
  }
  try {
    // CLI11 takes arguments from the back.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    return app.exit(error, out, err) == 0 ? kExitOk : kExitUsage;
  }
  absl::Status status;
  Command command = info;
  if (generate_app->parsed()) {
    status = Finish(raw, generate);
    command = generate;
  } else if (chat_app->parsed()) {
    status = Finish(raw, chat.generation);
    if (status.ok()) status = Finish(raw, chat.connection);
    command = chat;
  } else if (explain_app->parsed()) {
    status =
        explain.prompt.has_value() == explain.file.has_value()
            ? absl::InvalidArgumentError("explain: expected one prompt, as an argument, --prompt or --file")
            : Finish(raw, explain.connection);
    command = explain;
  } else if (calibrate_app->parsed()) {
    status = Finish(raw, calibrate.connection);
    command = calibrate;
  } else if (hash_token_app->parsed()) {
    command = hash_token;
  } else if (servers_app->parsed()) {
    status = Finish(raw, servers.connection);
    command = servers;
  } else if (models_app->parsed() || adapters_app->parsed() || is_draft_model()) {
    status = Finish(raw, models.connection);
    command = models;
  } else if (info_app->parsed()) {
    status = Finish(raw, info.connection);
    command = info;
  } else {
    status = FinishAdminCommand(admin);
    if (status.ok()) status = Finish(raw, admin.connection);
    command = admin;
  }
  if (!status.ok()) {
    err << status.message() << "\nRun `tandem --help` for more information.\n";
    return kExitUsage;
  }
  return command;
}

}  // namespace tandem::cli
