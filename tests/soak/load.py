#!/usr/bin/env python3
"""Clients of routers, as a process of their own: requests by an open loop, which sends them whatever becomes of those
before, or by a closed one. Uses the Python package, as applications do.

    load.py SPEC RECORDS     ends when the time is over or its standard input is closed, and then what runs has ended

Scenarios use `Load`, which starts it. A record tells of one request; times are of the monotonic clock, which is one for
all processes of a machine.
"""

import asyncio
import dataclasses
import gc
import hashlib
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import grpc
import tandem

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from measure import quantile  # noqa: E402

OK, REFUSED = "OK", "RESOURCE_EXHAUSTED"


@dataclasses.dataclass
class Spec:
    """What to send. One of `rate` (requests a second, at random moments) and `clients` (as many at a time) is above 0."""

    addresses: list
    token: str
    # Keywords of AsyncClient.stream, with `prompt`; taken in turns. `random_prompt` is a number of tokens in its place.
    requests: list
    rate: float = 0.0
    clients: int = 0
    seconds: float = 1e9
    # A closed loop ends after this many requests; 0: when its time is over.
    count: int = 0
    # If a router is lost or its queue is full, continues at the next one. Otherwise every failure counts.
    resume: bool = False
    # A connection for every request.
    fresh: bool = False
    ca: str = ""
    timeout: float = 60.0
    # How long the client waits after each chunk before it takes the next one.
    pause: float = 0.0
    seed: int = 1
    # Above 0: how often what is over so far is written, in seconds.
    write_every: float = 0.0


@dataclasses.dataclass
class Record:
    """One request that is over."""

    request: int  # Of Spec.requests.
    begin: float
    first: float  # When its first token came; 0 without.
    end: float
    code: str
    message: str
    retry_after: float | None
    tokens: int
    digest: str  # Of tokens and text.
    calls: list  # The addresses that were called, in order.
    longest_gap: float  # Between two chunks, in seconds.

    @property
    def seconds(self):
        return self.end - self.begin


class _CountingClient(tandem.AsyncClient):
    """Records the addresses that it calls."""

    calls = ()

    def _begin(self, method, request, turn, retries):
        addresses = self._connection.addresses
        self.calls = (*self.calls, addresses[turn % len(addresses)])
        return super()._begin(method, request, turn, retries)


class Generator:
    """Sends what a Spec says, in one event loop."""

    def __init__(self, spec):
        self._spec = spec
        self._random = random.Random(spec.seed)
        self._stop = asyncio.Event()
        self._sent = 0
        self.records = []
        self.late = []  # How late this loop is, in seconds: the part of the latencies that the servers do not cause.

    def _client(self, addresses):
        spec = self._spec
        options = (("grpc.enable_http_proxy", 0),)
        if spec.fresh:
            options += (("grpc.use_local_subchannel_pool", 1),)
        return _CountingClient(
            *addresses,
            token=spec.token,
            tls=tandem.Tls(ca=spec.ca) if spec.ca else None,
            timeout=spec.timeout,
            retries=tandem.RetryPolicy() if spec.resume else tandem.RetryPolicy(attempts=1),
            options=options,
        )

    def _request(self, index):
        fields = dict(self._spec.requests[index])
        length = fields.pop("random_prompt", None)
        prompt = fields.pop("prompt", None)
        if length is not None:
            prompt = [self._random.randrange(300, 3000) for _ in range(length)]
        return prompt, fields

    async def _one(self, index):
        prompt, fields = self._request(index)
        record = Record(index, time.monotonic(), 0.0, 0.0, OK, "", None, 0, "", [], 0.0)
        addresses = [*self._spec.addresses]
        self._random.shuffle(addresses)
        async with self._client(addresses) as client:
            try:
                async with client.stream(prompt, **fields) as stream:
                    last = record.begin
                    async for chunk in stream:
                        now = time.monotonic()
                        record.first = record.first or now
                        if now > record.first:
                            record.longest_gap = max(record.longest_gap, now - last)
                        last = now
                        if self._spec.pause and chunk.tokens:
                            await asyncio.sleep(self._spec.pause)
                    result = stream.result
                record.tokens = len(result.tokens)
                record.digest = hashlib.sha256(repr((list(result.tokens), result.text)).encode()).hexdigest()[:16]
            except tandem.Error as error:
                record.code, record.message, record.retry_after = error.code.name, error.message, error.retry_after
            except Exception as error:  # pylint: disable=broad-except
                # A defect of the client counts as a failure.
                record.code, record.message = type(error).__name__, repr(error)
            record.end = time.monotonic()
            record.calls = list(client.calls)
        self.records.append(record)

    def _next(self):
        self._sent += 1
        return (self._sent - 1) % len(self._spec.requests)

    async def _open(self):
        running = set()
        due = time.monotonic()
        while not self._stop.is_set():
            due += self._random.expovariate(self._spec.rate)
            await self._pause(due - time.monotonic())
            if not self._stop.is_set():
                task = asyncio.create_task(self._one(self._next()))
                running.add(task)
                task.add_done_callback(running.discard)
        await asyncio.gather(*running)

    async def _closed(self):
        while not self._stop.is_set() and not 0 < self._spec.count <= self._sent:
            await self._one(self._next())

    async def _pause(self, seconds):
        if seconds > 0:
            try:
                await asyncio.wait_for(self._stop.wait(), seconds)
            except TimeoutError:
                pass

    async def _watch_loop(self):
        while not self._stop.is_set():
            began = time.monotonic()
            # Hours are looked at less closely.
            pause = 0.2 if self._spec.write_every > 0 else 0.02
            await asyncio.sleep(pause)
            self.late.append(time.monotonic() - began - pause)

    def write(self, path):
        """All records so far, in place of those written before."""
        records = [dataclasses.asdict(record) for record in self.records]
        late = self.late if self._stop.is_set() else []
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"records": records, "late": late}))
        new.replace(path)

    async def _write_often(self, path):
        while not self._stop.is_set():
            await self._pause(self._spec.write_every)
            self.write(path)

    async def run(self, path):
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin, self._stop.set)
        gc.disable()  # Without garbage collection, whose pauses would look like the servers'. An hour of records fits
                      # into memory.
        # gRPC shares connections among channels with equal options: these keep them between requests.
        keepers = [] if self._spec.fresh else [self._client([address]) for address in self._spec.addresses]
        for keeper in keepers:
            await keeper.list_models(timeout=self._spec.timeout)
        print("ready", flush=True)
        loop.call_later(min(self._spec.seconds, 1e6), self._stop.set)
        work = [self._open()] if self._spec.rate > 0 else [self._closed() for _ in range(self._spec.clients)]
        watching = [asyncio.create_task(self._watch_loop())]
        if self._spec.write_every > 0:
            watching.append(asyncio.create_task(self._write_often(path)))
        await asyncio.gather(*work)
        self._stop.set()
        await asyncio.gather(*watching)
        self.write(path)
        for keeper in keepers:
            await keeper.close()


