"""Requests out of keyword arguments: each is a field of the protocol, by its name there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from tandem.v1 import generation_pb2, types_pb2

# A text; tokens; or a chat, whose messages have `role`, `content` and the other fields of ChatMessage.
Prompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, Any]]


class Options(TypedDict, total=False):
    """What a generation may be given besides its prompt. docs/start/python.md lists where each is described."""

    # Of the request.
    request_id: str
    model: str
    adapter: str
    num_outputs: int
    priority: int
    prediction: str | Sequence[int]
    plain: bool
    truncate_prompt_tokens: int
    cache_salt: str
    # SamplingParameters.
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    allowed_tokens: Sequence[int]
    banned_tokens: Sequence[int]
    bad_words: Sequence[str]
    # StopConditions.
    max_tokens: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    min_tokens: int
    include_stop: bool
    fit_max_tokens: bool
    # OutputOptions.
    logprobs: int
    include_special_tokens: bool
    round_trace: bool
    round_tree: bool
    live_page: bool
    prompt_logprobs: int
    prompt_token_ids: bool
    # SpeculationOptions. `speculation` is its mode: True drafts or fails, False decodes plainly.
    speculation: bool
    drafter: str
    window_policy: str
    max_window: int
    partner: str
    # Constraint: one of these.
    json_schema: str | Mapping[str, Any]
    json_object: bool
    regex: str
    grammar: str
    choices: Sequence[str]
    structural_tags: Mapping[str, Any]
    json_string: Mapping[str, Any]
    # ChatPrompt.
    parse_special_tokens: bool
    template_variables: str | Mapping[str, Any]
    documents: str | Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    tool_choice: Mapping[str, Any]
    continue_final_message: bool
    parse_output: bool


_PARTS: dict[str, Any] = {
    "sampling": types_pb2.SamplingParameters,
    "stopping": types_pb2.StopConditions,
    "output": types_pb2.OutputOptions,
    "speculation": types_pb2.SpeculationOptions,
    "constraint": types_pb2.Constraint,
    "chat": generation_pb2.ChatPrompt,
}
# Which part of a request has the field of this name.
_PART_OF = {field: part for part, message in _PARTS.items() for field in message.DESCRIPTOR.fields_by_name}
_OWN = (
    "request_id", "model", "adapter", "num_outputs", "priority", "prediction", "plain", "truncate_prompt_tokens", "cache_salt",
)  # fmt: skip


def _text_of(value: Any) -> str:
    """JSON text: of a value, or as it is."""
    return value if isinstance(value, str) else json.dumps(value)


def _converted(name: str, value: Any) -> Any:
    """The field's value as the protocol has it."""
    match name:
        case "prediction":
            return {"text": value} if isinstance(value, str) else {"token_ids": {"ids": value}}
        case "json_schema":
            return {"schema": _text_of(value)}
        case "json_object":
            return {}
        case "choices":
            return {"choices": value}
        case "template_variables" | "documents":
            return _text_of(value)
        case "tools":
            return [{**tool, "parameters": _text_of(tool.get("parameters", ""))} for tool in value]
        case "stop" if isinstance(value, str):
            raise TypeError("stop: a text, expected a list of texts")
    return value


def request_of(prompt: Prompt, options: Options) -> generation_pb2.GenerateRequest:
    """The request. TypeError or ValueError for an option that nobody knows or whose value is of another kind; what values
    mean is for the router to judge. An option that is None, or False of `json_object`, counts as absent."""
    fields: dict[str, Any] = {}
    for name, value in options.items():
        if value is None or (name == "json_object" and not value):
            continue
        if name == "speculation":
            mode = types_pb2.SPECULATION_MODE_ON if value else types_pb2.SPECULATION_MODE_OFF
            fields.setdefault("speculation", {})["mode"] = mode
        elif name in _OWN:
            fields[name] = _converted(name, value)
        elif name in _PART_OF and name in Options.__annotations__:
            fields.setdefault(_PART_OF[name], {})[name] = _converted(name, value)
        else:
            raise TypeError(f"{name}: no option of a generation")
    if isinstance(prompt, str):
        fields["text"] = prompt
    elif all(isinstance(part, int) for part in prompt):
        fields["token_ids"] = {"ids": prompt}
    else:
        fields.setdefault("chat", {})["messages"] = prompt
    if "chat" in fields and "messages" not in fields["chat"]:
        raise TypeError(f"{', '.join(fields['chat'])}: only of a chat, whose prompt is a list of messages")
    if len(fields.get("constraint", ())) > 1:
        raise TypeError(f"{', '.join(fields['constraint'])}: expected one of them")
    return generation_pb2.GenerateRequest(**fields)
