"""Processes that are killed while clients ask for outputs that are known."""

import json
import random
import shutil
import signal
import threading
import time

import grpc
from cluster import DRAFTERS, OTHER, TOKEN, Memory, MetricsWatch, Settings
from load import Load
from measure import Report, quantile, slope
from processes import PATIENCE_SECONDS, bearer, wait_until
from run import Skipped, closed, reference, requests
from tandem.v1 import admin_pb2, admin_pb2_grpc

TOKENS = 32
SHARE = 0.7  # Of capacity.
# These live from the beginning to the end, so that leaks and lost counts can be found in them.
KEPT = ("general-1m", "verifier-0", "router-0")


def _settings(run, **more):
    """Steps take twice the time, because drafters and starting processes already load a machine with two cores."""
    settings = {"router_flags": run.router_flags, "max_running": 8, "tenant": {"max_queued_requests": 512}, **more}
    return Settings(step_ms=f"{run.step or 2 * run.step_ms}", drafters=DRAFTERS, **settings)


def _capacity(run, cluster, asked):
    # A request takes some twenty steps.
    seconds = 2.0 if run.short else max(30.0, 0.1 * float(cluster.settings.step_ms))
    began = time.monotonic()
    records = closed(cluster, asked, 24, seconds, resume=True, timeout=run.timeout)
    run.failures("requests while capacity is measured", [record for record in records.all if record.code != "OK"])
    # On a machine with little time none may end before all do.
    return records.rate(began + 0.3 * seconds, began + seconds) or len(records.ok) / (time.monotonic() - began)


class Killer:
    """Kills parts with kill -9 and starts them again, one at a time."""

    def __init__(self, cluster, candidates, seed):
        self._cluster = cluster
        self._candidates = candidates
        self._random = random.Random(seed)
        self.kills = {}
        self.away = []  # How long each part was, in seconds.

    def strike(self):
        """One kill. The weights are of kinds: routers, which their clients notice, are struck as often as others."""
        kind = self._random.choice(sorted({self._cluster.kind(name) for name in self._candidates}))
        name = self._random.choice([name for name in self._candidates if self._cluster.kind(name) == kind])
        began = time.monotonic()
        self._cluster.kill(name)
        self.kills[kind] = self.kills.get(kind, 0) + 1
        time.sleep(self._random.uniform(0.0, 1.0))
        self._cluster.start(name)
        self.away.append(time.monotonic() - began)


def _stalls(run, records):
    gaps = [1e3 * record.longest_gap for record in records.ok]
    run.report.figure("longest pause within an output, p50", quantile(gaps, 0.5), "ms")
    run.report.figure("longest pause within an output, p99", quantile(gaps, 0.99), "ms")
    run.report.figure("longest pause within an output, of all", max(gaps, default=0.0), "ms")
    run.report.figure("outputs that went over to another router", sum(len(record.calls) > 1 for record in records.ok))


def _leaks(run, memory, begin, end):
    """The slope of memory over time, without the first third, of processes that lived all the time."""
    for name in KEPT:
        points = [(moment, mib) for moment, mib in memory.of(name) if begin + (end - begin) / 3 <= moment < end]
        by_hour = 3600 * slope(points)
        grown = by_hour * (end - begin) / 3600
        run.report.promise(f"memory of {name}, by its slope over the run", grown, "<=", run.bound(8, 64), "MiB")
        run.report.figure(f"memory of {name}, slope", by_hour, "MiB/h")
        run.report.figure(f"memory of {name}", points[-1][1] if points else 0.0, "MiB")


def _watched(report, watch):
    watch.look()
    report.promise("series that went away, and counters that went back", len(watch.findings), "==", 0)
    report.figure("scrapes", watch.scrapes)
    for finding in watch.findings[:3]:
        report.note(finding)


def _every_call_counted(report, cluster, counted_before, records):
    """Of the router that lives all the time: every call that reached it has been counted, once."""
    called = sum(record.calls.count(cluster.address("router-0")) for record in records.all)
    counted = int(cluster.running["router-0"].metric("tandem_router_requests_total")) - counted_before
    report.promise("calls of router-0 that it has not counted, or counted twice", abs(called - counted), "==", 0)
    report.figure("calls of router-0", called)


