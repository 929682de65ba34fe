"""More load than the capacity, and which tenants wait.

A target step takes 40 ms (25 in the short form) without using a core, and 16 requests run at once: an output of 16 tokens
takes 640 ms, and a verifier carries 25 requests a second whatever the machine does meanwhile.
"""

import time

import processes
from cluster import OTHER, TOKEN, Memory, Settings
from load import REFUSED, Load
from measure import quantile
from run import closed, reference, requests

TOKENS = 16
RUNNING = 16
# A quarter of what runs: what waits then adds a quarter of the time of a request, and what is on its way to the verifier
# an eighth.
QUEUED = RUNNING // 4
FACTOR = 4


def _capacity(run, cluster, asked):
    """Requests per second that end while there are as many clients as places in flight and in the queue."""
    seconds = run.seconds(2.5) if run.short else min(20.0, run.seconds(0))
    failed = []
    while True:
        began = time.monotonic()
        records = closed(cluster, asked, RUNNING + QUEUED, seconds)
        failed += records.failed
        # Without the first request of each, because these begin together.
        capacity = records.rate(began + 0.3 * seconds, began + seconds)
        if capacity > 0:
            run.failures("requests while capacity is measured", failed)
            return capacity
        # So busy is the machine that nothing else ended.
        seconds *= 2
        if seconds > 60:
            raise RuntimeError("no request ended while capacity was measured")


def _refusals(run, records):
    refused = records.of(REFUSED)
    told = [record for record in refused if record.retry_after is not None]
    times = [1e3 * record.seconds for record in refused]
    run.report.figure("refusals", len(refused))
    run.report.promise("refusals that say when to try again", len(told) / max(len(refused), 1), "==", 1)
    run.report.promise("refusals, p99", quantile(times, 0.99), "<=", run.bound(50, 2000), "ms")
    run.report.figure("refusals, p50", quantile(times, 0.5), "ms")
    run.report.figure("refusals, slowest", max(times, default=0.0), "ms")


def _memory(run, memory, names, begin, end, most_mib):
    """Bounded between begin and end, and back now."""
    for name in names:
        before = quantile(memory.between(name, 0, begin)[-8:], 0.5)
        most = max(memory.between(name, begin, end), default=0.0)
        after = quantile(memory.between(name, end, float("inf"))[-8:], 0.5)
        run.report.promise(f"memory of {name}, most above before", most - before, "<=", most_mib, "MiB")
        # Memory that the allocator keeps for reuse does not count as lost.
        run.report.promise(f"memory of {name}, afterwards above before", after - before, "<=", 24, "MiB")
        run.report.figure(f"memory of {name} before", before, "MiB")


def overload(run):
    """4 times the capacity, open loop."""
    asked = requests(TOKENS)
    with run.cluster(
        Settings(step_ms=f"{run.step_ms}", max_running=RUNNING, tenant={"max_queued_requests": QUEUED})
    ) as cluster, Memory(cluster) as memory:
        expected = reference(cluster, asked)
        unloaded = closed(cluster, asked, 1, count=run.times(6, 60))
        capacity = _capacity(run, cluster, asked)
        cluster.settle()
        seconds = run.seconds(4.0)
        begin = time.monotonic()
        with Load(
            addresses=cluster.routers, token=TOKEN, requests=asked, rate=FACTOR * capacity, seconds=seconds, seed=run.seed
        ) as load:
            records = load.wait(seconds + 60)
        end = begin + seconds
        settled = cluster.settle()
        time.sleep(0.5 if run.short else 10.0)
        after = closed(cluster, asked, 1, count=run.times(6, 60))
    report = run.report
    report.figure("capacity", capacity, "requests/s")
    report.figure("offered", len(records.all) / seconds, "requests/s")
    run.failures("requests", records.failed + unloaded.failed + after.failed + after.of(REFUSED))
    # From when the first outputs can be there.
    steady = begin + min(2.0, seconds / 3)
    report.promise("goodput over capacity", records.rate(steady, end) / capacity, ">=", run.bound(0.9, 0.4))
    tail = run.tail
    name = f"p{100 * tail:.0f}"
    report.promise(f"{name} of admitted over unloaded", records.p(tail) / unloaded.p(tail), "<=", run.bound(2, 5))
    report.figure("unloaded, p99", 1e3 * unloaded.p(0.99), "ms")
    report.figure("admitted, p50", 1e3 * records.p(0.5), "ms")
    report.figure("admitted, p99", 1e3 * records.p(0.99), "ms")
    _refusals(run, records)
    _memory(run, memory, ("router-0", "verifier-0"), begin, end, 64)
    report.promise("nothing runs or waits after", settled, "<=", 10, "s")
    report.promise(f"{name} afterwards over unloaded", after.p(tail) / unloaded.p(tail), "<=", run.bound(1.2, 3))
    run.outputs(records, expected)
    run.lateness(records)


