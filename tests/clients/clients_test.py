"""Clients that people have already, against a router: OpenAI's in a crowd, Anthropic's, LiteLLM, LangChain, and the command
`llm`; the recipes of docs/reference/http.md as they stand there.
Answers are gRPC's, and have OpenAI's shape.

Their packages are large: tests/run.sh --clients installs them (tests/clients/requirements.txt) and runs this.
"""

import asyncio
import json
import os
import pathlib
import shlex
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
# Otherwise it asks the network for prices when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["no_proxy"] = "127.0.0.1"

import anthropic  # noqa: E402 pylint: disable=wrong-import-position
import litellm  # noqa: E402 pylint: disable=wrong-import-position
import openai  # noqa: E402 pylint: disable=wrong-import-position
from anthropic.types import (  # noqa: E402 pylint: disable=wrong-import-position
    message_count_tokens_params,
    message_create_params,
)
from anthropic.types.beta import (  # noqa: E402 pylint: disable=wrong-import-position
    message_create_params as beta_message_create_params,
)
from http_stack import HttpStackTest  # noqa: E402 pylint: disable=wrong-import-position
from langchain_core.messages import HumanMessage, SystemMessage  # noqa: E402 pylint: disable=wrong-import-position
from langchain_openai import ChatOpenAI, OpenAI  # noqa: E402 pylint: disable=wrong-import-position
from processes import PATIENCE_SECONDS, REPOSITORY, TARGET, request_for  # noqa: E402 pylint: disable=wrong-import-position
from recipes import HTTP_PAGE, recipe  # noqa: E402 pylint: disable=wrong-import-position

PROMPT = "Tell me a story."
SEED = 11
TOKENS = 32
CROWD = 40
OPENAI_CROWD = 200
CITIES = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
LARK = r'''
start: "*** Begin" LF line~1..2 "*** End"
line: "+" /[ab"\\]{1,4}/ LF
%import common.LF
'''
CITIES = {"title": "weather", "description": "The weather of a city.", **CITIES, "additionalProperties": False}


