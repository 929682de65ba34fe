// What comes on the HTTP port: bytes of connections, through the real session, and bodies of OpenAI's API.

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <iterator>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "boost/asio/ip/tcp.hpp"
#include "nlohmann/json.hpp"
#include "router/http/answer_writer.h"
#include "router/http/messages_request.h"
#include "router/http/openai_answer.h"
#include "router/http/openai_request.h"
#include "router/http/responses_request.h"
#include "router/http/server/http_session.h"
#include "router/serving/request.h"
#include "router/testing/letter_encoder.h"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

constexpr size_t kMostBodyBytes = 2000;

// Answers whole, piece by piece, or not at all, by the path.
class EchoHandler final : public router::HttpHandler {
 public:
  std::optional<router::HttpAnswer> Check(const router::HttpHead& head,
                                          std::shared_ptr<void>& hold) override {
    hold = std::make_shared<int>(1);
    for (const auto& [name, value] : head.fields) {
      Require(name == absl::AsciiStrToLower(name), "names in lower case");
      Require(!absl::StrContains(value, "\r\n") && !absl::StrContains(name, ":"), "fields without line ends");
    }
    Require(!absl::StrContains(head.path, "?") && !absl::StrContains(head.path, " "), "a path");
    head.Field("authorization");
    if (head.path == "/refused") return router::HttpAnswer{.status = 403, .body = "no"};
    return std::nullopt;
  }
  void Handle(router::HttpRequest request, std::shared_ptr<router::HttpExchange> exchange) override {
    Require(request.body.size() <= kMostBodyBytes, "a body within the bounds");
    ++num_requests;
    if (request.head.path == "/broken") return exchange->Abort();
    if (request.head.path != "/stream") return exchange->Answer({.body = absl::StrCat(request.body.size())});
    exchange->Begin({.fields = {{"Content-Type", "text/event-stream"}}});
    for (int i = 0; i < 3; ++i) exchange->Write("data: x\n\n", [](bool) {});
    exchange->End();
  }

  int num_requests = 0;
};

// A client's end of a connection that does not wait.
class ClientEnd {
 public:
  explicit ClientEnd(int handle) : handle_(handle) { fcntl(handle_, F_SETFL, O_NONBLOCK); }
  ~ClientEnd() { close(handle_); }
  ClientEnd(const ClientEnd&) = delete;
  ClientEnd& operator=(const ClientEnd&) = delete;

