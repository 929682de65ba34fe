"""What hostile callers do to a router and to everybody else, in a short form: each test is one attack, bounded, against
127.0.0.1, and ends with a call of an honest tenant."""

import pathlib
import resource
import signal
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import attacks
from processes import PATIENCE_SECONDS, DRAFTERS, ProcessTest, request_for, wait_until

# Room for what the server does anyhow while it is attacked.
SLACK_MIB = 64


def resident_mib(server, which="VmRSS"):
    status = pathlib.Path(f"/proc/{server.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(which)) / 1024


class HostileTest(ProcessTest):
    def start_plain(self, *router_flags, limit=None):
        """A router and a verifier without drafters; the router may have `limit` file descriptors."""
        verifier = self.start_verifier("--simulate-target-ms", 1)
        verifier.wait_ready()
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit is not None:
            # What a child inherits; this process has its files open already.
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
        try:
            # Nothing listens at the drafters' address: requests go undrafted.
            self.router = self.start_router([verifier.address], "127.0.0.1:1", flags=router_flags)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        self.router.wait_ready()

    def assert_serves(self, within=10.0):
        """An honest tenant on a new connection gets an answer."""
        with self.router.channel() as channel:
            self.channel = channel
            generation = self.generate(request_for(max_tokens=4), timeout=within).read()
        self.assertEqual(len(generation.tokens), 4)

    def test_connections_beyond_the_descriptors(self):
        self.start_plain("--max-connections", 100)
        self.assert_serves()
        cost = attacks.idle_connections(self.router.address, 300)
        self.assertGreaterEqual(cost.connections, 200)
        self.assert_serves()
        self.assertGreater(self.router.metric("tandem_server_refused_connections_total"), 0)
        self.assertEqual(self.router.health("liveness"), "SERVING")

    def test_messages_that_inflate(self):
        self.start_plain("--health-listen", "127.0.0.1:0")
        before = resident_mib(self.router)
        for address in (self.router.address, f"127.0.0.1:{self.router.health_port}"):
            for encoding in ("gzip", "deflate"):
                cost = attacks.inflating_call(address, 1024, encoding=encoding)
                self.assertLess(cost.sent_bytes, 4 << 20)
        self.assertLess(resident_mib(self.router, "VmHWM") - before, SLACK_MIB)
        self.assert_serves()

    def test_messages_that_do_not_end(self):
        self.start_plain("--connection-memory", 64)
        before = resident_mib(self.router)
        cost = attacks.unfinished_messages(self.router.address, streams=150, seconds=8)
        peak = resident_mib(self.router, "VmHWM")
        print(f"unfinished messages: {cost}, {before:.0f} -> {peak:.0f} MiB")
        self.assertLess(peak - before, 64 + SLACK_MIB)
        self.assert_serves()

    def test_calls_without_a_token(self):
        self.start_plain("--connection-memory", 64)
        before = resident_mib(self.router)
        cost = attacks.refused_calls(self.router.address, seconds=4, connections=4)
        peak = resident_mib(self.router, "VmHWM")
        print(f"refused calls: {cost}, {before:.0f} -> {peak:.0f} MiB")
        self.assertLess(peak - before, 4 * SLACK_MIB)
        self.assert_serves()


if __name__ == "__main__":
    unittest.main()
