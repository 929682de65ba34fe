#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "router/http/openai_api.h"
#include "router/http/server/http_server.h"
#include "router/testing/http_connection.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"

namespace tandem::router::testing {

// An answer, taken apart.
struct Answer {
  explicit Answer(const std::string& text) {
    const size_t end = text.find("\r\n\r\n");
    head = text.substr(0, end);
    if (end != std::string::npos) body = text.substr(end + 4);
    status = text.size() > 12 ? std::atoi(text.c_str() + 9) : 0;
  }
  Json json() const { return Json::parse(body, nullptr, /*allow_exceptions=*/false); }
  std::string error() const { return json().value("/error/message"_json_pointer, std::string("none")); }
  // The data of each server-sent event; frames of the transfer are skipped, as none of them looks like one.
  std::vector<std::string> events() const {
    std::vector<std::string> found;
    for (absl::string_view line : absl::StrSplit(body, '\n')) {
      if (line.substr(0, 6) == "data: ") found.emplace_back(line.substr(6));
    }
    return found;
  }

  std::string head;
  std::string body;
  int status = 0;
};

// A router of letters with the HTTP API, and a verifier that a test plays; it says "answer" at first.
class OpenAiApiTest : public ::testing::Test {
 protected:
  OpenAiApiTest() { verifier_.SetScript(Saying("answer", 4)); }

  void Start(OpenAiApi::Options options = {}) {
    StartWith(LettersConfig({verifier_.endpoint()}), std::move(options));
  }
  void StartWith(const v1::RouterConfig& config, OpenAiApi::Options options = {}) {
    router_ = std::make_unique<TestRouter>(config);
    api_ = std::make_unique<OpenAiApi>(std::move(options), &router_->router(), nullptr);
    server_ = HttpServer::Start({.address = "127.0.0.1:0"}, api_.get()).value();
  }
  std::string RequestText(const std::string& method, const std::string& path, const std::string& body,
                          const std::string& fields) {
    return absl::StrCat(method, " ", path,
                        " HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: ", body.size(), "\r\n",
                        fields, "\r\n", body);
  }
  Answer Ask(const std::string& method, const std::string& path, const std::string& body = "",
             const std::string& fields = "Authorization: Bearer secret-z\r\n") {
    if (server_ == nullptr) Start();
    return Answer(HttpConnection(server_->port(), RequestText(method, path, body, fields)).ReadAll());
  }
  Answer Chat(const std::string& more = "") {
    return Ask(
        "POST", "/v1/chat/completions",
        absl::StrCat(R"({"model": "letters", "messages": [{"role": "user", "content": "hi"}])", more, "}"));
  }
  Answer Complete(const std::string& more) {
    return Ask("POST", "/v1/completions", absl::StrCat(R"({"model": "letters", )", more, "}"));
  }
  // What the verifier was asked.
  v1::VerifierGenerateRequest Asked() { return asked_; }

  StubVerifier verifier_;
  v1::VerifierGenerateRequest asked_;
  std::unique_ptr<TestRouter> router_;
  std::unique_ptr<OpenAiApi> api_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace tandem::router::testing
