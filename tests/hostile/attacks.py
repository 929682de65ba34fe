"""What hostile callers send. Each attack is bounded in connections and bytes, and says what it used."""

import contextlib
import dataclasses
import itertools
import socket
import struct
import threading
import time
import zlib

import http2

GENERATE = "/tandem.v1.Generation/Generate"
INFO = "/tandem.v1.Admin/GetServerInfo"


@dataclasses.dataclass
class Cost:
    """What an attack sent."""

    connections: int
    sent_bytes: int


@contextlib.contextmanager
def idle_connections(address, count):
    """Connections that say nothing, opened as fast as they can be and kept open. Gives how many there are."""
    host, port = address.rsplit(":", 1)
    with contextlib.ExitStack() as opened:
        connected = 0
        for _ in range(count):
            with contextlib.suppress(OSError):
                opened.enter_context(socket.create_connection((host, int(port)), timeout=2.0))
                connected += 1
        yield connected


def inflating_call(address, inflated_mib, path=GENERATE, encoding="gzip", patience=20.0):
    """A message of zeros: small when sent, large when inflated."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
    packed = b"".join(compressor.compress(bytes(1 << 20)) for _ in range(inflated_mib)) + compressor.flush()
    with http2.Connection(address, timeout=patience) as connection:
        stream = connection.open_stream(path, ("grpc-encoding", encoding))
        with contextlib.suppress(OSError):
            send_within_window(connection, stream, http2.message(packed, compressed=True), end=True)
            while (got := connection.read_frame()) is not None:
                if got[0] in (http2.RST_STREAM, http2.GOAWAY) or (got[0] == http2.HEADERS and got[1] & http2.END_STREAM):
                    break
        return Cost(1, connection.sent)


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


def unfinished_messages(address, streams, seconds, mib=4):
    """Many calls on one connection, each with all but the last byte of a large message, as far as the server takes it."""
    part = http2.message(bytes(mib << 20))[:-1]
    with http2.Connection(address, timeout=seconds) as connection:
        opened = {connection.open_stream(GENERATE): 0 for _ in range(streams)}
        window = dict.fromkeys(opened, 65535)
        all_streams, initial = 65535, 65535
        until = time.monotonic() + seconds
        with contextlib.suppress(OSError):
            while time.monotonic() < until:
                progress = False
                for stream in list(opened):
                    allowed = min(all_streams, window[stream], 16384, len(part) - opened[stream])
                    if allowed <= 0:
                        continue
                    begin = opened[stream]
                    connection.send(http2.frame(http2.DATA, 0, stream, part[begin : begin + allowed]))
                    opened[stream] += allowed
                    window[stream] -= allowed
                    all_streams -= allowed
                    progress = True
                if progress:
                    connection.socket.settimeout(0.002)
                else:
                    connection.socket.settimeout(0.2)
                try:
                    while (got := connection.read_frame()) is not None:
                        kind, flags, of_stream, payload = got
                        if kind == http2.WINDOW_UPDATE:
                            by = int.from_bytes(payload, "big")
                            if of_stream == 0:
                                all_streams += by
                            elif of_stream in window:
                                window[of_stream] += by
                        elif kind == http2.SETTINGS and not flags & http2.ACK:
                            for key, value in struct.iter_unpack(">HI", payload):
                                if key == http2.INITIAL_WINDOW_SIZE:
                                    window = {s: w + value - initial for s, w in window.items()}
                                    initial = value
                        elif kind == http2.RST_STREAM or (kind == http2.HEADERS and flags & http2.END_STREAM):
                            opened.pop(of_stream, None)
                            window.pop(of_stream, None)
                        elif kind == http2.GOAWAY:
                            return Cost(1, connection.sent)
                    return Cost(1, connection.sent)
                except TimeoutError:
                    pass
                finally:
                    connection.socket.settimeout(seconds)
        return Cost(1, connection.sent)


def refused_calls(address, seconds, connections=1):
    """Calls without a token, one after the other without waiting for answers, which are not read either."""
    costs = []

    def flood():
        with contextlib.suppress(OSError), http2.Connection(address, timeout=1.0) as connection:
            try:
                until = time.monotonic() + seconds
                body = http2.message(b"\x0a\x02hi")
                while time.monotonic() < until:
                    stream = connection.open_stream(GENERATE)
                    connection.send_data(stream, body, end=True)
            finally:
                costs.append(connection.sent)

    threads = [threading.Thread(target=flood) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Cost(connections, sum(costs))


def endless_header(address, megabytes, seconds):
    """One header whose value does not end, in CONTINUATION frames."""
    with http2.Connection(address, timeout=seconds) as connection:
        until = time.monotonic() + seconds
        with contextlib.suppress(OSError):
            begin = http2.request_headers(GENERATE) + b"\x00\x01x" + http2.integer(1 << 30, 7)
            connection.send(http2.frame(http2.HEADERS, 0, 1, begin))
            part = http2.frame(http2.CONTINUATION, 0, 1, b"a" * 16384)
            for _ in itertools.repeat(None, megabytes << 6):
                if time.monotonic() > until:
                    break
                connection.send(part)
        return Cost(1, connection.sent)


class WindowlessCalls:
    """Calls on streams whose window is 0: the server has answers that it may not send. They stay until `close`."""

    def __init__(self, address, request, token, count):
        self._connection = http2.Connection(address, settings=[(http2.INITIAL_WINDOW_SIZE, 0)])
        for _ in range(count):
            stream = self._connection.open_stream(GENERATE, ("authorization", f"Bearer {token}"))
            self._connection.send_data(stream, http2.message(request), end=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._connection.close()
