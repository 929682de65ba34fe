"""When to try again, and where. No I/O: time and chance are passed in."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable

import grpc

from tandem.errors import Error


@dataclasses.dataclass(frozen=True)
class RetryPolicy:
    """How often a call is tried again when its router is lost, or asks to wait (RetryInfo).

    The next address is tried at once; when all were tried, after `first_pause` seconds, and each time after twice as
    long, up to `longest_pause`, less a random part of up to a half. What the router asks for is waited in any case.
    """

    attempts: int = 6  # At each address, one after the other without a new token. 1: never again.
    first_pause: float = 0.1
    longest_pause: float = 5.0


class Retries:
    """Those of one call, which has `deadline` by `now`."""

    def __init__(
        self,
        policy: RetryPolicy,
        num_addresses: int,
        timeout: float | None = None,
        now: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._policy = policy
        self._num_addresses = num_addresses
        self._now = now
        self._draw = draw
        self._deadline = None if timeout is None else now() + timeout
        self._in_vain = 0  # Attempts since the last one that brought something.

    @property
    def time_left(self) -> float | None:
        """Seconds until the deadline; None without one."""
        return None if self._deadline is None else max(self._deadline - self._now(), 0.0)

    def on_progress(self) -> None:
        self._in_vain = 0

    def pause(self, error: Error) -> float:
        """Seconds to wait before the next attempt; raises `error` when there is to be none.

        Not for calls that were cancelled here.
        """
        # gRPC itself answers CANCELLED to a call that reaches a server while this shuts down.
        lost = error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        asked_to_wait = error.code is grpc.StatusCode.RESOURCE_EXHAUSTED and error.retry_after is not None
        self._in_vain += 1
        rounds, among = divmod(self._in_vain, self._num_addresses)
        if not (lost or asked_to_wait) or rounds >= self._policy.attempts:
            raise error
        pause = error.retry_after or 0.0
        if among == 0:
            backoff = min(self._policy.first_pause * 2 ** (rounds - 1), self._policy.longest_pause)
            pause = max(pause, backoff * (1.0 - 0.5 * self._draw()))
        left = self.time_left
        if left is not None and pause >= left:
            raise error
        return pause
