#!/usr/bin/env python3
"""Tests the computations of compare.py and compare_servers.py without llama.cpp: a small script stands in for the
programs."""

import contextlib
import http.server
import io
import itertools
import json
import pathlib
import sys
import tempfile
import threading
import unittest

import compare
import compare_servers
import completions

ECHO = """
import json, sys
print(json.dumps({"ready": True, "name": sys.argv[1], "detail": "script"}), flush=True)
for line in sys.stdin:
    question = json.loads(line)
    if question["run"] == "fail":
        print(json.dumps({"error": "refused"}), flush=True)
    else:
        # The first pass of a turn is slow: it must not count.
        print(json.dumps({"seconds": [9.0] + [float(sys.argv[2])] * (question["count"] - 1),
                          "floor_seconds": 0.5}), flush=True)
"""


def program(name, seconds):
    return compare.Program([sys.executable, "-c", ECHO, name, str(seconds)])


class CompareTest(unittest.TestCase):
    def test_turns_leave_out_the_warm_up(self):
        programs = [program("tandem", 1.0), program("peer", 2.0)]
        passes = compare.passes_of([1, 16], 512)
        seconds, floors = compare.take_turns(programs, passes, turns=3, count=2)
        for one in programs:
            one.close()
        self.assertEqual(list(seconds), ["decode, 1 row", "16 rows", "prefill of 512"])
        self.assertEqual(seconds["16 rows"], {"tandem": [1.0] * 3, "peer": [2.0] * 3})
        self.assertEqual(floors["prefill of 512"], 0.5)

    def test_ratio_is_the_median_of_the_turns_ratios(self):
        rows = compare.summarise({"1 row": {"tandem": [1.0, 2.0, 4.0], "peer": [3.0, 2.0, 8.0]}}, {"1 row": 0.5}, "tandem")
        self.assertEqual(rows[0]["ratios"], {"peer": 2.0})
        self.assertEqual(rows[0]["median_seconds"], {"tandem": 2.0, "peer": 3.0})
        table = compare.markdown(rows, "tandem").split("\n")
        self.assertEqual(table[0], "| pass | tandem, ms | floor, ms | of floor | peer, ms | peer / tandem |")
        self.assertEqual(table[2], "| 1 row | 2000.000 | 500.000 | 25 % | 3000.000 | 2.00 |")

    def test_a_table_without_ours(self):
        rows = compare.summarise({"1 row": {"peer": [1.0]}}, {}, "tandem")
        self.assertEqual(compare.markdown(rows, "tandem").split("\n")[2], "| 1 row | - | - | - | 1000.000 | - |")

    def test_errors_of_a_program_are_raised(self):
        one = program("tandem", 1.0)
        with self.assertRaisesRegex(RuntimeError, "refused"):
            one.ask(run="fail")
        one.close()
        with self.assertRaisesRegex(RuntimeError, "without an answer"):
            compare.Program([sys.executable, "-c", ""])

    def test_common_prefix(self):
        self.assertEqual(compare.common_prefix([1, 2, 3], [1, 2, 4]), 2)
        self.assertEqual(compare.common_prefix([1, 2], [1, 2, 4]), 2)


class FakeServer(http.server.BaseHTTPRequestHandler):
    """Streams "a b c", one word per chunk, and the usage that the class defines."""

    usage = {"completion_tokens": 3}

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("prompt") == "refuse":
            self.send_error(400, "no such model")
            return
        self.send_response(200)
        self.end_headers()
        for word in ("a ", "b ", "c"):
            self._send({"choices": [{"delta": {"content": word}} if self.path == "/v1/chat/completions" else {"text": word}]})
        self._send({"choices": [], "usage": self.usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, chunk):
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())


class CompletionsTest(unittest.TestCase):
    def setUp(self):
        self.handler = type("Handler", (FakeServer,), {})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def test_tokens_are_those_of_the_usage_and_times_those_of_the_text(self):
        done, seconds = completions.run(self.url, "key", [{"prompt": "one"}] * 5, 2)
        self.assertEqual([(one.text, one.tokens) for one in done], [("a b c", 3)] * 5)
        for one in done:
            self.assertGreater(one.first_token, 0)
            self.assertGreaterEqual(one.end, one.first_token)
            self.assertGreater(seconds, one.end)
        self.assertAlmostEqual(completions.figures(done, seconds)["tokens_per_second"], 15 / seconds)

    def test_messages_are_a_chat(self):
        done = completions.complete(self.url, "key", {"messages": [{"role": "user", "content": "one"}]})
        self.assertEqual((done.text, done.tokens), ("a b c", 3))

    def test_a_stream_without_usage_is_no_result(self):
        self.handler.usage = None
        with self.assertRaisesRegex(RuntimeError, "no usage"):
            completions.complete(self.url, "key", {"prompt": "one"})

    def test_a_refusal_has_its_reason(self):
        with self.assertRaisesRegex(RuntimeError, "(?s)HTTP 400.*no such model"):
            completions.complete(self.url, "key", {"prompt": "refuse"})

    def test_one_token_has_no_time_between(self):
        self.assertEqual(completions.Completion("a", 1, 0.5, 0.5).between_tokens, 0)
        self.assertEqual(completions.Completion("abc", 3, 0.5, 1.5).between_tokens, 0.5)


