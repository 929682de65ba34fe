"""Answers of the HTTP API against OpenAI's own description of them: the models of the package `openai`, taken strictly.

A WireTap stands between clients and a router. It hands every byte on as it comes, so that a client talks to the router
itself, and keeps a copy; `findings` holds the copy against the schema.
"""

import json
import re
import select
import socket
import threading
import typing

import pydantic
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

WHOLE = {"/v1/chat/completions": ChatCompletion, "/v1/completions": Completion, "/v1/responses": Response}
# Ours and vLLM's, beside OpenAI's fields: docs/reference/http.md tells of them.
EXTENSIONS = {"tandem", "stop_reason", "token_ids", "prompt_token_ids", "prompt_logprobs", "reasoning_content", "max_model_len"}
# OpenAI's, of a response and of the end of a call, which not every version of its package has.
EXTENSIONS |= {"store", "name"}
# Of a failure: all are there, each a text or null.
ERROR_FIELDS = {"message", "type", "param", "code"}


def event_models():
    """{type: model} of the events of the Responses API."""
    union = typing.get_args(ResponseStreamEvent)[0]
    return {typing.get_args(model.model_fields["type"].annotation)[0]: model for model in typing.get_args(union)}


EVENTS = event_models()


def unknown_fields(value, path=""):
    """Fields of a validated answer that neither OpenAI's models nor EXTENSIONS have."""
    if isinstance(value, list):
        return [name for i, entry in enumerate(value) for name in unknown_fields(entry, f"{path}[{i}]")]
    if not isinstance(value, pydantic.BaseModel):
        return []
    found = [f"{path}.{name}" for name in value.model_extra or () if name not in EXTENSIONS]
    for name in type(value).model_fields:
        found += unknown_fields(getattr(value, name), f"{path}.{name}")
    return found


def check_model(model, text):
    """What is wrong with a JSON text that should be of the model: a list of messages."""
    try:
        unknown = unknown_fields(pydantic.TypeAdapter(model).validate_json(text, strict=True))
    except pydantic.ValidationError as error:
        return [f"{model.__name__}: {error}\nin {text[:1000]}"]
    return [f"{model.__name__}: there is no field {name}" for name in unknown]


def check_error(text):
    error = json.loads(text).get("error")
    if not isinstance(error, dict) or set(error) != ERROR_FIELDS:
        return [f"no error of OpenAI's shape: {text}"]
    wrong = [name for name, value in error.items() if not isinstance(value, (str, type(None)))]
    wrong += [name for name in ("message", "type") if not error[name]]
    return [f"error.{name}: {error[name]!r}" for name in wrong]


def check_messages(status, text):
    """What is wrong with an answer of Anthropic's API, as far as its shape goes: tests/clients has its own package."""
    told = json.loads(text)
    if status >= 400:
        error = told.get("error")
        sound = told.get("type") == "error" and isinstance(error, dict) and error.get("type") and error.get("message")
        return [] if sound else [f"no error of Anthropic's shape: {text}"]
    sound = set(told) == {"input_tokens"} or (told.get("type") == "message" and isinstance(told.get("content"), list))
    return [] if sound else [f"no message: {text}"]


def check_messages_stream(events, complete):
    """The same for the events of a stream."""
    matches = [re.fullmatch(r"event: (\S+)\ndata: (.*)", event) for event in events]
    findings = [f"no event: {event!r}" for event, match in zip(events, matches) if match is None]
    findings += [f"{m[1]}: {m[2]!r}" for m in matches if m is not None and json.loads(m[2]).get("type") != m[1]]
    ends = matches and matches[-1] is not None and matches[-1][1] in ("message_stop", "error")
    return findings + ([] if ends or not complete else ["no message_stop"])


def check_whole(path, status, text):
    """What is wrong with the body of an answer that is no stream."""
    if path.startswith("/v1/messages"):
        return check_messages(status, text)
    if status >= 400:
        return check_error(text)
    if path == "/v1/models":
        told = json.loads(text)
        wrong = [] if told.get("object") == "list" and isinstance(told.get("data"), list) else [f"no list: {text}"]
        return wrong + [finding for model in told.get("data") or () for finding in check_model(Model, json.dumps(model))]
    if path.startswith("/v1/models/"):
        return check_model(Model, text)
    if path == "/v1/completions":
        text = with_a_first_probability(text)
    return check_model(WHOLE[path], text) if path in WHOLE else []


def with_a_first_probability(text):
    """A completion in which the first token of an echoed prompt has a probability: it has none, as in OpenAI's own answers, but
    OpenAI's types know no null there."""
    told = json.loads(text)
    for choice in told.get("choices", ()):
        for column, filler in (("token_logprobs", 0.0), ("top_logprobs", {})):
            values = (choice.get("logprobs") or {}).get(column)
            if values and values[0] is None:
                values[0] = filler
    return json.dumps(told)


