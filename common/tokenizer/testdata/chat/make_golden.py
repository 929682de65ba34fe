#!/usr/bin/env python3
"""Renders the chat templates of this folder with Jinja, set up as transformers does, into golden.json."""

import datetime
import json
import pathlib
import random

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).resolve().parent
NOW = datetime.datetime(2026, 3, 7, 14, 5, 6)

TEXTS = ["", "Hello", "  two  words \n", "line\nline\r\n\n", "naïve 世界 👍🏽", "{{ not a tag }} {% if %}",
         "<|eot_id|> in text", "\u00a0nbsp\u3000", "quote ' and \" and \\", "<think>\nhm\n</think>\n\nyes",
         "<tool_response>x</tool_response>", "tab\there", "a" * 50, "\x1f\x0bodd", "Straße İ ǆ"]


class Generation(jinja2.ext.Extension):
    """Takes the tags {% generation %} and {% endgeneration %} and leaves their contents."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def make_environment():
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = NOW.strftime
    return environment


def conversations():
    rng = random.Random(5)

    def message(role):
        return {"role": role, "content": rng.choice(TEXTS)}

    for text in TEXTS:
        yield [{"role": "user", "content": text}]
    for turns in range(1, 8):
        for with_system in (False, True):
            talk = [message("system")] if with_system else []
            talk += [message("user" if i % 2 == 0 else "assistant") for i in range(turns)]
            yield talk
    for _ in range(20):
        roles = ["system", "user", "assistant", "tool", "ipython", "other"]
        yield [message(rng.choice(roles)) for _ in range(rng.randint(1, 5))]


TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Tells the weather \"now\".\nIn °C.",
        "parameters": {"type": "object",
                       "properties": {"city": {"type": "string", "description": "Where <|eot_id|>"},
                                      "days": {"type": ["integer", "null"], "minimum": -1, "maximum": 1.5}},
                       "required": ["city"]}}},
    {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}}},
]
ARGUMENTS = [{}, {"city": "Zürich"}, {"city": "</tool_call>", "days": None}, {"a": [1, -2.5, 1e20, True], "b": {"c": "\n\"\\"}}]
TAG = "CONTINUE_FINAL_MESSAGE_TAG "


def tool_conversations():
    """Messages with calls and results, each with the tools or without."""
    rng = random.Random(6)

    def call():
        function = {"name": rng.choice(["get_weather", "stop", "other"]), "arguments": rng.choice(ARGUMENTS)}
        return {"id": "".join(rng.choices("abcXYZ019", k=9)), "type": "function", "function": function}

    for turns in range(1, 9):
        for num_calls in (0, 1, 1, 2):
            talk = []
            if rng.random() < 0.5:
                talk.append({"role": "system", "content": rng.choice(TEXTS)})
            for turn in range(turns):
                if turn % 2 == 0 or num_calls == 0:
                    talk.append({"role": "user" if turn % 2 == 0 else "assistant", "content": rng.choice(TEXTS)})
                    continue
                calls = [call() for _ in range(num_calls)]
                said = {"role": "assistant", "content": rng.choice([None, "", "Let me see.", " so \n"]) or None}
                if rng.random() < 0.5:
                    said["reasoning_content"] = rng.choice(["hm\n", "<think>", "two\nlines"])
                said["tool_calls"] = calls
                talk.append(said)
                for made in calls:
                    talk.append({"role": "tool", "content": rng.choice(TEXTS), "tool_call_id": made["id"],
                                 "name": made["function"]["name"]})
                if rng.random() < 0.5:
                    last = {"role": "assistant", "content": rng.choice(TEXTS)}
                    if rng.random() < 0.5:
                        last["reasoning_content"] = "thought"
                    talk.append(last)
            yield talk, TOOLS[: rng.randint(0, 2)] or None


def continued(template, messages, **variables):
    """As transformers does it with continue_final_message."""
    messages = messages[:-1] + [{**messages[-1], "content": messages[-1]["content"] + TAG}]
    text = template.render(messages=messages, add_generation_prompt=False, documents=None, **variables)
    if TAG.strip() not in text:
        raise jinja2.exceptions.TemplateError("does not lay out the content of the last message")
    at = text.rindex(TAG.strip())
    return text[:at] if text[at : at + len(TAG)] == TAG else text[:at].rstrip()


def tool_cases(name, template):
    for index, (messages, tools) in enumerate(tool_conversations()):
        case = {"template": name, "messages": messages, "tools": tools, "prompt": index % 3 == 0,
                "continue": index % 3 == 1 and messages[-1]["content"] is not None}
        variables = {"bos_token": "<s>", "eos_token": "</s>", "tools": tools}
        try:
            if case["continue"]:
                case["text"] = continued(template, messages, **variables)
            else:
                case["text"] = template.render(messages=messages, add_generation_prompt=case["prompt"],
                                               documents=None, **variables)
        except jinja2.exceptions.TemplateError as error:
            case["error"] = str(error)
        yield case


def main():
    environment = make_environment()
    cases = []
    for path in sorted(HERE.glob("*.jinja")):
        template = environment.from_string(path.read_text(encoding="utf-8"))
        if path.name.startswith("tools_"):
            cases += tool_cases(path.name, template)
            continue
        for index, messages in enumerate(conversations()):
            variables = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": index % 2 == 0}
            if index % 3 == 0:
                variables["enable_thinking"] = index % 2 == 1
            case = {"template": path.name, "messages": [[m["role"], m["content"]] for m in messages],
                    "prompt": variables["add_generation_prompt"]}
            if "enable_thinking" in variables:
                case["thinking"] = variables["enable_thinking"]
            try:
                case["text"] = template.render(messages=messages, tools=None, documents=None, **variables)
            except jinja2.exceptions.TemplateError as error:
                case["error"] = str(error)
            except TypeError as error:
                # Python's own words for a key that is none.
                case["error"] = "cannot be a key" if "unhashable" in str(error) else str(error)
            cases.append(case)
    lines = [json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases]
    (HERE / "golden.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
