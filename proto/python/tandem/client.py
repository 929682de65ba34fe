"""The client for programs with threads."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Self, TypeVar, Unpack

import grpc

from tandem.connection import Connection, Tls, stub_of
from tandem.errors import CLOSED, Error
from tandem.output import Chunk, Output
from tandem.request import Options, Prompt, request_of
from tandem.retries import Retries, RetryPolicy
from tandem.v1 import generation_pb2, types_pb2

Reply = TypeVar("Reply")


class Client:
    """Calls routers of Tandem. Thread-safe.

    `addresses` are "host:port" of one or more routers that serve the same models: when one is lost the next goes on, in
    the middle of an output as well. `timeout` is the most seconds a call takes, tries included, unless the call has its
    own; None: no limit. `options` are gRPC's channel arguments. Every method raises Error for a call that fails.
    """

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
        self._channels = [self._channel(address) for address in self._connection.addresses]
        self._stubs = [stub_of(channel) for channel in self._channels]
        self._turn = 0  # Whose stub is asked first: the last one's that answered.
        self._lock = threading.RLock()  # A signal handler may close the client while its thread holds this.
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()  # What close cancels.
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancels what runs and closes all connections. Whoever waits for a call gets an Error with CANCELLED."""
        self._closed.set()
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.cancel()
        for channel in self._channels:
            channel.close()

    def generate(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> generation_pb2.GenerateResult:
        """All of an output: `text`, `tokens`, `tool_calls`, `finished.usage` and more."""
        with self.stream(prompt, timeout=timeout, **options) as stream:
            for _ in stream:
                pass
            return stream.result

    def stream(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> Stream:
        """An output piece by piece, as it is generated."""
        stream = Stream(self, request_of(prompt, options), self._retries(timeout))
        with self._lock:
            self._streams.add(stream)
            if self._closed.is_set():
                stream.cancel()
        return stream

    def tokenize(
        self, text: str, *, model: str = "", plain: bool = False, timeout: float | None = None
    ) -> list[int]:
        """The text's tokens, as a generation would read it; `plain`: without begin-of-text and the like."""
        request = generation_pb2.TokenizeRequest(model=model, text=text, plain=plain)
        return list(self._call("Tokenize", request, timeout).tokens.ids)

    def detokenize(
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
        return str(self._call("Detokenize", request, timeout).text)

    def list_models(self, *, timeout: float | None = None) -> list[types_pb2.ModelInfo]:
        """The models that the tenant may use, the default one first."""
        return list(self._call("ListModels", generation_pb2.ListModelsRequest(), timeout).models)

    def _channel(self, address: str) -> grpc.Channel:
        if self._connection.credentials is None:
            return grpc.insecure_channel(address, options=self._connection.options)
        return grpc.secure_channel(address, self._connection.credentials, options=self._connection.options)

    def _retries(self, timeout: float | None) -> Retries:
        return Retries(self._policy, len(self._stubs), self._timeout if timeout is None else timeout)

    def _begin(self, method: str, request: Any, turn: int, retries: Retries) -> Any:
        """A call that has begun: of a unary one a future, of a stream an iterator."""
        begin = getattr(self._stubs[turn % len(self._stubs)], method)
        if method != "Generate":
            begin = begin.future
        try:
            return begin(request, metadata=self._connection.metadata, timeout=retries.time_left)
        except ValueError:  # Of a channel that is closed.
            if not self._closed.is_set():
                raise
            raise Error(grpc.StatusCode.CANCELLED, CLOSED) from None

    def _call(self, method: str, request: Any, timeout: float | None) -> Any:
        retries = self._retries(timeout)
        turn = self._turn
        while True:
            try:
                reply = self._begin(method, request, turn, retries).result()
                self._turn = turn
                return reply
            except grpc.RpcError as rpc_error:
                error = Error.of(rpc_error)
                if self._closed.is_set():
                    raise error from None
                if self._closed.wait(retries.pause(error)):
                    raise Error(grpc.StatusCode.CANCELLED, CLOSED) from None
                turn += 1


class Stream:
    """An output that comes piece by piece. Iterate over it once; leaving it, or `cancel` from anywhere, ends the request.

    with client.stream("Once upon a time") as stream:
        for chunk in stream:
            print(chunk.text, end="", flush=True)
        print(stream.result.finished.usage)
    """

    def __init__(self, client: Client, request: generation_pb2.GenerateRequest, retries: Retries) -> None:
        self._client = client
        self._output = Output(request)
        self._retries = retries
        self._call: Any = None
        self._cancelled = threading.Event()
        self._chunks = self._run()

    @property
    def result(self) -> generation_pb2.GenerateResult:
        """What has come so far; at the end all of it."""
        return self._output.result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __iter__(self) -> Iterator[Chunk]:
        return self._chunks

    def cancel(self) -> None:
        """Ends the request; whoever iterates gets an Error with CANCELLED. Nothing happens to one that is over."""
        self._cancelled.set()
        if self._call is not None:
            self._call.cancel()

    def _run(self) -> Iterator[Chunk]:
        client, output = self._client, self._output
        turn = client._turn
        while not output.finished:
            if self._cancelled.is_set():
                raise Error(grpc.StatusCode.CANCELLED, "the request was cancelled here")
            self._call = client._begin("Generate", output.request, turn, self._retries)
            if self._cancelled.is_set():  # In between, so that `cancel` has not seen this call.
                self._call.cancel()
            try:
                for event in self._call:
                    client._turn = turn
                    chunk = output.take(event)
                    if chunk is not None:
                        self._retries.on_progress()
                        yield chunk
                if not output.finished:
                    raise Error(grpc.StatusCode.INTERNAL, "the stream ended before the output did")
            except grpc.RpcError as rpc_error:
                error = Error.of(rpc_error)
                if output.finished:
                    return
                if self._cancelled.is_set():
                    continue  # The loop raises what the request was cancelled with.
                if not output.resumable:
                    raise error from None
                self._cancelled.wait(self._retries.pause(error))
                turn += 1
            finally:
                self._call.cancel()
