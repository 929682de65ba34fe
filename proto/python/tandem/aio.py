"""The client for programs with asyncio. What it does is Client's, method by method."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self, Unpack

import grpc

from tandem.connection import Connection, Tls, stub_of
from tandem.errors import CLOSED, Error
from tandem.output import Chunk, Output
from tandem.request import Options, Prompt, request_of
from tandem.retries import Retries, RetryPolicy
from tandem.v1 import generation_pb2, types_pb2


class AsyncClient:
    """Client, of one event loop: that in which it is first used. A task that is cancelled cancels its request."""

    def __init__(
        self,
        *addresses: str,
        token: str | None = None,
        tls: Tls | None = None,
        timeout: float | None = None,
        retries: RetryPolicy = RetryPolicy(),
        options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        self._connection = Connection.of(addresses, token, tls, options)
        self._timeout = timeout
        self._policy = retries
        self._channels: list[grpc.aio.Channel] = []
        self._stubs: list[Any] = []
        self._turn = 0
        self._streams: weakref.WeakSet[AsyncStream] = weakref.WeakSet()  # What close cancels.
        self._closed = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancels what runs and closes all connections. Whoever waits for a call gets an Error with CANCELLED."""
        self._closed.set()
        for stream in list(self._streams):
            stream.cancel()
        for channel in self._channels:
            await channel.close()

    async def generate(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> generation_pb2.GenerateResult:
        async with self.stream(prompt, timeout=timeout, **options) as stream:
            async for _ in stream:
                pass
            return stream.result

    def stream(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> AsyncStream:
        stream = AsyncStream(self, request_of(prompt, options), self._retries(timeout))
        self._streams.add(stream)
        if self._closed.is_set():
            stream.cancel()
        return stream

    async def tokenize(
        self, text: str, *, model: str = "", plain: bool = False, timeout: float | None = None
    ) -> list[int]:
        request = generation_pb2.TokenizeRequest(model=model, text=text, plain=plain)
        return list((await self._call("Tokenize", request, timeout)).tokens.ids)

    async def detokenize(
        self,
        tokens: Sequence[int],
        *,
        model: str = "",
        skip_special_tokens: bool = False,
        timeout: float | None = None,
    ) -> str:
        request = generation_pb2.DetokenizeRequest(
            model=model, tokens=types_pb2.TokenIds(ids=tokens), skip_special_tokens=skip_special_tokens
        )
        return str((await self._call("Detokenize", request, timeout)).text)

    async def list_models(self, *, timeout: float | None = None) -> list[types_pb2.ModelInfo]:
        return list((await self._call("ListModels", generation_pb2.ListModelsRequest(), timeout)).models)

    def _channel(self, address: str) -> grpc.aio.Channel:
        options = self._connection.options
        if self._connection.credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, self._connection.credentials, options=options)

    def _retries(self, timeout: float | None) -> Retries:
        timeout = self._timeout if timeout is None else timeout
        return Retries(self._policy, len(self._connection.addresses), timeout)

    def _begin(self, method: str, request: Any, turn: int, retries: Retries) -> Any:
        if self._closed.is_set():
            raise Error(grpc.StatusCode.CANCELLED, CLOSED)
        if not self._stubs:
            # Here and not before: channels belong to the loop that runs.
            self._channels = [self._channel(address) for address in self._connection.addresses]
            self._stubs = [stub_of(channel) for channel in self._channels]
        begin = getattr(self._stubs[turn % len(self._stubs)], method)
        return begin(request, metadata=self._connection.metadata, timeout=retries.time_left)

    async def _call(self, method: str, request: Any, timeout: float | None) -> Any:
        retries = self._retries(timeout)
        turn = self._turn
        while True:
            try:
                reply = await self._begin(method, request, turn, retries)
                self._turn = turn
                return reply
            except asyncio.CancelledError:
                # gRPC raises this for a call of a channel that is closed, too.
                if not self._closed.is_set() or _is_task_cancelled():
                    raise
            except grpc.RpcError as error:
                await _wait(self._closed, retries.pause(Error.of(error)))
                turn += 1


class AsyncStream:
    """Stream, with `async with` and `async for`."""

    def __init__(
        self, client: AsyncClient, request: generation_pb2.GenerateRequest, retries: Retries
    ) -> None:
        self._client = client
        self._output = Output(request)
        self._retries = retries
        self._call: Any = None
        self._cancelled = asyncio.Event()
        self._chunks = self._run()

    @property
    def result(self) -> generation_pb2.GenerateResult:
        return self._output.result

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self._chunks

    def cancel(self) -> None:
        """Ends the request; whoever iterates gets an Error with CANCELLED. Nothing happens to one that is over."""
        self._cancelled.set()
        if self._call is not None:
            self._call.cancel()

    async def _run(self) -> AsyncIterator[Chunk]:
        client, output = self._client, self._output
        turn = client._turn
        while not output.finished:
            if self._cancelled.is_set():
                raise Error(grpc.StatusCode.CANCELLED, "the request was cancelled here")
            self._call = client._begin("Generate", output.request, turn, self._retries)
            try:
                async for event in self._call:
                    client._turn = turn
                    chunk = output.take(event)
                    if chunk is not None:
                        self._retries.on_progress()
                        yield chunk
                if not output.finished:
                    raise Error(grpc.StatusCode.INTERNAL, "the stream ended before the output did")
            except asyncio.CancelledError:
                # gRPC raises this for a call that is cancelled, too.
                if not self._cancelled.is_set() or _is_task_cancelled():
                    raise
            except grpc.RpcError as rpc_error:
                error = Error.of(rpc_error)
                if output.finished:
                    return
                if self._cancelled.is_set():
                    continue  # The loop raises what the request was cancelled with.
                if not output.resumable:
                    raise error from None
                await _wait(self._cancelled, self._retries.pause(error))
                turn += 1
            finally:
                self._call.cancel()


def _is_task_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Waits until the event is set, or the time is over."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
