"""Callers that go away, and one that does not read its output, while another tenant calls all the time."""

import collections
import contextlib
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time

import attacks
import http2
import processes
from cluster import OTHER, TOKEN, Memory, Settings, resident_mib
from load import Load
from measure import quantile
from processes import REPOSITORY, clean_environment, request_for, wait_until
from run import closed, reference, requests

TOKENS = 8
GENERATE = attacks.GENERATE
CANCEL = 8  # HTTP/2's code.


class CancellingConnection(http2.Connection):
    """Opens calls and resets them, and reads answers meanwhile like gRPC's own client, which opens its windows
    again."""

    def __init__(self, address, request):
        super().__init__(address)
        # As in gRPC's clients. Otherwise a write would wait until the server has acknowledged the one before.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._body = http2.message(request)
        self.open = set()  # Calls that neither side has ended.
        self.ended = 0  # Calls that the server ended first.

    def open_calls(self, count):
        """Opens this many calls with a tenant's token, in one write."""
        streams, data = [], b""
        for _ in range(count):
            stream, self._next_stream = self._next_stream, self._next_stream + 2
            headers = http2.request_headers(GENERATE, ("authorization", f"Bearer {OTHER}"))
            data += http2.frame(http2.HEADERS, http2.END_HEADERS, stream, headers)
            data += http2.frame(http2.DATA, http2.END_STREAM, stream, self._body)
            streams.append(stream)
        self.send(data)
        self.open.update(streams)
        return streams

    def cancel(self, streams):
        self.open.difference_update(streams)
        self.send(b"".join(http2.frame(http2.RST_STREAM, 0, s, struct.pack(">I", CANCEL)) for s in streams))

    def take(self, seconds):
        """Reads what arrives in this time. ConnectionError if the server closes the connection."""
        until, received = time.monotonic() + seconds, 0
        while (left := until - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(1 << 16)
            except TimeoutError:
                break
            if not data:
                raise ConnectionError("closed by the server")
            self._unread += data
            received += self._take_frames()
        self.socket.settimeout(10.0)
        if received:
            self.send(http2.frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", received)))

    def _take_frames(self):
        """Whole frames of what was read; the bytes of data in them."""
        received = 0
        while len(self._unread) >= 9:
            size = int.from_bytes(self._unread[:3], "big")
            if len(self._unread) < 9 + size:
                break
            kind, flags, stream = struct.unpack(">BBI", self._unread[3:9])
            payload, self._unread = self._unread[9 : 9 + size], self._unread[9 + size :]
            if kind == http2.GOAWAY:
                raise ConnectionError(f"GOAWAY {payload[4:]!r}")
            if kind in (http2.SETTINGS, http2.PING) and not flags & http2.ACK:
                self.send(http2.frame(kind, http2.ACK, 0, payload if kind == http2.PING else b""))
            elif kind == http2.DATA:
                received += size
            elif kind == http2.HEADERS and flags & http2.END_STREAM:
                self.ended += stream in self.open
        return received


def _descriptors(server):
    return len(os.listdir(f"/proc/{server.pid}/fd"))


def _router_calls(cluster, tenant, **labels):
    """Requests of the tenant that got their terminal status there."""
    return int(cluster.running["router-0"].metric("tandem_router_requests_total", tenant=tenant, **labels) or 0)


def _recovered(run, cluster, before_mib, before_descriptors):
    """Everything is free again, and memory and descriptors are back."""
    report = run.report
    report.promise("nothing runs or waits after", cluster.settle(), "<=", 10, "s")
    for name in ("router-0", "verifier-0"):
        server = cluster.running[name]
        wait_until(lambda s=server, n=name: _descriptors(s) <= before_descriptors[n] + 8, f"descriptors of {name} to be back")
        report.promise(f"memory of {name}, afterwards above before", resident_mib(server.pid) - before_mib[name], "<=", 48, "MiB")


def _state(cluster):
    """(MiB, descriptors) by part, of now."""
    parts = cluster.running.items()
    return {n: resident_mib(s.pid) for n, s in parts}, {n: _descriptors(s) for n, s in parts}


def _served_meanwhile(run, records, unloaded, expected, strict, short):
    run.failures("requests of the other tenant", [record for record in records.all if record.code != "OK"])
    run.report.promise("requests of the other tenant", len(records.ok), ">=", 1)
    # These callers need cores as well as places, and the servers have no other cores here.
    name = f"p{100 * run.tail:.0f} of the other tenant over unloaded"
    run.report.promise(name, records.p(run.tail) / unloaded.p(run.tail), "<=", run.bound(strict, short))
    run.report.figure("the other tenant unloaded, p99", 1e3 * unloaded.p(0.99), "ms")
    run.report.figure("the other tenant, p50", 1e3 * records.p(0.5), "ms")
    run.report.figure("the other tenant, p99", 1e3 * records.p(0.99), "ms")
    run.outputs(records, expected)


def _two_tenants(run, **tenant):
    return Settings(step_ms=f"{run.step_ms}", more_tenants=({"name": "other", "token": OTHER, **tenant},))


def cancels(run):
    """1,000 calls a second that are cancelled: some before they have a place, some while they wait, some while they run."""
    batch, num_connections, rounds_a_second = 25, 8, 5
    rounds = run.times(1000, 10_000) // (batch * num_connections)
    asked = requests(TOKENS)
    request = request_for(max_tokens=64).SerializeToString()
    opened, errors = collections.Counter(), []
    with run.cluster(_two_tenants(run, max_queued_requests=2000)) as cluster:
        expected = reference(cluster, asked)
        unloaded = closed(cluster, asked, 2, count=24 if run.short else 60)
        before = _state(cluster)
        calls_before = _router_calls(cluster, "other")

        def work(number):
            chance = random.Random(run.seed * 1000 + number)
            due = time.monotonic()
            try:
                with CancellingConnection(cluster.routers[0], request) as connection:
                    for _ in range(rounds):
                        streams = connection.open_calls(batch)
                        opened["calls"] += batch
                        connection.take(chance.choice((0.0, 0.005, 0.02, 0.12)))
                        connection.cancel(streams)
                        due += 1 / rounds_a_second
                        connection.take(max(due - time.monotonic(), 0.0))
                    connection.take(0.5)
                    opened["ended by the server"] += connection.ended
            except OSError as error:
                errors.append(repr(error))

        with Load(addresses=cluster.routers, token=TOKEN, requests=asked, clients=2) as load:
            began = time.monotonic()
            threads = [threading.Thread(target=work, args=(number,)) for number in range(num_connections)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seconds = time.monotonic() - began - 0.5
            records = load.end()
        report = run.report
        report.promise("calls", opened["calls"], "==", rounds * batch * num_connections)
        report.promise("connections that the router closed", len(errors), "==", 0)
        report.promise("cancels a second", opened["calls"] / seconds, ">=", run.bound(950, 300))
        report.figure("calls that the router ended first", opened["ended by the server"])
        _recovered(run, cluster, *before)
        counted = _router_calls(cluster, "other") - calls_before
        report.promise("requests with one terminal status", counted, "==", opened["calls"])
        cancelled = _router_calls(cluster, "other", code="CANCELLED")
        report.promise("of them with another one than CANCELLED", counted - cancelled, "==", 0)
        for error in errors[:3]:
            report.note(error)
    _served_meanwhile(run, records, unloaded, expected, 3.0, 4.0)
    run.lateness(records)


def _drop(address, source, kind, request):
    """Opens a connection, sends these bytes, and drops it."""
    host, port = address.rsplit(":", 1)
    with socket.socket() as connection:
        connection.bind((source, 0))
        connection.settimeout(10.0)
        connection.connect((host, int(port)))
        if kind != "silent":
            data = http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0)
            if kind == "call":
                headers = http2.request_headers(GENERATE, ("authorization", f"Bearer {OTHER}"))
                data += http2.frame(http2.HEADERS, http2.END_HEADERS, 1, headers)
                data += http2.frame(http2.DATA, http2.END_STREAM, 1, http2.message(request))
            connection.sendall(data)
        # Half of them are reset, and half end as connections should.
        if connection.getsockname()[1] % 2:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def connections(run):
    """Connections that are opened and dropped as fast as possible: silent ones, some after the HTTP/2 preface, and some
    with a running call."""
    total, num_threads = run.times(3000, 50_000), 4
    asked = requests(TOKENS)
    request = request_for(max_tokens=64).SerializeToString()
    opened, refused = collections.Counter(), collections.Counter()
    with run.cluster(_two_tenants(run, max_queued_requests=2000)) as cluster:
        expected = reference(cluster, asked)
        unloaded = closed(cluster, asked, 2, count=24 if run.short else 60)
        before = _state(cluster)

        def work(number):
            for i in range(total // num_threads):
                kind = ("silent", "silent", "hello", "hello", "call")[i % 5]
                # The system does not reuse the ports of a normally closed connection for a minute.
                source = f"127.0.{1 + number}.{1 + i % 200}"
                try:
                    _drop(cluster.routers[0], source, kind, request)
                    opened[kind] += 1
                except OSError as error:
                    refused[repr(error)] += 1

        most = 0
        with Load(addresses=cluster.routers, token=TOKEN, requests=asked, clients=2) as load:
            began = time.monotonic()
            threads = [threading.Thread(target=work, args=(number,)) for number in range(num_threads)]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                most = max(most, resident_mib(cluster.running["router-0"].pid))
                time.sleep(0.1)
            seconds = time.monotonic() - began
            time.sleep(0.5)  # One call of the other tenant takes as long as some thousands of connections.
            records = load.end()
        report = run.report
        report.promise("connections", sum(opened.values()), ">=", total // num_threads * num_threads * 0.999)
        report.figure("connections a second", sum(opened.values()) / seconds)
        report.figure("of them with a call", opened["call"])
        report.figure("calls that had a status", _router_calls(cluster, "other"))
        report.promise("memory of router-0, most above before", most - before[0]["router-0"], "<=", 256, "MiB")
        _recovered(run, cluster, *before)
        for error, count in refused.most_common(3):
            report.note(f"{count} times {error}")
    _served_meanwhile(run, records, unloaded, expected, 3.0, 4.0)
    run.lateness(records)


def slow_reader(run):
    """A tenant whose clients read 64 bytes per second of outputs of 1,000 tokens, and one whose client is slow."""
    asked = requests(TOKENS)
    long = requests(run.bound(200, 60))[:1]
    seconds = run.seconds(4.0)
    settings = _two_tenants(run, max_queued_requests=64)
    settings.router_flags = processes.settings(write_stall_timeout="4s")
    with run.cluster(settings) as cluster, Memory(cluster) as memory, contextlib.ExitStack() as ending:
        expected = reference(cluster, asked)
        unloaded = closed(cluster, asked, 3, count=24 if run.short else 200)
        (whole,) = reference(cluster, long)
        before = _state(cluster)
        path = run.folder / "request"
        path.write_text(request_for(max_tokens=1000).SerializeToString().hex())
        began = time.monotonic()
        readers = subprocess.Popen(
            [sys.executable, "-B", str(REPOSITORY / "tests" / "hostile" / "attacks.py"), "slow_readers"]
            + [cluster.routers[0], f"seconds={seconds}", f"token={OTHER}", f"request=@{path}", "count=64"],
            stdout=subprocess.DEVNULL,
            env=clean_environment(),
        )
        ending.callback(readers.wait)
        ending.callback(readers.kill)
        dawdler = ending.enter_context(
            Load(addresses=cluster.routers, token=TOKEN, requests=long, clients=1, count=1, pause=0.02)
        )
        time.sleep(1.0)
        records = closed(cluster, asked, 3, seconds - 1.0)
        readers.wait(60)
        dawdled = dawdler.wait()
        slow = _router_calls(cluster, "other")
        run.report.promise("calls whose client reads slowly, that are over", slow, ">=", 1)
        most = max(memory.between("router-0", began, float("inf")))
        run.report.promise("memory of router-0, most above before", most - before[0]["router-0"], "<=", 64, "MiB")
        _recovered(run, cluster, *before)
    _served_meanwhile(run, records, unloaded, expected, 1.2, 3.0)
    run.failures("requests of the client that dawdles", [record for record in dawdled.all if record.code != "OK"])
    run.report.promise("its output is whole", sum(record.digest == whole for record in dawdled.ok), "==", 1)
    run.report.figure("its output took", quantile([record.seconds for record in dawdled.ok], 0.5), "s")
    run.lateness(records)
