"""Draft models that a drafter loads, replaces and unloads, and a router tries, promotes and rolls back, while requests run: no
output changes, and no request fails.

TANDEM_DRAFT_MODEL_CYCLES: how often, 4 by default; docs/lab/learning.md has the figures of 500."""

import json
import os
import pathlib
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench"))

from processes import MODELS, TARGET, Generation, ProcessTest, request_for, wait_until  # noqa: E402
from random_model import shuffle_weights  # noqa: E402

CYCLES = int(os.environ.get("TANDEM_DRAFT_MODEL_CYCLES", "4"))
PROMPTS = ("Once upon a time", "def add(a, b):", "The sum of 12 and 30 is")
LEARNED = "learned"
OWN = "general-1m"
SERVERS = ("router", "verifier", "drafter")
# Of the drafter's memory from a tenth of the cycles on: what an allocator keeps comes and goes, what leaks only grows.
MOST_GROWTH_MIB = 48


def resident_mib(pid):
    """Memory of a process that is in RAM."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"/proc/{pid}/status has no VmRSS")


class DraftModelsTest(ProcessTest):
    """A tenant with a drafter of its own, and the drafter `learned`, which comes and goes."""

    def start_stack_with(self, *drafter_flags, drafter=LEARNED):
        config = {
            "models": [{"name": TARGET, "folder": str(MODELS / TARGET)}],
            "tenants": [{"name": "acme", "token": "secret", "admin": True, "drafter": drafter}],
            "registration": {"verifiers": True, "drafters": True, "ttl_seconds": 3},
        }
        path = self.folder / "router.yaml"
        path.write_text(json.dumps(config))
        self.router = self.start("tandem-router", "--config", path).wait_ready()
        register = ("--register", self.router.address)
        flags = ("--models-folder", MODELS, "--kv-tokens", 8192, *register, *drafter_flags)
        self.drafter = self.start_drafter([OWN], flags=flags).wait_ready()
        self.verifier = self.start_verifier(*register).wait_ready()
        self.channel = self.router.channel()
        self.addCleanup(self.channel.close)
        self.expected = [self.undrafted(self.request(prompt)) for prompt in PROMPTS]

    def request(self, prompt):
        return request_for(prompt, max_tokens=24)

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

    def end_trial(self, metric, count, *flags):
        """Puts `learned` on trial beside the tenant's own drafter and waits for the router's verdict."""
        self.command(self.router, "tenants", "set", "acme", "--drafter", OWN, "--canary", LEARNED, "--canary-percent", 50, *flags)
        given = lambda: self.router.metric(metric, tenant="acme", drafter=LEARNED) == count  # noqa: E731
        wait_until(given, f"a verdict ({metric}) number {count}")

    def cycle(self, number):
        """Load, promote, replace, roll back, unload; how many sessions went on with the version that was replaced."""
        self.load("tandem-draft-code-1m", f"{number}.0")
        self.wait_version(f"{number}.0")
        # Any share will do, so that the verdict is known beforehand. After fifty times its fewest rounds a trial starts again and
        # asks for more certainty. With 1 as the fewest, a noisy start can leave it without a verdict for more than a minute.
        enough = ("--canary-promote", "true", "--canary-min-share", 0.01, "--canary-min-rounds", 50, "--canary-max-error", 0.4)
        self.end_trial("tandem_router_canary_promotions_total", number + 1, *enough, "--canary-max-requests", 0)
        self.assertEqual(self.own_drafter(), LEARNED)
        if number == 0:
            wait_until(lambda: self.drafted_by() > 0, "rounds that it drafts for")
        printed = self.load("tandem-draft-math-1m", f"{number}.1")
        self.wait_version(f"{number}.1")
        last = ("--canary-promote", "false", "--canary-max-requests", 1)
        self.end_trial("tandem_router_canary_rollbacks_total", number + 1, *last)
        self.assertEqual(self.own_drafter(), OWN)
        self.command(self.drafter, "drafters", "unload", LEARNED)
        self.wait_version(None)
        return int(printed.split(";")[1].split()[0])

    def own_drafter(self):
        config = json.loads(self.command(self.router, "tenants", "get", "acme", "--json"))["config"]
        self.assertEqual(config["drafter_policy"], "DRAFTER_POLICY_PINNED")
        return config["drafter"]

    def test_under_load(self):
        self.start_stack_with(drafter=OWN)
        stop = threading.Event()
        done, failures, memory = [], [], []

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

        threads = [threading.Thread(target=send, args=(index % len(PROMPTS),)) for index in range(2 * len(PROMPTS))]
        for thread in threads:
            thread.start()
        going_on = 0
        start = time.monotonic()
        try:
            for number in range(CYCLES):
                going_on += self.cycle(number)
                self.assertEqual(failures, [])
                if number % max(1, CYCLES // 10) == 0 or number + 1 == CYCLES:
                    memory.append([round(resident_mib(getattr(self, name).pid), 1) for name in SERVERS])
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        seconds = time.monotonic() - start
        self.assertEqual(failures, [])
        drafted = sum(stats.drafted_rounds > 0 for stats in done)
        print(
            f"{CYCLES} cycles (load, promote, replace, roll back, unload) in {seconds:.1f} s: {len(done)} requests, {drafted} of them "
            f"drafted; {going_on} sessions went on with a version that was replaced\n"
            f"resident MiB of {', '.join(SERVERS)}, from the first cycle to the last: {memory}",
            file=sys.stderr,
        )
        self.assertGreater(drafted, 0)
        changes = lambda change: self.drafter.metric(  # noqa: E731
            "tandem_drafter_model_changes_total", change=change, outcome="ok"
        )
        self.assertEqual((changes("load"), changes("unload")), (2 * CYCLES, CYCLES))
        for before, after in zip(memory[1], memory[-1]):
            self.assertLess(after - before, MOST_GROWTH_MIB)
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


class RandomDrafterTest(ProcessTest):
    def test_a_drafter_that_guesses_at_random_is_named(self):
        folder = shuffle_weights(MODELS / f"tandem-draft-{OWN}", self.folder / "random")
        self.drafter = self.start_drafter([], flags=("--model", f"{OWN}={folder}")).wait_ready()
        self.verifier = self.start_verifier().wait_ready()
        self.connect_router([self.verifier.address], self.drafter.address)
        request = request_for(max_tokens=120)
        # The default policy soon stops to ask a drafter that earns nothing.
        request.speculation.window_policy = "fixed"
        expected = self.undrafted(request)

        def named():
            self.assertEqual(self.generate(request).read().output, expected)
            return self.verifier.metric("tandem_verifier_drafter_random", drafter=OWN) == 1

        wait_until(named, "a drafter that is called random", timeout=180)
        self.assertEqual(list(self.verifier.info().random_drafters), [OWN])
        self.verifier.wait_logged("drafter guesses as if at random")
        self.assertIn(f"guess as if at random: {OWN}\n", self.command(self.verifier, "info"))


if __name__ == "__main__":
    unittest.main()
