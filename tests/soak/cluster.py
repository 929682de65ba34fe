"""The servers of a scenario: routers, verifiers and drafters as processes that are killed and restarted, and their
measurements."""

import dataclasses
import json
import pathlib
import re
import signal
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from processes import BIN_DIR, MODELS, TARGET, Server, fixed_port, wait_until  # noqa: E402

TOKEN = "secret"
# The token of another tenant.
OTHER = "other"
DRAFTERS = ("general-1m", "code-1m")
MIB = 1024.0
# Seconds between two samples of a process, for chart and table.
SAMPLE_SECONDS = 0.25


def resident_mib(pid):
    """0 for a process that is gone."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / MIB for line in status.splitlines() if line.startswith("VmRSS")), 0.0)


@dataclasses.dataclass
class Settings:
    """The parts of a cluster. Target steps wait without using a core, so that the capacity does not depend on the
    machine."""

    routers: int = 1
    verifiers: int = 1
    drafters: tuple = ()
    step_ms: str = "40"
    max_running: int = 16
    router_flags: tuple = ()
    verifier_flags: tuple = ()
    tenant: dict = dataclasses.field(default_factory=dict)
    more_tenants: tuple = ()
    # Verifiers and drafters that the routers' configuration does not name: they register.
    registering: tuple = ()
    # Flags of every program and certificates' folder, for TLS: role -> flags.
    tls: dict = dataclasses.field(default_factory=dict)


class Cluster:
    """Parts by name: router-0, verifier-0, and drafters by the names of their models. They keep their ports."""

    def __init__(self, settings, folder, bin_dirs=None):
        self.settings = settings
        self.folder = pathlib.Path(folder)
        self.bin_dirs = dict(bin_dirs or {})  # Part -> folder of its binaries, where that is not the usual one.
        self.running = {}
        self.names = [
            *settings.drafters,
            *(f"verifier-{i}" for i in range(settings.verifiers)),
            *(f"router-{i}" for i in range(settings.routers)),
        ]
        self._ports = {name: (fixed_port(), fixed_port()) for name in self.names}
        self._write_config()
        try:
            for name in self.names:
                self.running[name] = self._launch(name)
            for server in self.running.values():
                server.wait_ready()
            for router in self.of_kind("router"):
                self.wait_for_verifiers(router)
        except BaseException:
            self.close()
            raise

    def _write_config(self):
        settings = self.settings
        config = {
            "models": [
                {
                    "name": TARGET,
                    "folder": str(MODELS / TARGET),
                    "verifiers": [self.address(name) for name in self._listed("verifier")],
                }
            ],
            "drafters": [
                {"name": name, "endpoint": self.address(name), "draft_model": name}
                for name in self._listed("drafter")
            ],
            "tenants": [
                {"name": "acme", "token": TOKEN, "admin": True, **settings.tenant}
                | ({"drafter": settings.drafters[0]} if settings.drafters else {}),
                *settings.more_tenants,
            ],
        }
        if settings.registering:
            config["registration"] = {"verifiers": True, "drafters": True, "ttl_seconds": 3}
        (self.folder / "router.yaml").write_text(json.dumps(config))  # Every JSON document is a YAML document.

    def _listed(self, kind):
        return [name for name in self.of_kind(kind) if name not in self.settings.registering]

    def of_kind(self, kind):
        return [name for name in self.names if self.kind(name) == kind]

    def kind(self, name):
        return "drafter" if name in self.settings.drafters else name.partition("-")[0]

    def address(self, name):
        return f"127.0.0.1:{self._ports[name][0]}"

    @property
    def routers(self):
        """Their addresses."""
        return [self.address(name) for name in self.of_kind("router")]

    def _launch(self, name):
        settings, kind = self.settings, self.kind(name)
        if kind == "drafter":
            flags = ["--model", f"{name}={MODELS}/tandem-draft-{name}"]
        elif kind == "verifier":
            flags = ["--model", MODELS / TARGET, "--simulate-target-ms", settings.step_ms, "--drain-grace", "200ms"]
            flags += ["--max-running", settings.max_running, *settings.verifier_flags]
            # Drafts regardless of the cost, because otherwise it depends on the machine whether drafts are wanted.
            flags += ["--window-policy", "fixed"] if settings.drafters else ["--local-drafter", "none"]
        else:
            flags = ["--config", self.folder / "router.yaml", "--drain-grace", "200ms", *settings.router_flags]
        if name in settings.registering:
            flags += [part for router in self.routers for part in ("--register", router)]
        flags = [str(flag).replace("{name}", name) for flag in (*flags, *settings.tls.get(kind, ()))]
        port, metrics_port = self._ports[name]
        program = pathlib.Path(self.bin_dirs.get(name, BIN_DIR)) / f"tandem-{kind}"
        return Server(program, *flags, port=port, metrics_port=metrics_port)

    def start(self, name):
        self.running[name] = self._launch(name).wait_ready()

    def kill(self, name):
        """kill -9."""
        server = self.running.pop(name)
        server.kill()
        server.close()

    def roll(self, name):
        """Sends SIGTERM, and restarts the part once it has ended."""
        server = self.running.pop(name)
        server.send(signal.SIGTERM)
        if server.wait() != 0:
            raise AssertionError(f"{name} does not end well:\n{server.log[-4000:]}")
        server.close()
        self.start(name)

    def wait_for_verifiers(self, router):
        """Waits until the router knows that all of them serve."""
        serving = "tandem_router_serving_verifiers"
        wait_until(
            lambda: self.running[router].metric(serving) == self.settings.verifiers, f"{router} to know every verifier"
        )

    def settle(self):
        """Waits until nothing runs, waits or is held anywhere. Returns the seconds that this took."""
        began = time.monotonic()
        for name, server in self.running.items():
            for metric in {
                "router": ("running", "waiting", "queued"),
                "verifier": ("running_requests", "waiting_requests", "kv_tokens_used"),
            }.get(self.kind(name), ()):
                full_name = f"tandem_{self.kind(name)}_{metric}"
                wait_until(lambda s=server, m=full_name: not s.metric(m), f"{full_name} of {name} to be 0")
        return time.monotonic() - began

    def close(self):
        for server in self.running.values():
            if server.running:
                server.send(signal.SIGCONT)
                server.send(signal.SIGTERM)
        codes = {name: server.close() for name, server in self.running.items()}
        self.running.clear()
        bad = {name: code for name, code in codes.items() if code not in (0, None)}
        if bad:
            raise AssertionError(f"ended badly: {bad}")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            self.close()
        except AssertionError:
            if kind is None:
                raise


class Memory:
    """Samples the resident memory of all processes of a cluster during its `with` block."""

    def __init__(self, cluster, seconds=SAMPLE_SECONDS):
        self._cluster = cluster
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.samples = {}  # (name, process) -> [(time, MiB)]

    def _work(self):
        while not self._stop.wait(self._seconds):
            for name, server in list(self._cluster.running.items()):
                mib = resident_mib(server.pid)
                if mib > 0:
                    self.samples.setdefault((name, server.pid), []).append((time.monotonic(), mib))

    def of(self, name):
        """Samples of the part's longest-sampled process."""
        return max((samples for (part, _), samples in self.samples.items() if part == name), key=len, default=[])

    def between(self, name, begin, end):
        return [mib for moment, mib in self.of(name) if begin <= moment < end]

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def series(text):
    """The exposition as {series: value}."""
    return {m[1]: float(m[2]) for m in re.finditer(r"^([a-zA-Z_:][^ ]*(?:\{.*\})?) (\S+)$", text, re.MULTILINE)}


