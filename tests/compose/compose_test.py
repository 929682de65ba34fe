"""deploy/docker/compose.yaml without Docker: against the Compose specification's schema, the files that it names, and
the real binaries."""

import ast
import copy
import importlib.resources
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import jsonschema
import yaml

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "e2e"))

from processes import BIN_DIR, PATIENCE_SECONDS, check_config  # noqa: E402

FOLDER = REPOSITORY / "deploy" / "docker"
# Where the image has what collect.sh puts there.
IMAGE_FOLDERS = {"/opt/tandem/demo-models": REPOSITORY / "deploy" / "demo-models"}
SCHEMA = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"


def load(path):
    return yaml.safe_load((FOLDER / path).read_text(encoding="utf-8"))


COMPOSE = load("compose.yaml")
SERVICES = COMPOSE["services"]
TANDEM = {name: service for name, service in SERVICES.items() if service["image"].startswith("tandem:")}


def schema_errors(document):
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(schema)(schema)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def mounts(service):
    """Path in the container -> path here."""
    found = {}
    for volume in service.get("volumes", []):
        source, target, mode = volume.split(":")
        if mode != "ro":
            raise AssertionError(f"{volume}: expected a volume that is read only")
        found[target] = (FOLDER / source).resolve()
    return found


def path_here(text, folders):
    """The text with a container's paths replaced by the paths that they have here."""
    for there, here in folders.items():
        text = text.replace(there, str(here))
    return text


def flags(service):
    return dict(argument[2:].split("=", 1) for argument in service["command"][1:] if "=" in argument)


def port(address):
    return int(address.rpartition(":")[2])


class SchemaTest(unittest.TestCase):
    def test_it_is_what_the_specification_says(self):
        self.assertEqual(schema_errors(COMPOSE), [])

    def test_the_learning_file_goes_with_it(self):
        learning = load("compose.learning.yaml")
        self.assertEqual(schema_errors(learning), [])
        self.assertEqual(set(learning["services"]) - set(SERVICES), {"learning"})
        self.assertEqual(learning["services"]["learning"]["profiles"], ["learning"])
        for name in ("router", "drafter"):
            # A command is replaced as a whole.
            command = learning["services"][name]["command"]
            self.assertEqual(command[: len(SERVICES[name]["command"])], SERVICES[name]["command"])
            binary = REPOSITORY.joinpath(*{"router": ("router", "spool", "spool_flags.cc"), "drafter": ("drafter", "main.cc")}[name])
            for argument in command[len(SERVICES[name]["command"]) :]:
                self.assertIn(f'"{argument[2:].split("=")[0]}"', binary.read_text(), argument)
        program, *arguments = learning["services"]["learning"]["command"]
        at = arguments.index("--")
        for name, own in ((program, arguments[:at]), ("tandem-trainer", arguments[at + 1 :])):
            text = (REPOSITORY / "deploy" / "learning" / name).read_text()
            for argument in own:
                self.assertIn(f'add("{argument.split("=")[0]}"', text)

    def test_what_the_specification_does_not_say_is_noticed(self):
        for change in ({"comand": ["tandem-router"]}, {"ports": 7001}, {"depends_on": "verifier"}, {"cap_drop": "ALL"}):
            broken = copy.deepcopy(COMPOSE)
            broken["services"]["router"].update(change)
            with self.subTest(change=change):
                self.assertNotEqual(schema_errors(broken), [])

    def test_services_wait_for_services_that_there_are(self):
        for name, service in SERVICES.items():
            self.assertLessEqual(set(service.get("depends_on", [])), set(SERVICES), name)


