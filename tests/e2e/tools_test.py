"""Functions, offered to a target that knows none: the choice makes it call, the schema holds its arguments, and every
way to ask tells of the same calls. The clients are OpenAI's own, gRPC and the command line."""

import json
import subprocess
import unittest
import unittest.mock

import jsonschema
import openai
import processes
from http_stack import HttpStackTest
from processes import BIN_DIR, PATIENCE_SECONDS, TARGET, clean_environment, request_for

import grpc

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "days", "unit"],
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Tells it.", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}}},
]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
QUESTION = "What is the weather in Bern?"
SEED = 5


class ToolsTest(HttpStackTest):
    def start_router(self, verifiers, drafter_address, flags=(), **tenant):
        path = self.folder / "router.yaml"
        start = self.start

        def with_format(*args):
            """Its calls are in Hermes' way; its own template tells of none."""
            config = json.loads(path.read_text())
            config["models"][0]["output_format"] = "hermes+think"
            path.write_text(json.dumps(config))
            return start(*args)

        self.start = with_format
        try:
            return super().start_router(verifiers, drafter_address, flags, **tenant)
        finally:
            self.start = start

    def ask(self, **fields):
        fields = {"tools": TOOLS, "tool_choice": NAMED, "seed": SEED, "temperature": 1.0, **fields}
        messages = fields.pop("messages", [{"role": "user", "content": QUESTION}])
        return self.client().chat.completions.create(model=TARGET, messages=messages, **fields)

    def request(self, seed=SEED):
        request = request_for(max_tokens=200)
        request.stopping.ignore_eos = False
        request.sampling.temperature = 1.0
        request.sampling.seed = seed
        request.chat.messages.add(role="user", content=QUESTION)
        for tool in TOOLS:
            function = tool["function"]
            request.chat.tools.add(
                name=function["name"],
                description=function.get("description", ""),
                parameters=json.dumps(function["parameters"], separators=(",", ":")),
            )
        request.chat.tool_choice.name = "get_weather"
        return request

    def deltas(self, request):
        """What the events' deltas add up to (content, reasoning, calls), and the output's tokens after each event."""
        content, reasoning, calls, tokens = "", "", [], []
        generation = self.generate(request)
        for event in generation.call:
            part = event.chunk if event.HasField("chunk") else event.finished
            tokens += event.chunk.tokens
            for delta in part.deltas:
                content += delta.content
                reasoning += delta.reasoning
                if not delta.HasField("tool_call"):
                    continue
                if delta.tool_call.name:
                    calls.append([delta.tool_call.id, delta.tool_call.name, ""])
                if calls:
                    calls[-1][2] += delta.tool_call.arguments
                else:
                    calls.append(["", "", delta.tool_call.arguments])
        return content, reasoning, calls, tokens

    def test_tools(self):
        """One stack for all of it."""
        self.start_stack()
        for check in (
            self.check_every_way_tells_of_the_same_calls,
            self.check_required_and_strict,
            self.check_allowed_tools,
            self.check_spellings_of_a_history,
            self.check_responses,
            self.check_messages_go_on,
            self.check_command_line,
        ):
            with self.subTest(check.__name__):
                check()

    def check_every_way_tells_of_the_same_calls(self):
        for seed in (SEED, SEED + 1):
            content, reasoning, calls, tokens = self.deltas(self.request(seed))
            self.assertEqual((content, reasoning, len(calls)), ("", "", 1))
            call_id, name, arguments = calls[0]
            self.assertEqual(name, "get_weather")
            jsonschema.validate(json.loads(arguments), PARAMETERS)

            plain = self.request(seed)
            plain.speculation.mode = 1
            self.assertEqual(self.deltas(plain)[:3], (content, reasoning, calls))

            # A stream that broke off anywhere goes on with the rest of the call.
            for at in range(1, len(tokens), max(1, len(tokens) // 6)):
                resumed = self.request(seed)
                resumed.resume.emitted.ids.extend(tokens[:at])
                rest = self.deltas(resumed)
                self.assertEqual(tokens[:at] + rest[3], tokens)
                self.assertTrue(arguments.endswith(rest[2][-1][2] if rest[2] else ""))
                for known, again in zip(calls[-len(rest[2]) :], rest[2]):
                    self.assertIn(again[0], ("", known[0]))

            whole = self.ask(seed=seed, max_completion_tokens=200).choices[0]
            self.assertEqual(whole.finish_reason, "tool_calls")
            self.assertIsNone(whole.message.content)
            (called,) = whole.message.tool_calls
            self.assertEqual([called.id, called.function.name, called.function.arguments], calls[0])

            with self.client().chat.completions.stream(
                model=TARGET, messages=[{"role": "user", "content": QUESTION}], tools=TOOLS, tool_choice=NAMED,
                seed=seed, temperature=1.0, max_completion_tokens=200,
            ) as stream:  # fmt: skip
                for _ in stream:
                    pass
                (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
            self.assertEqual([streamed.id, streamed.function.name, streamed.function.arguments], calls[0])

    def check_required_and_strict(self):
        seen = set()
        for seed in range(6):
            answer = self.ask(seed=seed, tool_choice="required", parallel_tool_calls=False, max_completion_tokens=200)
            (called,) = answer.choices[0].message.tool_calls
            schema = next(t["function"]["parameters"] for t in TOOLS if t["function"]["name"] == called.function.name)
            jsonschema.validate(json.loads(called.function.arguments), schema)
            seen.add(called.function.name)
        self.assertTrue(seen <= {"get_weather", "stop"})
        # The target knows no calls, so it would never stop by itself: its output ends after the calls all the same.
        for seed in range(6):
            for temperature in (0.0, 1.0):
                fields = {"seed": seed, "temperature": temperature, "max_completion_tokens": 400}
                choice = self.ask(tool_choice="required", **fields).choices[0]
                self.assertEqual(choice.finish_reason, "tool_calls")
                self.assertIsNone(choice.message.content)
                plain = self.ask(tool_choice="required", extra_body={"tandem": {"speculation": False}}, **fields)
                self.assertEqual(plain.choices[0].message.tool_calls, choice.message.tool_calls)
        # The template knows no tools; they are laid out in the system's text.
        without = self.ask(tool_choice="none", max_completion_tokens=1).usage.prompt_tokens
        self.assertGreater(self.ask(tool_choice="auto", max_completion_tokens=1).usage.prompt_tokens, without + 100)
        bad = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "not": {}}}}]
        named = {"type": "function", "function": {"name": "f"}}
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask(tools=bad, tool_choice=named)
        self.assertEqual(caught.exception.param, "tools[0].function.parameters")
        request = self.request()
        request.chat.tools[1].name = "get weather"
        self.assert_fails(self.generate(request), grpc.StatusCode.INVALID_ARGUMENT, "chat.tools[1].name")

    def check_allowed_tools(self):
        choice = {"mode": "required", "tools": [{"type": "function", "function": {"name": "stop"}}]}
        for seed in range(4):
            fields = {"seed": seed, "max_completion_tokens": 400}
            answer = self.ask(tool_choice={"type": "allowed_tools", "allowed_tools": choice}, **fields).choices[0]
            self.assertEqual(answer.finish_reason, "tool_calls")
            self.assertEqual({call.function.name for call in answer.message.tool_calls}, {"stop"})
        # The template knows no tools: those that are not allowed are not laid out either.
        auto = {"type": "allowed_tools", "allowed_tools": {**choice, "mode": "auto"}}
        alone = self.ask(tools=TOOLS[1:], tool_choice="auto", max_completion_tokens=1).usage.prompt_tokens
        self.assertEqual(self.ask(tool_choice=auto, max_completion_tokens=1).usage.prompt_tokens, alone)

    def check_spellings_of_a_history(self):
        def prompt(arguments, said, result):
            call = {"id": "c", "type": "function", "function": {"name": "stop", "arguments": arguments}}
            history = [{"role": "user", "content": QUESTION}, {"role": "assistant", "tool_calls": [call], **said}]
            history += [{"role": "tool", "tool_call_id": "c", "content": result}]
            fields = {"messages": history, "tool_choice": "none", "temperature": 0.0, "max_completion_tokens": 12}
            answer = self.ask(**fields)
            return answer.usage.prompt_tokens, answer.choices[0].message.content

        expected = prompt('{"b":1,"a":[2.50,"x y"]}', {}, "rain")
        for arguments in ({"b": 1, "a": [2.5, "x y"]}, '{"b":1,"a":[2.5,"x y"]}'):
            self.assertEqual(prompt(arguments, {}, "rain"), prompt('{"b":1,"a":[2.5,"x y"]}', {"content": None}, "rain"))
        for said in ({"content": None}, {"content": ""}, {"content": []}):
            self.assertEqual(prompt('{"b":1,"a":[2.50,"x y"]}', said, [{"type": "text", "text": "rain"}]), expected)

    def check_responses(self):
        tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
        fields = {
            "model": TARGET,
            "input": QUESTION,
            "tools": tools,
            "tool_choice": {"type": "function", "name": "get_weather"},
            "temperature": 1.0,
            "max_output_tokens": 200,
            "extra_body": {"seed": SEED},
        }
        client = self.client()
        whole = client.responses.create(**fields)
        self.assertEqual(whole.status, "completed")
        (item,) = whole.output
        self.assertEqual((item.type, item.name), ("function_call", "get_weather"))
        jsonschema.validate(json.loads(item.arguments), PARAMETERS)
        self.assertEqual(item.arguments, self.deltas(self.request())[2][0][2])
        with client.responses.stream(**fields) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        self.assertIn("response.function_call_arguments.delta", kinds)
        self.assertEqual(kinds[-1], "response.completed")
        self.assertEqual(final.output[0].arguments, item.arguments)
        # The next turn: the call and its result, and no more functions.
        turn = [{"role": "user", "content": QUESTION}, item.model_dump(exclude_none=True)]
        turn += [{"type": "function_call_output", "call_id": item.call_id, "output": "rain"}]
        fields = {"model": TARGET, "input": turn, "max_output_tokens": 16, "extra_body": {"seed": SEED, "ignore_eos": True}}
        spoken = client.responses.create(**fields)
        self.assertEqual(spoken.status, "incomplete")
        self.assertEqual(spoken.incomplete_details.reason, "max_output_tokens")
        streamed = client.responses.create(stream=True, **fields)
        text = "".join(event.delta for event in streamed if event.type == "response.output_text.delta")
        self.assertEqual(text, spoken.output_text)
        self.assertTrue(text)

    def check_messages_go_on(self):
        opened = [{"role": "user", "content": "Tell me a story."}, {"role": "assistant", "content": "Once upon a"}]
        extra = {"continue_final_message": True, "add_generation_prompt": False, "ignore_eos": True}
        answer = self.client().chat.completions.create(
            model=TARGET, messages=opened, seed=SEED, temperature=0.0, max_tokens=8, extra_body=extra
        )
        request = request_for(max_tokens=8)
        request.sampling.temperature = 0.0
        request.text = "<|user|>\nTell me a story.<|end|>\n<|assistant|>\nOnce upon a"
        self.assertEqual(answer.choices[0].message.content, self.undrafted(request)[1])

    def check_command_line(self):
        path = self.folder / "tools.json"
        path.write_text(json.dumps(TOOLS))
        command = [BIN_DIR / "tandem", "generate", "--endpoint", self.router.address, "--chat", QUESTION]
        command += ["--tools", path, "--seed", SEED, "--temperature", 1, "--max-tokens", 200]
        command = [str(part) for part in command]
        environment = {**clean_environment(), "TANDEM_TOKEN": "secret"}

        def run(*flags):
            return subprocess.run(
                [*command, *flags], env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS
            )

        expected = self.deltas(self.request())[2][0]
        told = run("--tool-choice", "get_weather", "--json")
        self.assertEqual(told.returncode, 0, told.stderr)
        (called,) = json.loads(told.stdout)["tool_calls"]
        self.assertEqual([called["id"], called["name"], called["arguments"]], expected)
        shown = run("--tool-choice", "get_weather")
        self.assertEqual(shown.stdout, f"get_weather {expected[2]}\n")
        self.assertIn("chat.tool_choice.name", run("--tool-choice", "nobody").stderr)


