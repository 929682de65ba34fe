"""Tests `tandem serve`: its plan, and the command itself with parts that are not the real ones. tests/e2e/serve_test.py has those."""

import contextlib
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
SERVE = REPOSITORY / "deploy" / "serve"
PROGRAM = SERVE / "tandem-serve"
FAKE = pathlib.Path(__file__).resolve().parent / "fake_part.py"
PATIENCE_SECONDS = 60
sys.path.insert(0, str(SERVE))

import plan  # noqa: E402  (its folder is put on the path above)
import serve  # noqa: E402


def wait_until(condition, what):
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = threading.Event()
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {PATIENCE_SECONDS} s for {what}")
        pause.wait(0.01)
    return value


class FolderTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="tandem serve ")  # A space, as folders of users have.
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)
        self.model = self.root / "model.gguf"
        self.model.write_bytes(bytes(3_000_000))


class PlanTest(FolderTest):
    def test_threads(self):
        def split(count, target, *drafts):
            return plan.split_threads(
                count, plan.Served("target", "/t", target), [plan.Served(f"d{size}", "/d", size) for size in drafts]
            )

        self.assertEqual(split(8, 1000), (8, 1), "without drafts all are the verifier's")
        self.assertEqual(split(8, 1000, 0), (8, 1), "nor does a source take any")
        self.assertEqual(split(1, 1000, 500), (1, 1))
        self.assertEqual(split(2, 1000, 500), (1, 1))
        self.assertEqual(split(16, 1000, 1, 10), (15, 1))
        self.assertEqual(split(16, 1000, 50), (13, 3))
        self.assertEqual(split(16, 1000, 50, 900), (8, 8), "the drafter gets half at most, by its heaviest model")

    def test_models(self):
        self.assertEqual(plan.resolve(str(self.model)), plan.Served("model", str(self.model), 3_000_000))
        self.assertEqual(plan.resolve(str(self.model), "other").name, "other")
        folder = self.root / "my model"
        folder.mkdir()
        for i in (1, 2):
            (folder / f"model-{i}.safetensors").write_bytes(bytes(100))
        self.assertEqual(plan.resolve(str(folder)), plan.Served("my-model", str(folder), 200))
        for i in (1, 2, 3):
            (self.root / f"split-0000{i}-of-00003.gguf").write_bytes(bytes(10 * i))
        self.assertEqual(plan.resolve(str(self.root / "split-00001-of-00003.gguf")).bytes, 60)
        for text, name, path in (("ngram:min=2", "ngram", "ngram:min=2"), ("look=suffix", "look", "suffix")):
            draft = plan.resolve_draft(text)
            self.assertEqual((draft.name, draft.path, draft.bytes, draft.is_source), (name, path, 0, True))
        self.assertEqual(plan.resolve_draft(f"small={self.model}"), plan.Served("small", str(self.model), 3_000_000))
        for text, message in (
            ("smollm2", "no file or folder here, and there is no model 'smollm2' in the list; it has smollm2-135m, "),
            ("models/none", "no such file or folder"),
            ("none.gguf", "no such file or folder"),
        ):
            with self.assertRaisesRegex(plan.PlanError, message):
                plan.resolve(text)
        for text in ("=a", "a="):
            with self.assertRaisesRegex(plan.PlanError, "expected NAME=MODEL"):
                plan.resolve_draft(text)

    def test_a_name_of_the_list_is_its_file(self):
        (self.root / "SmolLM2-135M-Instruct.Q4_1.gguf").touch()
        os.truncate(self.root / "SmolLM2-135M-Instruct.Q4_1.gguf", 98362432)
        os.environ["TANDEM_MODELS"] = str(self.root)
        self.addCleanup(os.environ.pop, "TANDEM_MODELS")
        served = plan.resolve("smollm2-135m")
        self.assertEqual(served, plan.Served("smollm2-135m", f"{self.root}/SmolLM2-135M-Instruct.Q4_1.gguf", 98362432))

    def refused(self, *arguments):
        with self.assertRaises(SystemExit) as caught, contextlib.redirect_stderr(io.StringIO()) as err:
            serve.parse([*arguments])
        self.assertEqual(caught.exception.code, 2)
        return err.getvalue()

    def test_command_lines_that_are_refused(self):
        self.assertIn("--api-key", self.refused("m", "--host", "0.0.0.0"))
        self.assertIn("expected 0 to 65535", self.refused("m", "--port", "65536"))
        self.assertIn("expected 1 to 1024", self.refused("m", "--threads", "0"))
        self.assertIn("no drafter without --draft", self.refused("m", "--drafter-flag=--threads=2"))
        self.assertIn("MODEL", self.refused())

    def test_addresses(self):
        self.assertEqual(plan.address("127.0.0.1", 1), "127.0.0.1:1")
        self.assertEqual(plan.address("::1", 1), "[::1]:1")
        self.assertEqual(plan.caller_address("0.0.0.0", 1), "127.0.0.1:1")
        self.assertEqual(plan.caller_address("::", 1), "[::1]:1")


class CommandTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.bin = self.root / "bin"
        self.bin.mkdir()
        for program in plan.PROGRAMS:
            (self.bin / program).symlink_to(FAKE)
        # Found beside the name that the command is started by.
        (self.bin / "tandem-serve").symlink_to(PROGRAM)
        temporary = tempfile.TemporaryDirectory(prefix="tandem-serve-test-")
        self.addCleanup(temporary.cleanup)
        self.temporary = pathlib.Path(temporary.name)
        self.journal = self.root / "journal"
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")}
        self.environment |= {"JOURNAL": str(self.journal), "TMPDIR": str(self.temporary)}
        self.out, self.err = [], []

    def begin(self, *arguments, **behaviour):
        environment = self.environment | {f"FAKE_{part.upper()}": value for part, value in behaviour.items()}
        self.process = subprocess.Popen(
            [self.bin / "tandem-serve", str(self.model), "--port", "0", "--grpc-port", "0", *map(str, arguments)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)
        for stream, lines in ((self.process.stdout, self.out), (self.process.stderr, self.err)):
            reader = threading.Thread(target=lines.extend, args=(stream,))
            reader.start()
            self.addCleanup(stream.close)
            self.addCleanup(reader.join)

    def begin_ready(self, *arguments, **behaviour):
        self.begin(*arguments, **behaviour)
        wait_until(lambda: "Ctrl-C stops it.\n" in self.out, "a command that is ready")

    def end(self, code):
        self.assertEqual(self.process.wait(PATIENCE_SECONDS), code, self.err)
        self.assertEqual(list(self.temporary.iterdir()), [], "the folder of sockets is gone")

    def events(self, event):
        if not self.journal.exists():
            return []
        entries = [json.loads(line) for line in self.journal.read_text().splitlines()]
        return [entry for entry in entries if entry["event"] == event]

    def pids(self):
        return {entry["part"]: entry["pid"] for entry in self.events("started")}

    def arguments(self, part):
        return next(entry["arguments"] for entry in self.events("started") if entry["part"] == part)

    def test_says_what_it_serves_and_stops_in_order(self):
        self.begin_ready("--draft", f"small={self.model}", "--draft", "ngram", "--threads", "4", "--log-dir", self.root / "logs")
        said = "".join(self.out)
        self.assertRegex(said, rf"Ready after [0-9.]+ s: model, from {self.model} \(3 MB\)")
        self.assertRegex(said, r"memory   \d+ MB: router [1-9]\d*, verifier [1-9]\d*, drafter [1-9]\d*\n")
        self.assertIn("threads  verifier 2, drafter 2\n", said)
        self.assertIn("drafts   small, ngram, prompt lookup\n", said)
        self.assertIn("gRPC     127.0.0.1:4711\n", said)
        line = next(line.strip() for line in self.out if line.strip().startswith("curl "))
        self.assertIn("/v1/chat/completions", line)
        self.assertEqual(subprocess.run(line, shell=True, check=False, capture_output=True).returncode, 0)
        asked = self.events("asked")
        self.assertEqual([entry["authorization"] for entry in asked], ["Bearer tandem"] * 2)
        self.assertEqual([entry["body"]["max_tokens"] for entry in asked], [1, 64])
        self.process.send_signal(signal.SIGINT)
        self.end(0)
        self.assertEqual([entry["part"] for entry in self.events("ended")], ["router", "verifier", "drafter"])
        self.assertEqual(sorted(path.name for path in (self.root / "logs").iterdir()), ["drafter.log", "router.log", "verifier.log"])
        self.assertIn("serving address=unix:/drafter.sock", (self.root / "logs" / "drafter.log").read_text())

    def test_flags_of_the_parts(self):
        more = ("--verifier-flag=--kv-tokens=4096", "--drafter-flag=--max-sessions=2", "--router-flag=--tokenizer-threads=3")
        self.begin_ready("--draft", f"small={self.model}", "--api-key", "mine", "--name", "large", *more)
        verifier, drafter, router = (self.arguments(part) for part in ("verifier", "drafter", "router"))
        self.assertEqual(verifier[verifier.index("--model") + 1], f"large={self.model}")
        self.assertEqual(drafter[drafter.index("--model") + 1], f"small={self.model}")
        for arguments, flag in ((verifier, "--kv-tokens=4096"), (drafter, "--max-sessions=2"), (router, "--tokenizer-threads=3")):
            # Behind those of the command, so that they count, and before what it reads the log by.
            self.assertEqual(arguments[-3:], [flag, "--log-format", "text"])
        self.assertNotIn("mine", "".join(self.out))
        self.assertEqual(self.events("asked")[0]["authorization"], "Bearer mine")
        config = pathlib.Path(router[router.index("--config") + 1])
        self.assertEqual(config.stat().st_mode & 0o777, 0o600)
        self.assertEqual(
            json.loads(config.read_text())["tenants"],
            [{"name": "local", "token": "mine", "text_drafting": True, "drafter": "small"}],
        )
        self.process.send_signal(signal.SIGTERM)
        self.end(0)

    def test_a_part_that_dies_is_started_again(self):
        self.begin_ready()
        self.assertEqual(sorted(self.pids()), ["router", "verifier"])
        ports = [line for line in self.out if "HTTP" in line]
        for part in ("verifier", "router"):
            first = self.pids()[part]
            os.kill(first, signal.SIGKILL)
            wait_until(lambda part=part, first=first: self.pids()[part] != first, f"another {part}")
            said = "".join(self.err)
            self.assertRegex(said, rf"{part} was ended by SIGKILL; it starts again in 0\.5 s\. Its last lines:\n.* tandem-{part}: ")
        # The same ports again.
        router = self.events("started")[-1]["arguments"]
        http = router[router.index("--http-listen") + 1]
        self.assertIn(f"http://{http}/v1", ports[0])
        self.assertEqual(router[router.index("--listen") + 1], "127.0.0.1:4711")
        # The second time it waits longer.
        os.kill(self.pids()["verifier"], signal.SIGKILL)
        wait_until(lambda: "starts again in 1 s" in "".join(self.err), "a longer wait")
        self.process.send_signal(signal.SIGINT)
        self.end(0)

    def test_a_part_that_does_not_start_ends_the_command(self):
        self.begin("--draft", "ngram", verifier="fails")
        self.end(1)
        said = "".join(self.err)
        self.assertIn("verifier ended with code 1:\n", said)
        self.assertIn('tandem-verifier: cannot serve error="NOT_FOUND: no such model"', said)
        self.assertNotIn("Traceback", said)
        self.assertEqual(self.out, [])
        for pid in self.pids().values():
            self.assertFalse(pathlib.Path(f"/proc/{pid}").exists())

    def test_a_second_signal_stops_at_once(self):
        self.begin_ready(router="stubborn")
        self.process.send_signal(signal.SIGINT)
        wait_until(lambda: "stopping" in "".join(self.err), "the first signal")
        self.assertIsNone(self.process.poll())
        self.process.send_signal(signal.SIGINT)
        self.end(130)
        for pid in self.pids().values():
            self.assertFalse(pathlib.Path(f"/proc/{pid}").exists())

    def test_parts_end_with_a_command_that_is_killed(self):
        self.begin_ready()
        self.process.kill()
        wait_until(lambda: len(self.events("ended")) == 2, "the parts to end")

    def test_a_command_of_the_user(self):
        names = ("TANDEM_ENDPOINT", "TANDEM_TOKEN", "OPENAI_BASE_URL", "OPENAI_API_KEY")
        program = f"import os; print(*(os.environ[name] for name in {names})); raise SystemExit(7)"
        self.begin("--api-key", "mine", "--admin", "--run", sys.executable, "-c", program)
        self.end(7)
        self.assertRegex(self.out[-1], r"^127\.0\.0\.1:4711 mine http://127\.0\.0\.1:\d+/v1 mine\n$")
        self.assertIn("Ready after", self.out[0])
        self.assertNotIn("Ctrl-C stops it.\n", self.out)
        self.assertEqual([entry["part"] for entry in self.events("ended")], ["router", "verifier"])

    def test_a_command_of_the_user_that_is_not_there(self):
        self.begin("--run", "/nowhere/benchmark")
        self.end(127)
        self.assertIn("--run: /nowhere/benchmark: No such file or directory", "".join(self.err))

    def test_a_command_of_the_user_ends_with_the_parts(self):
        mark = self.root / "pid"
        self.begin("--run", "bash", "-c", 'echo $$ >"$0.new" && mv "$0.new" "$0" && exec sleep 600', str(mark))
        wait_until(mark.exists, "the command to run")
        self.process.send_signal(signal.SIGTERM)
        self.end(130)
        self.assertFalse(pathlib.Path(f"/proc/{mark.read_text().strip()}").exists())

    def test_a_token_that_may_change_tenants(self):
        self.begin_ready("--admin")
        router = self.arguments("router")
        config = json.loads(pathlib.Path(router[router.index("--config") + 1]).read_text())
        self.assertIs(config["tenants"][0]["admin"], True)
        self.process.send_signal(signal.SIGTERM)
        self.end(0)

    def test_a_model_without_chat_template(self):
        self.environment["REFUSED"] = "/v1/chat/completions"
        self.begin_ready()
        self.assertTrue(any(re.match(r" *curl http://[0-9.:]+/v1/completions ", line) for line in self.out), self.out)
        self.process.send_signal(signal.SIGINT)
        self.end(0)

    def test_a_first_request_that_is_refused(self):
        self.environment["REFUSED"] = "/v1/chat/completions:/v1/completions"
        self.begin()
        self.end(1)
        self.assertIn("the first request was refused with 404", "".join(self.err))
        self.assertEqual(len(self.events("ended")), 2)

    def test_sockets_lie_where_addresses_can_name_them(self):
        for name in ("a folder", "x" * 100, "f\u00fcr"):
            folder = self.root / name
            folder.mkdir()
            self.environment["TMPDIR"] = str(folder)
            self.journal.unlink(missing_ok=True)
            self.begin_ready()
            self.assertEqual(list(folder.iterdir()), [])
            arguments = next(event["arguments"] for event in self.events("started") if event["part"] == "verifier")
            address = arguments[arguments.index("--listen") + 1]
            self.assertRegex(address, r"^unix:/tmp/tandem-serve-[\x21-\x7e]+/verifier\.sock$")
            self.process.send_signal(signal.SIGINT)
            self.end(0)
            self.out.clear()

    def test_command_lines_that_are_wrong(self):
        self.begin("--draft", "a=ngram", "--draft", "a=suffix")
        self.end(2)
        self.assertIn("the name a is used twice", "".join(self.err))
        for program in plan.PROGRAMS:
            (self.bin / program).unlink()
        self.environment["PATH"] = "/usr/bin:/bin"
        run = subprocess.run(
            [sys.executable, "-c", "import plan; print(plan.find_programs('/nowhere/tandem-serve'))"], capture_output=True, text=True,
            env=self.environment | {"PYTHONPATH": str(self.copy_of_the_program())}, check=False,
        )  # fmt: skip
        self.assertIn("found no folder with tandem-router, tandem-verifier, tandem-drafter", run.stderr)

    def copy_of_the_program(self):
        """Where there is no build beside it."""
        folder = self.root / "lib" / "tandem" / "serve"
        folder.mkdir(parents=True)
        for file in SERVE.iterdir():
            if file.is_file():
                (folder / file.name).write_bytes(file.read_bytes())
        return folder


if __name__ == "__main__":
    unittest.main(verbosity=2)