class TrainerImageTest(unittest.TestCase):
    """deploy/docker/trainer.Dockerfile, which nothing here builds."""

    DOCKERFILE = (FOLDER / "trainer.Dockerfile").read_text(encoding="utf-8")

    def copied(self):
        """Path in the image -> path here."""
        found = {there: REPOSITORY / here for here, there in re.findall(r"^COPY (\S+) (\S+)$", self.DOCKERFILE, re.MULTILINE)}
        self.assertEqual(len(found), self.DOCKERFILE.count("COPY "))
        return found

    def test_it_copies_what_there_is(self):
        for here in self.copied().values():
            self.assertTrue(here.is_dir(), here)
        # By the PATH it finds the programs, and these what they import, by where they are.
        (programs,) = [there for there in self.copied() if f"PATH={there}:" in self.DOCKERFILE]
        for name in ("tandem-learn", "tandem-trainer", "tandem-spool-copy"):
            path = self.copied()[programs] / name
            self.assertTrue(os.access(path, os.X_OK), path)
        learner = pathlib.PurePosixPath(programs) / "learner.py"
        self.assertIn(str(learner.parents[1] / "demo-models" / "train"), self.copied())

    def test_it_installs_what_is_imported(self):
        installed = set(re.findall(r"[a-z0-9]+", " ".join(re.findall(r"pip install (.*)", self.DOCKERFILE))))
        learning, recipe = REPOSITORY / "deploy" / "learning", REPOSITORY / "deploy" / "demo-models" / "train"
        own = {path.stem: path for folder in (recipe, learning) for path in folder.glob("*.py")}
        waiting = [path for path in learning.iterdir() if path.is_file() and path.suffix in ("", ".py")]
        seen, packages = set(waiting), set()
        while waiting:
            for node in ast.walk(ast.parse(waiting.pop().read_text(encoding="utf-8"))):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
                for name in (name.partition(".")[0] for name in names):
                    if name in own and own[name] not in seen:
                        seen.add(own[name])
                        waiting.append(own[name])
                    elif name not in own and name not in sys.stdlib_module_names:
                        packages.add(name)
        # botocore comes with boto3, by its own word.
        self.assertEqual(packages - installed, {"botocore"})
        self.assertLessEqual({"torch", "numpy", "safetensors", "tokenizers", "boto3"}, packages)


class CollectedTest(unittest.TestCase):
    """deploy/docker/collect.sh, which makes the content of the image, on the programs of this build."""

    def test_the_image_has_what_its_commands_start(self):
        with tempfile.TemporaryDirectory(prefix="tandem-image-") as folder:
            run = subprocess.run(
                [FOLDER / "collect.sh", BIN_DIR.parent, folder], capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
            )
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            root = pathlib.Path(folder) / "root"
            programs = {path.name for path in (root / "usr/local/bin").iterdir() if os.access(path, os.X_OK)}
            started = {service["command"][0] for service in TANDEM.values()}
            helpers = {"tandem", "tandem-grammar", "tandem-demo-models", "tandem-verifier-ranks"}
            self.assertEqual(programs, started | (helpers if (BIN_DIR / "tandem-grammar").exists() else helpers - {"tandem-grammar"}))
            for name in started:
                sections = subprocess.run(
                    ["readelf", "--section-headers", "--wide", root / "usr/local/bin" / name], capture_output=True, text=True, check=True
                ).stdout
                self.assertNotIn(".symtab", sections, "stripped")
            for there in IMAGE_FOLDERS:
                self.assertTrue((root / there[1:] / "tandem-target-15m" / "config.json").exists())
            packages = (pathlib.Path(folder) / "packages").read_text().split()
            self.assertTrue(any(name.startswith("libgrpc++") for name in packages), packages)
            self.assertIn("libc6", packages)
            # An image needs no more of an installation.
            self.assertEqual({path.name for path in (root / "usr/local").iterdir()} - {"lib"}, {"bin"})


