"""How calls fail."""

from __future__ import annotations

import grpc
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

CLOSED = "the client was closed"

_DETAILS = "grpc-status-details-bin"


class Error(Exception):
    """A call that ended with another status than OK.

    `code` is gRPC's, `message` says what was wrong and names the field where there is one; `retry_after` is how many
    seconds the router asks to wait before the next try, of quotas and full queues.
    """

    def __init__(self, code: grpc.StatusCode, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.retry_after = retry_after

    @classmethod
    def of(cls, error: grpc.RpcError) -> Error:
        """Of what gRPC raised, with or without asyncio: both have these methods, which RpcError itself does not."""
        call: grpc.Call = error  # type: ignore[assignment]
        return cls(call.code(), call.details() or "", _retry_after(call))


def _retry_after(call: grpc.Call) -> float | None:
    for key, value in call.trailing_metadata() or ():
        if key != _DETAILS:
            continue
        status = status_pb2.Status.FromString(value)
        info = error_details_pb2.RetryInfo()
        for detail in status.details:
            if detail.Unpack(info):
                return float(info.retry_delay.ToTimedelta().total_seconds())
    return None
