"""The examples in proto/examples: what they print is what any client gets. curl is everywhere; grpcurl, and Go with Debian's
gRPC libraries, are tried where they are installed.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

from http_stack import HttpStackTest
from openai_schema import check_stream, check_whole
from processes import PATIENCE_SECONDS, REPOSITORY, TARGET, clean_environment, request_for
from recipes import HTTP_PAGE, recipe

EXAMPLES = REPOSITORY / "proto" / "examples"
GO_LIBRARIES = pathlib.Path(os.environ.get("TANDEM_GO_LIBRARIES", "/usr/share/gocode"))
PROMPT = "Once upon a time"
MESSAGE = "Tell me a story."


class ExamplesTest(HttpStackTest):
    def setUp(self):
        super().setUp()
        self.start_stack()
        request = request_for(PROMPT)
        request.stopping.ignore_eos = False
        self.tokens, self.text = self.undrafted(request)[:2]
        request.chat.messages.add(role="user", content=MESSAGE)
        self.chat = self.undrafted(request)[1]
        self.environment = {
            **clean_environment(),
            "OPENAI_BASE_URL": self.url, "OPENAI_API_KEY": "secret",
            "TANDEM_ENDPOINT": self.router.address, "TANDEM_TOKEN": "secret",
        }  # fmt: skip

    def call(self, *command, **environment):
        """What the command prints."""
        run = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, check=False, timeout=600,
            env={**self.environment, **environment},
        )  # fmt: skip
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        return run.stdout

    def test_curl(self):
        ask = lambda kind, **environment: self.call(EXAMPLES / "curl.sh", kind, **environment)  # noqa: E731
        answers = {}
        paths = {"models": "models", "text": "completions", "chat": "chat/completions", "response": "responses"}
        for kind, path in paths.items():
            told = ask(kind)
            self.assertEqual(check_whole(f"/v1/{path}", 200, told), [])
            answers[kind] = json.loads(told)
        self.assertEqual([model["id"] for model in answers["models"]["data"]], [TARGET])
        self.assertEqual(answers["text"]["choices"][0]["text"], self.text)
        self.assertEqual(answers["chat"]["choices"][0]["message"]["content"], self.chat)
        self.assertEqual(answers["response"]["output"][0]["content"][0]["text"], self.chat)
        stream = ask("stream", TANDEM_MODEL=TARGET).removesuffix("\n")
        self.assertEqual(check_stream("/v1/chat/completions", stream, complete=True), [])
        events = [json.loads(line.removeprefix("data: ")) for line in stream.split("\n\n")[:-2]]
        self.assertEqual("".join(event["choices"][0]["delta"].get("content", "") for event in events), self.chat)
        tokens = json.loads(ask("tokens"))
        self.assertEqual((tokens["count"], len(tokens["tokens"])), (tokens["count"],) * 2)
        refused = subprocess.run(
            [EXAMPLES / "curl.sh", "text"], capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS,
            env={**self.environment, "OPENAI_API_KEY": "wrong"},
        )  # fmt: skip
        self.assertEqual(refused.returncode, 22, refused.stdout)
        self.assertIn("invalid_api_key", refused.stdout)

    def for_this_router(self, code):
        """A recipe of docs/reference/http.md, which names the quickstart's address and token, for this router."""
        code = code.replace("http://127.0.0.1:7080", self.root).replace("=quickstart\n", "=secret\n")
        return "\n".join(line for line in code.splitlines() if "quickstart.sh" not in line)

    def test_recipes_of_the_http_page(self):
        chat = self.call("bash", "-c", self.for_this_router(recipe(HTTP_PAGE, "bash", "chat/completions")))
        self.assertEqual(check_stream("/v1/chat/completions", chat, complete=True), [])
        message = json.loads(self.call("bash", "-c", self.for_this_router(recipe(HTTP_PAGE, "bash", "/v1/messages"))))
        self.assertEqual((message["type"], message["content"][0]["type"]), ("message", "text"))
        self.assertTrue(self.call(sys.executable, "-c", recipe(HTTP_PAGE, "python", "from openai")).strip())

    @unittest.skipUnless(shutil.which("grpcurl"), "no grpcurl on this machine")
    def test_grpcurl(self):
        ask = lambda kind: json.loads(self.call(EXAMPLES / "grpcurl.sh", kind))  # noqa: E731
        self.assertEqual([model["name"] for model in ask("models")["models"]], [TARGET])
        self.assertEqual(ask("text")["text"], self.text)
        self.assertEqual(ask("chat")["text"], self.chat)
        self.assertGreater(len(ask("tokens")["tokens"]["ids"]), 2)
        decoder = json.JSONDecoder()
        stream, text = self.call(EXAMPLES / "grpcurl.sh", "stream").strip(), ""
        while stream:
            event, end = decoder.raw_decode(stream)
            stream = stream[end:].lstrip()
            text += event.get("chunk", event.get("finished", {})).get("text", "")
        self.assertEqual(text, self.chat)
        # vLLM's sampling is that of the request, without the model's own top_p.
        self.assertEqual(len(ask("vllm")["complete"]["outputIds"]), 32)

    @unittest.skipUnless(
        shutil.which("go") and shutil.which("protoc-gen-go") and (GO_LIBRARIES / "src/google.golang.org/grpc").is_dir(),
        "no Go with Debian's gRPC libraries on this machine",
    )
    def test_go(self):
        self.call(EXAMPLES / "go" / "build.sh", self.folder / "go", TANDEM_GO_LIBRARIES=str(GO_LIBRARIES))
        generate = self.folder / "go" / "generate"
        for flags in ((), ("--once",)):
            told = self.call(generate, "--endpoint", self.router.address, "--prompt", PROMPT, *flags)
            self.assertEqual(told.removesuffix("\n"), self.text)


if __name__ == "__main__":
    unittest.main()
