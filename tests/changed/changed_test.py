"""Tests changed.py on a small project of its own, with git, CMake and Ninja: two libraries, a test of each, a script."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import changed  # noqa: E402  (its folder is put on the path above)

FILES = {
    "CMakeLists.txt": """
cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES C)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
enable_testing()
include_directories(${CMAKE_SOURCE_DIR})
add_library(sum STATIC sum/sum.c)
add_library(twice STATIC twice/twice.c)
target_link_libraries(twice sum)
add_executable(sum_test sum/sum_test.c)
target_link_libraries(sum_test sum)
add_executable(twice_test twice/twice_test.c)
target_link_libraries(twice_test twice)
add_executable(long_test twice/long_test.c)
target_link_libraries(long_test twice)
add_test(NAME sum_test COMMAND sum_test)
add_test(NAME twice_test COMMAND twice_test)
add_test(NAME long_test COMMAND long_test)
set_tests_properties(long_test PROPERTIES LABELS slow)
add_test(NAME script COMMAND python3 -B scripts/script_test.py WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
""",
    ".gitignore": "/build/\n",
    "README.md": "It adds.\n",
    "sum/sum.h": "int Sum(int a, int b);\n",
    "sum/sum.c": '#include "sum/sum.h"\nint Sum(int a, int b) { return a + b; }\n',
    "sum/sum_test.c": '#include "sum/sum.h"\nint main(void) { return Sum(1, 2) != 3; }\n',
    "sum/testdata/sums.json": "[]\n",
    "twice/twice.h": "int Twice(int a);\n",
    "twice/twice.c": '#include "twice/twice.h"\n#include "sum/sum.h"\nint Twice(int a) { return Sum(a, a); }\n',
    "twice/twice_test.c": '#include "twice/twice.h"\nint main(void) { return Twice(2) != 4; }\n',
    "twice/long_test.c": '#include "twice/twice.h"\nint main(void) { return Twice(3) != 6; }\n',
    "scripts/script_test.py": "import helper\n",
    "scripts/helper.py": "",
}


class ChangedTest(unittest.TestCase):
    # Unity builds hide sources in files that CMake makes.
    unity = "OFF"

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="tandem-changed-")
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.root = pathlib.Path(cls.temporary.name).resolve()
        for name, text in FILES.items():
            (cls.root / name).parent.mkdir(parents=True, exist_ok=True)
            (cls.root / name).write_text(text)
        cls.run_here("git", "init", "-q", "-b", "main")
        cls.run_here("git", "add", ".")
        cls.run_here("git", "commit", "-q", "-m", "all")
        cls.run_here("git", "checkout", "-q", "-b", "change")
        cls.run_here("cmake", "-G", "Ninja", "-B", "build/dev", f"-DCMAKE_UNITY_BUILD={cls.unity}")
        cls.run_here("ninja", "-C", "build/dev")

    @classmethod
    def run_here(cls, *command):
        name = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null")
        command = (command[0], *name, *command[1:]) if command[0] == "git" else command
        done = subprocess.run(command, cwd=cls.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout

    def tearDown(self):
        self.run_here("git", "reset", "-q", "--hard", "main")
        self.run_here("git", "clean", "-q", "-d", "-f")

    def touched(self, *names, base="main"):
        """The tests for a change of these files."""
        for name in names:
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text((path.read_text() if path.exists() else "") + "\n")
        return self.chosen(base)

    def chosen(self, base="main"):
        return changed.select(changed.Build(self.root, self.root / "build" / "dev"), changed.changed_files(self.root, base))

    def test_nothing_changed(self):
        self.assertEqual(self.touched(), {})

    def test_a_header_touches_the_tests_of_all_that_read_it(self):
        self.assertEqual(self.touched("sum/sum.h"), {"sum_test": "sum_test", "twice_test": "twice_test"})
        self.tearDown()
        self.assertEqual(self.touched("twice/twice.h"), {"twice_test": "twice_test"})

    def test_a_source_touches_the_tests_that_are_linked_with_it(self):
        self.assertEqual(self.touched("twice/twice.c"), {"twice_test": "twice_test"})

    def test_a_test_touches_itself(self):
        self.assertEqual(self.touched("sum/sum_test.c"), {"sum_test": "sum_test"})

    def test_a_test_that_was_never_built_is_known(self):
        (self.root / "build/dev/sum_test").rename(self.root / "build/dev/moved")
        try:
            self.assertEqual(self.touched("sum/sum_test.c"), {"sum_test": "sum_test"})
        finally:
            (self.root / "build/dev/moved").rename(self.root / "build/dev/sum_test")

    def test_a_slow_test_runs_for_its_own_sources(self):
        self.assertEqual(self.touched("twice/long_test.c"), {"long_test": "long_test"})

    def test_a_document_touches_none(self):
        self.assertEqual(self.touched("README.md", "sum/README.md"), {})

    def test_data_touches_the_tests_of_the_nearest_folder(self):
        self.assertEqual(self.touched("sum/testdata/sums.json"), {"sum_test": "sum_test"})

    def test_scripts_touch_those_of_their_folder(self):
        self.assertEqual(self.touched("scripts/helper.py"), {"script": None})
        self.tearDown()
        self.assertEqual(self.touched("scripts/script_test.py"), {"script": None})
        self.tearDown()
        self.assertEqual(self.touched("scripts/another_test.py"), {})

    def test_commits_count_from_the_common_ancestor(self):
        (self.root / "twice/twice.h").write_text("int Twice(int a);  // 2 a\n")
        self.run_here("git", "commit", "-q", "-a", "-m", "twice")
        self.assertEqual(self.chosen(), {"twice_test": "twice_test"})
        self.assertEqual(self.touched("sum/sum_test.c", base="HEAD"), {"sum_test": "sum_test"})


class UnityTest(ChangedTest):
    unity = "ON"


if __name__ == "__main__":
    unittest.main()
