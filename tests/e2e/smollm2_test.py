"""A published model, SmolLM2 135M Instruct in 4 bits, behind `tandem serve` with the drafters that are bundled for it: its answers are
those that are known, drafts change nothing of them, and it follows schemas and calls tools.

tests/run.sh fetches the model. Without it the test is skipped, and says so.
"""

import collections
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import jsonschema
import openai
import tandem
from processes import BIN_DIR, MODELS, PATIENCE_SECONDS, REPOSITORY, clean_environment, wait_until
from tandem.v1 import types_pb2

sys.path.append(str(REPOSITORY / "deploy" / "serve"))
import models  # noqa: E402

NAME = "smollm2-135m"
# The drafters that are bundled for it, and one that needs no training.
DRAFTERS = {folder.name.removeprefix(f"{NAME}-"): folder for folder in sorted(MODELS.glob(f"{NAME}-*"))} | {"suffix": "suffix"}
# Greedy continuations that transformers computes from the same file in float32; the two best logits are never nearer than 0.011.
EXACT = {
    "The capital of France is": " Paris.\n\nThe answer is: 2018-01-22 12:1",
    "def fibonacci(n):\n    ": " def fibonacci(n):\n         if n == 0:\n             return 1\n         elif n == 1:",
    "Once upon a time, there was a": " small town nestled in the heart of a bustling city. The town was known for its vibrant arts and "
    "crafts, with a",
}
TOKENS = 24
# Prompts of several kinds, as questions to the model.
QUESTIONS = (
    "Why is the sky blue?",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Calculate 12 + 30.",
    "Repeat these words five times: red fish, blue fish.",
)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "has_a_dog": {"type": "boolean"},
    },
    "required": ["name", "age", "has_a_dog"],
    "additionalProperties": False,
}
TOOLS = json.loads((REPOSITORY / "deploy" / "weather.tools.json").read_text())


def find_model():
    """The file that tests/run.sh has fetched, or None."""
    model = models.read_list()[NAME]
    path = models.default_folder() / model.file
    return path if path.exists() and path.stat().st_size == model.bytes else None


MODEL = find_model()


class Served:
    """`tandem serve` of the model with further arguments."""

    def __init__(self, *arguments):
        self.said, self.errors = [], []
        self._folder = tempfile.TemporaryDirectory(prefix="tandem-smollm2-test-")
        self._process = subprocess.Popen(
            [BIN_DIR / "tandem", "serve", MODEL, "--name", NAME, "--port", "0", "--grpc-port", "0", *map(str, arguments)],
            env=dict(clean_environment(), TMPDIR=self._folder.name), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._readers = [
            threading.Thread(target=lines.extend, args=(stream,))
            for stream, lines in ((self._process.stdout, self.said), (self._process.stderr, self.errors))
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self):
        try:
            wait_until(lambda: "Ctrl-C stops it.\n" in self.said or self._process.poll() is not None, "the model to be served")
            if self._process.poll() is not None:
                raise AssertionError("".join(self.errors))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(PATIENCE_SECONDS)
        finally:
            self._process.kill()
            for reader in self._readers:
                reader.join()
            self._process.stdout.close()
            self._process.stderr.close()
            self._folder.cleanup()

    def address(self, api):
        return re.search(rf"{api} +(\S+)", "".join(self.said))[1]

    def grpc(self):
        return tandem.Client(self.address("gRPC"), token="tandem")

    def http(self):
        return openai.OpenAI(base_url=self.address("HTTP"), api_key="tandem", timeout=PATIENCE_SECONDS, max_retries=0)


@unittest.skipIf(MODEL is None, f"there is no {NAME}: deploy/models.sh {NAME} fetches it")
class SmolLm2Test(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Drafts whatever it costs on this machine.
        drafts = [f"--draft={name}={model}" for name, model in DRAFTERS.items()]
        served = Served(*drafts, "--verifier-flag=--window-policy=fixed")
        cls.served = cls.enterClassContext(served)
        cls.client = cls.enterClassContext(served.grpc())
        cls.http = cls.enterClassContext(served.http())

    def ask(self, question, **options):
        return self.client.generate([{"role": "user", "content": question}], max_tokens=64, **options)

    def test_drafts_change_no_answer(self):
        accepted = collections.Counter()
        for question in QUESTIONS:
            for sampling in ({"temperature": 0.0}, {"temperature": 0.8, "seed": 5}):
                plain = self.ask(question, speculation=False, **sampling)
                self.assertNotEqual(plain.text, "")
                for drafter in DRAFTERS:
                    drafted = self.ask(question, drafter=drafter, **sampling)
                    self.assertEqual(drafted.text, plain.text, (question, drafter, sampling))
                    for source in drafted.finished.speculation.by_source:
                        if source.source == types_pb2.DRAFT_SOURCE_DRAFTER:
                            accepted[source.drafter] += source.accepted_tokens
        for drafter in DRAFTERS:
            self.assertGreater(accepted[drafter], 0, drafter)

    def test_a_chat(self):
        answer = self.http.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": "Calculate 12 + 30."}], temperature=0, max_tokens=48
        )
        self.assertIn("42", answer.choices[0].message.content)
        self.assertEqual(answer.choices[0].finish_reason, "stop")

    def test_a_schema(self):
        for temperature in (0.0, 0.8):
            answer = self.http.chat.completions.create(
                model=NAME, messages=[{"role": "user", "content": "Describe a girl named Lucy who has a dog, as JSON."}],
                temperature=temperature, seed=3, max_tokens=96,
                response_format={"type": "json_schema", "json_schema": {"name": "girl", "schema": SCHEMA}},
            )  # fmt: skip
            jsonschema.validate(json.loads(answer.choices[0].message.content), SCHEMA)

    def test_a_tool_call(self):
        answer = self.http.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": "What is the weather in Paris?"}], temperature=0, max_tokens=96,
            tools=TOOLS, tool_choice="required",
        )  # fmt: skip
        call = answer.choices[0].message.tool_calls[0].function
        self.assertEqual(call.name, "get_weather")
        arguments = json.loads(call.arguments)
        jsonschema.validate(arguments, TOOLS[0]["function"]["parameters"])
        self.assertEqual(arguments["city"], "Paris")
        self.assertEqual(answer.choices[0].finish_reason, "tool_calls")


@unittest.skipIf(MODEL is None, f"there is no {NAME}: deploy/models.sh {NAME} fetches it")
class ExactTest(unittest.TestCase):
    def test_answers_are_those_of_transformers(self):
        with Served("--verifier-flag=--weight-dtype=exact") as served, served.grpc() as client:
            for prompt, expected in EXACT.items():
                for speculation in (False, True):
                    result = client.generate(prompt, max_tokens=TOKENS, temperature=0.0, speculation=speculation)
                    self.assertEqual(result.text, expected, prompt)


if __name__ == "__main__":
    unittest.main()
