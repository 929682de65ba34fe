"""Another tenant's constraints, of all kinds that cost more than they look, beside a stream: the stream hardly stops, every
call comes to an end, and the verifier's memory stays within bounds."""

import concurrent.futures
import os
import pathlib
import sys
import threading
import time
import unittest

import grpc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from constraints import ENDLESS_ONES, LARGE_ONES  # noqa: E402  (its folder and the other are put on the path above)
from processes import Generation, ProcessTest, request_for, settings  # noqa: E402
from table import forget_peak, status_mib  # noqa: E402

# Between two tokens of the stream, on a machine that does nothing else; and MiB by which the verifier may grow.
LONGEST_GAP_SECONDS = 0.2
MOST_GROWTH_MIB = 700
AT_ONCE = 3
# What a call may end with that brought its constraint by itself.
REFUSALS = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.RESOURCE_EXHAUSTED}


class Stream(threading.Thread):
    """Streams one after the other, and the longest time without a token in each phase."""

    def __init__(self, channel):
        super().__init__()
        self._channel = channel
        self._stop_event = threading.Event()
        self.longest = 0.0
        self.num_tokens = 0
        self.failure = None

    def run(self):
        request = request_for(max_tokens=400)
        while not self._stop_event.is_set():
            try:
                generation = Generation(self._channel, request, timeout=300)
                last = None
                while generation.finished is None and not self._stop_event.is_set():
                    generation.read(num_tokens=len(generation.tokens) + 1)
                    now = time.monotonic()
                    if last is not None:
                        self.longest = max(self.longest, now - last)
                    last = now
                self.num_tokens += len(generation.tokens)
                generation.call.cancel()
            except grpc.RpcError as error:
                self.failure = error
                return

    def phase(self):
        """The longest gap since the last call of this."""
        longest, self.longest = self.longest, 0.0
        return longest

    def stop(self):
        self._stop_event.set()
        self.join()


class ConstraintsTest(ProcessTest):
    def setUp(self):
        super().setUp()
        self.verifier = self.start_verifier("--simulate-target-ms", 5, *settings(constraint_compile_time="1s"))
        self.verifier.wait_ready()
        # Nothing listens at the drafters' address.
        flood = {"name": "flood", "token": "flood", "max_concurrent_requests": AT_ONCE}
        self.router = self.start_router([self.verifier.address], "127.0.0.1:1", more_tenants=[flood]).wait_ready()
        self.channel = self.router.channel()
        self.addCleanup(self.channel.close)

    def call(self, constraint, max_tokens=96):
        """How the call ended, the text of its error, and how long it took."""
        request = request_for(max_tokens=max_tokens)
        request.stopping.ignore_eos = False
        request.constraint.CopyFrom(constraint)
        began = time.monotonic()
        try:
            Generation(self.channel, request, token="flood", timeout=120).read()
            return grpc.StatusCode.OK, "", time.monotonic() - began
        except grpc.RpcError as error:
            return error.code(), error.details(), time.monotonic() - began

    def test_endless_constraints_are_refused_at_once(self):
        for name, constraint in ENDLESS_ONES.items():
            with self.subTest(name):
                code, details, seconds = self.call(constraint)
                self.assertEqual(code, grpc.StatusCode.INVALID_ARGUMENT, details)
                self.assertRegex(details, "no finite|no text|part of itself")
                # The first one waits for the compiler's start. What is measured is bounded work, on a busy machine too.
                self.assertLess(seconds, 10.0)

    def test_a_stream_goes_on_beside_them(self):
        kinds = {**ENDLESS_ONES, **LARGE_ONES}
        self.assertGreaterEqual(len(kinds), 50)
        with self.router.channel() as channel:
            stream = Stream(channel)
            stream.start()
            self.addCleanup(stream.stop)
            time.sleep(1.0)
            stream.phase()
            time.sleep(3.0)
            alone = stream.phase()
            start_mib = status_mib(self.verifier, "VmRSS")
            forget_peak(self.verifier)
            gaps = {}
            with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
                names = list(kinds)
                for at in range(0, len(names), AT_ONCE):
                    group = names[at : at + AT_ONCE]
                    for name, ended in zip(group, pool.map(self.call, (kinds[name] for name in group))):
                        with self.subTest(name):
                            code, details, _ = ended
                            self.assertTrue(code == grpc.StatusCode.OK or code in REFUSALS, (code, details))
                        if os.environ.get("TANDEM_SHOW"):
                            print(f"{name}: {code.name} {ended[2]:.1f} s {details[:150]}", flush=True)
                    gaps[", ".join(group)] = stream.phase()
            stream.stop()
        worst = max(gaps, key=gaps.get)
        grown = status_mib(self.verifier, "VmHWM") - start_mib
        print(f"longest gap {gaps[worst]:.3f} s beside {worst}, {alone:.3f} s alone; {grown:.0f} MiB more")
        self.assertIsNone(stream.failure)
        self.assertGreater(stream.num_tokens, 100)
        # Where other programs take the cores, gaps are theirs.
        self.assertLess(gaps[worst], LONGEST_GAP_SECONDS + 5 * alone, worst)
        self.assertLess(grown, MOST_GROWTH_MIB)


if __name__ == "__main__":
    unittest.main()