class CompareServersTest(unittest.TestCase):
    @staticmethod
    def figures(rate):
        return {"tokens_per_second": rate, "first_token_ms": 1.0, "between_tokens_ms": 2.0}

    def test_ratios_are_of_the_same_turn(self):
        turns = [
            {"off": {"code": self.figures(off), "all": self.figures(off)}, "drafts": {"code": self.figures(own), "all": self.figures(off)}}
            for off, own in ((10, 30), (20, 30), (10, 20))
        ]
        summary = compare_servers.summarise(turns, "off")
        self.assertEqual((summary["drafts"]["code"]["tokens_per_second"], summary["drafts"]["code"]["ratio"]), (30, 2.0))
        table = compare_servers.markdown(summary, ["off", "drafts"]).split("\n")
        self.assertEqual(table[0], "| what drafts | code, tokens/s | all, tokens/s | first token, ms | between tokens, ms |")
        self.assertEqual(
            table[2:],
            ["| off | 10.0 (1.00x) | 10.0 (1.00x) | 1.0 | 2.00 |", "| drafts | 30.0 (2.00x) | 10.0 (1.00x) | 1.0 | 2.00 |"],
        )

    def test_of_any_two_configurations_each_comes_first_in_half_of_the_turns(self):
        for names in ("ab", "abc", "abcde"):
            orders = ["".join(compare_servers.rotated(list(names), turn)) for turn in range(2 * len(names))]
            self.assertEqual({order[0] for order in orders}, set(names))
            for one, other in itertools.combinations(names, 2):
                earlier = sum(order.index(one) < order.index(other) for order in orders)
                self.assertEqual(2 * earlier, len(orders), (one, other, orders))

    def test_equal_texts_are_counted_against_the_first(self):
        texts = {"off": ["a", "b"], "other": ["a", "x"]}
        self.assertEqual(compare_servers.equal_texts(texts, "off"), {"off": 2, "other": 1})

    def test_a_server_needs_a_name_and_a_command(self):
        args = compare_servers.parse_arguments(["--server", "plain, -np 4=server -m {target} --x=1"])
        self.assertEqual(args.server, [("plain, -np 4", "server -m {target} --x=1")])
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            compare_servers.parse_arguments(["--url", "http://host"])

    def test_prompts_of_every_kind(self):
        prompts = compare_servers.read_prompts(compare_servers.serve.PROMPTS, 2, chat=False)
        self.assertEqual({kind: len(texts) for kind, texts in prompts.items()}, {"code": 2, "maths": 2, "story": 2})
        self.assertRegex(prompts["maths"][0]["prompt"], r"^Question: .*\nAnswer:$")
        with tempfile.TemporaryDirectory() as folder:
            lines = {"humaneval": {"prompt": "def f():\n"}, "mt_bench": {"turns": ["Why?", "And then?"]}, "gsm8k": {"question": "1 + 1?"}}
            for kind, line in lines.items():
                (pathlib.Path(folder) / f"{kind}.jsonl").write_text(json.dumps(line) + "\n")
            chats = compare_servers.read_prompts(pathlib.Path(folder), 2, chat=True)
        contents = {kind: [fields["messages"][0]["content"] for fields in some] for kind, some in chats.items()}
        self.assertEqual(contents["mt_bench"], ["Why?"])
        self.assertEqual(contents["gsm8k"], ["1 + 1?"])
        self.assertEqual(contents["humaneval"], ["Complete this Python function.\n\n```python\ndef f():\n```"])

    def test_a_file_has_its_own_weights(self):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            self.assertEqual(self.found("--target", file.name).weights, "auto")
        self.assertEqual(self.found().weights, "bf16")
        with self.assertRaisesRegex(compare_servers.plan.PlanError, "expected bf16, int8 or int4"):
            self.found("--weights", "auto")
        with self.assertRaisesRegex(compare_servers.plan.PlanError, "no model 'smollm3' in the list; it has smollm2-135m"):
            self.found("--target", "smollm3")

    @staticmethod
    def found(*arguments):
        return compare_servers.find_models(compare_servers.parse_arguments(arguments))

    def test_a_file_without_prompts_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "none.jsonl").touch()
            with self.assertRaisesRegex(RuntimeError, "none.jsonl: expected a prompt a line"):
                compare_servers.read_prompts(pathlib.Path(folder), 2, chat=True)

    def test_a_server_that_ends_is_reported_with_its_output(self):
        with tempfile.TemporaryDirectory() as folder:
            command = f"""{sys.executable} -c "import sys; sys.exit('no such model ' + sys.argv[1])" {{target}}"""
            server = compare_servers.HttpServer(command, {"target": "t.gguf"}, pathlib.Path(folder) / "log")
            with self.assertRaisesRegex(RuntimeError, "no such model t.gguf"):
                server.wait_ready()
            server.stop()


if __name__ == "__main__":
    unittest.main()