  void Send(absl::string_view bytes) { (void)send(handle_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  void EndSending() { shutdown(handle_, SHUT_WR); }
  // What has been answered.
  void Receive(std::string& to) {
    char bytes[4096];
    for (ssize_t now; (now = recv(handle_, bytes, sizeof(bytes), 0)) > 0;)
      to.append(bytes, static_cast<size_t>(now));
  }

 private:
  const int handle_;
};

// The connection's bytes come in two pieces, the first of them as long as the first two bytes say.
bool RunHttpConnection(absl::string_view input) {
  InputReader reader(input);
  const absl::string_view first = reader.LongBytes(), second = reader.Rest();
  EchoHandler handler;
  router::HttpServer::Options options;
  options.max_head_bytes = 1000;
  options.max_body_bytes = kMostBodyBytes;
  const auto shared = std::make_shared<router::HttpShared>(options, &handler);
  int handles[2];
  Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, handles) == 0, "a pair of sockets");
  ClientEnd client(handles[0]);
  std::string answers;
  {
    boost::asio::ip::tcp::socket socket(shared->io);
    socket.assign(boost::asio::ip::tcp::v4(), handles[1]);
    router::MakeHttpSession(std::move(socket), nullptr, shared)->Start();
  }
  const auto poll = [&] {
    shared->io.poll();
    client.Receive(answers);
  };
  client.Send(first);
  for (int i = 0; i < 3; ++i) poll();
  client.Send(second);
  // A client that ends its half counts as gone: what it has sent is served before.
  for (size_t size = SIZE_MAX; size != answers.size();) {
    size = answers.size();
    for (int i = 0; i < 3; ++i) poll();
  }
  client.EndSending();
  for (int i = 0; i < 10'000 && shared->num_connections > 0; ++i) poll();
  Require(shared->num_connections == 0, "a connection that ends");
  shared->ended = true;
  client.Receive(answers);
  Require(answers.empty() || absl::StartsWith(answers, "HTTP/1.1 "), "answers in HTTP");
  return handler.num_requests > 0;
}

std::vector<std::string> HttpConnectionSeeds() {
  std::vector<std::string> seeds;
  for (const std::string request :
       {"GET /v1/models?x=1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer t\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nabcde",
        "POST /stream HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nabcde\r\n0\r\nT: 1\r\n\r\nGET / "
        "HTTP/1.0\r\n\r\n",
        "HEAD /refused HTTP/1.1\r\nContent-Length: 3000\r\n\r\nabc",
        "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "GET /broken HTTP/1.1\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nOrigin: https://a\r\nAccess-Control-Request-Method: POST\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"}) {
    seeds.push_back(WithLongLength(request));
    seeds.push_back(WithLongLength(request.substr(0, request.size() / 2)) +
                    request.substr(request.size() / 2) + request);
  }
  return seeds;
}

// A body's outcome as the client is told of it.
bool BodyRefused(const absl::Status& status) {
  Refused(status, "");
  const router::HttpAnswer answer = router::ErrorAnswer(status);
  Require(answer.status >= 400 && answer.status < 500,
          absl::StrCat("the client's mistake told as one: ", status.ToString()));
  Require(nlohmann::json::accept(answer.body), "an error in JSON");
  return false;
}

bool RunOpenAiBody(absl::string_view input) {
  InputReader reader(input);
  static constexpr router::ReadRequest kReaders[] = {&router::ReadChatCompletion, &router::ReadCompletion,
                                                     &router::ReadResponse, &router::ReadMessagesRequest};
  const router::ReadRequest read = kReaders[reader.Below(std::size(kReaders))];
  const absl::string_view body = reader.Rest();
  // What is refused where unknown fields are, may have no effect where they are not.
  if (const auto strict = router::ReadFor(read, body, /*refuse_unknown=*/true, /*refuse_left_out=*/true);
      !strict.ok()) {
    BodyRefused(strict.status());
  }
  if (read == &router::ReadMessagesRequest)
    (void)router::ReadFor(&router::ReadCountTokens, body, /*refuse_unknown=*/false, /*refuse_left_out=*/false)
        .ok();
  const absl::StatusOr<router::CompletionRequest> completion =
      router::ReadFor(read, body, /*refuse_unknown=*/false, /*refuse_left_out=*/false);
  if (!completion.ok()) return BodyRefused(completion.status());
  Require(!completion->prompts.empty() &&
              completion->num_choices() <= router::kMaxPromptsPerCall * router::kMaxOutputs,
          "choices within the bounds");
  bool valid = true;
  for (const v1::GenerateRequest& request : completion->prompts) {
    if (const absl::Status status = router::ValidateRequest(request); !status.ok())
      valid = BodyRefused(status);
  }
  // Answers repeat what was asked for.
  const auto writer = router::MakeAnswerWriter(*completion, "id", 1);
  v1::GenerateResponse event;
  event.mutable_started()->set_model("letters");
  static const router::ServedModel letters = router::testing::LetterModel();
  writer->OnEvent(0, event, *letters.encoder);
  event.mutable_finished()->set_reason(v1::FINISH_REASON_MAX_TOKENS);
  for (size_t choice = 0; choice < completion->num_choices(); ++choice)
    writer->OnEvent(choice, event, *letters.encoder);
  Require(nlohmann::json::accept(router::JsonAnswer(writer->Whole()).body), "an answer in JSON");
  return valid;
}

std::vector<std::string> OpenAiBodySeeds() {
  return {
      std::string(1, '\0') +
          R"({"model": "m", "messages": [{"role": "system", "content": "You help."}, {"role": "user", "content": [{"type": "text",
          "text": "Hi"}]}, {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f",
          "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "c", "content": "1"}], "tools": [{"type": "function", "function":
          {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": true}}], "tool_choice": {"type": "function",
          "function": {"name": "f"}}, "parallel_tool_calls": false, "stream": true, "stream_options": {"include_usage": true}})",
      std::string(1, '\0') +
          R"({"messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 5, "temperature": 0.5, "top_p": 0.9, "n": 2,
          "stop": ["x"], "logprobs": true, "top_logprobs": 3, "seed": 7, "logit_bias": {"5": -1.5}, "response_format": {"type":
          "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}, "strict": true}}, "tandem": {"drafter": "d",
          "window_policy": "fixed", "max_window": 3}, "prediction": {"type": "content", "content": "x"}, "user": "u"})",
      std::string(1, '\1') +
          R"({"prompt": ["a", "b"], "max_tokens": 3, "echo": true, "logprobs": 2, "suffix": null, "min_p": 0.1, "top_k": 3,
          "repetition_penalty": 1.1, "presence_penalty": 1, "frequency_penalty": -1, "priority": 2, "min_tokens": 1,
          "stop_token_ids": [3], "ignore_eos": true, "guided_choice": ["a", "b"]})",
      std::string(1, '\1') +
          R"({"prompt": [[1, 2], [3]], "stream": false, "best_of": 1, "prompt_logprobs": 1})",
      std::string(1, '\2') +
          R"({"model": "m", "instructions": "i", "input": [{"type": "message", "role": "user", "content": [{"type": "input_text",
          "text": "Hi"}]}, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, {"type": "function_call_output",
          "call_id": "c", "output": "1"}], "tools": [{"type": "function", "name": "f", "parameters": {}}], "text": {"format": {"type":
          "json_object"}}, "max_output_tokens": 9, "store": false, "metadata": {"a": "b"}, "reasoning": {"effort": "low"}})",
      std::string(1, '\2') + R"({"input": "Hi", "stream": true, "temperature": 1})",
      std::string(1, '\2') +
          R"({"input": [{"type": "custom_tool_call", "id": "x", "call_id": "c", "name": "p", "input": "a", "namespace": "n"},
          {"type": "custom_tool_call_output", "call_id": "c", "output": "1"}, {"type": "item_reference", "id": "x"},
          {"type": "local_shell_call", "call_id": "d", "action": {"type": "exec"}}, {"type": "compaction", "id": "y"}],
          "tools": [{"type": "custom", "name": "p", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}},
          {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}, {"type": "web_search"}],
          "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "p"}]}})",
      std::string(1, '\3') +
          R"({"model": "m", "max_tokens": 9, "system": [{"type": "text", "text": "s"}], "messages": [{"role": "user", "content": "Hi"},
          {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": ""}, {"type": "text", "text": "a"},
          {"type": "tool_use", "id": "i", "name": "f", "input": {"b": 1}}]}, {"role": "user", "content": [{"type": "tool_result",
          "tool_use_id": "i", "content": [{"type": "text", "text": "1"}], "is_error": false}]}], "tools": [{"name": "f",
          "input_schema": {"type": "object"}}, {"type": "bash_20250124", "name": "bash"}], "tool_choice": {"type": "tool", "name": "f",
          "disable_parallel_tool_use": true}, "stop_sequences": ["x"], "stream": true, "thinking": {"type": "disabled"},
          "output_config": {"format": {"type": "json_schema", "schema": {}}}})"};
}

