"""Tests deploy/build.py on a small project of its own, with CMake and Ninja."""

import io
import pathlib
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "deploy"))

import build  # noqa: E402  (its folder is put on the path above)

CMAKE = """
cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES C)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
add_executable(one one.c)
add_executable(two two.c)
"""


class BuildTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="tandem build ")  # A space, as folders of users have.
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)
        (self.root / "CMakeLists.txt").write_text(CMAKE)
        (self.root / "one.c").write_text("int main(void) { return 0; }\n")
        (self.root / "two.c").write_text("int main(void) { return 0; }\n")
        self.folder = self.root / "build"
        subprocess.run(
            ["cmake", "-G", "Ninja", "-S", self.root, "-B", self.folder], check=True, stdout=subprocess.DEVNULL
        )

    def run_build(self, *arguments):
        return subprocess.run(
            [sys.executable, REPOSITORY / "deploy/build.py", self.folder, *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
        )

    def test_builds_everything_and_says_so_in_one_line(self):
        done = self.run_build()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^    built build: 4 steps in 0:\d\d\. All output: .*build\.log\n$")
        self.assertTrue((self.folder / "two").exists())
        self.assertIn("one.c.o", (self.folder / "build.log").read_text())
        self.assertIn("nothing to do", self.run_build().stdout)

    def test_builds_only_the_targets_that_are_named(self):
        self.assertEqual(self.run_build("--jobs", "1", "one").returncode, 0)
        self.assertTrue((self.folder / "one").exists())
        self.assertFalse((self.folder / "two").exists())

    def test_targets_may_follow_two_dashes(self):
        self.assertEqual(self.run_build("--jobs", "1", "--", "one", "two").returncode, 0)
        self.assertTrue((self.folder / "two").exists())
        self.assertEqual(self.run_build("--jobs", "1", "--").returncode, 0)

    def test_a_failed_step_is_shown_with_what_the_compiler_said(self):
        (self.root / "two.c").write_text("int main(void) { return nothing; }\n")
        done = self.run_build("--jobs", "1")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("two.c", done.stderr)
        self.assertIn("nothing", done.stderr)
        self.assertIn("build.log", done.stderr)

    def test_a_target_that_is_not_there_is_an_error_of_ninja(self):
        done = self.run_build("three")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("unknown target 'three'", done.stderr)

    def test_warnings_are_counted(self):
        (self.root / "one.c").write_text("#warning careful\nint main(void) { return 0; }\n")
        self.assertIn(", 1 warnings.", self.run_build().stdout)

    def test_a_folder_that_is_not_configured_is_refused(self):
        done = subprocess.run(
            [sys.executable, REPOSITORY / "deploy/build.py", self.root], stderr=subprocess.PIPE, text=True, check=False
        )
        self.assertEqual(done.returncode, 2)
        self.assertIn("not configured", done.stderr)


class ProgressTest(unittest.TestCase):
    def test_the_estimate_goes_by_cost_and_not_by_count(self):
        progress = build.Progress(100, io.StringIO(), now=0)
        progress.step(1, 10, cost=50, now=60)
        self.assertEqual(progress.line(1, 10, 60), "    step 1 of 10,  50% of the work, 1:00 so far, about 1:00 left")

    def test_without_a_terminal_lines_come_now_and_then(self):
        out = io.StringIO()
        progress = build.Progress(100, out, now=0)
        for second in range(1, 101):
            progress.step(second, 100, cost=1, now=second)
        self.assertEqual(out.getvalue().count("\n"), 3)


class CostsTest(unittest.TestCase):
    def test_a_unity_file_costs_what_its_sources_do(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "Unity").mkdir()
            (folder / "large.cc").write_text("x" * 50_000)
            unity = folder / "Unity" / "unity_0_cxx.cxx"
            unity.write_text(f'#include "{folder}/large.cc"\n')
            self.assertGreater(build.source_bytes(unity), 50_000)
            self.assertEqual(build.source_bytes(folder / "generated.cc"), 0)


if __name__ == "__main__":
    unittest.main()
