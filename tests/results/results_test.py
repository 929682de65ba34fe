"""Tests results.py on results of a small project of its own, with ctest."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import results  # noqa: E402  (its folder is put on the path above)

# What GoogleTest writes of a case that is skipped, and of one that fails.
GOOGLE_TEST = """[ RUN      ] GpuTest.Runs
/somewhere/gpu_test.cc:12: Skipped
No GPU.

[  SKIPPED ] GpuTest.Runs (0 ms)
[ RUN      ] GpuTest.Copies
/somewhere/gpu_test.cc:12: Skipped
No GPU.

[  SKIPPED ] GpuTest.Copies (0 ms)
[  FAILED  ] GpuTest.Fails (3 ms)
[  FAILED  ] GpuTest.Fails
[  FAILED  ] Sizes/GpuTest.Fits/2, where GetParam() = 8
"""

CMAKE = """
cmake_minimum_required(VERSION 3.25)
project(small NONE)
enable_testing()
add_test(NAME passes COMMAND cmake -E true)
add_test(NAME fails COMMAND cmake -E false)
add_test(NAME cases COMMAND cmake -E cat "${CMAKE_SOURCE_DIR}/cases.txt")
add_test(NAME script COMMAND sh -c "echo script.py: skipped: no network; exit 77")
set_tests_properties(script PROPERTIES SKIP_RETURN_CODE 77)
"""


class ResultsTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="tandem-results-")
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)
        (self.root / "CMakeLists.txt").write_text(CMAKE)
        (self.root / "cases.txt").write_text(GOOGLE_TEST)
        self.folder = self.root / "build"
        # A fresh machine has no make.
        self.run_here("cmake", "-G", "Ninja", "-S", self.root, "-B", self.folder)
        self.run_here(
            "ctest", "--test-dir", self.folder, "--test-output-size-passed", "100000", "--output-junit",
            self.folder / "results.xml",
        )

    @staticmethod
    def run_here(*command):
        return subprocess.run([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

    def test_skips_come_with_their_reasons_and_failures_with_a_command(self):
        self.assertEqual(
            results.report(self.folder),
            [
                f"\nskipped in {self.folder}:",
                "  cases: 2 cases: No GPU.",
                "  script: no network",
                f"\nfailed in {self.folder}, each with what runs it alone:",
                f"  fails: ctest --test-dir {self.folder} -R '^fails$' --output-on-failure",
            ],
        )

    def test_what_passed_the_second_time_has_not_failed(self):
        (self.folder / "Testing/Temporary/LastTestsFailed.log").unlink()
        self.assertNotIn("failed", "\n".join(results.report(self.folder)))

    def test_a_program_is_named_with_its_failed_cases(self):
        program = self.folder / "bin" / "tandem_gpu_test"
        program.parent.mkdir()
        program.touch()
        self.assertEqual(
            list(results.failed_lines(self.folder, [("gpu_test", "fail", GOOGLE_TEST)], {"gpu_test"})),
            [f"gpu_test: {program} --gtest_filter='GpuTest.Fails:Sizes/GpuTest.Fits/2'"],
        )


if __name__ == "__main__":
    unittest.main()
