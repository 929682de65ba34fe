"""An output as it comes, over as many streams as it takes. No I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from tandem.v1 import generation_pb2

@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """What became certain with one round, or at the end. Texts, put together, are the output's text."""

    text: str
    tokens: Sequence[int] = ()
    # The position of the first token in the output.
    offset: int = 0
    # One per token: log probabilities, and who guessed it.
    details: Sequence[generation_pb2.TokenDetail] = ()
    # Of a chat whose output is parsed: the text again, as answer, reasoning and calls.
    deltas: Sequence[generation_pb2.OutputDelta] = ()
    # Which of several outputs it is of.
    output: int = 0

    @property
    def content(self) -> str:
        """Of a parsed chat, the part that is the answer."""
        return "".join(delta.content for delta in self.deltas)

    @property
    def reasoning(self) -> str:
        return "".join(delta.reasoning for delta in self.deltas)


class Output:
    """Puts events together, and knows what to ask another router when their stream breaks."""

    def __init__(self, request: generation_pb2.GenerateRequest) -> None:
        self._request = generation_pb2.GenerateRequest()
        self._request.CopyFrom(request)
        self._num_unfinished = max(request.num_outputs, 1)
        self.result = generation_pb2.GenerateResult()

    @property
    def request(self) -> generation_pb2.GenerateRequest:
        """What to ask now: at first what was asked for; then the rest of it, wherever."""
        return self._request

    @property
    def finished(self) -> bool:
        return self._num_unfinished == 0

    @property
    def resumable(self) -> bool:
        """Whether another router can go on. With several outputs there is nothing to say how far each has come."""
        return self._request.num_outputs <= 1 or not self.result.tokens and not self.result.others

    def take(self, event: generation_pb2.GenerateResponse) -> Chunk | None:
        """What of the event is the output's; None of those that tell about the request."""
        result = self._result_of(event.output)
        match event.WhichOneof("event"):
            case "started":
                self._on_started(result, event.started)
            case "prompt":
                # What another router has told already is told anew.
                del result.prompt[event.prompt.offset :]
                del result.prompt_tokens[event.prompt.offset :]
                result.prompt.extend(event.prompt.details)
                result.prompt_tokens.extend(event.prompt.tokens)
            case "chunk":
                return self._on_chunk(result, event)
            case "finished":
                return self._on_finished(result, event)
        return None

    def _result_of(self, output: int) -> generation_pb2.GenerateResult:
        while len(self.result.others) < output:
            self.result.others.add()
        return self.result.others[output - 1] if output > 0 else self.result

    def _on_started(
        self, result: generation_pb2.GenerateResult, started: generation_pb2.GenerationStarted
    ) -> None:
        if result.HasField("started"):
            return  # Another router's, of the same output.
        result.started.CopyFrom(started)
        if result is not self.result:
            return
        request = self._request
        request.request_id, request.model = started.request_id, started.model
        request.sampling.seed = started.seed
        if started.max_tokens > 0:
            # Where there is more room the output would be longer.
            request.stopping.max_tokens = started.max_tokens

    def _on_chunk(
        self, result: generation_pb2.GenerateResult, event: generation_pb2.GenerateResponse
    ) -> Chunk:
        chunk = event.chunk
        made = Chunk(
            text=chunk.text,
            tokens=list(chunk.tokens),
            offset=len(result.tokens),
            details=list(chunk.details),
            deltas=list(chunk.deltas),
            output=event.output,
        )
        result.tokens.extend(chunk.tokens)
        result.details.extend(chunk.details)
        result.text += chunk.text
        _add_deltas(result, chunk.deltas)
        if self._request.num_outputs <= 1:
            resume = self._request.resume
            resume.emitted.ids.extend(chunk.tokens)
            resume.arithmetic = chunk.arithmetic or resume.arithmetic
            self._request.output.ClearField("prompt_logprobs")  # All told: the prompt comes first.
        return made

    def _on_finished(
        self, result: generation_pb2.GenerateResult, event: generation_pb2.GenerateResponse
    ) -> Chunk | None:
        finished = event.finished
        result.finished.CopyFrom(finished)
        result.finished.ClearField("text")
        result.finished.ClearField("deltas")
        result.text += finished.text
        _add_deltas(result, finished.deltas)
        self._num_unfinished -= 1
        if not finished.text and not finished.deltas:
            return None
        return Chunk(
            text=finished.text,
            offset=len(result.tokens),
            deltas=list(finished.deltas),
            output=event.output,
        )


def _add_deltas(
    result: generation_pb2.GenerateResult, deltas: Iterable[generation_pb2.OutputDelta]
) -> None:
    for delta in deltas:
        result.content += delta.content
        result.reasoning += delta.reasoning
        if not delta.HasField("tool_call"):
            continue
        part = delta.tool_call
        while len(result.tool_calls) <= part.index:
            result.tool_calls.add()
        call = result.tool_calls[part.index]
        call.id = part.id or call.id
        call.name = part.name or call.name
        call.arguments += part.arguments