// Events of a verifier, as clients of every API are told of them.
bool RunOpenAiAnswer(absl::string_view input) {
  InputReader reader(input);
  static const router::ServedModel letters = router::testing::LetterModel();
  const uint8_t flags = reader.Byte();
  router::CompletionRequest request;
  request.api = static_cast<router::CompletionRequest::Api>(flags % 4);
  request.origins["f"] = {.name = "p", .space = "n", .custom = true};
  request.prompts.resize(1);
  request.stream = (flags & 4) != 0;
  request.include_usage = (flags & 8) != 0;
  request.usage_so_far = (flags & 16) != 0;
  request.return_token_ids = (flags & 32) != 0;
  if ((flags & 64) != 0) request.logprobs = 2;
  if ((flags & 128) != 0) request.prompt_logprobs = 1;
  const auto writer = router::MakeAnswerWriter(request, "id", 1);
  bool whole = false;
  for (int i = 0; i < 20 && !reader.empty(); ++i) {
    v1::GenerateResponse event;
    const absl::string_view bytes = reader.LongBytes();
    if (!event.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) continue;
    whole |= event.has_finished();
    const std::string sent = writer->OnEvent(0, event, *letters.encoder);
    Require(request.stream || sent.empty(), "events of streams alone");
    for (const absl::string_view line : absl::StrSplit(sent, '\n')) {
      if (!absl::StartsWith(line, "data: ")) continue;
      Require(line == "data: [DONE]" || nlohmann::json::accept(line.substr(6)), "an event in JSON");
    }
  }
  if (request.stream) writer->Failure(absl::UnavailableError("\xff lost"));
  Require(nlohmann::json::accept(router::JsonAnswer(writer->Whole()).body), "an answer in JSON");
  return whole;
}

