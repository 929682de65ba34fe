"""HTTP/2 by hand, for clients that do what no gRPC library would. Nothing but the standard library."""

import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
ACK = END_STREAM = 1
END_HEADERS = 4
INITIAL_WINDOW_SIZE = 4


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def integer(value, prefix_bits, first=0):
    """HPACK's integers; `first` has the bits before the prefix."""
    limit = (1 << prefix_bits) - 1
    if value < limit:
        return bytes([first | value])
    value -= limit
    encoded = bytes([first | limit])
    while value >= 128:
        encoded += bytes([value % 128 + 128])
        value //= 128
    return encoded + bytes([value])


def header(key, value):
    """A literal that is not indexed and not Huffman-coded."""
    key, value = (part.encode() if isinstance(part, str) else part for part in (key, value))
    return b"\x00" + integer(len(key), 7) + key + integer(len(value), 7) + value


def request_headers(path, *fields):
    return b"".join(
        header(key, value)
        for key, value in (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "127.0.0.1"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *fields,
        )
    )


def message(payload, compressed=False):
    return struct.pack(">BI", compressed, len(payload)) + payload


class Connection:
    """One connection to a server. Writes block for `timeout` seconds at most; nothing is answered unless asked for."""

    def __init__(self, address, settings=(), timeout=10.0, receive_buffer=None):
        host, port = address.rsplit(":", 1)
        self.socket = socket.socket()
        try:
            # The window that is told when it connects.
            if receive_buffer is not None:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            self.socket.settimeout(timeout)
            self.socket.connect((host, int(port)))
        except OSError:
            self.socket.close()
            raise
        self.sent = 0
        self._next_stream = 1
        self._unread = b""
        pairs = b"".join(struct.pack(">HI", key, value) for key, value in settings)
        self.send(PREFACE + frame(SETTINGS, 0, 0, pairs))

    def send(self, data):
        self.socket.sendall(data)
        self.sent += len(data)

    def open_stream(self, path, *fields, end_headers=True):
        stream = self._next_stream
        self._next_stream += 2
        self.send(frame(HEADERS, END_HEADERS if end_headers else 0, stream, request_headers(path, *fields)))
        return stream

    def send_data(self, stream, payload, end=False):
        """In frames of the size that every peer takes; flow control is the caller's matter."""
        for begin in range(0, max(len(payload), 1), 16384):
            part = payload[begin : begin + 16384]
            last = end and begin + 16384 >= len(payload)
            self.send(frame(DATA, END_STREAM if last else 0, stream, part))

    def read_frame(self):
        """(kind, flags, stream, payload), or None at the end of the connection. Settings and pings are answered."""
        while True:
            head = self._read(9)
            if head is None:
                return None
            size = int.from_bytes(head[:3], "big")
            kind, flags, stream = struct.unpack(">BBI", head[3:])
            payload = self._read(size)
            if payload is None:
                return None
            if kind in (SETTINGS, PING) and not flags & ACK:
                self.send(frame(kind, ACK, 0, payload if kind == PING else b""))
            return kind, flags, stream, payload

    def skip_input(self):
        """Takes what has come, unread."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(1 << 16):
                pass
        except BlockingIOError:
            pass
        finally:
            self.socket.settimeout(1.0)

    def _read(self, size):
        while len(self._unread) < size:
            try:
                data = self.socket.recv(65536)
            except ConnectionError:
                data = b""
            if not data:
                return None
            self._unread += data
        data, self._unread = self._unread[:size], self._unread[size:]
        return data

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
