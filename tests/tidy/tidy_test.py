#!/usr/bin/env python3
"""Each check of tidy.py passes a good file and finds a bad one."""

import pathlib
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import tidy  # noqa: E402  (its folder is put on the path above)


class TidyTest(unittest.TestCase):
    """Writes small trees and looks at the messages."""

    def findings(self, check, files):
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                file = pathlib.Path(root, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            return [f"{f.path}:{f.line}: {f.message}" for f in check(tidy.Tree(root, files))]

    def assert_finds(self, check, files, *fragments):
        found = self.findings(check, files)
        self.assertEqual(len(found), len(fragments), found)
        for fragment, message in zip(fragments, found):
            self.assertIn(fragment, message)

    def test_layers(self):
        header = "#pragma once\n"
        good = {
            "common/base/file.h": header,
            "common/engine/engine.h": '#pragma once\n#include "common/base/file.h"\n',
            "common/engine/engine.cc": '#include "common/engine/engine.h"\n\n#include "common/base/file.h"\n',
            "drafter/drafter.cc": '#include "common/engine/engine.h"\n#include "absl/status/status.h"\n',
        }
        self.assert_finds(tidy.check_includes, good)
        bad = {
            "common/base/file.h": '#pragma once\n#include "common/engine/engine.h"\n',
            "common/engine/engine.h": header,
            "common/config/c.h": '#pragma once\n#include "common/metrics/m.h"\n',
            "common/metrics/m.h": header,
            "drafter/drafter.h": header,
            "router/serving/router.cc": '#include "drafter/drafter.h"\n#include "router/none.h"\n#include "../x.h"\n',
        }
        self.assert_finds(
            tidy.check_includes,
            bad,
            "common/base stands below",
            "common/config stands below or beside",
            "services never include one another",
            "no such header",
            "never through '..'",
        )

    def test_common_folder_without_tier(self):
        files = {
            "common/odd/a.h": '#pragma once\n#include "common/base/b.h"\n',
            "common/base/b.h": "#pragma once\n",
        }
        self.assert_finds(tidy.check_includes, files, "common/odd has no tier")

    def test_rooms(self):
        good = {
            "router/config/config.h": "#pragma once\n",
            "router/config/README.md": "Uses: common.\n",
            "router/state/state.h": '#pragma once\n#include "router/config/config.h"\n',
            "router/state/README.md": "Uses: router/config; common.\n",
            "router/state/state_test.cc": '#include "router/serving/serving.h"\n',
        }
        self.assert_finds(tidy.check_rooms, good)
        circle = good | {"router/config/config.h": '#pragma once\n#include "router/state/state.h"\n'}
        circle["router/config/README.md"] = "Uses: router/state.\n"
        self.assert_finds(
            tidy.check_rooms, circle, "in a circle: router/config -> router/state -> router/config"
        )
        self.assert_finds(
            tidy.check_rooms,
            good | {"router/config/README.md": "Uses: router/admin.\n", "router/state/README.md": "Uses: common.\n"},
            "'Uses:' names router/admin, which is not used",
            "'Uses:' does not name router/config",
        )
        self.assert_finds(tidy.check_rooms, {"router/x/x.h": "#pragma once\n"}, "has a README.md")

    def test_members(self):
        good = {
            "verifier/session/session.h": "class Session {\n};\nclass Other;\nstruct Wait final : Base {\n};\n",
            "verifier/session/walk.cc": "void Session::Walk() {\n}\n",
            "verifier/scheduler/scheduler.cc": "Session Make() {\n  Session::Walk();\n}\nvoid Other::Run() {\n}\n",
            "verifier/scheduler/scheduler_test.cc": "void Session::Walk() {\n}\n",
        }
        self.assert_finds(tidy.check_members, good)
        self.assert_finds(
            tidy.check_members,
            good | {"verifier/scheduler/swap.cc": "std::vector<int> Session::Swap(int to) {\n}\nWait::~Wait() {\n}\n"},
            "a member of Session, which verifier/session declares",
            "a member of Wait, which verifier/session declares",
        )

    def test_wire_includes(self):
        include = '#include "tandem/v1/types.pb.h"\n#include <grpcpp/grpcpp.h>\n'
        good = {
            path: include for path in ("common/rpc/a.cc", "verifier/main.cc", "verifier/verifier_service.cc")
        }
        self.assert_finds(tidy.check_includes, good)
        self.assert_finds(
            tidy.check_includes, {"verifier/scheduler/scheduler.cc": include}, "only RPC shells", "only RPC shells"
        )
        self.assert_finds(tidy.check_includes, {"router/generation/relay.cc": include}, "grpcpp/grpcpp.h")
        self.assert_finds(
            tidy.check_includes, {"common/engine/wire.cc": include}, "only RPC shells", "only RPC shells"
        )

    def test_own_header_first(self):
        files = {
            "router/a.h": "#pragma once\n",
            "router/a.cc": '#include <string>\n\n#include "router/a.h"\n',
        }
        self.assert_finds(tidy.check_includes, files, "own header comes first")

    def test_pragma_once(self):
        self.assert_finds(tidy.check_headers, {"a/a.h": "#pragma once\n"})
        self.assert_finds(tidy.check_headers, {"a/a.h": "#ifndef A\n#endif\n"}, "#pragma once")

    def test_sizes(self):
        self.assert_finds(tidy.check_sizes, {"a/a.h": "\n" * tidy.MAX_FILE_LINES})
        self.assert_finds(tidy.check_sizes, {"a/a.h": "\n" * (tidy.MAX_FILE_LINES + 1)}, "601 lines")
        body = "  int x;\n" * (tidy.MAX_FUNCTION_LINES + 1)
        self.assert_finds(
            tidy.check_sizes, {"a/a.cc": "void F() {\n" + body + "}\n"}, "a function of 72 lines"
        )
        self.assert_finds(tidy.check_sizes, {"a/a.cc": "namespace a {\n" + body + "}\n"})

    @unittest.skipUnless(shutil.which("clang-format"), "clang-format is not installed")
    def test_format(self):
        self.assert_finds(tidy.check_format, {"a/a.cc": "int F() { return 1; }\n"})
        self.assert_finds(tidy.check_format, {"a/a.cc": "int  F( ) {return 1;}\n"}, "not formatted")

    def test_protos(self):
        good = (
            "// A thing.\nmessage Thing {\n  // Why.\n  string name = 1;\n}\n"
            "enum Kind {\n  KIND_UNSPECIFIED = 0;  // Default.\n  KIND_A = 1;\n}\n"
            "message Box {\n  oneof content {\n    Thing thing = 1;\n  }\n  uint32 n = 2;  // Count.\n}\n"
        )
        self.assert_finds(tidy.check_protos, {"proto/a.proto": good})
        bad = (
            "message Box {\n  uint32 n = 1;\n  map<uint32, float> m = 2;\n}\nenum Kind {\n  KIND_A = 0;\n}\n"
        )
        self.assert_finds(
            tidy.check_protos,
            {"proto/a.proto": bad},
            "field n has no comment",
            "field m has no comment",
            "_UNSPECIFIED",
        )
        foreign = "enum Code {\n  CODE_UNSET = 0;\n}\n"
        self.assert_finds(tidy.check_protos, {"proto/opentelemetry/a.proto": foreign})
        self.assert_finds(tidy.check_protos, {"proto/a.proto": foreign}, "_UNSPECIFIED")

    def test_connections(self):
        bad = "grpc::ServerBuilder builder;\nauto channel = grpc::CreateChannel(target, credentials);\n"
        good = {"common/rpc/server.cc": bad, "router/testing/stub.cc": bad, "router/a_test.cc": bad}
        good["router/pool.cc"] = "auto channel = tandem::CreateChannel(endpoint);\n"
        self.assert_finds(tidy.check_connections, good)
        self.assert_finds(tidy.check_connections, {"router/pool.cc": bad}, "common/rpc", "common/rpc")

    def test_text(self):
        self.assert_finds(tidy.check_text, {"a.txt": "fine\n", "x/testdata/b.txt": "blanks \n"})
        self.assert_finds(tidy.check_text, {"a.txt": "blanks \n"}, "trailing blanks")
        self.assert_finds(tidy.check_text, {"a.txt": "// TO" "DO later\n"}, "unfinished")
        self.assert_finds(tidy.check_text, {"x/testdata/b.txt": "see /wo" "rk/x\n"}, "a path of one machine")
        self.assert_finds(tidy.check_text, {"a.txt": "~/wo" "rk/x and net/wo" "rk/y\n"})

    def test_links(self):
        good = {
            "docs/a.md": "# A title, with: marks\n[b](../b.md#part-two) [me](#a-title-with-marks)\n",
            "b.md": "## Part two\n```sh\n# not a heading, [not](a-link)\n```\n",
        }
        self.assert_finds(tidy.check_links, good)
        bad = {"docs/a.md": "[b](b.md)\n[c](../c.md#none)\n", "c.md": "# C\n"}
        self.assert_finds(tidy.check_links, bad, "broken link: b.md", "no heading")

    def test_mentions(self):
        pages = {"docs/a/b.md": "# Part two\n"}
        good = {**pages, "router/a.h": "// See docs/a/b.md and docs/a/b.md#part-two.\n", "x.yml": "url: ../docs/none.md\n"}
        self.assert_finds(tidy.check_mentions, good)
        bad = {**pages, "router/a.cc": '// docs/b.md\nText("(docs/a/b.md#none)");\n'}
        self.assert_finds(tidy.check_mentions, bad, "there is no docs/b.md", "has no heading for #none")

    def test_commands(self):
        cmake = "tandem_binary(\n  NAME tandem-router\n  SOURCES main.cc)\n"
        files = {
            "CMakeLists.txt": cmake,
            "deploy/up.sh": "",
            "README.md": "```bash\ndeploy/up.sh --fast\nbuild/dev/bin/tandem-router --help\n```\n",
        }
        self.assert_finds(tidy.check_commands, files)
        files["README.md"] = "```bash\n./deploy/down.sh\nbuild/dev/bin/tandem-none\n```\n"
        self.assert_finds(
            tidy.check_commands,
            files,
            "no deploy/down.sh",
            "no CMake target builds build/dev/bin/tandem-none",
        )


if __name__ == "__main__":
    unittest.main()