class _Soak:
    """Measures `kills`: everything so far at any time, and the whole at the end."""

    PARTIAL_SECONDS = 600.0

    def __init__(self, run, cluster, memory, watch, killer, expected, capacity):
        self._run = run
        self._cluster = cluster
        self._memory = memory
        self._watch = watch
        self._killer = killer
        self._expected = expected
        self._capacity = capacity
        self.begin = time.monotonic()
        self._next_partial = self.begin + self.PARTIAL_SECONDS

    def measure(self, records, end):
        """Into the run's report."""
        run, report, killer = self._run, self._run.report, self._killer
        report.figure("capacity", self._capacity, "requests/s")
        report.figure("kills", ", ".join(f"{count} {kind}" for kind, count in sorted(killer.kills.items())))
        report.promise("kills of each kind", min(killer.kills.get(kind, 0) for kind in ("drafter", "verifier", "router")),
                       ">=", run.bound(1, 0))  # fmt: skip
        report.figure("a part was away, p50", quantile(killer.away, 0.5), "s")
        report.figure("a part was away, longest", max(killer.away, default=0.0), "s")
        run.failures("requests", [record for record in records.all if record.code != "OK"])
        report.figure("requests", len(records.all))
        offered = SHARE * self._capacity
        report.promise("goodput over offered", records.rate(self.begin, end) / offered, ">=", run.bound(0.9, 0.3))
        run.outputs(records, self._expected)
        seconds = [record.seconds for record in records.ok]
        report.figure("a request, p50", quantile(seconds, 0.5), "s")
        report.figure("a request, p99", quantile(seconds, 0.99), "s")
        _stalls(run, records)
        _leaks(run, self._memory, self.begin, end)
        drafted = self._cluster.running["verifier-0"].metric("tandem_spec_decode_num_accepted_tokens_total", source="drafter")
        report.promise("tokens that drafters guessed", drafted or 0, ">=", 1)
        _watched(report, self._watch)

    def write_partial(self, load):
        """A report of what is over, when it is time for one: of a run that is stopped, the last one counts."""
        now = time.monotonic()
        if self._run.partial is None or now < self._next_partial:
            return
        self._next_partial = now + self.PARTIAL_SECONDS
        whole, self._run.report = self._run.report, Report("kills", strict=False)
        try:
            self._run.report.figure("minutes so far", (now - self.begin) / 60)
            self.measure(load.so_far(), now)
            self._run.partial.write_text(json.dumps(self._run.report.as_json(), indent=1))
        finally:
            self._run.report = whole


def kills(run):
    """70 % of the capacity, while drafters, verifiers and routers are killed at random. Clients resume. SIGTERM ends it
    early, with its report."""
    asked = requests(TOKENS)
    looks = (0.25, 2.0) if run.short else (2.0, 20.0)  # At memory and at metrics, in seconds.
    with run.cluster(_settings(run, routers=3, verifiers=3)) as cluster, \
            Memory(cluster, looks[0]) as memory, MetricsWatch(cluster, looks[1]) as watch:  # fmt: skip
        expected = reference(cluster, asked, timeout=run.timeout, clients=len(asked))
        capacity = run.capacity or _capacity(run, cluster, asked)
        cluster.settle()
        counted_before = int(cluster.running["router-0"].metric("tandem_router_requests_total"))
        seconds = run.seconds(6.0)
        killer = Killer(cluster, [name for name in cluster.names if name not in KEPT], run.seed)
        print(f"kills: capacity {capacity:.2f} requests/s, {seconds:.0f} s", flush=True)
        with Load(
            addresses=cluster.routers, token=TOKEN, requests=asked, rate=SHARE * capacity, resume=True, seed=run.seed,
            timeout=run.timeout, write_every=0.0 if run.short else 60.0,
        ) as load:  # fmt: skip
            soak = _Soak(run, cluster, memory, watch, killer, expected, capacity)
            stopped = threading.Event()
            signal.signal(signal.SIGTERM, lambda *_: stopped.set())
            while time.monotonic() < soak.begin + seconds and not stopped.is_set():
                killer.strike()
                stopped.wait(run.kill_pause or run.bound(2.0, 0.3))
                soak.write_partial(load)
            end = time.monotonic()
            records = load.end(run.timeout + 30)
        cluster.settle()
        soak.measure(records, end)
        _every_call_counted(run.report, cluster, counted_before, records)
    run.lateness(records)


def routers(run):
    """kill -9 of the routers, repeatedly and in turns. Clients that lose one continue at the other."""
    asked = requests(TOKENS)
    settings = _settings(run, routers=2, verifiers=2)
    with run.cluster(settings) as cluster:
        expected = reference(cluster, asked)
        times = run.times(2, 50)
        with Load(addresses=cluster.routers, token=TOKEN, requests=asked, clients=6, resume=True, seed=run.seed) as load:
            for number in range(times):
                name = f"router-{number % 2}"
                time.sleep(0.5)
                cluster.kill(name)
                time.sleep(0.3)
                cluster.start(name)
                cluster.wait_for_verifiers(name)
            records = load.end()
        cluster.settle()
    run.report.figure("kills of a router", times)
    run.failures("requests", [record for record in records.all if record.code != "OK"])
    moved = sum(len(record.calls) > 1 for record in records.ok)
    run.report.promise("outputs that went over to another router", moved, ">=", 1)
    run.outputs(records, expected)
    _stalls(run, records)


