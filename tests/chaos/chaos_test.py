"""Faults under load, with real processes on the demo models: drafters and verifiers are killed, stopped and rolled,
and drafters are swapped, while clients generate. No request may fail, and every output must be what it is when
nothing happens. Prints how long the streams that met a fault stood still.

    TANDEM_CHAOS="drafter=200 verifier=100 swap=500 stop=50 roll=20" runs that many of each instead of a few. With step=20 a
    step of the targets lasts 20 ms without using a core, so that a busy machine has time for the rest.
"""

import json
import os
import pathlib
import signal
import statistics
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from processes import (  # noqa: E402
    MODELS,
    PATIENCE_SECONDS,
    TARGET,
    Generation,
    ProcessTest,
    bearer,
    fixed_port,
    request_for,
    settings,
    wait_until,
)
from tandem.v1 import admin_pb2, admin_pb2_grpc, types_pb2  # noqa: E402

COUNTS = {"drafter": 3, "verifier": 3, "swap": 10, "stop": 1, "roll": 1, "step": 0}
COUNTS.update((name, int(count)) for name, count in (c.split("=") for c in os.environ.get("TANDEM_CHAOS", "").split()))
CLIENTS = 4
STALL_TIMEOUT = 2.0  # The setting verifier-stall-timeout.
PROMPTS = ("Once upon a time", "The history of", "def add(a, b):", "What is 3 + 4?", "In the morning", "She said")
DRAFTERS = ("general-1m", "code-1m")
# The other verifier has the default one, so that every fault is met with prompt lookup at work and without it, and requests
# go over from one to the other.
WITHOUT_LOCAL_DRAFTER = ("verifier-1",)


class Load:
    """Clients that send the same requests over and over, and compare what comes with the first time."""

    def __init__(self, channel):
        self.channel = channel
        self.requests = [request_for(prompt, 120) for prompt in PROMPTS]
        # Twice, because the first run of a prompt computes what the second finds in the prefix cache.
        self.expected = [self.run(request)[0].output for request in self.requests]
        self.failures = []
        self.completed = 0
        self.lock = threading.Lock()
        self.gaps = []  # (last event before, next event), of every stream
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.client, args=(i,)) for i in range(CLIENTS)]

    def run(self, request):
        """One generation, and when its events came."""
        generation = Generation(self.channel, request)
        times = [time.monotonic()]
        while generation.finished is None:
            generation.read(len(generation.tokens) + 1)
            times.append(time.monotonic())
        return generation, times

    def client(self, number):
        at = number
        while not self.stopping.is_set():
            index = at % len(self.requests)
            at += 1
            try:
                generation, times = self.run(self.requests[index])
                failure = None if generation.output == self.expected[index] else f"{PROMPTS[index]}: another output"
            except Exception as error:  # pylint: disable=broad-except
                generation, times, failure = None, [], f"{PROMPTS[index]}: {error!r}"
            with self.lock:
                self.completed += generation is not None
                self.gaps += [(a, b) for a, b in zip(times, times[1:]) if b - a > 0.002]
                if failure:
                    self.failures.append(failure)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join()

    def stalls(self, faults):
        """How long each stream that met a fault stood still over it, in seconds."""
        with self.lock:
            return sorted(b - a for fault in faults for a, b in self.gaps if a <= fault <= b)


def report(what, faults, load):
    stalls = load.stalls(faults)
    if not stalls:
        print(f"{what}: {len(faults)} faults, no stream stood still; {load.completed} requests", flush=True)
        return
    p99 = stalls[min(len(stalls) - 1, int(0.99 * len(stalls)))]
    print(
        f"{what}: {len(faults)} faults, {load.completed} requests, {len(load.failures)} failed; stall of "
        f"{len(stalls)} streams: p50 {1e3 * statistics.median(stalls):.0f} ms, p99 {1e3 * p99:.0f} ms, "
        f"max {1e3 * stalls[-1]:.0f} ms",
        flush=True,
    )


