"""deploy/sbom.py: every library that the loader takes is in the bill, with the version that is installed."""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from processes import BIN_DIR, REPOSITORY  # noqa: E402

SBOM = REPOSITORY / "deploy" / "sbom.py"


def bill(*arguments, fails=False, **environment):
    done = subprocess.run(
        [sys.executable, SBOM, *arguments], capture_output=True, text=True, check=False, env=dict(os.environ, **environment)
    )
    if (done.returncode != 0) != fails:
        raise AssertionError(done.stderr)
    return done.stderr if fails else json.loads(done.stdout)


class SbomTest(unittest.TestCase):
    def test_names_what_is_loaded_and_what_is_compiled_in(self):
        made = bill(BIN_DIR)
        self.assertEqual((made["bomFormat"], made["specVersion"]), ("CycloneDX", "1.5"))
        versions = {component["name"]: component["version"] for component in made["components"]}
        self.assertEqual(len(versions), len(made["components"]), "listed once")
        for name in ("libssl3", "libsqlite3-0", "libpcre2-8-0", "nlohmann-json3-dev", "libc6"):
            installed = subprocess.run(
                ["dpkg-query", "--show", "--showformat=${Version}\\n", name], capture_output=True, text=True, check=True
            ).stdout
            self.assertEqual(versions[name], installed.splitlines()[0])
        self.assertTrue(any(name.startswith("libgrpc++") for name in versions), versions)
        files = {file["name"]: file["hashes"][0]["content"] for file in made["metadata"]["component"]["components"]}
        router = hashlib.sha256((BIN_DIR / "tandem-router").read_bytes()).hexdigest()
        self.assertEqual(files["tandem-router"], router)
        self.assertEqual("xgrammar" in versions, "tandem-grammar" in files)
        refs = [component["bom-ref"] for component in made["components"]]
        self.assertEqual(made["dependencies"], [{"ref": "tandem", "dependsOn": refs}])

    def test_the_same_programs_have_the_same_bill(self):
        first, again = (bill(BIN_DIR, SOURCE_DATE_EPOCH="1700000000") for _ in range(2))
        self.assertEqual(first, again)
        self.assertEqual(first["metadata"]["timestamp"], "2023-11-14T22:13:20Z")
        later = bill(BIN_DIR, SOURCE_DATE_EPOCH="1700000001")
        self.assertNotEqual(later["serialNumber"], first["serialNumber"])

    def test_packages_of_what_is_loaded(self):
        listed = subprocess.run([sys.executable, SBOM, "--packages", BIN_DIR], capture_output=True, text=True, check=True).stdout.split()
        named = {component["name"] for component in bill(BIN_DIR)["components"]}
        self.assertEqual(listed, sorted(set(listed)))
        self.assertLessEqual({"libc6", "libssl3", "libsqlite3-0"}, set(listed))
        self.assertEqual(set(listed) - named, set())
        self.assertFalse([name for name in listed if name.endswith("-dev")], "headers are needed by nobody who runs them")

    def test_grpc_that_no_program_loads_has_to_be_told_of(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy("/bin/true", f"{folder}/tandem-router")
            self.assertIn("linked statically: say --grpc-prefix", bill(folder, fails=True))

    def test_what_is_linked_statically(self):
        with tempfile.TemporaryDirectory() as folder:
            modules = pathlib.Path(folder) / "lib" / "pkgconfig"
            modules.mkdir(parents=True)
            for module, version in (("grpc++", "1.84.0"), ("protobuf", "35.1.0"), ("absl_base", "20250512")):
                (modules / f"{module}.pc").write_text(f"Name: {module}\nVersion: {version}\n")
            self.assertIn("commits of c-ares and RE2 are not known", bill(BIN_DIR, "--grpc-prefix", folder, fails=True))
            listed = modules.parents[1] / "submodules"
            # As git writes it: what is checked out, what is not, and the name of a tag where there is one.
            listed.write_text(f"-{'1' * 40} third_party/bloaty\n {'2' * 40} third_party/cares/cares (v1.34.5)\n {'3' * 40} third_party/re2\n")
            made = bill(BIN_DIR, "--grpc-prefix", folder)
            versions = {part["name"]: part["version"] for part in made["components"]}
            self.assertEqual(versions["grpc"], "1.84.0")
            self.assertEqual((versions["c-ares"], versions["re2"]), ("2" * 40, "3" * 40))
            listed.write_text(f" {'3' * 40} third_party/re2\n")
            self.assertIn("no commit of third_party/cares/cares", bill(BIN_DIR, "--grpc-prefix", folder, fails=True))
            listed.write_text(f" {'2' * 40} third_party/cares/cares\n {'3' * 40} third_party/re2\n")
            (modules / "protobuf.pc").unlink()
            self.assertIn("no protobuf.pc with a version", bill(BIN_DIR, "--grpc-prefix", folder, fails=True))
            self.assertIn("none of tandem-router", bill(folder, fails=True))


if __name__ == "__main__":
    unittest.main()
