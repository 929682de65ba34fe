#!/usr/bin/env python3
"""What docs/reference/generate.py reads from protos and help texts, and that it finds stale pages."""

import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
REFERENCE = REPOSITORY / "docs" / "reference"
sys.path.insert(0, str(REFERENCE))
import flag_pages  # noqa: E402  (its folder is put on the path above)
import proto_pages  # noqa: E402

PROTO = """syntax = "proto3";

// What the file is for.
//
//   a ---> b
package tandem.v1;

import "tandem/v1/other.proto";

// Serves.
service Server {
  // Streams | answers.
  rpc Go(Request) returns (stream Answer);
}

message Request {
  enum Mode {
    // None.
    MODE_UNSPECIFIED = 0;
    MODE_FAST = 1;  // Quick.
  }
  // How.
  Mode mode = 1;
  oneof what {
    // Text in
    // two lines, see docs/operate/live.md.
    string text = 2;
    repeated Answer answers = 3;
  }
  map<uint32, float> bias = 4;  // By token.
}

// Nothing.
message Answer {}
"""

HELP = """Does things.
Usage: tandem-router [OPTIONS]

Options:
  --help                                Print this help and exit.


Limits (rough):
  --count UINT:[1, 1e+06]=64 (Env:TANDEM_ROUTER_COUNT)
                                        How many; `x|y` or --kind.
  --kind TEXT:{a,b}=a (Env:TANDEM_ROUTER_KIND)
                                        Which.
  --fast,--no-fast{false} (Env:TANDEM_ROUTER_FAST)
                                        Be quick.
  --model TEXT,... (Env:TANDEM_ROUTER_MODEL)
                                        Models.
  --slow Excludes: --fast               Be slow
"""

SETTINGS = """Settings of tandem-router.

Limits (rough):
  --streams UINT:[1, 64]=8              Streams.

Server:
  --quick                               Quickly, as with --fast.
"""


class ReferenceTest(unittest.TestCase):
    def proto(self, text, name="tandem/v1/generation.proto"):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "x.proto")
            path.write_text(text, encoding="utf-8")
            return proto_pages.read_proto(path, name)

    def test_proto(self):
        file = self.proto(PROTO)
        empty = {name: self.proto(f"// Empty.\npackage {name};", name) for name in proto_pages.API_FILES[1:]}
        config = self.proto("message RouterConfig {\n  // Which.\n  Kind kind = 1;\n}\nenum Kind {\n  KIND_A = 0;  // First.\n}\n"
                            "message Other {}\n", proto_pages.CONFIG_FILE)  # fmt: skip
        protos = {file.name: file, **empty, proto_pages.CONFIG_FILE: config}
        page = proto_pages.api_page(protos)
        for line in (
            "```text\n  a ---> b\n```",
            "| `Go` | [Request](#request) | stream of [Answer](#answer) | Streams \\| answers. |",
            "| `mode` | 1 | [Mode](#requestmode) | How. |",
            "| `text` | 2 | string | One of `what`. Text in two lines, see [live](../operate/live.md). |",
            "| `answers` | 3 | list of [Answer](#answer) | One of `what`. |",
            "| `bias` | 4 | map of uint32 to float | By token. |",
            "### Request.Mode",
            "| `MODE_FAST` | 1 | Quick. |",
            "### Answer\n\nNothing.\n\nNo fields.",
            "### Other",
        ):
            self.assertIn(line, page)
        self.assertNotIn("### RouterConfig", page)
        page = proto_pages.config_page(protos)
        self.assertIn("| `kind` | [Kind](#kind) | Which. |", page)
        self.assertIn("| `a` | First. |", page)
        self.assertNotIn("Other", page)

    def test_a_line_that_cannot_be_read_is_an_error(self):
        for text in ("message A {\n  group B = 1 {\n", "message A {\n", "message A { string b = 1; }\n"):
            with self.assertRaises(SystemExit, msg=text):
                self.proto(text)

    def test_flags(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "tandem-router")
            for help_text, error in ((HELP, None), (HELP.replace("ROUTER_KIND", "ROUTER_X"), "expected TANDEM_ROUTER_KIND")):
                program.write_text(
                    "#!/bin/sh\nif [ $1 = --help-settings ]; then\ncat <<'EOF'\n"
                    f"{SETTINGS}EOF\nelse\ncat <<'EOF'\n{help_text}EOF\nfi\n",
                    encoding="utf-8",
                )
                program.chmod(program.stat().st_mode | stat.S_IXUSR)
                part = flag_pages.program_part(pathlib.Path(folder), ["tandem-router"], 2, {})
                if error:
                    with self.assertRaisesRegex(SystemExit, error):
                        list(part)
                    continue
                self.assertEqual(
                    list(part)[3:],
                    [
                        "",
                        "**Limits (rough)**",
                        "",
                        "| flag | value | default | meaning |",
                        "| --- | --- | --- | --- |",
                        "| `--count` | uint, 1 to 1000000 | `64` | How many; `x\\|y` or `--kind`. |",
                        "| `--kind` | one of `a`, `b` | `a` | Which. |",
                        "| `--fast` | switch |  | Be quick. |",
                        "| `--model` | text, list |  | Models. |",
                        "| `--slow` | switch |  | Be slow. Not with `--fast`. |",
                        "",
                        "**Settings**, only in the file that `--flags-file` names",
                        "",
                        "| setting | value | default | meaning |",
                        "| --- | --- | --- | --- |",
                        "| `streams` | uint, 1 to 64 | `8` | Streams. |",
                        "| `quick` | switch |  | Quickly, as with `--fast`. |",
                    ],
                )

    def test_a_flag_that_ends_where_its_help_begins(self):
        lines = ["", "Options:", "  --instruction-set TEXT=auto auto or avx2.", "  --b TEXT                    B.", ""]
        found = [items for title, items in flag_pages.sections(lines) if title == "Options"]
        self.assertEqual(found, [[["--instruction-set TEXT=auto", "auto or avx2."], ["--b TEXT", "B."]]])

    def test_stale_pages_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name in ("generate.py", "flag_pages.py", "proto_pages.py"):
                target = root / "docs" / "reference" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes((REFERENCE / name).read_bytes())
            for name in (*proto_pages.API_FILES, proto_pages.CONFIG_FILE):
                target = root / "proto" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes((REPOSITORY / "proto" / name).read_bytes())

            def generate(*arguments):
                command = [sys.executable, "-B", root / "docs" / "reference" / "generate.py", *arguments]
                return subprocess.run(command, capture_output=True, text=True, check=False)

            self.assertEqual(generate("--check").returncode, 1, "there is no page yet")
            self.assertEqual(generate().returncode, 0)
            self.assertEqual(generate("--check").returncode, 0)
            config = root / "proto" / proto_pages.CONFIG_FILE
            text = config.read_text()
            self.assertIn("// The whole file.", text)
            config.write_text(text.replace("// The whole file.", "// Another text."))
            check = generate("--check")
            self.assertEqual(check.returncode, 1)
            self.assertIn("to renew them: docs/reference/generate.py --bin-dir", check.stdout)


if __name__ == "__main__":
    unittest.main()