class Records:
    """The results of a Load."""

    def __init__(self, records, late):
        self.all = records
        self.late = late

    def between(self, begin, end):
        """Those that began then."""
        return Records([record for record in self.all if begin <= record.begin < end], self.late)

    def of(self, *codes):
        return [record for record in self.all if record.code in codes]

    @property
    def ok(self):
        return self.of(OK)

    @property
    def failed(self):
        """Requests that failed and were not refused."""
        return [record for record in self.all if record.code not in (OK, REFUSED)]

    def p(self, share, what=lambda record: record.seconds):
        """A quantile over those that went well, in seconds."""
        return quantile([what(record) for record in self.ok], share)

    def rate(self, begin, end):
        """Requests a second that ended well in this time."""
        return sum(begin <= record.end < end for record in self.ok) / (end - begin)

    def wrong(self, expected):
        """Those with another output than the request's expected digest."""
        return [record for record in self.ok if record.digest != expected[record.request]]


class Load:
    """The process. It has started to send when the constructor returns, and ends with the `with` block at the
    latest."""

    def __init__(self, **spec):
        self._folder = tempfile.TemporaryDirectory(prefix="tandem-load-")
        folder = pathlib.Path(self._folder.name)
        (folder / "spec").write_text(json.dumps(dataclasses.asdict(Spec(**spec))))
        self._records = folder / "records"
        self.process = subprocess.Popen(
            [sys.executable, "-B", __file__, str(folder / "spec"), str(self._records)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        if self.process.stdout.readline() != b"ready\n":
            raise RuntimeError("the load generator does not start; what it said is above")

    def end(self, patience=90.0):
        """Stops sending, waits for running requests, and returns the Records."""
        self.process.stdin.close()
        return self.wait(patience)

    def wait(self, patience=90.0):
        """Waits until it has ended by itself, after its `seconds`, and returns the Records."""
        if self.process.wait(patience) != 0:
            raise RuntimeError("the load generator failed; what it said is above")
        return self.so_far()

    def so_far(self):
        """Records that were written last; none before the first time."""
        if not self._records.exists():
            return Records([], [])
        told = json.loads(self._records.read_text())
        return Records([Record(**record) for record in told["records"]], told["late"])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self._folder.cleanup()


def main():
    spec = Spec(**json.loads(pathlib.Path(sys.argv[1]).read_text()))
    generator = Generator(spec)
    asyncio.run(generator.run(pathlib.Path(sys.argv[2])))


if __name__ == "__main__":
    main()