def etcd_members(run):
    """kill -9 of each of three members of the routers' etcd in turn, while tenants are changed and outputs are
    requested."""
    if shutil.which("etcd") is None or shutil.which("etcdctl") is None:
        raise Skipped("there is no etcd on this machine (deploy/install.sh)")
    from etcd_test import Etcd  # It needs openssl and etcd, as this scenario does.

    members = [Etcd(run.folder, name) for name in ("a", "b", "c")]
    peers = ",".join(member.peer for member in members)
    state = f"etcd://{','.join(member.address for member in members)}/tandem"
    settings = _settings(run, routers=2, verifiers=1, router_flags=("--state", state))
    asked = requests(TOKENS)
    try:
        for member in members:
            member.start(peers)
        for member in members:
            member.wait_ready()
        with run.cluster(settings) as cluster:
            expected = reference(cluster, asked)
            changes = _Changes(cluster)
            times = run.times(2, 50)
            with Load(addresses=cluster.routers, token=TOKEN, requests=asked, clients=4, seed=run.seed) as load, changes:
                for number in range(times):
                    member = members[number % 3]
                    member.kill()
                    changes.await_more(run.bound(3, 1))
                    member.start().wait_ready()
                    changes.await_more(1)
                records = load.end()
            lost = changes.lost()
    finally:
        for member in members:
            member.close()
    report = run.report
    report.figure("kills of a member", times)
    run.failures("requests", [record for record in records.all if record.code != "OK"])
    run.outputs(records, expected)
    _stalls(run, records)
    report.promise("changes that were answered", changes.acknowledged, ">=", 1)
    report.promise("changes that were answered and lost", len(lost), "==", 0)
    report.figure("changes that were refused while a member was away", len(changes.refused))
    report.figure("a change, p50", 1e3 * quantile(changes.seconds, 0.5), "ms")
    report.figure("a change, slowest", 1e3 * max(changes.seconds, default=0.0), "ms")
    for note in [*changes.unexpected[:3], *lost[:3]]:
        report.note(note)
    report.promise("changes refused with another status than UNAVAILABLE", len(changes.unexpected), "==", 0)


class _Changes:
    """Changes a tenant's weight at the routers in turn, all the time, and records the last acknowledged change."""

    def __init__(self, cluster):
        self._cluster = cluster
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.acknowledged = 0
        self.last = 1
        self.possible = set()  # Failed after `last`: it is unknown whether they were made.
        self.refused = []
        self.unexpected = []
        self.seconds = []

    def _stub(self, channel):
        return admin_pb2_grpc.RouterAdminStub(channel)

    def _work(self):
        channels = [self._cluster.running[name].channel() for name in self._cluster.of_kind("router")]
        number = 1
        while not self._stop.wait(0.02):
            number += 1
            request = admin_pb2.SetTenantRequest(
                config={"name": "changed", "token": OTHER, "weight": number}, fields=["token", "weight"]
            )
            began = time.monotonic()
            try:
                self._stub(channels[number % len(channels)]).SetTenant(
                    request, metadata=bearer(TOKEN), timeout=PATIENCE_SECONDS
                )
                self.acknowledged += 1
                self.last, self.possible = number, set()
            except grpc.RpcError as error:
                (self.refused if error.code() is grpc.StatusCode.UNAVAILABLE else self.unexpected).append(
                    f"change {number}: {error.code().name}: {error.details()}"
                )
                self.possible.add(number)
            self.seconds.append(time.monotonic() - began)
        for channel in channels:
            channel.close()

    def await_more(self, count):
        goal = self.acknowledged + count
        wait_until(lambda: self.acknowledged >= goal, "changes that are acknowledged")

    def lost(self):
        """Whether a router has neither the last acknowledged change nor a later one."""
        findings = []
        for name in self._cluster.of_kind("router"):
            with self._cluster.running[name].channel() as channel:

                def weight(stub=self._stub(channel)):
                    request = admin_pb2.GetTenantRequest(name="changed")
                    return stub.GetTenant(request, metadata=bearer(TOKEN), timeout=PATIENCE_SECONDS).config.weight

                try:
                    wait_until(lambda w=weight: w() in {self.last, *self.possible}, "the last change", timeout=10.0)
                except AssertionError:
                    findings.append(f"{name} says {weight()}, expected {self.last} or one of {sorted(self.possible)}")
        return findings

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
