"""What both clients know of their routers: addresses, credentials, channels' options."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import grpc

from tandem.v1 import generation_pb2_grpc

# As Tandem's servers have it (common/rpc/channel.h): they close connections that ask for more.
_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
_DEFAULT_ADDRESS = "127.0.0.1:7001"

Path = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Tls:
    """PEM files. `ca` signs the routers' certificates; without it the system's authorities do. `certificate` and `key` are
    shown to routers that ask for a client's."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """OSError for a file that cannot be read."""
        files = (self.ca, self.key, self.certificate)
        return grpc.ssl_channel_credentials(
            *(None if file is None else pathlib.Path(file).read_bytes() for file in files)
        )


@dataclasses.dataclass(frozen=True)
class Connection:
    addresses: tuple[str, ...]
    metadata: tuple[tuple[str, str], ...]
    credentials: grpc.ChannelCredentials | None
    options: tuple[tuple[str, Any], ...]

    @classmethod
    def of(
        cls, addresses: Sequence[str], token: str | None, tls: Tls | None, options: Sequence[tuple[str, Any]]
    ) -> Connection:
        """Without addresses and token those of TANDEM_ENDPOINT and TANDEM_TOKEN, as of the command line."""
        if not addresses:
            addresses = os.environ.get("TANDEM_ENDPOINT", _DEFAULT_ADDRESS).split(",")
        token = os.environ.get("TANDEM_TOKEN") if token is None else token
        return cls(
            addresses=tuple(addresses),
            metadata=(("authorization", f"Bearer {token}"),) if token else (),
            credentials=tls.credentials() if tls else None,
            options=(*_OPTIONS, *options),
        )


def stub_of(channel: grpc.Channel | grpc.aio.Channel) -> Any:
    """The service's methods. What protoc's plugin writes has no types."""
    return generation_pb2_grpc.GenerationStub(channel)  # type: ignore[no-untyped-call]
