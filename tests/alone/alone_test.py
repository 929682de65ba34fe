"""Tests alone.py and its search on a small project of its own, with git, CMake and a compiler."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import alone  # noqa: E402  (its folder is put on the path above)
import suspects  # noqa: E402

FILES = {
    "CMakeLists.txt": """
cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES CXX)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
include_directories(${CMAKE_SOURCE_DIR})
add_library(sums STATIC sums/sum.cc sums/twice.cc)
""",
    ".gitignore": "/build/\n",
    "sums/sum.h": "#pragma once\n\nint Sum(int a, int b);\n",
    "sums/sum.cc": '#include "sums/sum.h"\n\nint Sum(int a, int b) { return a + b; }\n',
    "sums/twice.h": '#pragma once\n\n#include "sums/tables.h"\n\nint Twice(int a);\n',
    "sums/tables.h": "#pragma once\n\nstruct Table {\n  int Sum = 0;\n};\n",
    # Sum is declared in sum.h, which only sum.cc includes.
    "sums/twice.cc": '#include "sums/twice.h"\n\nint Twice(int a) { return Sum(a, a); }\n',
}


class AloneTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="tandem alone ")
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name).resolve()
        for name, text in FILES.items():
            self.write(name, text)
        self.run_here("git", "init", "-q")
        self.commit("2026-01-01T00:00:00Z")
        self.run_here("cmake", "-G", "Ninja", "-B", "build/alone")

    def write(self, name, text):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def run_here(self, *command, environment=None):
        subprocess.run(command, cwd=self.root, check=True, stdout=subprocess.DEVNULL, env=environment)

    def commit(self, date):
        self.run_here("git", "add", "-A")
        names = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
        self.run_here(
            "git", *names, "commit", "-q", "-m", "test", environment={"GIT_COMMITTER_DATE": date, "GIT_AUTHOR_DATE": date, "PATH": "/usr/bin:/bin"}
        )

    def run_alone(self, *arguments):
        return subprocess.run(
            [sys.executable, "-B", pathlib.Path(alone.__file__), "--repository", self.root, "--build", self.root / "build/alone", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )

    def test_a_source_without_an_include_that_it_needs_fails(self):
        done = self.run_alone()
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("sums/twice.cc does not compile alone", done.stdout)
        self.write("sums/twice.cc", FILES["sums/twice.cc"].replace('twice.h"\n', 'twice.h"\n#include "sums/sum.h"\n'))
        done = self.run_alone()
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_a_header_that_no_source_includes_first_is_compiled_too(self):
        self.write("sums/tables.h", "#pragma once\n\nstruct Table {\n  std::string name;\n};\n")
        self.write("sums/twice.cc", '#include "sums/sum.h"\n#include <string>\n#include "sums/twice.h"\n')
        self.assertIn("sums/tables.h does not compile alone", self.run_alone().stdout)

    def test_what_changed_lately_comes_whatever_the_time(self):
        self.write("sums/sum.cc", FILES["sums/sum.cc"] + "int Broken() { return Nowhere(); }\n")
        self.commit("2026-02-01T00:00:00Z")
        self.assertEqual(alone.changed_lately(self.root, 1), ["sums/sum.cc"])
        self.assertIn("sums/sum.cc does not compile alone", self.run_alone("--seconds", "1", "--jobs", "1", "--days", "1").stdout)

    def test_a_file_that_is_not_committed_has_changed(self):
        self.write("sums/sum.cc", FILES["sums/sum.cc"] + "\n")
        self.assertEqual(alone.changed_lately(self.root, 1)[0], "sums/sum.cc")


class SuspectsTest(unittest.TestCase):
    def suspects(self, **changed):
        texts = {name: text for name, text in FILES.items() if name.endswith((".cc", ".h"))}
        texts.update({name.replace("__", "/").replace("_h", ".h").replace("_cc", ".cc"): text for name, text in changed.items()})
        return dict(suspects.Sources(texts).suspects())

    def test_a_name_whose_header_is_not_included_is_suspicious(self):
        # tables.h has a member of that name, and hides it: the compiler is asked about all others in turn.
        self.assertEqual(self.suspects(), {})
        found = self.suspects(sums__tables_h="#pragma once\n")
        self.assertEqual(found, {"sums/twice.cc": "line 3: Sum, which sums/sum.h declares"})

    def test_a_name_in_a_comment_or_a_text_is_not(self):
        text = '#include "sums/twice.h"\n// Sum(1)\nconst char* kText = "Sum(1)";\n'
        self.assertEqual(self.suspects(sums__tables_h="#pragma once\n", sums__twice_cc=text), {})

    def test_a_name_that_the_file_declares_is_not(self):
        text = '#include "sums/twice.h"\nstatic int Sum(int a) { return a; }\nint Twice(int a) { return Sum(a); }\n'
        self.assertEqual(self.suspects(sums__tables_h="#pragma once\n", sums__twice_cc=text), {})


if __name__ == "__main__":
    unittest.main()