std::vector<std::string> OpenAiAnswerSeeds() {
  v1::GenerateResponse started, chunk, finished, prompt;
  started.mutable_started()->set_request_id("r");
  started.mutable_started()->set_model("letters");
  v1::GenerationChunk& said = *chunk.mutable_chunk();
  said.set_text("ab");
  for (const uint32_t token : {97u, 98u}) {
    said.add_tokens(token);
    v1::TokenDetail& detail = *said.add_details();
    detail.set_logprob(-0.5f);
    detail.set_text_bytes(1);
    v1::TokenLogprob& top = *detail.add_top_logprobs();
    top.set_token(token);
    top.set_logprob(-0.5f);
  }
  said.add_deltas()->set_content("a");
  v1::ToolCallDelta& call = *said.add_deltas()->mutable_tool_call();
  call.set_id("c");
  call.set_name("f");
  call.set_arguments("{}");
  prompt.mutable_prompt()->add_tokens(99);
  prompt.mutable_prompt()->add_details()->set_logprob(-1);
  finished.mutable_finished()->set_reason(v1::FINISH_REASON_STOP_STRING);
  finished.mutable_finished()->set_text("c");
  finished.mutable_finished()->mutable_usage()->set_completion_tokens(2);
  std::string events;
  for (const auto* event : {&started, &prompt, &chunk, &chunk, &finished})
    events += WithLongLength(event->SerializeAsString());
  std::vector<std::string> seeds;
  for (const int flags : {0, 1, 2, 3, 4 + 8 + 64, 5 + 16 + 64 + 128, 6 + 32, 7})
    seeds.push_back(std::string(1, static_cast<char>(flags)) + events);
  return seeds;
}

const Registration kHttpConnection(
    {.name = "http_connection", .run = RunHttpConnection, .seeds = HttpConnectionSeeds, .spoilt = 3000});
const Registration kOpenAiBody(
    {.name = "openai_body", .run = RunOpenAiBody, .seeds = OpenAiBodySeeds, .spoilt = 15'000});
const Registration kOpenAiAnswer(
    {.name = "openai_answer", .run = RunOpenAiAnswer, .seeds = OpenAiAnswerSeeds, .spoilt = 15'000});

}  // namespace
}  // namespace tandem::fuzz
