#!/usr/bin/env python3
"""deploy/release.sh on small repositories: what it changes, and that a refusal changes nothing."""

import datetime
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = {
    "CHANGELOG.md": "# Changelog\n\n## [0.2.0] - Unreleased\n\nNew.\n\n## [0.1.0] - 2026-01-01\n",
    "CMakeLists.txt": "project(tandem VERSION 0.1.0 LANGUAGES C CXX)\n",
    "proto/python/pyproject.toml": '[project]\nversion = "0.1.0"\n',
    ".gitignore": "/build/\n",
    # In place of the real one: notes the time that it was given, and the version that it found.
    "deploy/package.sh": "#!/bin/sh\nmkdir -p build\necho $SOURCE_DATE_EPOCH $(cut -d' ' -f3 CMakeLists.txt) >build/packaged\n",
}


class ReleaseTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for path, text in FILES.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(text, encoding="utf-8")
        (self.root / "deploy/package.sh").chmod(0o755)
        shutil.copy(ROOT / "deploy/release.sh", self.root / "deploy")
        self.git("init", "--quiet")
        self.git("config", "user.name", "Release test")
        self.git("config", "user.email", "release@example.com")
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", "First")

    def git(self, *arguments):
        run = subprocess.run(["git", *arguments], cwd=self.root, capture_output=True, text=True, check=True)
        return run.stdout.strip()

    def release(self, *arguments):
        return subprocess.run(
            ["deploy/release.sh", *arguments], cwd=self.root, capture_output=True, text=True, check=False
        )

    def assert_refused(self, fragment, *arguments, status=1):
        head = self.git("rev-parse", "HEAD")
        texts = {path: (self.root / path).read_text(encoding="utf-8") for path in FILES}
        run = self.release(*arguments)
        self.assertEqual(run.returncode, status, run.stderr)
        self.assertIn(fragment, run.stderr)
        self.assertEqual(self.git("rev-parse", "HEAD"), head)
        self.assertEqual({path: (self.root / path).read_text(encoding="utf-8") for path in FILES}, texts)

    def test_release(self):
        run = self.release("0.2.0", "--skip-tests")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(self.git("status", "--porcelain"), "")
        self.assertEqual(self.git("log", "-1", "--format=%s"), "Release 0.2.0")
        self.assertEqual(self.git("rev-parse", "v0.2.0^{commit}"), self.git("rev-parse", "HEAD"))
        self.assertIn("VERSION 0.2.0 ", (self.root / "CMakeLists.txt").read_text(encoding="utf-8"))
        self.assertIn('"0.2.0"', (self.root / "proto/python/pyproject.toml").read_text(encoding="utf-8"))
        today = datetime.date.today().isoformat()
        self.assertIn(f"## [0.2.0] - {today}\n", (self.root / "CHANGELOG.md").read_text(encoding="utf-8"))
        # Packages of the new version, by the time of the commit.
        packaged = (self.root / "build/packaged").read_text(encoding="utf-8")
        self.assertEqual(packaged, f"{self.git('log', '-1', '--format=%ct')} 0.2.0\n")

    def test_what_is_not_a_version(self):
        for version in ("", "0.2", "v0.2.0", "0.2.0-rc1"):
            self.assert_refused("expected three numbers", version, status=2)
        self.assert_refused("unknown option '--force'", "0.2.0", "--force", status=2)
        self.assert_refused("one VERSION is expected", "0.2.0", "0.3.0", status=2)

    def test_a_version_that_the_changelog_lacks(self):
        self.assert_refused("expected a section '## [0.3.0] - Unreleased'", "0.3.0", "--skip-tests")

    def test_a_tag_that_exists(self):
        self.git("tag", "v0.2.0")
        self.assert_refused("the tag v0.2.0 exists already", "0.2.0", "--skip-tests")

    def test_changes_that_are_not_committed(self):
        (self.root / "note").write_text("x", encoding="utf-8")
        self.assert_refused("not committed", "0.2.0", "--skip-tests")

    def test_a_failure_restores_the_files(self):
        (self.root / "proto/python/pyproject.toml").write_text("[project]\n", encoding="utf-8")
        self.git("commit", "--quiet", "-am", "No version")
        self.assert_refused("expected one line that matches", "0.2.0", "--skip-tests")

    def test_failed_tests_restore_the_files(self):
        (self.root / "tests").mkdir()
        (self.root / "tests/run.sh").write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
        (self.root / "tests/run.sh").chmod(0o755)
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", "Tests that fail")
        self.assert_refused("", "0.2.0", status=3)

    def test_packages_that_cannot_be_made_restore_the_files(self):
        (self.root / "deploy/package.sh").write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
        self.git("commit", "--quiet", "-am", "Packages that cannot be made")
        self.assert_refused("", "0.2.0", "--skip-tests", status=3)


class VersionTest(unittest.TestCase):
    def test_the_tree_names_one_version(self):
        cmake = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
        python = (ROOT / "proto/python/pyproject.toml").read_text(encoding="utf-8")
        version = cmake.split("project(tandem VERSION ")[1].split()[0]
        self.assertIn(f'\nversion = "{version}"\n', python)


if __name__ == "__main__":
    unittest.main()
