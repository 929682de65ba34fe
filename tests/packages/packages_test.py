"""deploy/package.sh on the programs of this build: what is in the packages, and that it works from there, without the sources.

tests/packages/install.sh installs a package in a Debian of its own; that takes minutes, and is run by hand.
"""

import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from processes import BIN_DIR, MODELS, PATIENCE_SECONDS, REPOSITORY, TARGET, clean_environment, wait_until  # noqa: E402

SKIPPED = 77
PROGRAMS = ("tandem", "tandem-drafter", "tandem-grammar", "tandem-router", "tandem-verifier")
SCRIPTS = {"tandem-models": "../share/tandem/serve/models.py", "tandem-serve": "../share/tandem/serve/tandem-serve"}
SERVICES = ("drafter", "router", "verifier")
CONFIGURATION = ["drafter.flags.yaml", "router.flags.yaml", "router.yaml", "verifier.flags.yaml"]
VERSION = re.search(r"project\(tandem VERSION (\S+)", (REPOSITORY / "CMakeLists.txt").read_text())[1]
# Of `systemd-analyze security`, from 0 (nothing exposed) to 10.
MOST_EXPOSURE = "25"  # Tenths.
PACKAGING_SECONDS = 600


def output(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command} failed with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def package(*arguments):
    return subprocess.run(
        [REPOSITORY / "deploy" / "package.sh", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=PACKAGING_SECONDS
    )


def only(folder, pattern):
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise AssertionError(f"{folder}: expected one {pattern}, found {[path.name for path in found]}")
    return found[0]


def files_of(folder):
    """Paths of all files and links below, from there."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or path.is_file()}


class PackagesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # A space, as folders of users have.
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="tandem packages "))
        cls.addClassCleanup(shutil.rmtree, cls.root)
        cls.output = cls.root / "output"
        made = package("--no-build", "--build-dir", BIN_DIR.parent, "--output", cls.output, "--python", sys.executable)
        if made.returncode != 0:
            raise AssertionError(made.stdout + made.stderr)
        cls.said = made.stdout
        cls.deb = only(cls.output, "*.deb")
        cls.wheel = only(cls.output, "*.whl")
        cls.installed = cls.root / "installed"
        output("dpkg-deb", "--raw-extract", cls.deb, cls.installed)
        cls.control = cls.installed / "DEBIAN"
        cls.usr = cls.installed / "usr"
        cls.share = cls.usr / "share" / "tandem"
        folder = cls.root / "unpacked"
        folder.mkdir()
        output("tar", "-C", folder, "-xzf", only(cls.output, "*.tar.gz"))
        cls.unpacked = only(folder, "*")

    def field(self, name):
        return output("dpkg-deb", "--field", self.deb, name).strip()

    def test_the_output_has_all_packages_and_their_checksums(self):
        names = [
            f"tandem-{VERSION}-linux-{os.uname().machine}.tar.gz", f"tandem-{VERSION}.cdx.json",
            f"tandem_{VERSION}_{output('dpkg', '--print-architecture').strip()}.deb", f"tandem_client-{VERSION}-py3-none-any.whl",
        ]  # fmt: skip
        self.assertEqual(sorted(path.name for path in self.output.iterdir()), sorted([*names, "SHA256SUMS"]))
        self.assertEqual(output("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=self.output).count(": OK"), len(names))
        for name in names:
            self.assertRegex(self.said, rf"\d KB  {hashlib.sha256((self.output / name).read_bytes()).hexdigest()}  {re.escape(name)}\n")

    def test_the_fields_of_the_package(self):
        self.assertEqual((self.field("Package"), self.field("Version")), ("tandem", VERSION))
        self.assertRegex(self.field("Maintainer"), r"^[^<>]+ <[^<>]+@[^<>]+>$")
        self.assertIn("speculative decoding", self.field("Description"))
        depends = self.field("Depends")
        # What the loader takes, by dpkg-shlibdeps, and what scripts start.
        for name in ("libc6", "libssl3", "libsqlite3-0", "libpcre2-8-0", "python3", "adduser"):
            self.assertRegex(depends, rf"(^|, ){re.escape(name)}( \(|,|$)")
        self.assertRegex(depends, r"(^|, )libgrpc\+\+[0-9.a-z]* \(>= ")
        self.assertNotRegex(depends, r"-dev\b")

    def test_the_list_of_contents(self):
        found = files_of(self.usr)
        expected = {f"bin/{name}" for name in (*PROGRAMS, *SCRIPTS)}
        expected |= {f"lib/systemd/system/tandem-{name}.service" for name in SERVICES} | {"lib/tmpfiles.d/tandem.conf"}
        expected |= {f"share/tandem/serve/{name}" for name in ("models.json", "models.py", "parts.py", "plan.py", "serve.py", "tandem-serve")}
        expected |= {f"share/tandem/grafana/{path.name}" for path in (REPOSITORY / "deploy" / "grafana").glob("*.json")}
        expected |= {f"share/tandem/prometheus/{path.name}" for path in (REPOSITORY / "deploy" / "prometheus").iterdir()}
        expected |= {f"share/tandem/k8s/{path}" for path in files_of(REPOSITORY / "k8s")}
        expected |= {f"share/tandem/proto/tandem/v1/{path.name}" for path in (REPOSITORY / "proto" / "tandem" / "v1").glob("*.proto")}
        expected |= {"share/tandem/proto/tandem.protoset", "share/tandem/sbom.json", f"share/tandem/python/{self.wheel.name}"}
        documents = {f"docs/{path}" for path in files_of(REPOSITORY / "docs") if path.endswith((".md", ".png"))}
        documents |= {"CHANGELOG.md", "LICENSE", "README.md", "THIRD_PARTY", "copyright"}
        expected |= {f"share/doc/tandem/{path}" for path in documents}
        if (BIN_DIR / "tandem-cuda.so").exists():
            expected.add("lib/tandem/tandem-cuda.so")
        self.assertEqual(found, expected)
        self.assertEqual(files_of(self.installed / "etc"), {f"tandem/{name}" for name in CONFIGURATION})
        self.assertEqual({path.name for path in self.installed.iterdir()}, {"DEBIAN", "etc", "usr"})
        # The tarball has the same, and says which packages it needs, as no package manager does that for it.
        self.assertEqual(
            files_of(self.unpacked), found | {f"etc/tandem/{name}" for name in CONFIGURATION} | {"share/tandem/debian-packages"}
        )

    def test_who_may_what(self):
        for path in self.installed.rglob("*"):
            mode = path.lstat().st_mode & 0o7777
            if path.is_symlink():
                continue
            executable = path.is_dir() or (path.parent in (self.usr / "bin", self.usr / "lib" / "tandem") and path.suffix != ".so")
            executable |= path.name in ("models.py", "tandem-serve", "postinst", "postrm", "prerm")
            self.assertEqual(oct(mode), oct(0o755 if executable else 0o644), path)
        owners = {line.split()[1] for line in output("dpkg-deb", "--contents", self.deb).splitlines()}
        self.assertEqual(owners, {"root/root"})
        for name, target in SCRIPTS.items():
            self.assertEqual(os.readlink(self.usr / "bin" / name), target)

    def test_files_of_the_administrator_survive_upgrades(self):
        listed = (self.control / "conffiles").read_text()
        self.assertEqual(listed, "".join(f"/etc/tandem/{name}\n" for name in CONFIGURATION))
        for name in ("postinst", "postrm", "prerm"):
            output("sh", "-n", self.control / name)

    def test_programs_are_stripped_and_start(self):
        environment = dict(clean_environment(), PATH="/usr/bin:/bin")
        for folder in (self.usr, self.unpacked):
            for name in PROGRAMS:
                headers = output("readelf", "--section-headers", "--dynamic", "--wide", folder / "bin" / name)
                self.assertNotRegex(headers, r"\.debug_info|\.symtab")
                self.assertNotRegex(headers, rf"RUNPATH.*{re.escape(str(REPOSITORY))}")
            for name in ("tandem", *(f"tandem-{service}" for service in SERVICES)):
                self.assertIn(VERSION, output(folder / "bin" / name, "--version", env=environment))
            # Who started it: no folder of the sources is in what it says.
            listed = output(folder / "bin" / "tandem-models", "--help", env=environment) + output(
                folder / "bin" / "tandem", "serve", "--help", env=environment
            )
            self.assertIn("usage: tandem-models", listed)
            self.assertIn("`tandem-models --list`", listed)
            self.assertNotIn("deploy/", listed)
            self.assertIn("smollm2-135m", output(folder / "bin" / "tandem-models", "--list", env=environment))

    def test_the_bill_is_of_the_programs_in_the_package(self):
        for share in (self.share, self.unpacked / "share" / "tandem"):
            bill = json.loads((share / "sbom.json").read_text())
            files = {part["name"]: part["hashes"][0]["content"] for part in bill["metadata"]["component"]["components"]}
            for name in PROGRAMS:
                program = share.parents[1] / "bin" / name
                self.assertEqual(files[name], hashlib.sha256(program.read_bytes()).hexdigest())
            self.assertEqual(bill["metadata"]["component"]["version"], VERSION)
        self.assertEqual((self.share / "sbom.json").read_text(), (self.output / f"tandem-{VERSION}.cdx.json").read_text())
        needed = (self.unpacked / "share" / "tandem" / "debian-packages").read_text().split()
        direct = re.findall(r"(?:^|, )(lib[^ ,]+)", self.field("Depends"))
        self.assertEqual(set(direct) - set(needed), set(), "the tarball's list has what the package depends on")

    def test_notices_of_what_is_compiled_in(self):
        notices = (self.usr / "share" / "doc" / "tandem" / "THIRD_PARTY").read_text()
        for text in ("libeigen3-dev", "nlohmann-json3-dev", "libcli11-dev", "Boost Software License", "Cybozu", "XGrammar Contributors"):
            self.assertIn(text, notices)

    def test_no_file_names_where_it_was_built(self):
        for folder in (self.installed, self.unpacked):
            for path in sorted(folder.rglob("*")):
                if path.is_file() and path.suffix in (".service", ".yaml", ".py", ".json", ".md", ""):
                    self.assertNotIn(str(REPOSITORY).encode(), path.read_bytes() if path.parent.name != "bin" else b"", path)
                if path.suffix in (".service", ".yaml"):
                    self.assertNotRegex(path.read_text(), r"@[a-z_]+@", path)

    def test_units(self):
        for unit in (self.usr / "lib" / "systemd" / "system").iterdir():
            started = re.search(r"^ExecStart=(\S+) --flags-file=(\S+)$", unit.read_text(), re.MULTILINE)
            self.assertTrue((self.installed / started[1][1:]).exists(), started[0])
            self.assertTrue((self.installed / started[2][1:]).exists(), started[0])
        for unit in (self.unpacked / "lib" / "systemd" / "system").iterdir():
            self.assertIn("ExecStart=/opt/tandem/bin/tandem-", unit.read_text())
            self.assertIn("--flags-file=/opt/tandem/etc/tandem/", unit.read_text())
        if not shutil.which("systemd-analyze"):
            self.skipTest("no systemd-analyze on this machine")
        root = self.root / "units"
        shutil.copytree(self.usr, root / "usr", symlinks=True, ignore=shutil.ignore_patterns("share"))
        # Units of the system that these go with.
        for path in pathlib.Path("/lib/systemd/system").glob("*.target"):
            shutil.copy(path, root / "usr/lib/systemd/system", follow_symlinks=False)
        for service in SERVICES:
            done = subprocess.run(
                ["systemd-analyze", "verify", f"--root={root}", f"tandem-{service}.service"], capture_output=True, text=True, check=False
            )
            self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))
            output(
                "systemd-analyze", "security", "--offline=true", f"--root={root}", f"--threshold={MOST_EXPOSURE}", f"tandem-{service}.service"
            )

    def check_service(self, service, *flags):
        """--check-config of a service with its packaged flags, those of `flags` in their place."""
        done = subprocess.run(
            [self.usr / "bin" / f"tandem-{service}", "--flags-file", self.installed / "etc/tandem" / f"{service}.flags.yaml", *flags]
            + ["--check-config"], capture_output=True, text=True, check=False, env=clean_environment(), timeout=PATIENCE_SECONDS,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def test_configuration_is_good_once_it_is_completed(self):
        sockets = f"--local-sockets={self.root}/sockets"
        # As it is: what is missing is named.
        packaged = self.installed / "etc/tandem/router.yaml"
        code, said = self.check_service("router", "--config", packaged, "--state", "memory:")
        self.assertEqual(code, 1, said)
        self.assertIn("tenants: empty, expected at least one tenant", said)
        self.assertIn("/var/lib/tandem/models/SmolLM2-135M-Instruct.Q4_1.gguf", said)
        code, said = self.check_service("drafter", sockets)
        self.assertEqual(code, 2, said)
        self.assertIn("--model", said)
        # What is commented out, and another model.
        text = packaged.read_text().replace("/var/lib/tandem/models/SmolLM2-135M-Instruct.Q4_1.gguf", f"{MODELS}/{TARGET}")
        hashed = output(self.usr / "bin" / "tandem", "hash-token", "--generate")
        line = re.search(r"token_sha256: .*", hashed)[0]
        text = re.sub(r"^#(?=\S|  )", "", text.replace("token_sha256: ...", line), flags=re.MULTILINE)
        completed = self.root / "router.yaml"
        completed.write_text(text)
        code, said = self.check_service("router", "--config", completed, "--state", f"sqlite://{self.root}/router.db")
        self.assertEqual(code, 0, said)
        self.assertIn("1 models, 1 drafters, 1 tenants", said)
        for service, model in (("verifier", TARGET), ("drafter", "tandem-draft-general-1m")):
            code, said = self.check_service(service, "--model", f"name={MODELS}/{model}", sockets)
            self.assertEqual(code, 0, said)

    def test_the_wheel_asks_for_what_its_code_needs(self):
        with zipfile.ZipFile(self.wheel) as archive:
            metadata = archive.read(f"tandem_client-{VERSION}.dist-info/METADATA").decode()
            generated = archive.read("tandem/v1/generation_pb2_grpc.py").decode()
        generated_by = re.search(r"GRPC_GENERATED_VERSION = '(\S+)'", generated)[1]
        self.assertIn(f"\nRequires-Dist: grpcio>={generated_by}\n", metadata)
        self.assertRegex(metadata, r"\nRequires-Dist: protobuf[<>]")
        where = output(
            sys.executable, "-B", "-c", "import tandem, tandem.v1.generation_pb2_grpc; print(tandem.__file__, tandem.Client)",
            env=dict(os.environ, PYTHONPATH=str(self.wheel)),
        )  # fmt: skip
        self.assertIn(self.wheel.name, where)

    def test_the_tarball_serves(self):
        """From a folder that has a space in its name, with no program of Tandem on PATH, by the client of its wheel."""
        temporary = self.root / "temporary"
        temporary.mkdir()
        out, err = [], []
        process = subprocess.Popen(
            [self.unpacked / "bin" / "tandem", "serve", MODELS / TARGET, "--port", "0", "--grpc-port", "0"], cwd="/",
            env=dict(clean_environment(), PATH="/usr/bin:/bin", TMPDIR=str(temporary)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        for stream, lines in ((process.stdout, out), (process.stderr, err)):
            reader = threading.Thread(target=lines.extend, args=(stream,))
            reader.start()
            self.addCleanup(stream.close)
            self.addCleanup(reader.join)
        wait_until(lambda: "Ctrl-C stops it.\n" in out or process.poll() is not None, "a model that is served")
        self.assertIsNone(process.poll(), err)
        text = "".join(out)
        # The programs are the tarball's own.
        started = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        self.assertEqual({os.path.dirname(os.readlink(f"/proc/{child}/exe")) for child in started}, {str(self.unpacked / "bin")})
        answer = json.loads(output(*shlex.split(re.search(r"\n +(curl .*)", text)[1]), env=clean_environment(), timeout=PATIENCE_SECONDS))
        self.assertNotEqual(answer["choices"][0]["message"]["content"], "")
        # A constraint takes tandem-grammar.
        code = (
            "import sys, tandem\nwith tandem.Client(sys.argv[1], token='tandem') as client:\n"
            " print(client.generate('Answer:', max_tokens=8, choices=['yes', 'no']).text)"
        )
        wheel = only(self.unpacked / "share/tandem/python", "*.whl")
        said = output(
            sys.executable, "-B", "-c", code, re.search(r"gRPC +(\S+)", text)[1], env=dict(clean_environment(), PYTHONPATH=str(wheel)),
            timeout=PATIENCE_SECONDS,
        )  # fmt: skip
        self.assertIn(said.strip(), ("yes", "no"))
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(PATIENCE_SECONDS), 0, err)
        self.assertNotIn("__pycache__", "".join(files_of(self.unpacked)))


class RefusalsTest(unittest.TestCase):
    def refused(self, code, text, *arguments):
        done = package(*arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertIn(text, done.stderr)

    def test_what_is_wrong_is_said(self):
        with tempfile.TemporaryDirectory() as folder:
            self.refused(2, "unknown option '--depb'", "--depb")
            self.refused(2, "--output needs a value", "--output")
            self.refused(1, "no such program: /nowhere/python", "--python", "/nowhere/python")
            self.refused(1, "expected 'Name <address>', got 'me'", "--maintainer", "me")
            self.refused(1, f"{folder} is not a configured build folder", "--no-build", "--build-dir", folder)
            shutil.copy(BIN_DIR.parent / "CPackConfig.cmake", folder)
            self.refused(1, f"{folder}/bin/tandem is not there", "--no-build", "--build-dir", folder)


if __name__ == "__main__":
    missing = [tool for tool in ("cpack", "dpkg-deb", "dpkg-shlibdeps", "file", "readelf") if not shutil.which(tool)]
    if missing:
        print(f"skipped: no {', '.join(missing)} on this machine")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
