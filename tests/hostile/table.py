#!/usr/bin/env python3
"""Makes the table of docs/lab/security.md. Runs each row's attack on its own router and verifier on loopback, while
another tenant sends calls. Prints the latency of these calls before, during and after the attack, and the router's
memory.

    tests/e2e/run_python_test.py --work-dir build/dev/e2e --bin-dir build/dev/bin tests/hostile/table.py -- --seconds 8

Attackers run at nice 19, and a step of the target takes 20 ms without using a core. So, even on a machine with few cores,
the latency is not that of waiting for a core. hostile_test.py is the short form of all rows.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import pathlib
import resource
import subprocess
import sys
import tempfile
import threading
import time

import grpc

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from processes import MODELS, TARGET, Generation, Server, clean_environment, request_for, wait_until  # noqa: E402
from rows import ROWS, Row  # noqa: E402

HONEST, FLOOD = "honest", "flood"
# How long a server may take until it is as before.
RECOVERY_SECONDS = 10.0


def status_mib(server, which):
    status = pathlib.Path(f"/proc/{server.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(which)) / 1024


def forget_peak(server):
    """VmHWM is from now on."""
    pathlib.Path(f"/proc/{server.pid}/clear_refs").write_text("5")


class Stack:
    """A router and a verifier without drafters, and two tenants."""

    def __init__(self, row, folder):
        self.servers = []
        try:
            verifier = self._start("tandem-verifier", "--model", MODELS / TARGET, *row.verifier_flags).wait_ready()
            config = {
                "models": [{"name": TARGET, "folder": str(MODELS / TARGET), "verifiers": [verifier.address]}],
                "drafters": [],
                "tenants": [{"name": name, "token": name} for name in (HONEST, FLOOD)],
            }
            path = pathlib.Path(folder) / "router.yaml"
            path.write_text(json.dumps(config))
            self.verifier = verifier
            self.router = self._start("tandem-router", "--config", path, *row.router_flags).wait_ready()
        except BaseException:
            self.close()
            raise

    def _start(self, program, *flags):
        self.servers.append(Server(program, *flags))
        return self.servers[-1]

    def close(self):
        for server in self.servers:
            if server.running:
                server.send(15)
        for server in self.servers:
            server.close()


@dataclasses.dataclass
class Seen:
    """What calls saw that began in one phase. Times in milliseconds."""

    first_token: list = dataclasses.field(default_factory=list)
    rates: list = dataclasses.field(default_factory=list)  # Tokens per second of each call after its first one.
    failures: list = dataclasses.field(default_factory=list)

    @staticmethod
    def quantile(values, share):
        return sorted(values)[min(int(share * len(values)), len(values) - 1)] if values else float("nan")

    @property
    def p50(self):
        return self.quantile(self.first_token, 0.5)

    @property
    def p99(self):
        return self.quantile(self.first_token, 0.99)

    @property
    def rate(self):
        return self.quantile(self.rates, 0.5)


class Victims:
    """Another tenant, that calls all the time: some for short outputs, some for longer ones."""

    def __init__(self, address, timeout):
        self._address = address
        self._timeout = timeout
        self._phase = None
        self._stop = threading.Event()
        self.seen = {}
        self._threads = [
            threading.Thread(target=self._work, args=(max_tokens,)) for max_tokens in (2, 2, 2, 32, 32)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, max_tokens):
        with grpc.insecure_channel(
            self._address, options=[("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 200)]
        ) as channel:
            request = request_for(max_tokens=max_tokens)
            while not self._stop.is_set():
                phase = self.seen.get(self._phase, Seen())
                began = time.monotonic()
                generation = Generation(channel, request, token=HONEST, timeout=self._timeout)
                try:
                    generation.read(num_tokens=1)
                    first = time.monotonic()
                    phase.first_token.append((first - began) * 1000)
                    so_far = len(generation.tokens)
                    generation.read()
                    if max_tokens > 2:
                        phase.rates.append((len(generation.tokens) - so_far) / (time.monotonic() - first))
                except grpc.RpcError as error:
                    phase.failures.append(f"{error.code().name}: {error.details()}")
                    self._stop.wait(0.05)

    def phase(self, name, seconds=0.0):
        """What begins from now on counts for it."""
        self.seen[name] = Seen()
        self._phase = name
        time.sleep(seconds)
        return self.seen[name]

    def close(self):
        self._stop.set()
        for thread in self._threads:
            thread.join()


@dataclasses.dataclass
class Result:
    row: Row
    cost: dict
    before: Seen
    during: Seen
    after: Seen
    # Of calls that began while it was attacked.
    failures: list
    start_mib: float
    peak_mib: float
    # Until a call that begins waits no longer than before.
    recovery_seconds: float
    health: str


class Attack:
    """An attack as a process of its own."""

    def __init__(self, row, address, folder, seconds, options, request, nice):
        arguments = [f"nice={nice}", f"seconds={seconds}", *(f"{key}={value}" for key, value in options.items())]
        if request is not None:
            fields = dict(request)
            policy = fields.pop("window_policy", None)
            message = request_for(**fields)
            if policy is not None:
                message.speculation.window_policy = policy
            path = pathlib.Path(folder) / f"request-{policy}"
            path.write_text(message.SerializeToString().hex())
            arguments += [f"token={FLOOD}", f"request=@{path}"]
        self._process = subprocess.Popen(
            [sys.executable, "-B", str(HERE / "attacks.py"), row.attack, address, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=clean_environment(),
            text=True,
        )

    def end(self):
        output, errors = self._process.communicate(timeout=120)
        if self._process.returncode != 0:
            raise RuntimeError(f"the attack failed:\n{errors}")
        return json.loads(output)

    def kill(self):
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def seconds_until_served(address, most_ms):
    """Until a call on a new connection takes no more than this."""
    began = time.monotonic()

    def served():
        with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            start = time.monotonic()
            try:
                Generation(channel, request_for(max_tokens=1), token=HONEST, timeout=RECOVERY_SECONDS).read()
            except grpc.RpcError:
                return False
            return (time.monotonic() - start) * 1000 <= most_ms

    wait_until(served, "a router that is as before", RECOVERY_SECONDS)
    return time.monotonic() - began


@contextlib.contextmanager
def circumstances(row, stack):
    """What is amiss with the router while it is attacked."""
    limits = resource.prlimit(stack.router.pid, resource.RLIMIT_NOFILE)
    if row.descriptors is not None:
        resource.prlimit(stack.router.pid, resource.RLIMIT_NOFILE, (row.descriptors, limits[1]))
    if row.unread_log:
        stack.router.reading.clear()
    try:
        yield
    finally:
        stack.router.reading.set()
        resource.prlimit(stack.router.pid, resource.RLIMIT_NOFILE, limits)


def run_row(row, seconds, stack=None, short=False):
    """The row's Result: before, the attack, and after, each of so many seconds; in the short form without an after, and
    with as little of a before as does. The stack is the row's own unless it is given."""
    with tempfile.TemporaryDirectory(prefix="tandem-hostile-") as folder, contextlib.ExitStack() as ending:
        if stack is None:
            stack = Stack(row, folder)
            ending.callback(stack.close)
        router = stack.router
        address = f"127.0.0.1:{router.health_port}" if row.health_port else router.address
        options = {**row.options, **(row.short if short else {})}

        def attack(for_seconds, request):
            # Builds in the background (tests/run.sh) have 19: beside one, an attack of the same rank hardly begins.
            begun = Attack(row, address, folder, for_seconds, options, request, nice=10 if short else 19)
            ending.callback(begun.kill)
            return begun

        victims = Victims(router.address, timeout=30.0)
        ending.callback(victims.close)
        before_seconds = 0.4 if short else seconds
        companion = None
        if row.otherwise is not None and not short:
            companion = attack(before_seconds + 1.5, row.otherwise)
        victims.phase("begins", 0.3 if short else 1.5)
        before = victims.phase("before", before_seconds)
        if companion is not None:
            companion.end()
        start_mib = status_mib(router, "VmRSS")
        forget_peak(router)
        with circumstances(row, stack):
            begun = attack(seconds, row.request)
            begins = victims.phase("begins", 0.5)
            # Its process takes half a second to begin, and ends by itself.
            during = victims.phase("during", seconds - 0.5)
            ends = victims.phase("ends")
            cost = begun.end()
        # It has a connection to make, and its one token's step to wait for.
        recovery = seconds_until_served(router.address, math.inf if short else 1.2 * before.p99 + 20)
        after = victims.phase("after", 0.0 if short else seconds)
        victims.close()
        return Result(
            row=row,
            cost=cost,
            before=before,
            during=during,
            after=after,
            failures=begins.failures + during.failures + ends.failures,
            start_mib=start_mib,
            peak_mib=status_mib(router, "VmHWM"),
            recovery_seconds=recovery,
            health=router.health("liveness"),
        )