def check_stream(path, text, complete):
    """What is wrong with a stream's events; the last one may be missing where the stream was cut."""
    *events, rest = text.replace("\r\n", "\n").split("\n\n")
    findings = [f"the stream ends with {rest!r}"] if complete and rest else []
    if path.startswith("/v1/messages"):
        return findings + check_messages_stream(events, complete)
    for number, event in enumerate(events):
        match = re.fullmatch(r"(?:event: (\S+)\n)?data: (.*)", event)
        if match is None:
            findings.append(f"no event: {event!r}")
        elif path == "/v1/responses":
            told = json.loads(match[2])
            if told.get("type") != match[1] or told.get("sequence_number") != number or match[1] not in EVENTS:
                findings.append(f"event {number}: {event!r}")
            else:
                findings += check_model(EVENTS[match[1]], match[2])
        elif match[2] == "[DONE]":
            findings += ["an event after [DONE]"] if number + 1 < len(events) else []
        elif '"error"' in match[2][:10]:
            findings += check_error(match[2])
        elif "chat" in path:
            findings += check_model(ChatCompletionChunk, match[2])
        else:
            findings += check_model(Completion, going_on(match[2]))
    ends = path == "/v1/responses" or (events and events[-1] == "data: [DONE]")
    return findings + ([] if ends or not complete else ["no [DONE]"])


def going_on(text):
    """An event of a text completion as one that is over: OpenAI's model, of answers and events alike, does not tell that a
    choice that goes on has the finish reason null."""
    event = json.loads(text)
    for choice in event.get("choices", ()):
        if choice.get("finish_reason", "") is None:
            choice["finish_reason"] = "stop"
    return json.dumps(event)


def messages(data):
    """[(first line, {field: value}, body, whether it is whole)] of what one side of an HTTP/1.1 connection said."""
    found = []
    while b"\r\n\r\n" in data:
        head, data = data.split(b"\r\n\r\n", 1)
        first, *lines = head.decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
        if fields.get("transfer-encoding") == "chunked":
            body, complete, data = unchunked(data)
        else:
            size = int(fields.get("content-length", 0))
            body, complete, data = data[:size], len(data) >= size, data[size:]
        found.append((first, fields, body, complete))
    return found


def unchunked(data):
    """(body, whether it is whole, what follows)."""
    body = b""
    while b"\r\n" in data:
        size, rest = data.split(b"\r\n", 1)
        size = int(size, 16)
        if len(rest) < size + 2:
            return body + rest[:size], False, b""
        body, data = body + rest[:size], rest[size + 2 :]
        if size == 0:
            return body, True, data
    return body, False, b""


def check_connection(asked, answered):
    """(how many answers there were, what is wrong with them)."""
    findings = []
    requests = messages(asked)
    answers = [answer for answer in messages(answered) if not answer[0].startswith("HTTP/1.1 1")]
    if len(answers) > len(requests):
        findings.append(f"{len(answers)} answers to {len(requests)} requests")
    for (line, _, _, _), (status_line, fields, body, complete) in zip(requests, answers):
        path, status = line.split()[1], int(status_line.split()[1])
        text = body.decode("utf-8", errors="strict" if complete else "ignore")
        if fields.get("content-type", "").startswith("text/event-stream"):
            findings += [f"{line}: {finding}" for finding in check_stream(path, text, complete)]
        elif complete:
            findings += [f"{line}: {finding}" for finding in check_whole(path, status, text)]
    return len(answers), findings


class WireTap:
    """Stands before the router at `port` of this machine, at a port of its own."""

    def __init__(self, port):
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self._listener.getsockname()[1]
        self._copies = []  # (asked, answered) of each connection.
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # Closed.
            copy = (bytearray(), bytearray())
            self._copies.append(copy)
            threading.Thread(target=self._carry, args=(client, copy), daemon=True).start()

    def _carry(self, client, copy):
        """Until both sides have said all."""
        try:
            router = socket.create_connection(self._target)
        except OSError:
            return client.close()
        with client, router:
            ways = {client: (router, copy[0]), router: (client, copy[1])}
            for side in (client, router):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                while ways:
                    for side in select.select(list(ways), [], [])[0]:
                        other, said = ways[side]
                        data = side.recv(65536)
                        if data:
                            said += data
                            other.sendall(data)
                        else:
                            del ways[side]
                            other.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # One side is gone; the other one learns of it now.

    def findings(self):
        """(how many answers there were so far, what is wrong with them)."""
        checked = [check_connection(bytes(asked), bytes(answered)) for asked, answered in list(self._copies)]
        return sum(number for number, _ in checked), [finding for _, findings in checked for finding in findings]

    def close(self):
        # Without it, accept goes on waiting on a socket that is no more.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
