"""Processes that are started together, watched, started again when they die, and stopped in order."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import ctypes
import os
import pathlib
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0
# One that served this long begins with the first delay again.
HEALTHY_SECONDS = 60.0
# A router lets requests go on for its --drain-grace; one that takes longer than this to stop is killed.
STOP_SECONDS = 60.0
SHOWN_LINES = 8
MAX_LINE_BYTES = 1 << 20
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None)


class StartError(Exception):
    """A part ended before it had served; the message is what it said."""


def say(text: str) -> None:
    print(f"tandem serve: {text}", file=sys.stderr, flush=True)


def end_with(parent: int) -> None:
    """In a part, before its program runs: it stops when this process dies, however that happens."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def ending(code: int) -> str:
    """How a process ended, for people."""
    return f"ended with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"


class Part:
    """A process of the command. `command` is asked before each start; `sign` sees each line and says whether it now serves.

    Its output goes to `log`, a file that grows, or nowhere; the last lines are kept for the message about its end. Everything runs
    on one event loop.
    """

    def __init__(
        self, name: str, command: Callable[[], list[str]], sign: Callable[[str], bool], log: pathlib.Path | None
    ) -> None:
        self.name = name
        self.ready = asyncio.Event()  # Set once it has served, and for good.
        self._command, self._sign, self._log = command, sign, log
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._last: collections.deque[str] = collections.deque(maxlen=SHOWN_LINES)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.returncode is None else None

    async def run(self) -> None:
        """Until it is told to stop. StartError if it ends before it has ever served."""
        delay = FIRST_DELAY_SECONDS
        clock = asyncio.get_running_loop().time
        try:
            while not self._stopping.is_set():
                started = clock()
                code = await self._run_once()
                if self._stopping.is_set():
                    return
                if not self.ready.is_set():
                    raise StartError(f"{self.name} {ending(code)}:\n{self.last_lines()}")
                if clock() - started >= HEALTHY_SECONDS:
                    delay = FIRST_DELAY_SECONDS
                say(f"{self.name} {ending(code)}; it starts again in {delay:g} s. Its last lines:\n{self.last_lines()}")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), delay)
                delay = min(2 * delay, LONGEST_DELAY_SECONDS)
        finally:
            self._ended.set()

    async def _run_once(self) -> int:
        """Its exit code, or minus the signal that ended it."""
        parent = os.getpid()
        self._last.clear()
        # A session of its own: Ctrl-C is for this process, which stops the parts in order.
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command(), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            limit=MAX_LINE_BYTES, start_new_session=True, preexec_fn=lambda: end_with(parent),
        )  # fmt: skip
        if self._stopping.is_set():  # Told so while it was started.
            process.terminate()
        assert process.stdout is not None
        with self._log.open("ab") if self._log else contextlib.nullcontext() as log:
            async for raw in process.stdout:
                if log:
                    log.write(raw)
                    log.flush()
                line = raw.decode(errors="replace").rstrip("\n")
                self._last.append(line)
                if self._sign(line):
                    self.ready.set()
        return await process.wait()

    def last_lines(self) -> str:
        return "\n".join(f"    {line}" for line in self._last) or "    (it said nothing)"

    async def stop(self) -> None:
        """Returns once it has ended. What has been asked of it may end before."""
        self._stopping.set()
        if self.pid is not None:
            assert self._process is not None
            self._process.terminate()
        try:
            await asyncio.wait_for(self._ended.wait(), STOP_SECONDS)
        except TimeoutError:
            say(f"{self.name} did not stop within {STOP_SECONDS:g} s, and is killed")
            self.kill()
            await self._ended.wait()

    def kill(self) -> None:
        """With the processes that it has started."""
        self._stopping.set()
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


async def run_all(parts: Sequence[Part], when_ready: Callable[[], Awaitable[int | None]]) -> int | None:
    """Runs parts until SIGINT or SIGTERM stops them in their order; a second signal kills them. `when_ready` is called when all have
    served; if it returns an exit code, the parts stop and this returns it. None after a signal, 130 after a second one. StartError if a
    part did not start."""
    stopped = asyncio.Event()
    killed = False

    def on_signal() -> None:
        nonlocal killed
        if not stopped.is_set():
            say("stopping; requests that run may end. Once more stops at once")
            stopped.set()
            return
        killed = True
        for part in parts:
            part.kill()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)

    async def once_ready() -> int | None:
        for part in parts:
            await part.ready.wait()
        return await when_ready()

    runs = [asyncio.create_task(part.run()) for part in parts]
    user = asyncio.create_task(once_ready())
    stop = asyncio.create_task(stopped.wait())
    pending: set[asyncio.Task[object]] = {user, stop, *runs}
    try:
        while not stop.done():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if user in done and (code := user.result()) is not None:
                return code
    finally:
        stopped.set()
        user.cancel()
        for part in parts:
            await part.stop()
        await asyncio.gather(*runs, user, stop, return_exceptions=True)
    return 130 if killed else None