def _in_turns(run, cluster, asked, disturbance, phases):
    """Records of one tenant's three clients alone, and beside the disturbance: in turns, so that what else the machine does
    meets both. The disturbance is a Load's options; its records are returned too."""
    seconds = run.seconds(6.0) / (2 * phases)
    alone, beside, others = [], [], []
    lead = 1.0  # Until the whole disturbance has arrived.
    for _ in range(phases):
        alone.append(closed(cluster, asked, 3, seconds))
        with Load(addresses=cluster.routers, seconds=seconds + lead, **disturbance) as load:
            time.sleep(lead)
            beside.append(closed(cluster, asked, 3, seconds))
            others.append(load.wait(seconds + 90))
        cluster.settle()

    def joined(parts):
        parts[0].all = [record for part in parts for record in part.all]
        parts[0].late = [late for part in parts for late in part.late]
        return parts[0]

    return joined(alone), joined(beside), joined(others)


def _compare(run, alone, beside, strict, short, why=""):
    report = run.report
    run.failures("requests of the tenant alone", alone.failed + alone.of(REFUSED))
    run.failures("requests of the tenant beside it", beside.failed + beside.of(REFUSED))
    tail = run.tail
    name = f"p{100 * tail:.0f} beside it over alone{why}"
    report.promise(name, beside.p(tail) / alone.p(tail), "<=", run.bound(strict, short))
    for name, records in (("alone", alone), ("beside it", beside)):
        for share in (0.5, 0.99):
            report.figure(f"{name}, p{100 * share:.0f}", 1e3 * records.p(share), "ms")
        first = 1e3 * records.p(0.99, lambda record: record.first - record.begin)
        report.figure(f"{name}, first token, p99", first, "ms")
        report.figure(f"{name}, requests", len(records.all))
    run.lateness(beside)


def fairness(run):
    """One tenant floods the router, and another one requests its fair share."""
    asked = requests(TOKENS)
    settings = Settings(
        step_ms=f"{run.step_ms}",
        max_running=RUNNING,
        more_tenants=({"name": "flood", "token": OTHER, "max_queued_requests": QUEUED},),
    )
    with run.cluster(settings) as cluster:
        expected = reference(cluster, asked)
        flood = {"token": OTHER, "requests": asked, "rate": FACTOR * RUNNING / (TOKENS * run.step_ms / 1000), "seed": run.seed}
        alone, beside, flooding = _in_turns(run, cluster, asked, flood, 1 if run.short else 4)
    _compare(run, alone, beside, 1.2, 2.0)
    run.failures("requests of the flooding tenant", flooding.failed)
    run.report.promise("refusals, which all are the flooding tenant's", len(flooding.of(REFUSED)), ">=", 1)
    run.report.figure("the flooding tenant's served", len(flooding.ok))
    run.outputs(beside, expected)


def long_prompts(run):
    """Prompts of 1,800 tokens (300 in the short form), none of which is in a cache, beside short ones. A step takes 1 % longer for each
    row, so that a chunk of a prompt, of 32 tokens, costs the others what it costs on a processor."""
    asked = requests(TOKENS)
    step, row, chunk = run.step_ms, run.step_ms / 100, 32
    settings = Settings(
        max_running=RUNNING,
        step_ms=f"{step}+{row}",
        more_tenants=({"name": "long", "token": OTHER},),
        verifier_flags=processes.settings(prefill_chunk=chunk),
    )
    long = [{"random_prompt": 1800 if not run.short else 300, "max_tokens": 4, "temperature": 0.0, "ignore_eos": True}]
    with run.cluster(settings) as cluster:
        expected = reference(cluster, asked)
        disturbance = {"token": OTHER, "requests": long, "clients": 4, "seed": run.seed}
        alone, beside, prompts = _in_turns(run, cluster, asked, disturbance, 1 if run.short else 4)
    # A step beside a chunk, and 5 % for the time between steps; the prompt waits for a step that has begun.
    fair = (step + row * (chunk + RUNNING)) / step * 1.05 + 1 / TOKENS
    _compare(run, alone, beside, fair, 4.0, ", by what a chunk of a prompt costs")
    run.failures("long prompts", prompts.failed + prompts.of(REFUSED))
    run.report.promise("long prompts that were answered", len(prompts.ok), ">=", 1)
    run.report.figure("long prompts, p99", prompts.p(0.99), "s")
    run.outputs(beside, expected)
