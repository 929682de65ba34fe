"""What `tandem serve` starts: models by path or name, threads, command lines, and the router's configuration."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import shutil

import models

SOURCE = re.compile(r"(ngram|suffix|trie)(:.*)?$")
SPLIT_FILE = re.compile(r"-00001-of-(\d{5})\.gguf$")
# Draft steps for each step of the target, as a rule: about as deep as windows become where drafting pays.
STEPS_PER_ROUND = 4
PROGRAMS = ("tandem-router", "tandem-verifier", "tandem-drafter")


class PlanError(Exception):
    """What is wrong with the command line, for people."""


@dataclasses.dataclass(frozen=True)
class Served:
    """A target, a draft model, or a source, which has no weights."""

    name: str
    path: str
    bytes: int

    @property
    def is_source(self) -> bool:
        return SOURCE.match(self.path) is not None


def size_of(path: pathlib.Path) -> int:
    """Bytes of weights."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.glob("*.safetensors"))
    if match := SPLIT_FILE.search(path.name):
        return sum(file.stat().st_size for file in path.parent.glob(f"{path.name[: match.start()]}-*-of-{match[1]}.gguf"))
    return path.stat().st_size


def resolve(text: str, name: str = "") -> Served:
    """A model by its path, or by its name in the list, from which it is fetched."""
    if SOURCE.match(text):
        return Served(name or text.partition(":")[0], text, 0)
    path = pathlib.Path(text)
    if not path.exists():
        known = models.read_list()
        if "/" in text or text.endswith(".gguf"):
            raise PlanError(f"{text}: there is no such file or folder")
        if text not in known:
            raise PlanError(f"{text} is no file or folder here, and {models.unknown(text, known)}")
        name, path = name or text, models.fetch(known[text])
    path = path.absolute()
    default = path.stem if path.is_file() else path.name
    return Served(name or re.sub(r"[^\x21-\x7e]+", "-", default), str(path), size_of(path))


def resolve_draft(text: str) -> Served:
    """NAME=MODEL, or MODEL."""
    if SOURCE.match(text):
        return resolve(text)
    name, equals, model = text.partition("=")
    if equals and not (name and model):
        raise PlanError(f"--draft {text}: expected NAME=MODEL")
    return resolve(model, name) if equals else resolve(text)


def cores() -> int:
    """Those that this process may use."""
    count = len(os.sched_getaffinity(0))
    try:
        quota, period = pathlib.Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return count if quota == "max" else max(1, min(count, int(quota) // int(period)))
    except (OSError, ValueError):
        return count


def split_threads(count: int, target: Served, drafts: list[Served]) -> tuple[int, int]:
    """Threads of verifier and drafter, which work at the same time: by the bytes that a round makes each of them read, the drafter at
    most half. Sources need hardly any time."""
    heaviest = max((draft.bytes for draft in drafts), default=0)
    if heaviest == 0:
        return count, 1
    work = STEPS_PER_ROUND * heaviest
    drafter = max(1, min(round(count * work / (work + target.bytes)), count // 2))
    return max(1, count - drafter), drafter


def find_programs(started_as: str) -> pathlib.Path:
    """The folder of the services: beside this program, in the sources' newest build, or on PATH."""
    here = pathlib.Path(__file__).resolve().parent
    candidates = [pathlib.Path(started_as).absolute().parent, here.parent / "bin"]
    built = [folder for folder in here.parent.parent.glob("build/*/bin") if (folder / PROGRAMS[1]).exists()]
    candidates += sorted(built, key=lambda folder: -(folder / PROGRAMS[1]).stat().st_mtime)
    if on_path := shutil.which(PROGRAMS[1]):
        candidates.append(pathlib.Path(on_path).parent)
    for folder in candidates:
        if all(os.access(folder / program, os.X_OK) for program in PROGRAMS):
            return folder
    raise PlanError(f"found no folder with {', '.join(PROGRAMS)}: build them with deploy/quickstart.sh, or put them on PATH")


def address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def caller_address(host: str, port: int) -> str:
    """The address for callers on this machine."""
    return address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)


@dataclasses.dataclass
class Plan:
    """All that is started. `folder` is for sockets and the router's configuration."""

    bin_dir: pathlib.Path
    folder: pathlib.Path
    target: Served
    drafts: list[Served]
    host: str
    http_port: int
    grpc_port: int
    token: str
    admin: bool
    threads: tuple[int, int]
    router_flags: list[str]
    verifier_flags: list[str]
    drafter_flags: list[str]

    @property
    def http_root(self) -> str:
        """Of OpenAI's API, for callers on this machine. Ports are known once the router listens."""
        return f"http://{caller_address(self.host, self.http_port)}/v1"

    @property
    def grpc_address(self) -> str:
        return caller_address(self.host, self.grpc_port)

    def socket(self, part: str) -> str:
        return f"unix:{self.folder / part}.sock"

    def write_router_config(self) -> pathlib.Path:
        """Every JSON document is a YAML document."""
        # A drafter of another vocabulary may draft by text: who names it wants it.
        tenant: dict[str, object] = {"name": "local", "token": self.token, "text_drafting": True}
        if self.admin:
            tenant["admin"] = True
        if len(self.drafts) == 1:
            tenant["drafter"] = self.drafts[0].name
        elif self.drafts:
            tenant["drafter_policy"] = "auto"
        target = {"name": self.target.name, "folder": self.target.path, "verifiers": [self.socket("verifier")]}
        drafters = [{"name": d.name, "endpoint": self.socket("drafter"), "draft_model": d.name} for d in self.drafts]
        path = self.folder / "router.yaml"
        path.touch(0o600)
        path.write_text(json.dumps({"models": [target], "drafters": drafters, "tenants": [tenant]}))
        return path

    def _command(self, part: str, flags: list[str], more: list[str]) -> list[str]:
        """The user's flags come behind those that they may want to change. The format of the log is ours: it is read."""
        return [str(self.bin_dir / f"tandem-{part}"), *flags, *more, "--log-format", "text"]

    def router(self) -> list[str]:
        flags = ["--listen", address(self.host, self.grpc_port), "--http-listen", address(self.host, self.http_port)]
        flags += ["--metrics-listen", "", "--http-metrics", "--wait-for-verifier", "1m"]
        return self._command("router", [*flags, "--config", str(self.folder / "router.yaml")], self.router_flags)

    def verifier(self) -> list[str]:
        flags = ["--model", f"{self.target.name}={self.target.path}", "--threads", str(self.threads[0])]
        flags += ["--listen", self.socket("verifier"), "--metrics-listen", ""]
        return self._command("verifier", flags, self.verifier_flags)

    def drafter(self) -> list[str]:
        flags = ["--threads", str(self.threads[1]), "--listen", self.socket("drafter"), "--metrics-listen", ""]
        for draft in self.drafts:
            flags += ["--model", f"{draft.name}={draft.path}"]
        with_weights = [draft for draft in self.drafts if not draft.is_source]
        if with_weights:
            flags += ["--target-vocabulary", self.target.path]
        # Heads are folders.
        if any(os.path.isdir(draft.path) for draft in with_weights):
            flags += ["--head-target", self.target.path]
        return self._command("drafter", flags, self.drafter_flags)
