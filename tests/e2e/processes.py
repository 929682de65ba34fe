"""Real Tandem processes and outside clients of them, for tests. Nothing here waits without a deadline."""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

import grpc
from tandem.v1 import admin_pb2, admin_pb2_grpc, generation_pb2, generation_pb2_grpc, types_pb2

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BIN_DIR = pathlib.Path(os.environ["TANDEM_BIN_DIR"]).resolve()
MODELS = REPOSITORY / "deploy" / "demo-models"
TARGET = "tandem-target-15m"
DRAFTERS = ("general-1m", "code-1m", "math-1m", "general-4m")
# Sanitizer builds and loaded machines take their time; a test that waits this long has failed.
PATIENCE_SECONDS = float(os.environ.get("TANDEM_TEST_PATIENCE_SECONDS", "60"))
# How long a step of a target lasts at least. It waits without using a core, so that drafts come in time and what is to
# happen in the middle of a generation does, on machines that are busy as well.
TARGET_MS = 8
OFF = types_pb2.SPECULATION_MODE_OFF
ON = types_pb2.SPECULATION_MODE_ON


def wait_until(condition, what, timeout=PATIENCE_SECONDS):
    """Returns the condition's first true value; fails when there is none before the timeout."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout} s for {what}")
        pause.wait(0.01)


def clean_environment():
    """The caller's, without proxies and Tandem's own variables."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")}
    environment["no_proxy"] = environment["no_grpc_proxy"] = "127.0.0.1,localhost"
    return environment


def check_config(command):
    """(exit status, output) of the command with --check-config."""
    run = subprocess.run(
        [*command, "--check-config"], capture_output=True, text=True, env=clean_environment(), check=False, timeout=60
    )
    return run.returncode, run.stdout + run.stderr


_settings_folder = tempfile.TemporaryDirectory(prefix="tandem-settings-")


def settings(**values):
    """The flag of a file with these settings: settings(max_waiting=1)."""
    descriptor, path = tempfile.mkstemp(dir=_settings_folder.name, suffix=".yaml", text=True)
    with os.fdopen(descriptor, "w") as file:
        file.writelines(f"{name.replace('_', '-')}: {value}\n" for name, value in values.items())
    return "--flags-file", path


_given_ports = set()


def fixed_port():
    """A free port from below those that outgoing connections are given, so that it can be used again. Never one twice."""
    while True:
        port = random.SystemRandom().randrange(20000, 30000)
        if port in _given_ports:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            _given_ports.add(port)
            return port