class MetricsWatch:
    """Scrapes every process: while it lives, none of its series may disappear, and no counter may decrease."""

    _COUNTER = re.compile(r"_(total|count|bucket)(\{|$)")

    def __init__(self, cluster, seconds=2.0):
        self._cluster = cluster
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._seen = {}
        self.findings = []
        self.scrapes = 0

    def look(self):
        for name, server in list(self._cluster.running.items()):
            try:
                now = series(server.scrape())
            except OSError:
                # Was just killed, or is not up yet. A live process that does not answer is a finding.
                if server.running and self._cluster.running.get(name) is server:
                    time.sleep(1.0)
                    if server.running and self._cluster.running.get(name) is server:
                        self.findings.append(f"{name}: /metrics does not answer")
                continue
            self.scrapes += 1
            self.take(name, server, now)

    def take(self, name, process, now):
        """`process`: not its pid, which the system gives to another process within an hour of kills."""
        before = self._seen.get(process, {})
        for key, value in before.items():
            if key not in now:
                self.findings.append(f"{name}: {key} has gone")
            elif self._COUNTER.search(key) and now[key] < value:
                self.findings.append(f"{name}: {key} went from {value} to {now[key]}")
        self._seen[process] = now

    def _work(self):
        while not self._stop.wait(self._seconds):
            self.look()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
