"""`tandem` against running services, as people and scripts use it."""

import json
import os
import pty
import select
import signal
import subprocess
import time
import unittest

from processes import (
    BIN_DIR,
    DRAFTERS,
    PATIENCE_SECONDS,
    TARGET,
    ProcessTest,
    clean_environment,
    request_for,
    wait_until,
)

GREEN = "\033[32m"
SAMPLING = ("--temperature", "0.8", "--seed", "11", "--ignore-eos")


class CommandLineTest(ProcessTest):
    def setUp(self):
        super().setUp()
        self.start_stack()
        self.environment = dict(
            clean_environment(), TANDEM_ENDPOINT=self.router.address, TANDEM_TOKEN="secret", TERM="xterm"
        )
        self.environment.pop("NO_COLOR", None)

    def begin(self, *arguments, **options):
        return subprocess.Popen(
            [str(BIN_DIR / "tandem"), *map(str, arguments)], env=self.environment, **options
        )

    def run_tandem(self, *arguments, text_in=""):
        """Exit code, standard output and standard error."""
        process = self.begin(
            *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        out, err = process.communicate(text_in, PATIENCE_SECONDS)
        return process.returncode, out, err

    def read_pieces(self, descriptor):
        """The bytes of every read until the end, each as soon as something is there."""
        pieces = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while select.select([descriptor], [], [], max(0, deadline - time.monotonic()))[0]:
            try:
                piece = os.read(descriptor, 65536)
            except OSError:  # How a terminal whose other side is closed ends.
                return pieces
            if not piece:
                return pieces
            pieces.append(piece)
        self.fail("the output did not end")

    def until_accepted(self, run, has_accepted):
        """What a run gives that has accepted drafts: a drafter that starves may miss whole requests."""
        results = []

        def accepted():
            results.append(run())
            return has_accepted(results[-1])

        wait_until(accepted, "accepted drafts")
        return results[-1]

    def test_text_streams_as_it_is_generated(self):
        expected = self.generate(request_for(max_tokens=400)).read().text

        def streams():
            process = self.begin(
                "generate", "Once upon a time", *SAMPLING, "--max-tokens", 400, stdout=subprocess.PIPE
            )
            pieces = self.read_pieces(process.stdout.fileno())
            process.stdout.close()
            self.assertEqual(process.wait(PATIENCE_SECONDS), 0)
            text = b"".join(pieces)
            self.assertEqual(text.decode().rstrip("\n"), expected.rstrip("\n"))
            return len(pieces) > 10 and max(map(len, pieces)) < len(text) / 2

        # Who reads late gets much at once: on a busy machine that may be this test, but not every time.
        self.assertTrue(any(streams() for _ in range(5)), "the text came in few pieces")

    def test_json(self):
        expected = self.generate(request_for()).read()
        for extra in ((), ("--no-speculation",)):
            flags = ("--max-tokens", 32, "--json", "--logprobs", 2, *extra)

            def run(arguments=("generate", "Once upon a time", *SAMPLING, *flags)):
                code, out, err = self.run_tandem(*arguments)
                self.assertEqual((code, err), (0, ""))
                return json.loads(out)

            document = run() if extra else self.until_accepted(run, lambda d: "accepted" in d["sources"])
            self.assertEqual(document["tokens"], expected.tokens)
            self.assertEqual(document["text"], expected.text)
            self.assertEqual(document["seed"], 11)
            self.assertEqual(document["finish_reason"], "max_tokens")
            self.assertEqual(document["drafter"], "" if extra else DRAFTERS[0])
            self.assertEqual("accepted" in document["sources"], not extra)
            self.assertEqual(len(document["logprobs"]), 32)
            self.assertEqual(len(document["logprobs"][0]["top"]), 2)
        code, out, _ = self.run_tandem("generate", "Hi", *SAMPLING, "--max-tokens", 8, "--json-stream")
        self.assertEqual(code, 0)
        events = [json.loads(line) for line in out.splitlines()]
        self.assertEqual((events[0]["event"], events[-1]["event"]), ("started", "finished"))
        self.assertEqual(sum(len(event.get("tokens", [])) for event in events), 8)

    def test_accepted_text_is_green_on_a_terminal(self):
        def run():
            main, other = pty.openpty()
            process = self.begin(
                *("generate", "Once upon a time", *SAMPLING, "--max-tokens", 48, "--stats"),
                stdout=other,
                stderr=other,
            )
            os.close(other)
            text = b"".join(self.read_pieces(main)).decode().replace("\r\n", "\n")
            os.close(main)
            self.assertEqual(process.wait(PATIENCE_SECONDS), 0)
            return text.partition(f"{GREEN}green")

        output, _, stats = self.until_accepted(run, lambda parts: GREEN in parts[0])
        self.assertIn("\033[0m", output)
        plain = output.replace(GREEN, "").replace("\033[0m", "")
        expected = self.generate(request_for(max_tokens=48)).read().text
        self.assertEqual(plain.rstrip("\n"), expected.rstrip("\n"))
        self.assertIn("acceptance", stats)
        # Not in a pipe, where somebody may read it.
        _, out, _ = self.run_tandem("generate", "Once upon a time", *SAMPLING, "--max-tokens", 48)
        self.assertNotIn("\033", out)

    def test_exit_codes_and_what_is_said(self):
        code, _, err = self.run_tandem("generate", "Hi", "--temperature", "-1")
        self.assertEqual((code, "sampling.temperature" in err), (1, True), err)
        code, _, err = self.run_tandem("generate")
        self.assertEqual((code, "no prompt" in err), (2, True), err)
        code, _, err = self.run_tandem("generate", "Hi", "--no-such-flag")
        self.assertEqual(code, 2, err)
        code, _, err = self.run_tandem("generate", "Hi", "--token", "wrong")
        self.assertEqual((code, "UNAUTHENTICATED" in err), (1, True), err)
        code, _, err = self.run_tandem("generate", "Hi", "--endpoint", "127.0.0.1:9")
        self.assertEqual((code, "cannot connect to 127.0.0.1:9" in err), (1, True), err)
        long = ("--max-tokens", 2000, "--timeout", "200ms")
        code, _, err = self.run_tandem("generate", "Hi", *SAMPLING, *long)
        self.assertEqual((code, "DEADLINE_EXCEEDED" in err), (1, True), err)
        code, out, _ = self.run_tandem("--help")
        self.assertEqual((code, "generate" in out), (0, True))

    def test_interrupting_keeps_the_text(self):
        process = self.begin(
            *("generate", "Once upon a time", *SAMPLING, "--max-tokens", 2000),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        first = os.read(process.stdout.fileno(), 65536)
        self.assertNotEqual(first, b"")
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(process.returncode, 1)
        self.assertIn(b"interrupted", err)
        whole = self.generate(request_for(max_tokens=2000)).read().text
        text = (first + rest).decode().rstrip("\n")
        self.assertTrue(whole.startswith(text), text)
        self.assertLess(len(text), len(whole))
        self.wait_idle(self.verifier)

    def test_info_and_chat(self):
        code, out, _ = self.run_tandem("info", "--json")
        document = json.loads(out)
        self.assertEqual((code, document["role"]), (0, "router"))
        self.assertEqual(document["models"][0]["name"], TARGET)
        self.assertEqual([drafter["name"] for drafter in document["drafters"]], sorted(DRAFTERS))
        code, out, _ = self.run_tandem(
            *("chat", "--temperature", "0", "--max-tokens", "16"),
            text_in="What is 3 + 4?\nAnd 4 + 5?\n/exit\n",
        )
        self.assertEqual(code, 0)
        self.assertNotEqual(out.strip(), "")


if __name__ == "__main__":
    unittest.main(verbosity=2)