# Of the demo models: what ends messages and what pads become what marks calls.
TOOL_CALLS, ARGS = 4094, 4095
MARKED_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + '\\n' }}"
    "{% endfor %}{{ '<|assistant|>\\n' }}{# tools are called by [TOOL_CALLS]name[ARGS]{} #}"
)


class MarkedToolsTest(ToolsTest):
    """The same target with a tokenizer that has special tokens for Mistral's marks. It ends what it says with one of
    them, and so it calls by itself."""

    def setUp(self):
        super().setUp()
        models = self.folder / "models"
        for model in processes.MODELS.iterdir():
            if not (model / "tokenizer.json").exists():
                continue
            (models / model.name).mkdir(parents=True)
            for file in model.iterdir():
                (models / model.name / file.name).symlink_to(file.resolve())
            for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
                path = models / model.name / name
                text = path.read_text().replace("<|end|>", "[TOOL_CALLS]").replace("<|pad|>", "[ARGS]")
                config = json.loads(text)
                if name == "tokenizer_config.json":
                    config["chat_template"] = MARKED_TEMPLATE
                if name == "generation_config.json":
                    config["eos_token_id"] = [token for token in config["eos_token_id"] if token != TOOL_CALLS]
                path.unlink()
                path.write_text(json.dumps(config))
        patch = unittest.mock.patch.object(processes, "MODELS", models)
        patch.start()
        self.addCleanup(patch.stop)

    def start_router(self, verifiers, drafter_address, flags=(), **tenant):
        return HttpStackTest.start_router(self, verifiers, drafter_address, flags, **tenant)

    def test_tools(self):
        """Strict functions of a target that calls by itself, after what it likes to say."""
        self.start_stack()
        spoken = called = 0
        for seed in range(8):
            request = self.request(seed)
            request.chat.tool_choice.Clear()
            request.chat.tool_choice.single_call = True
            for tool in request.chat.tools:
                tool.strict = True
            content, reasoning, calls, tokens = self.deltas(request)
            self.assertNotIn("[TOOL_CALLS]", content)
            plain = self.request(seed)
            plain.CopyFrom(request)
            plain.speculation.mode = 1
            self.assertEqual(self.deltas(plain), (content, reasoning, calls, tokens))
            if not calls:
                continue  # It had not said all by the end.
            self.assertEqual([token for token in tokens if token >= TOOL_CALLS], [TOOL_CALLS, ARGS])
            ((_, name, arguments),) = calls
            schema = next(t["function"]["parameters"] for t in TOOLS if t["function"]["name"] == name)
            jsonschema.validate(json.loads(arguments), schema)
            called += 1
            spoken += bool(content)
            mark = tokens.index(TOOL_CALLS)
            for at in (mark, mark + 1, tokens.index(ARGS) + 1):
                resumed = self.request(seed)
                resumed.CopyFrom(request)
                resumed.resume.emitted.ids.extend(tokens[:at])
                self.assertEqual(tokens[:at] + self.deltas(resumed)[3], tokens)
        self.assertGreater(called, 3)
        self.assertGreater(spoken, 0)
        # Made to call it does so with the marks as well.
        content, _, calls, tokens = self.deltas(self.request())
        self.assertEqual((content, len(calls), tokens[0]), ("", 1, TOOL_CALLS))
        jsonschema.validate(json.loads(calls[0][2]), PARAMETERS)


if __name__ == "__main__":
    unittest.main()
