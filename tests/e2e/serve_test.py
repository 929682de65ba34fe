"""`tandem serve` with the bundled models: it answers over both APIs, outlives a drafter that is killed, and leaves nothing behind."""

import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import tempfile
import threading
import unittest

import openai
import tandem
from processes import BIN_DIR, MODELS, PATIENCE_SECONDS, TARGET, TARGET_MS, clean_environment, wait_until

DRAFT = f"general={MODELS}/tandem-draft-general-1m"
HEAD = f"eagle3={MODELS}/tandem-eagle3-15m"
# Drafts whatever it costs, as the other tests' verifiers do.
ALWAYS = tuple(
    f"--verifier-flag=--{flag}" for flag in ("window-policy=fixed", "local-drafter=none", f"simulate-target-ms={TARGET_MS}")
)
PROMPT = "Once upon a time"


def children(pid):
    """The names of a process's children, by their ids."""
    found = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {pathlib.Path(f"/proc/{child}/comm").read_text().strip(): int(child) for child in found}


class ServeTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="tandem-serve-test-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.out, self.err = [], []

    def begin(self, *arguments):
        self.process = subprocess.Popen(
            [BIN_DIR / "tandem", "serve", *map(str, arguments), "--port", "0", "--grpc-port", "0"],
            env=dict(clean_environment(), TMPDIR=str(self.folder)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)
        for stream, lines in ((self.process.stdout, self.out), (self.process.stderr, self.err)):
            reader = threading.Thread(target=lines.extend, args=(stream,))
            reader.start()
            self.addCleanup(stream.close)
            self.addCleanup(reader.join)

    def begin_ready(self, *arguments):
        self.begin(*arguments)
        wait_until(lambda: "Ctrl-C stops it.\n" in self.out or self.process.poll() is not None, "a model that is served")
        self.assertIsNone(self.process.poll(), self.err)

    def said(self, pattern):
        match = re.search(pattern, "".join(self.out))
        self.assertIsNotNone(match, self.out)
        return match[1]

    def client(self):
        return tandem.Client(self.said(r"gRPC +(\S+)"), token="tandem")

    def generate(self, client, **options):
        return client.generate(PROMPT, max_tokens=48, temperature=0.8, seed=11, ignore_eos=True, **options)

    def end(self, code=0):
        self.assertEqual(self.process.wait(PATIENCE_SECONDS), code, self.err)
        self.assertEqual(list(self.folder.iterdir()), [], "sockets, or what else was in the temporary folder")

    def test_answers_over_both_apis(self):
        self.begin_ready(MODELS / TARGET, "--draft", DRAFT, "--draft", HEAD, *ALWAYS)
        # The line as it stands there.
        run = subprocess.run(
            shlex.split(self.said(r"\n +(curl .*)")), stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE_SECONDS,
            env=clean_environment(),
        )  # fmt: skip
        answer = json.loads(run.stdout)
        self.assertEqual(answer["model"], TARGET)
        self.assertNotEqual(answer["choices"][0]["message"]["content"], "")
        http = openai.OpenAI(base_url=self.said(r"HTTP +(\S+)"), api_key="tandem", timeout=PATIENCE_SECONDS, max_retries=0)
        self.assertEqual([model.id for model in http.models.list()], [TARGET])
        with self.client() as client:
            plain = self.generate(client, speculation=False)
            for drafter in ("general", "eagle3"):
                accepted = 0

                def drafts(drafter=drafter):
                    nonlocal accepted
                    result = self.generate(client, drafter=drafter)
                    self.assertEqual(result.text, plain.text)
                    accepted = result.finished.speculation.accepted_tokens
                    return accepted > 0

                wait_until(drafts, f"accepted drafts of {drafter}")
        completion = http.completions.create(
            model=TARGET, prompt=PROMPT, max_tokens=48, temperature=0.8, seed=11, extra_body={"ignore_eos": True}
        )
        self.assertEqual(completion.choices[0].text, plain.text)
        parts = children(self.process.pid)
        self.assertEqual(sorted(parts), ["tandem-drafter", "tandem-router", "tandem-verifier"])
        self.process.send_signal(signal.SIGINT)
        self.end()
        for pid in parts.values():
            self.assertFalse(pathlib.Path(f"/proc/{pid}").exists())

    def test_a_drafter_that_is_killed_comes_back(self):
        self.begin_ready(MODELS / TARGET, "--draft", DRAFT, *ALWAYS)
        with self.client() as client:
            expected = self.generate(client, speculation=False).text
            first = children(self.process.pid)["tandem-drafter"]
            os.kill(first, signal.SIGKILL)
            wait_until(lambda: children(self.process.pid).get("tandem-drafter", first) != first, "another drafter")
            self.assertIn("drafter was ended by SIGKILL; it starts again in 0.5 s", "".join(self.err))

            def drafts_again():
                result = self.generate(client)
                self.assertEqual(result.text, expected)
                return result.finished.speculation.accepted_tokens > 0

            wait_until(drafts_again, "drafts of the new one")
            # A verifier too: requests wait for it.
            os.kill(children(self.process.pid)["tandem-verifier"], signal.SIGKILL)
            wait_until(lambda: "verifier was ended by SIGKILL" in "".join(self.err), "what is said of it")
            self.assertEqual(self.generate(client).text, expected)
        self.process.send_signal(signal.SIGTERM)
        self.end()

    def test_models_that_are_not_there_or_are_none(self):
        self.begin(self.folder / "none.gguf")
        self.end(2)
        self.assertIn(f"{self.folder}/none.gguf: there is no such file or folder", "".join(self.err))
        broken = pathlib.Path(tempfile.mkdtemp(prefix="tandem-broken-")) / "broken.gguf"
        self.addCleanup(broken.parent.rmdir)
        self.addCleanup(broken.unlink)
        broken.write_text("not a model")
        self.begin(broken)
        self.end(1)
        said = "".join(self.err)
        self.assertRegex(said, r"(verifier|router) ended with code 1:\n")
        self.assertIn("broken.gguf", said)
        self.assertNotIn("Traceback", said)

    def test_flags_that_a_part_refuses(self):
        self.begin(MODELS / TARGET, "--verifier-flag=--kv-tokens=1")
        self.end(1)
        self.assertIn("kv-tokens", "".join(self.err))

    def test_help(self):
        run = subprocess.run([BIN_DIR / "tandem", "serve", "--help"], capture_output=True, text=True, check=True)
        self.assertIn("--draft NAME=MODEL", run.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
