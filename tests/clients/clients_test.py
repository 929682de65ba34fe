"""Clients that people have already, against a router: OpenAI's in a crowd, LiteLLM, LangChain, and the command `llm`.
Answers are gRPC's, and have OpenAI's shape.

Their packages are large: tests/run.sh --clients installs them (tests/clients/requirements.txt) and runs this.
"""

import asyncio
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
# Otherwise it asks the network for prices when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["no_proxy"] = "127.0.0.1"

import litellm  # noqa: E402 pylint: disable=wrong-import-position
import openai  # noqa: E402 pylint: disable=wrong-import-position
from http_stack import HttpStackTest  # noqa: E402 pylint: disable=wrong-import-position
from langchain_core.messages import HumanMessage, SystemMessage  # noqa: E402 pylint: disable=wrong-import-position
from langchain_openai import ChatOpenAI, OpenAI  # noqa: E402 pylint: disable=wrong-import-position
from processes import PATIENCE_SECONDS, TARGET, request_for  # noqa: E402 pylint: disable=wrong-import-position

PROMPT = "Tell me a story."
SEED = 11
TOKENS = 32
CROWD = 40
OPENAI_CROWD = 200
CITIES = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
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

    def test_llm(self):
        model = {"model_id": "tandem", "model_name": TARGET, "api_base": self.url, "api_key_name": "tandem"}
        # Every JSON document is a YAML document.
        (self.folder / "extra-openai-models.yaml").write_text(json.dumps([model]))
        (self.folder / "keys.json").write_text(json.dumps({"tandem": "secret"}))
        options = ("-o", "seed", SEED, "-o", "temperature", 0.8, "-o", "max_tokens", TOKENS)
        environment = {**os.environ, "LLM_USER_PATH": str(self.folder)}
        for stream in ((), ("--no-stream",)):
            run = subprocess.run(
                [sys.executable, "-m", "llm", "-m", "tandem", *map(str, options), *stream, PROMPT],
                capture_output=True, text=True, env=environment, check=False, timeout=PATIENCE_SECONDS,
            )  # fmt: skip
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertEqual(run.stdout.removesuffix("\n"), self.chat)


if __name__ == "__main__":
    import unittest

    unittest.main()