class ChaosTest(ProcessTest):
    """Two drafters, two verifiers and a router, each a process."""

    def setUp(self):
        super().setUp()
        self.ports = {name: fixed_port() for name in (*DRAFTERS, "verifier-0", "verifier-1")}
        self.running = {name: self.start_part(name) for name in self.ports}
        for server in self.running.values():
            server.wait_ready()
        config = {
            "models": [
                {
                    "name": TARGET,
                    "folder": str(MODELS / TARGET),
                    "verifiers": [f"127.0.0.1:{self.ports[f'verifier-{i}']}" for i in range(2)],
                }
            ],
            "drafters": [
                {"name": name, "endpoint": f"127.0.0.1:{self.ports[name]}", "draft_model": name}
                for name in DRAFTERS
            ],
            "tenants": [
                {"name": "acme", "token": "secret", "drafter": DRAFTERS[0], "admin": True}
            ],
        }
        path = self.folder / "router.yaml"
        path.write_text(json.dumps(config))
        self.router = self.start(
            "tandem-router", "--config", path, *settings(verifier_stall_timeout=f"{STALL_TIMEOUT}s")
        ).wait_ready()
        self.channel = self.router.channel()
        self.addCleanup(self.channel.close)

    def start_part(self, name):
        port = self.ports[name]
        if name in DRAFTERS:
            return self.start("tandem-drafter", "--model", f"{name}={MODELS}/tandem-draft-{name}", port=port)
        # Too short for most requests, so that a verifier that is told to end hands them over.
        flags = ("--window-policy", "fixed", "--model", MODELS / TARGET, "--drain-grace", "100ms")
        if COUNTS["step"] > 0:
            flags += ("--simulate-target-ms", COUNTS["step"])
        if name in WITHOUT_LOCAL_DRAFTER:
            flags += ("--local-drafter", "none")
        return self.start("tandem-verifier", *flags, port=port)

    def kill(self, name):
        """kill -9; returns when. What is killed is forgotten, so that a long run keeps few."""
        server = self.running[name]
        moment = time.monotonic()
        server.kill()
        server.close()
        self.servers.remove(server)
        return moment

    def restart(self, name):
        self.running[name] = self.start_part(name).wait_ready()

    def await_serving(self, name):
        """Until the router, which asks once a second, knows that the verifier is back."""
        address = f"127.0.0.1:{self.ports[name]}"

        def serving():
            said = ""
            for line in [*self.router.lines]:
                if address in line and ("verifier is serving" in line or "verifier is not serving" in line):
                    said = line
            return "not serving" not in said

        time.sleep(1.5)
        wait_until(serving, f"the router to know that {name} serves")

    def check(self, load):
        self.assertEqual(load.failures, [])
        self.assertGreater(load.completed, 0)

    def drafter_is_used(self, load):
        """Returns when another request is done to which the drafter, not the verifier by itself, brought something."""
        request = request_for(PROMPTS[0], 60)

        def brought():
            sources = load.run(request)[0].stats.by_source
            return any(entry.accepted_tokens for entry in sources if entry.source == types_pb2.DRAFT_SOURCE_DRAFTER)

        wait_until(brought, "drafts")

    def test_killed_drafters_cost_nothing_but_speed(self):
        faults = []
        with Load(self.channel) as load:
            for _ in range(COUNTS["drafter"]):
                name = DRAFTERS[0]  # The tenant's.
                self.drafter_is_used(load)
                faults.append(self.kill(name))
                time.sleep(0.3)
                self.restart(name)
        report("kill -9 of a drafter", faults, load)
        self.check(load)

    def test_killed_verifiers_are_replaced(self):
        faults = []
        with Load(self.channel) as load:
            for i in range(COUNTS["verifier"]):
                name = f"verifier-{i % 2}"
                faults.append(self.kill(name))
                self.restart(name)
                # The other one is killed next.
                self.await_serving(name)
        report("kill -9 of a verifier", faults, load)
        self.check(load)
        self.assertGreater(self.router.metric("tandem_router_retries_total"), 0)

    def test_rolling_updates_are_not_noticed(self):
        """Every process in turn is told to end, and started again once it has."""
        faults = []
        with Load(self.channel) as load:
            for name in tuple(self.ports) * COUNTS["roll"]:
                server = self.running[name]
                faults.append(time.monotonic())
                server.send(signal.SIGTERM)
                self.assertEqual(server.wait(), 0, server.log)
                server.close()
                self.servers.remove(server)
                self.restart(name)
                if name not in DRAFTERS:
                    self.await_serving(name)
        report("SIGTERM of every drafter and verifier", faults, load)
        self.check(load)
        self.assertGreater(self.router.metric("tandem_router_retries_total"), 0, "nothing was handed over")

    def test_stopped_processes_are_replaced(self):
        for kind, names in (("drafter", DRAFTERS), ("verifier", ("verifier-0", "verifier-1"))):
            faults = []
            with Load(self.channel) as load:
                for i in range(COUNTS["stop"]):
                    server = self.running[names[i % 2]]
                    faults.append(time.monotonic())
                    server.send(signal.SIGSTOP)
                    time.sleep(2 * STALL_TIMEOUT)
                    server.send(signal.SIGCONT)
                    time.sleep(1.5)
            report(f"SIGSTOP of a {kind}", faults, load)
            self.check(load)

    def test_drafters_are_swapped(self):
        faults = []
        swapped = refused = 0
        with Load(self.channel) as load:
            stub = admin_pb2_grpc.RouterAdminStub(self.channel)
            for i in range(COUNTS["swap"]):
                request = admin_pb2.SwapTenantDrafterRequest(
                    tenant="acme", drafter=DRAFTERS[(i + 1) % 2], running=True
                )
                faults.append(time.monotonic())
                answer = stub.SwapTenantDrafter(request, metadata=bearer("secret"), timeout=PATIENCE_SECONDS)
                swapped += answer.num_moved
                refused += answer.num_failed
        report(f"hot swap ({swapped} of running requests, {refused} refused)", faults, load)
        self.check(load)
        self.assertGreater(swapped, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
