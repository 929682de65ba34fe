"""What hostile callers do to a router and to everybody else, in a short form: each test is one attack, bounded, against
127.0.0.1, and ends with a call of an honest tenant. What others wait for meanwhile is measured by table.py, which has the
same rows; here they are all served, memory is bounded, and the router is as before afterwards."""

import contextlib
import itertools
import os
import pathlib
import resource
import sys
import tempfile
import unittest

import grpc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

import attacks  # noqa: E402  (its folder and the other are put on the path above)
import http2  # noqa: E402
from processes import Generation, ProcessTest, request_for, settings, wait_until  # noqa: E402
from rows import ROWS  # noqa: E402
from table import Stack, run_row  # noqa: E402


class HostileTest(ProcessTest):
    """A router, and one attack on it."""

    def start_plain(self, *router_flags, **tenant):
        """A router and a verifier without drafters."""
        verifier = self.start_verifier("--simulate-target-ms", 1)
        verifier.wait_ready()
        # Nothing listens at the drafters' address: requests go undrafted.
        self.router = self.start_router([verifier.address], "127.0.0.1:1", flags=router_flags, **tenant)
        self.router.wait_ready()

    def assert_serves(self, within=10.0):
        """An honest tenant gets an answer soon: at once, or when the router has got over what was thrown at it."""

        def served():
            with self.router.channel() as channel:
                self.channel = channel
                try:
                    return self.generate(request_for(max_tokens=4), timeout=within).read().tokens
                except grpc.RpcError as error:
                    # Its connection to the verifier may have been held up; everything else is a fault.
                    self.assertEqual(error.code(), grpc.StatusCode.UNAVAILABLE, error.details())
                    return None

        self.assertEqual(len(wait_until(served, "a router that serves", timeout=within)), 4)
        self.assertEqual(self.router.health("liveness"), "SERVING")

    def test_too_many_connections(self):
        self.start_plain(*settings(max_connections=100))
        with attacks.idle_connections(self.router.address, 300) as connected:
            self.assertGreaterEqual(connected, 200)
            refused = "tandem_server_refused_connections_total"
            wait_until(lambda: self.router.metric(refused) > 0, "connections that are refused")
        self.assert_serves()

    def test_descriptors_run_out(self):
        """The limit is raised at the start; where connections use up what there is, they can be accepted again after."""
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
        try:
            self.start_plain()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        self.assertEqual(self.router.metric("process_max_fds"), before[1])
        self.assert_serves()
        # Behind its back, so that it meets the limit in the middle of accepting.
        resource.prlimit(self.router.pid, resource.RLIMIT_NOFILE, (128, 128))
        with attacks.idle_connections(self.router.address, 200):
            wait_until(lambda: len(os.listdir(f"/proc/{self.router.pid}/fd")) >= 128, "the last descriptor to be used")
        self.assert_serves()

    def test_streams_that_take_nothing(self):
        self.start_plain(*settings(write_stall_timeout="2s"), max_concurrent_requests=4, max_queued_requests=0)
        request = request_for(max_tokens=1).SerializeToString()
        with attacks.WindowlessCalls(self.router.address, request, "secret", 4):
            finished = 'tandem_verifier_requests_total'
            wait_until(lambda: self.servers[0].metric(finished) == 4, "the verifier to be done with the calls")
            self.assert_serves()
            wait_until(
                lambda: self.router.metric("tandem_router_requests_total", code="RESOURCE_EXHAUSTED") == 4,
                "the ends of the calls that take nothing",
            )

    def test_pings_end_their_connection(self):
        self.start_plain()
        with http2.Connection(self.router.address) as connection:
            with contextlib.suppress(OSError):  # It may be over before all are sent.
                connection.send(http2.frame(http2.PING, 0, 0, bytes(8)) * 50)
            kinds = []
            while (got := connection.read_frame()) is not None:
                kinds.append(got[0])
                if got[0] == http2.GOAWAY:
                    self.assertIn(b"too_many_pings", got[3])
            self.assertIn(http2.GOAWAY, kinds)
        self.assert_serves()

    def test_prompts_that_do_not_fit(self):
        """A tenant sends 120 prompts of a mebibyte at once; how many of them are worked on while another one waits."""
        self.start_plain(more_tenants=[{"name": "flood", "token": "flood"}])
        oversize = request_for(text="one word after another, " * 43000)
        with self.router.channel() as flood, self.router.channel() as self.channel:
            self.generate(request_for(max_tokens=1)).read()  # Its connection is there, as of a tenant that calls often.
            calls = [Generation(flood, oversize, token="flood").call for _ in range(120)]

            def answered():
                return sum(call.done() for call in calls)

            waited_for = []
            while answered() < len(calls):
                before = answered()
                self.generate(request_for(max_tokens=1)).read(num_tokens=1)
                waited_for.append(answered() - before)
            # Most of them, if they were worked on in the order in which they came.
            self.assertLess(max(waited_for), 25, waited_for)
            for call in calls:
                self.assertEqual(call.code(), grpc.StatusCode.INVALID_ARGUMENT)
                self.assertIn("tokens, expected at most 2047", call.details())
        self.assert_serves()


def refused_calls(result):
    """Of the attacker's."""
    return result.cost["ended"].get("RESOURCE_EXHAUSTED", 0)


class RowsTest(unittest.TestCase):
    """Every row of the table, those of one kind of router on the same one, one after the other."""

    # Others do the same, or more.
    LEFT_OUT = ("policy-fsm", "policy-ema-tiers", "compressed-health")

    def check(self, result):
        row, grown = result.row, result.peak_mib - result.start_mib
        self.assertEqual(result.health, "SERVING")
        self.assertLess(grown, row.grows, "MiB")
        if not row.may_fail:
            self.assertEqual(result.failures, [])
        if row.name == "flood":
            self.assertGreater(refused_calls(result), 0, "refusals hit the flooder")
        if row.name == "prompts":
            self.assertEqual(set(result.cost["ended"]), {"INVALID_ARGUMENT"})
        if row.name == "log":
            self.assertEqual(result.cost["ended"].get("UNAVAILABLE", 0), 0)

    def test_rows(self):
        def circumstances(row):
            return (*row.router_flags, 0, *row.verifier_flags)

        rows = sorted((row for row in ROWS if row.name not in self.LEFT_OUT), key=lambda row: str(circumstances(row)))
        for _, alike in itertools.groupby(rows, key=circumstances):
            alike = list(alike)
            with tempfile.TemporaryDirectory(prefix="tandem-hostile-") as folder:
                stack = Stack(alike[0], folder)
                try:
                    for row in alike:
                        with self.subTest(row.name):
                            # On a busy machine a flood takes longer until there is no place for a call.
                            for seconds in (6, 20, 60) if row.name == "flood" else (1.5,):
                                result = run_row(row, seconds, stack=stack, short=True)
                                if row.name != "flood" or refused_calls(result) > 0:
                                    break
                            self.check(result)
                finally:
                    stack.close()


if __name__ == "__main__":
    unittest.main()