class ClientsTest(HttpStackTest):
    def setUp(self):
        super().setUp()
        self.start_stack(max_queued_requests=OPENAI_CROWD)
        request = request_for(max_tokens=TOKENS)
        request.stopping.ignore_eos = False
        request.chat.messages.add(role="user", content=PROMPT)
        self.chat = self.undrafted(request)[1]
        self.assertTrue(self.chat)

    def test_openai(self):
        """200 at a time, half of them streams, by each of the three APIs."""
        fields = {"model": TARGET, "temperature": 0.8, "extra_body": {"seed": SEED}}
        messages = {"messages": [{"role": "user", "content": PROMPT}], "max_completion_tokens": TOKENS}
        text = {"prompt": "Once upon a time", "max_tokens": TOKENS}
        request = request_for(max_tokens=TOKENS)
        request.stopping.ignore_eos = False
        plain = self.undrafted(request)[1]

        async def one(client, i):
            stream = i % 2 == 0
            if i % 3 == 0:
                answer = await client.chat.completions.create(stream=stream, **messages, **fields)
                if not stream:
                    return answer.choices[0].message.content == self.chat
                return "".join([c.choices[0].delta.content or "" async for c in answer if c.choices]) == self.chat
            if i % 3 == 1:
                answer = await client.completions.create(stream=stream, **text, **fields)
                if not stream:
                    return answer.choices[0].text == plain
                return "".join([c.choices[0].text async for c in answer]) == plain
            answer = await client.responses.create(input=PROMPT, max_output_tokens=TOKENS, stream=stream, **fields)
            if not stream:
                return answer.output_text == self.chat
            events = [event async for event in answer]
            return "".join(e.delta for e in events if e.type == "response.output_text.delta") == self.chat

        async def crowd():
            async with self.client(openai.AsyncOpenAI) as client:
                return await asyncio.gather(*(one(client, i) for i in range(OPENAI_CROWD)))

        self.assertEqual(asyncio.run(crowd()).count(True), OPENAI_CROWD)
        answers, findings = self.tap.findings()
        self.assertGreaterEqual(answers, OPENAI_CROWD)
        self.assertEqual(findings, [])

    def test_litellm(self):
        fields = {"model": f"openai/{TARGET}", "api_base": self.url, "api_key": "secret", "timeout": PATIENCE_SECONDS}
        fields |= {"messages": [{"role": "user", "content": PROMPT}], "max_retries": 0}
        fields |= {"seed": SEED, "max_tokens": TOKENS, "temperature": 0.8}
        whole = litellm.completion(**fields)
        self.assertEqual(whole.choices[0].message.content, self.chat)
        self.assertGreater(whole.usage.completion_tokens, 0)
        chunks = litellm.completion(stream=True, stream_options={"include_usage": True}, **fields)
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), self.chat)

        async def crowd():
            answers = await asyncio.gather(*(litellm.acompletion(**fields) for _ in range(CROWD)))
            return {answer.choices[0].message.content for answer in answers}

        self.assertEqual(asyncio.run(crowd()), {self.chat})
        tool = {"type": "function", "function": {"name": "weather", "parameters": CITIES}}
        called = litellm.completion(tools=[tool], tool_choice="required", **fields)
        (call,) = called.choices[0].message.tool_calls
        self.assertEqual(call.function.name, "weather")
        self.assertIn(json.loads(call.function.arguments)["city"], ("Oslo", "Rome"))
        with self.assertRaises(litellm.AuthenticationError):
            litellm.completion(**{**fields, "api_key": "wrong"})

    def test_langchain(self):
        fields = {"model": TARGET, "base_url": self.url, "api_key": "secret", "timeout": PATIENCE_SECONDS}
        fields |= {"seed": SEED, "temperature": 0.8, "max_retries": 0}
        model = ChatOpenAI(max_tokens=TOKENS, **fields)
        messages = [HumanMessage(PROMPT)]
        answer = model.invoke(messages)
        self.assertEqual(answer.content, self.chat)
        self.assertGreater(answer.usage_metadata["output_tokens"], 0)
        self.assertEqual("".join(chunk.content for chunk in model.stream(messages)), self.chat)
        self.assertEqual({a.content for a in asyncio.run(model.abatch([messages] * CROWD))}, {self.chat})
        self.assertTrue(model.invoke([SystemMessage("Be kind."), *messages]).content)
        called = model.bind_tools([CITIES], tool_choice="weather").invoke(messages)
        self.assertIn(called.tool_calls[0]["args"]["city"], ("Oslo", "Rome"))
        for method in ("json_schema", "function_calling"):
            with self.subTest(method=method):
                held = model.with_structured_output(CITIES, method=method).invoke(messages)
                self.assertIn(held["city"], ("Oslo", "Rome"))
        plain = OpenAI(max_tokens=TOKENS, **fields).invoke("Once upon a time")
        request = request_for(max_tokens=TOKENS)
        request.stopping.ignore_eos = False
        request.sampling.top_p = 1.0  # What this class sends where nothing is said.
        self.assertEqual(plain, self.undrafted(request)[1])

    def run_recipe(self, *command):
        """What a command prints, run as docs/reference/http.md says against the router of this test."""
        urls = {"OPENAI_BASE_URL": self.url, "ANTHROPIC_BASE_URL": self.root}
        keys = {"OPENAI_API_KEY": "secret", "ANTHROPIC_API_KEY": "secret", "LLM_USER_PATH": str(self.folder)}
        run = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS,
            env={**os.environ, **urls, **keys},
        )  # fmt: skip
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout

    def test_llm(self):
        settings = recipe(HTTP_PAGE, "yaml", "model_id").replace("http://127.0.0.1:7080/v1", self.url)
        (self.folder / "extra-openai-models.yaml").write_text(settings)
        program, *command = shlex.split(recipe(HTTP_PAGE, "bash", "llm -m"))
        self.assertEqual(program, "llm")
        command[command.index("quickstart")] = "secret"
        self.assertTrue(self.run_recipe(sys.executable, "-m", "llm", *command).strip())
        options = ("-o", "seed", SEED, "-o", "temperature", 0.8, "-o", "max_tokens", TOKENS)
        for stream in ((), ("--no-stream",)):
            told = self.run_recipe(sys.executable, "-m", "llm", *command, *options, *stream)
            self.assertEqual(told.removesuffix("\n"), self.chat)

    def test_recipes_in_python(self):
        for words in (("litellm", "langchain"), ("anthropic",)):
            with self.subTest(words=words):
                self.assertTrue(self.run_recipe(sys.executable, "-c", recipe(HTTP_PAGE, "python", *words)).strip())

    def test_anthropic(self):
        with anthropic.Anthropic(
            base_url=self.root, api_key="secret", max_retries=0, timeout=PATIENCE_SECONDS
        ) as client:
            self.check_anthropic(client)

    def test_every_field_of_anthropics_is_documented(self):
        """Each is known where it is null, and docs/reference/http.md says what becomes of it."""
        page = (REPOSITORY / HTTP_PAGE).read_text()
        question = {"messages": [{"role": "user", "content": "x"}]}
        for path, params, body in (
            ("/v1/messages", beta_message_create_params.MessageCreateParamsBase, {**question, "max_tokens": 1}),
            ("/v1/messages", message_create_params.MessageCreateParamsBase, {**question, "max_tokens": 1}),
            ("/v1/messages/count_tokens", message_count_tokens_params.MessageCountTokensParams, question),
        ):
            names = params.__annotations__.keys()
            self.assertEqual([name for name in sorted(names) if f"`{name}" not in page], [])
            client = anthropic.Anthropic(base_url=self.root, api_key="secret", max_retries=0, timeout=PATIENCE_SECONDS)
            self.assertTrue(client.post(path, cast_to=object, body={**dict.fromkeys(names), **body}))

    def check_anthropic(self, client):
        # The demo model has one system message, and none where none is sent.
        fields = {"model": TARGET, "max_tokens": TOKENS, "messages": [{"role": "user", "content": PROMPT}]}
        sampling = {"temperature": 0.8, "extra_body": {"seed": SEED}}
        whole = client.messages.create(**fields, **sampling)
        self.assertEqual([(block.type, block.text) for block in whole.content], [("text", self.chat)])
        self.assertIn(whole.stop_reason, ("end_turn", "max_tokens"))
        prompt = whole.usage.input_tokens + whole.usage.cache_read_input_tokens
        del fields["max_tokens"]
        self.assertEqual(client.messages.count_tokens(**fields).input_tokens, prompt)
        fields["max_tokens"] = TOKENS
        with client.messages.stream(**fields, **sampling) as stream:
            self.assertEqual("".join(stream.text_stream), self.chat)
            final = stream.get_final_message()
        self.assertEqual(final.stop_reason, whole.stop_reason)
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)
        # More tokens than the model's context has: as many as fit.
        more = {**fields, "max_tokens": 10**6}
        told = client.messages.create(**more, **sampling, system="Be kind.", stop_sequences=["e"])
        self.assertEqual((told.stop_reason, told.stop_sequence), ("stop_sequence", "e"))
        self.assertNotIn("e", "".join(block.text for block in told.content))

        tool = {"name": "weather", "description": "Tells it.", "input_schema": CITIES}
        fields |= {"tools": [tool], "max_tokens": 200}
        for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
            called = client.messages.create(**fields, **sampling, tool_choice=choice)
            self.assertEqual(called.stop_reason, "tool_use")
            use = called.content[0]
            self.assertIn(use.input["city"], ("Oslo", "Rome"))
            with client.messages.stream(**fields, **sampling, tool_choice=choice) as stream:
                streamed = stream.get_final_message()
            self.assertEqual([b.input for b in streamed.content], [b.input for b in called.content])
            # The next turn.
            turn = [{"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in called.content]}]
            results = [{"type": "tool_result", "tool_use_id": b.id, "content": "rain"} for b in called.content]
            turn.append({"role": "user", "content": [*results, {"type": "text", "text": "And now?"}]})
            more = {**fields, "messages": fields["messages"] + turn, "tool_choice": {"type": "none"}}
            self.assertTrue(client.messages.create(**more, **sampling).content)

        with self.assertRaises(anthropic.AuthenticationError):
            client.with_options(api_key="wrong").messages.create(**fields)
        with self.assertRaises(anthropic.NotFoundError):
            client.messages.create(**{**fields, "model": "nobody"})
        with self.assertRaises(anthropic.BadRequestError) as caught:
            client.messages.create(**{**fields, "max_tokens": 0})
        self.assertEqual(caught.exception.body["error"]["type"], "invalid_request_error")

    def test_the_tools_of_agents(self):
        """A tool that takes a text, held to a grammar, by OpenAI's own client."""
        patch = {
            "type": "custom", "name": "apply_patch", "description": "Edits.",
            "format": {"type": "grammar", "syntax": "lark", "definition": LARK},
        }  # fmt: skip
        fields = {
            "model": TARGET, "input": PROMPT, "tools": [patch, {"type": "web_search"}], "temperature": 1.0,
            "max_output_tokens": 200, "tool_choice": {"type": "custom", "name": "apply_patch"},
            "extra_body": {"seed": SEED},
        }  # fmt: skip
        client = self.client()
        raw = client.responses.with_raw_response.create(**fields)
        self.assertEqual(raw.headers["x-tandem-ignored"], "tools[1]")
        whole = raw.parse()
        self.assertEqual(whole.status, "completed")
        (call,) = whole.output
        self.assertEqual((call.type, call.name), ("custom_tool_call", "apply_patch"))
        self.assertRegex(call.input, r'\A\*\*\* Begin\n(\+[ab"\\]{1,4}\n){1,2}\*\*\* End\Z')
        with client.responses.stream(**fields) as stream:
            pieces = "".join(e.delta for e in stream if e.type == "response.custom_tool_call_input.delta")
            final = stream.get_final_response()
        self.assertEqual((pieces, final.output[0].input), (call.input, call.input))
        turn = [{"role": "user", "content": PROMPT}, call.model_dump(exclude_none=True)]
        turn += [{"type": "custom_tool_call_output", "call_id": call.call_id, "output": "Done"}]
        fields |= {"input": turn, "tool_choice": "none", "max_output_tokens": 16}
        self.assertTrue(client.responses.create(**fields).id)


if __name__ == "__main__":
    import unittest

    unittest.main()