class FilesTest(unittest.TestCase):
    def test_images_are_built_from_files_that_there_are(self):
        self.assertEqual(set(TANDEM), {"router", "verifier", "drafter"})
        for service in TANDEM.values():
            context = (FOLDER / service["build"]["context"]).resolve()
            self.assertEqual(context, REPOSITORY)
            self.assertTrue((context / service["build"]["dockerfile"]).is_file())

    def test_volumes_are_there(self):
        for name, service in SERVICES.items():
            for here in mounts(service).values():
                self.assertTrue(here.exists(), f"{name}: there is no {here}")

    def test_prometheus_takes_its_files(self):
        if shutil.which("promtool") is None:
            self.skipTest("promtool is not installed")
        with tempfile.TemporaryDirectory(prefix="tandem-compose-") as folder:
            for there, here in mounts(SERVICES["prometheus"]).items():
                # Where its image looks for them.
                copied = pathlib.Path(folder) / pathlib.PurePath(there).relative_to("/etc/prometheus")
                (shutil.copytree if here.is_dir() else shutil.copy)(here, copied)
            rules = len(list(pathlib.Path(folder).glob("rules/*.rules.yml")))
            run = subprocess.run(
                ["promtool", "check", "config", f"{folder}/prometheus.yml"], capture_output=True, text=True, check=False
            )
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertGreater(rules, 0)
        self.assertIn(f"{rules} rule files found", run.stdout + run.stderr)

    def test_grafana_finds_prometheus_and_its_dashboards(self):
        folders = mounts(SERVICES["grafana"])
        provisioning = "/etc/grafana/provisioning"
        sources = yaml.safe_load((folders[f"{provisioning}/datasources"] / "prometheus.yaml").read_text())
        (source,) = sources["datasources"]
        published = SERVICES["prometheus"]["ports"][0].rpartition(":")[2]
        self.assertEqual(source["url"], f"http://prometheus:{published}")
        (provider,) = yaml.safe_load((folders[f"{provisioning}/dashboards"] / "tandem.yaml").read_text())["providers"]
        dashboards = folders[provider["options"]["path"]]
        self.assertTrue(list(dashboards.glob("*.json")), f"there are no dashboards in {dashboards}")


class CommandsTest(unittest.TestCase):
    """What the containers start is what the binaries take."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tandem-compose-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def command(self, service):
        folders = dict(IMAGE_FOLDERS)
        for there, here in mounts(service).items():
            # The router's configuration names folders of the image.
            folders[there] = self.folder / here.name
            folders[there].write_text(path_here(here.read_text(encoding="utf-8"), IMAGE_FOLDERS), encoding="utf-8")
        program, *arguments = service["command"]
        return [str(BIN_DIR / program), *(path_here(argument, folders) for argument in arguments)]

    def test_binaries_take_their_arguments_and_files(self):
        for name, service in TANDEM.items():
            with self.subTest(service=name):
                status, output = check_config(self.command(service))
                self.assertEqual(status, 0, output)

    def test_wrong_arguments_and_files_are_noticed(self):
        for name, service in TANDEM.items():
            with self.subTest(service=name):
                self.assertNotEqual(check_config([*self.command(service), "--no-such-flag"])[0], 0)
        command = self.command(TANDEM["router"])
        (self.folder / "router.yaml").write_text("models: [{name: target}]", encoding="utf-8")
        self.assertNotEqual(check_config(command)[0], 0)

    def test_the_router_calls_the_others_where_they_listen(self):
        config = load("router.yaml")
        called = [address for model in config["models"] for address in model["verifiers"]]
        called += [drafter["endpoint"] for drafter in config["drafters"]]
        listening = {name: port(flags(service)["listen"]) for name, service in TANDEM.items()}
        self.assertEqual(set(called), {f"{name}:{listening[name]}" for name in ("verifier", "drafter")})
        hosted = [a.split("=")[1] for a in TANDEM["drafter"]["command"] if a.startswith("--model=")]
        self.assertEqual({drafter["draft_model"] for drafter in config["drafters"]}, set(hosted))
        self.assertEqual([m["name"] for m in config["models"]], [flags(TANDEM["verifier"])["model"].split("=")[0]])

    def test_prometheus_scrapes_all_of_them(self):
        jobs = load("prometheus.yml")["scrape_configs"]
        targets = [target for job in jobs for group in job["static_configs"] for target in group["targets"]]
        scraped = {f"{name}:{port(flags(service)['metrics-listen'])}" for name, service in TANDEM.items()}
        self.assertEqual(set(targets), scraped)

    def test_only_this_machine_reaches_what_is_published(self):
        for name, service in SERVICES.items():
            for published in service.get("ports", []):
                address, _, inside = published.rpartition(":")
                self.assertEqual(address, f"127.0.0.1:{inside}", name)
                if name in TANDEM:
                    served = flags(service)
                    listening = [port(served[flag]) for flag in ("listen", "http-listen") if flag in served]
                    self.assertIn(int(inside), listening)
        self.assertIn("ports", SERVICES["router"])


if __name__ == "__main__":
    unittest.main()