def line(result):
    """The row in Markdown."""
    cost = result.cost
    sent = cost["sent_bytes"]
    bytes_sent = f"{sent / 1e6:.1f} MB" if sent >= 1e5 else f"{sent / 1e3:.1f} KB"
    phases = (result.before, result.during, result.after)
    first = ", ".join(f"{seen.p50:.0f}/{seen.p99:.0f}" for seen in phases)
    rate = ", ".join(f"{seen.rate:.1f}" for seen in phases)
    notes = [f"{count} {code}" for code, count in sorted(cost["ended"].items())]
    if failures := len(result.failures):
        notes.append(f"{failures} calls of the other tenant failed")
    return (
        f"| {result.row.who} | {cost['connections']}, {bytes_sent} | {first} "
        f"| {result.during.p99 / result.before.p99 - 1:+.0%} | {rate} "
        f"| {result.during.rate / result.before.rate - 1:+.0%} | {result.start_mib:.0f} to {result.peak_mib:.0f} "
        f"| {result.recovery_seconds:.1f} s | {'; '.join(notes)} |"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="seconds of each phase: before, during and after the attack")
    parser.add_argument("rows", nargs="*", choices=[[], *(row.name for row in ROWS)], metavar="ROW")
    arguments = parser.parse_args()
    print(
        "| who | connections, bytes sent | first token, p50/p99 ms: before, during, after | p99 "
        "| tokens/s: before, during, after | | memory, MiB | as before after | |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        flush=True,
    )
    for row in ROWS:
        if not arguments.rows or row.name in arguments.rows:
            print(line(run_row(row, arguments.seconds)), flush=True)


if __name__ == "__main__":
    main()
