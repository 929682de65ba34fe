"""Shared by the scenarios: their duration, their bounds, and the promises that all of them make."""

import collections
import dataclasses
import pathlib

from cluster import TOKEN, Cluster
from load import Load
from measure import Report, quantile

SKIPPED = 77
PROMPTS = ("Once upon a time", "The history of", "def add(a, b):", "What is 3 + 4?", "In the morning", "She said")


class Skipped(Exception):
    """The machine lacks something that the scenario needs."""


@dataclasses.dataclass
class Run:
    """One run of a scenario."""

    report: Report
    folder: pathlib.Path
    minutes: float = 10.0
    short: bool = False
    count: int | None = None
    old_bin_dir: pathlib.Path | None = None
    seed: int = 1
    # Of `kills`, for a machine that has little time to give: a target step, the pause between kills, one request's deadline.
    step: float | None = None
    kill_pause: float | None = None
    capacity: float | None = None
    # Of `upgrade` and `certificates`: requests a second.
    rate: float | None = None
    timeout: float = 60.0
    router_flags: tuple = ()
    # Where `kills` writes what it has measured so far, every ten minutes.
    partial: pathlib.Path | None = None

    @property
    def step_ms(self):
        """The duration of a target step: longer than a step of a full batch on a busy machine."""
        return self.step or (25.0 if self.short else 40.0)

    @property
    def tail(self):
        """The promised quantile. A few requests in one second on a busy machine prove nothing."""
        return 0.5 if self.short else 0.99

    def seconds(self, short):
        """Of the main part."""
        return short if self.short else self.minutes * 60

    def bound(self, strict, short):
        """`strict` is the promise; the other figure is for short runs on a busy machine."""
        return short if self.short else strict

    def times(self, short, long):
        return self.count or (short if self.short else long)

    def cluster(self, settings, **options):
        return Cluster(settings, self.folder, **options)

    def failures(self, what, failed):
        self.report.promise(f"failed {what}", len(failed), "==", 0)
        if failed:
            codes = collections.Counter(record.code for record in failed)
            self.report.note(f"{what}: " + ", ".join(f"{count} {code}" for code, count in codes.most_common()))
        for record in failed[:3]:
            self.report.note(f"{what}: {record.code} after {record.seconds:.2f} s: {record.message}")

    def outputs(self, records, expected):
        """No output may differ from the reference."""
        wrong = records.wrong(expected)
        self.report.promise("outputs that differ from the reference", len(wrong), "==", 0)
        self.report.figure("outputs compared", len(records.ok))
        for record in wrong[:3]:
            self.report.note(f"request {record.request} by {record.calls}: {record.tokens} tokens, {record.digest}")

    def lateness(self, records):
        """The part of the latencies that the client causes."""
        self.report.figure("the client's event loop is late, p99", 1e3 * quantile(records.late, 0.99), "ms")


def requests(max_tokens, **fields):
    """Seeded requests that run to their token limit."""
    common = {"max_tokens": max_tokens, "temperature": 0.8, "seed": 11, "ignore_eos": True}
    return [{"prompt": prompt, **common, **fields} for prompt in PROMPTS]


def closed(cluster, asked, clients, seconds=600.0, **options):
    """Records of a closed loop on the cluster, for this time or until `count` requests are over."""
    options.setdefault("token", TOKEN)
    with Load(addresses=cluster.routers, requests=asked, clients=clients, seconds=seconds, **options) as load:
        return load.wait(seconds + 120)


def reference(cluster, asked, **options):
    """The digest of each request's output, without speculation and disturbances. Outputs may not depend on anything
    else."""
    plain = [{**request, "speculation": False} for request in asked]
    clients = options.pop("clients", 1)
    records = closed(cluster, plain, clients, count=len(plain), **options)
    if len(records.ok) != len(plain):
        raise AssertionError(f"no reference: {records.all}")
    return [record.digest for record in sorted(records.ok, key=lambda record: record.request)]
