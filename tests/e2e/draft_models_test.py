"""Draft models that a drafter loads, replaces and unloads while requests run: no output changes, and no request fails.

TANDEM_DRAFT_MODEL_CYCLES: how often, 4 by default; docs/operate/learning.md has the figures of 500."""

import json
import os
import pathlib
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from processes import MODELS, TARGET, Generation, ProcessTest, request_for, wait_until  # noqa: E402

CYCLES = int(os.environ.get("TANDEM_DRAFT_MODEL_CYCLES", "4"))
PROMPTS = ("Once upon a time", "def add(a, b):", "The sum of 12 and 30 is")
LEARNED = "learned"


class DraftModelsTest(ProcessTest):
    """The tenant's drafter is `learned`, which is not there at first."""

    def start_stack_with(self, *drafter_flags):
        config = {
            "models": [{"name": TARGET, "folder": str(MODELS / TARGET)}],
            "tenants": [{"name": "acme", "token": "secret", "admin": True, "drafter": LEARNED}],
            "registration": {"verifiers": True, "drafters": True, "ttl_seconds": 3},
        }
        path = self.folder / "router.yaml"
        path.write_text(json.dumps(config))
        self.router = self.start("tandem-router", "--config", path).wait_ready()
        register = ("--register", self.router.address)
        flags = ("--models-folder", MODELS, "--kv-tokens", 8192, *register, *drafter_flags)
        self.drafter = self.start_drafter(["general-1m"], flags=flags).wait_ready()
        self.verifier = self.start_verifier(*register).wait_ready()
        self.channel = self.router.channel()
        self.addCleanup(self.channel.close)
        self.expected = [self.undrafted(self.request(prompt)) for prompt in PROMPTS]

    def request(self, prompt):
        return request_for(prompt, max_tokens=48)

    def known_version(self):
        """What the router knows of it; None while it does not."""
        listed = json.loads(self.command(self.router, "servers", "--json"))
        return next((s["registration"]["model_version"] for s in listed if s["name"] == LEARNED), None)

    def wait_version(self, version):
        wait_until(lambda: self.known_version() == version, f"version {version} at the router")

    def load(self, folder, version, fails=False):
        return self.command(
            self.drafter, "drafters", "load", folder, "--name", LEARNED, "--model-version", version, "--replace", fails=fails
        )

    def test_under_load(self):
        self.start_stack_with()
        stop = threading.Event()
        done, failures = [], []

        def send(index):
            # A generation fails by an exception, which the test is to see.
            try:
                while not stop.is_set():
                    generation = Generation(self.channel, self.request(PROMPTS[index])).read()
                    if generation.output != self.expected[index]:
                        failures.append(f"another output of prompt {index}")
                    done.append(generation.stats)
            except Exception as error:  # noqa: BLE001
                failures.append(repr(error))

        threads = [threading.Thread(target=send, args=(index,)) for index in range(len(PROMPTS))]
        for thread in threads:
            thread.start()
        going_on = 0
        start = time.monotonic()
        try:
            for cycle in range(CYCLES):
                for number, folder in enumerate(("tandem-draft-code-1m", "tandem-draft-math-1m")):
                    printed = self.load(folder, f"{cycle}.{number}")
                    going_on += int(printed.split(";")[1].split()[0])
                    if cycle == 0:
                        self.wait_version(f"{cycle}.{number}")
                        earned = lambda: self.drafted_by() > 0  # noqa: E731
                        wait_until(earned, "rounds that it drafts for")
                self.command(self.drafter, "drafters", "unload", LEARNED)
                if cycle == 0:
                    self.wait_version(None)
                self.assertEqual(failures, [])
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        seconds = time.monotonic() - start
        self.assertEqual(failures, [])
        drafted = sum(stats.drafted_rounds > 0 for stats in done)
        print(
            f"{CYCLES} cycles (load, replace, unload) in {seconds:.1f} s: {len(done)} requests, {drafted} of them drafted; "
            f"{going_on} sessions finished on a version that was replaced",
            file=sys.stderr,
        )
        self.assertGreater(drafted, 0)
        changes = lambda change: self.drafter.metric(  # noqa: E731
            "tandem_drafter_model_changes_total", change=change, outcome="ok"
        )
        self.assertEqual((changes("load"), changes("unload")), (2 * CYCLES, CYCLES))
        # Memory comes back: nothing of all those versions is left.
        gone = lambda: self.drafter.metric("tandem_drafter_retired_models") == 0  # noqa: E731
        wait_until(gone, "the end of the last version")
        self.assertEqual(self.drafter.metric("tandem_drafter_models"), 1)
        alone = self.drafter.metric("tandem_drafter_model_memory_bytes")
        self.load("tandem-draft-code-1m", "last")
        self.assertAlmostEqual(self.drafter.metric("tandem_drafter_model_memory_bytes"), 2 * alone, delta=0.1 * alone)

    def drafted_by(self):
        return self.verifier.metric("tandem_spec_decode_num_draft_tokens_total", drafter=LEARNED) or 0

    def test_what_makes_no_sense_is_refused(self):
        self.start_stack_with("--models-memory", 30)
        self.assertIn("does not exist below", self.load("../e2e", "1", fails=True))
        self.assertIn("--replace", self.command(self.drafter, "drafters", "load", "--help"))
        self.assertIn("--models-memory are in use", self.load("tandem-target-15m", "1", fails=True))
        self.assertIn("last model", self.command(self.drafter, "drafters", "unload", "general-1m", fails=True))
        # A router is not asked to load anything.
        self.assertIn("UNIMPLEMENTED", self.command(self.router, "drafters", "unload", "general-1m", fails=True))
        fixed = self.start_drafter(["general-1m"]).wait_ready()
        self.assertIn("--models-folder", self.command(fixed, "drafters", "unload", "general-1m", fails=True))


if __name__ == "__main__":
    unittest.main()