class Server:
    """One server process, on free ports unless they are named. Its log lines are kept; it ends at the latest with `close`."""

    def __init__(self, program, *flags, port=0, metrics_port=0):
        self.program = program
        self.lines = []
        self.address = None
        self.early_address = None  # While it loads.
        self.metrics_port = None
        self.health_port = None
        self.live_port = None
        self.http_port = None
        self.reading = threading.Event()  # Cleared by tests whose log nobody reads for a while.
        self.reading.set()
        self._killed = False
        self._ready = threading.Event()
        self._process = subprocess.Popen(
            [str(BIN_DIR / program), "--listen", f"127.0.0.1:{port}"]
            + ["--metrics-listen", f"127.0.0.1:{metrics_port}", "--log-format", "json", *map(str, flags)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=clean_environment(),
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._process.stderr:
            self.reading.wait()
            self.lines.append(line)
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if "metrics_port" in entry:
                self.metrics_port = int(entry["metrics_port"])
            self.health_port = int(entry.get("health_port", 0)) or self.health_port
            self.live_port = int(entry.get("live_port", 0)) or self.live_port
            self.http_port = int(entry.get("http_port", 0)) or self.http_port
            self.early_address = entry.get("address", self.early_address)
            if entry.get("event") in ("serving", "listening"):
                self.address = entry["address"]
                self._ready.set()
        self._ready.set()

    @property
    def log(self):
        return "".join(self.lines)

    def wait_logged(self, text, since=0):
        """Until a line has the text, the first `since` lines left out: a log is read behind what it tells of."""
        wait_until(lambda: text in "".join(self.lines[since:]), f"{self.program} to log {text!r}")

    def wait_ready(self):
        self._ready.wait(PATIENCE_SECONDS)
        if self.address is None:
            raise AssertionError(f"{self.program} does not serve:\n{self.log}")
        return self

    def send(self, signal_number):
        self._process.send_signal(signal_number)

    def kill(self):
        self._killed = True
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)

    def wait(self, timeout=PATIENCE_SECONDS):
        """The exit code, when the process has ended by itself."""
        code = self._process.wait(timeout)
        self._reader.join(timeout)
        return code

    @property
    def pid(self):
        return self._process.pid

    @property
    def running(self):
        return self._process.poll() is None

    def close(self):
        """Waits for the process and returns its exit code; None for one that the test killed."""
        try:
            code = self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = "killed, because it did not end by itself"
        self._reader.join(PATIENCE_SECONDS)
        self._process.stderr.close()
        return None if self._killed else code

    def scrape(self):
        """/metrics as text."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=PATIENCE_SECONDS) as reply:
            return reply.read().decode()

    def metric(self, name, **labels):
        """The sum over the series of `name` that have the labels; None when there are none."""
        values = []
        for line in self.scrape().splitlines():
            match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if match is None or match[1] != name:
                continue
            found = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
            if all(found.get(key) == value for key, value in labels.items()):
                values.append(float(match[3]))
        return sum(values) if values else None

    def channel(self):
        return grpc.insecure_channel(self.address, options=[("grpc.enable_http_proxy", 0)])

    def health(self, service=""):
        """grpc.health.v1's answer: "SERVING", "NOT_SERVING"."""
        # The two messages are one field each, which spares the test a package.
        name = service.encode()
        with self.channel() as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            reply = check(b"\x0a" + bytes([len(name)]) + name if name else b"", timeout=PATIENCE_SECONDS)
        return {b"\x08\x01": "SERVING", b"\x08\x02": "NOT_SERVING"}.get(reply, repr(reply))

    def info(self, token=None):
        with self.channel() as channel:
            return admin_pb2_grpc.AdminStub(channel).GetServerInfo(
                admin_pb2.GetServerInfoRequest(), metadata=bearer(token), timeout=PATIENCE_SECONDS
            )


def bearer(token):
    return [("authorization", f"Bearer {token}")] if token else []


class Generation:
    """One Generate call of an outside client, read as far as the test wants. Iterating checks the offsets."""

    def __init__(self, channel, request, token="secret", timeout=PATIENCE_SECONDS, metadata=()):
        self.tokens = []
        self.text = ""
        self.accepted = 0
        self.started = None
        self.finished = None
        stub = generation_pb2_grpc.GenerationStub(channel)
        self.call = stub.Generate(request, metadata=[*bearer(token), *metadata], timeout=timeout)

    def read(self, num_tokens=None, num_accepted=0):
        """Reads to the end, or until there are this many tokens, and of them accepted ones. RpcError when the call fails."""
        for event in self.call:
            kind = event.WhichOneof("event")
            if kind == "started":
                assert self.started is None
                self.started = event.started
            elif kind == "chunk":
                assert self.started is not None and event.chunk.offset == len(self.tokens)
                self.tokens += event.chunk.tokens
                self.text += event.chunk.text
                self.accepted += sum(
                    detail.source == generation_pb2.TOKEN_SOURCE_ACCEPTED for detail in event.chunk.details
                )
            elif kind == "finished":
                assert self.finished is None
                self.finished = event.finished
                self.text += event.finished.text
            if num_tokens is not None and len(self.tokens) >= num_tokens and self.accepted >= num_accepted:
                break
        return self

    @property
    def output(self):
        """What must not depend on anything but the request."""
        return self.tokens, self.text, self.finished.reason, self.finished.matched_stop

    @property
    def stats(self):
        return self.finished.speculation


def request_for(text="Once upon a time", max_tokens=32, **fields):
    """A seeded request that goes on to its token limit."""
    request = generation_pb2.GenerateRequest(text=text, **fields)
    request.sampling.temperature = 0.8
    request.sampling.seed = 11
    request.stopping.max_tokens = max_tokens
    request.stopping.ignore_eos = True
    return request


class ProcessTest(unittest.TestCase):
    """A test that starts processes; they end with it."""

    def setUp(self):
        self.servers = []
        self.addCleanup(self.close_servers)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tandem-e2e-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def close_servers(self):
        """Every test is a test of the services' end as well: whatever happened, SIGTERM ends them cleanly."""
        for server in self.servers:
            if server.running:
                server.send(signal.SIGCONT)
                server.send(signal.SIGTERM)
        codes = [server.close() for server in self.servers]
        for server, code in zip(self.servers, codes):
            self.assertIn(code, (None, 0), f"{server.program}:\n{server.log}")

    def start(self, program, *flags, port=0):
        server = Server(program, *flags, port=port)
        self.servers.append(server)
        return server

    def start_drafter(self, models=DRAFTERS, port=0, flags=()):
        flags = [*flags]
        for name in models:
            flags += ["--model", f"{name}={MODELS}/tandem-draft-{name}"]
        return self.start("tandem-drafter", *flags, port=port)

    def start_verifier(self, *flags, port=0):
        """Drafts whatever it costs: `goodput` may rightly do without drafts on a machine that tests keep busy."""
        flags = ("--window-policy", "fixed", "--local-drafter", "none", "--simulate-target-ms", TARGET_MS, *flags)
        return self.start("tandem-verifier", "--model", MODELS / TARGET, *flags, port=port)

    def start_router(self, verifiers, drafter_address, flags=(), more_tenants=(), **tenant):
        """One model on `verifiers`; the tenant "acme", whose drafter is the first, has the token "secret"."""
        config = {
            "models": [{"name": TARGET, "folder": str(MODELS / TARGET), "verifiers": verifiers}],
            "drafters": [
                {"name": name, "endpoint": drafter_address, "draft_model": name} for name in DRAFTERS
            ],
            "tenants": [{"name": "acme", "token": "secret", "drafter": DRAFTERS[0], **tenant}, *more_tenants],
        }
        path = self.folder / "router.yaml"
        path.write_text(json.dumps(config))  # Every JSON document is a YAML document.
        return self.start("tandem-router", "--config", path, *flags)

    def start_stack(self, verifier_flags=(), drafter_port=0, **tenant):
        """A drafter, a verifier and a router, ready, and a channel to the router."""
        self.drafter = self.start_drafter(port=drafter_port)
        self.verifier = self.start_verifier(*verifier_flags)
        self.drafter.wait_ready()
        self.verifier.wait_ready()
        self.connect_router([self.verifier.address], self.drafter.address, **tenant)

    def connect_router(self, verifiers, drafter_address, **tenant):
        self.router = self.start_router(verifiers, drafter_address, **tenant).wait_ready()
        self.channel = self.router.channel()
        self.addCleanup(self.channel.close)

    def command(self, server, *arguments, fails=False):
        """What `tandem` prints, with the admin's token; with `fails`, on standard error."""
        command = [str(BIN_DIR / "tandem"), *map(str, arguments), "--endpoint", server.address, "--token", "secret"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env=clean_environment()
        )
        self.assertEqual(done.returncode != 0, fails, done.stdout + done.stderr)
        return done.stderr if fails else done.stdout

    def generate(self, request, **options):
        """A call to the router that has begun."""
        return Generation(self.channel, request, **options)

    def drafted(self, request, **options):
        """The generations of one request until some of its drafts were accepted, the last one, which has them, last. A
        drafter that starts or starves may miss whole requests; their outputs are the same."""
        generations = []

        def accepted():
            generations.append(self.generate(request, **options).read())
            self.assertEqual(generations[-1].output, generations[0].output)
            return generations[-1].accepted > 0

        wait_until(accepted, "accepted drafts")
        return generations

    def assert_refuses_soon(self, code, *parts):
        """New requests, which may be served at first, are refused from some moment on."""

        def refused():
            generation = self.generate(request_for(max_tokens=1))
            try:
                generation.read()
                return False
            except grpc.RpcError as error:
                self.assertEqual(error.code(), code, error.details())
                for part in parts:
                    self.assertIn(part, error.details())
                return True

        wait_until(refused, f"refusals with {code}")

    def undrafted(self, request):
        """What the request gives with speculation off."""
        plain = generation_pb2.GenerateRequest()
        plain.CopyFrom(request)
        plain.speculation.Clear()
        plain.speculation.mode = OFF
        return self.generate(plain).read().output

    def drafter_lost(self, request):
        """Why the request goes without its drafter, which is refused; the request itself must not care."""
        expected = self.undrafted(request)

        def lost():
            generation = self.generate(request).read()
            self.assertEqual(generation.output, expected)
            self.assertEqual(generation.accepted, 0)
            return generation.stats.drafter_lost

        return wait_until(lost, "a drafter that is refused")

    def assert_fails(self, generation, code, *parts):
        """The call ends with `code` and a message that has all `parts`; returns the error."""
        with self.assertRaises(grpc.RpcError) as caught:
            generation.read()
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        for part in parts:
            self.assertIn(part, caught.exception.details())
        return caught.exception

    def wait_idle(self, verifier):
        """Returns when nothing runs or waits there and nothing is held."""
        names = ("tandem_verifier_running_requests", "tandem_verifier_waiting_requests")
        names += ("tandem_verifier_kv_tokens_used",)
        wait_until(lambda: all(verifier.metric(name) == 0 for name in names), "an idle verifier")
