"""A stack with traffic on it and a Prometheus that watches it: for tests, for faults made on purpose, for pictures."""

import json
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request

import grpc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from certificates import Authority  # noqa: E402
from processes import (  # noqa: E402
    MODELS,
    PATIENCE_SECONDS,
    REPOSITORY,
    TARGET,
    Generation,
    Server,
    clean_environment,
    fixed_port,
    request_for,
    wait_until,
)

PROMETHEUS = REPOSITORY / "deploy" / "prometheus"
GRAFANA = REPOSITORY / "deploy" / "grafana"
DRAFTERS = ("general-1m", "code-1m")
HEAD = "eagle3"
ROLES = ("drafter", "verifier", "router")
CLIENTS = 4
# Of certificates: far beyond what an alert looks at.
LONG_DAYS = 400
# Tenants of the mixed traffic: one pinned to a drafter, one whose drafter the router chooses, one without.
TENANTS = (
    {"name": "acme", "token": "acme-token", "drafter": "general-1m"},
    {"name": "beta", "token": "beta-token", "drafter_policy": "DRAFTER_POLICY_AUTO"},
    {"name": "gamma", "token": "gamma-token", "drafter_policy": "DRAFTER_POLICY_OFF"},
)
# Of a stack with a draft head.
HEAD_TENANT = {"name": "delta", "token": "delta-token", "drafter": HEAD}


def calibration_prompts(kinds=("text", "chat")):
    lines = (MODELS / "calibration_prompts.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    return [entry[kind] for entry in entries for kind in kinds if kind in entry]


def wrong_draft_model(folder):
    """A copy of a draft model that loads, and takes every token for another: the rows of its embedding are mixed."""
    copy = folder / "wrong-draft-model"
    shutil.copytree(MODELS / f"tandem-draft-{DRAFTERS[0]}", copy)
    weights = copy / "model.safetensors"
    content = bytearray(weights.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    embedding = json.loads(content[8:start])["model.embed_tokens.weight"]
    begin, end = (start + offset for offset in embedding["data_offsets"])
    row = (end - begin) // embedding["shape"][0]
    rows = [content[at : at + row] for at in range(begin, end, row)]
    random.Random(1).shuffle(rows)
    content[begin:end] = b"".join(rows)
    weights.write_bytes(content)
    return copy


def free_address():
    return f"127.0.0.1:{fixed_port()}"


def port_of(address):
    return int(address.rsplit(":", 1)[1])


class Stack:
    """Drafter, verifier and router as processes, at addresses that a process started anew takes again. With `tls` each
    has a certificate of its role, and all connections use it."""

    def __init__(self, tls=False):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tandem-dashboards-"))
        self.servers = {}
        self.addresses = {role: (free_address(), free_address()) for role in ROLES}
        self.channel = None
        self.authority = Authority(self.folder / "tls", days=2 * LONG_DAYS) if tls else None
        if tls:
            for role in ROLES:
                self.renew(role, LONG_DAYS)

    def renew(self, role, days):
        """A certificate in place of the one that the process has; expired with a negative number of days."""
        return self.authority.sign(role, role, days=days)

    def _tls(self, role):
        if self.authority is None:
            return ()
        folder = self.authority.folder
        files = ("--tls-certificate", folder / f"{role}.pem", "--tls-key", folder / f"{role}.key")
        return (*files, "--tls-ca", self.authority.ca)

    def _open_channel(self):
        if self.authority is None:
            return self.servers["router"].channel()
        credentials = grpc.ssl_channel_credentials(self.authority.ca.read_bytes())
        options = [("grpc.enable_http_proxy", 0)]
        return grpc.secure_channel(self.servers["router"].address, credentials, options=options)

    def start(self, role, *flags):
        listen, metrics = self.addresses[role]
        flags = (*self._tls(role), *flags)
        server = Server(f"tandem-{role}", *flags, port=port_of(listen), metrics_port=port_of(metrics))
        self.servers[role] = server
        return server

    def start_drafter(self, *flags, models=None, head=False):
        """`models`: folder or source by name. With `head` a draft head too."""
        if head:
            flags = (*flags, "--model", f"{HEAD}={MODELS}/tandem-eagle3-15m", "--head-target", MODELS / TARGET)
        models = models or {name: MODELS / f"tandem-draft-{name}" for name in DRAFTERS}
        named = [part for name, folder in models.items() for part in ("--model", f"{name}={folder}")]
        return self.start("drafter", *named, *flags)

    def start_verifier(self, *flags):
        """Drafts whatever it costs, for a target slow enough that it pays, on machines that are busy as well; flags
        can say otherwise. `--local-drafter` None: the verifier's default."""
        options = {"--window-policy": "fixed", "--local-drafter": "none", "--model": str(MODELS / TARGET)}
        options["--simulate-target-ms"] = "8"
        options.update(zip(flags[::2], flags[1::2]))
        if options["--local-drafter"] is None:
            del options["--local-drafter"]
        return self.start("verifier", *(part for option in options.items() for part in option))

    def start_router(self, *flags, tenants=TENANTS, head=False, **limits):
        """`limits`: further fields of the configuration. With `head` the draft head and its tenant too."""
        names = (*DRAFTERS, HEAD) if head else DRAFTERS
        tenants = (*tenants, HEAD_TENANT) if head else tenants
        drafter, verifier = self.addresses["drafter"][0], self.addresses["verifier"][0]
        config = {
            "models": [{"name": TARGET, "folder": str(MODELS / TARGET), "verifiers": [verifier]}],
            "drafters": [{"name": name, "endpoint": drafter, "draft_model": name} for name in names],
            **limits,
        }
        path = self.folder / "router.yaml"
        path.write_text(json.dumps(config))
        tenants_path = self.folder / "tenants.yaml"
        tenants_path.write_text(json.dumps({"tenants": list(tenants)}))
        flags = ("--http-listen", "127.0.0.1:0", *flags)
        router = self.start("router", "--config", path, "--tenants", tenants_path, *flags)
        router.wait_ready()
        if self.channel is not None:
            self.channel.close()
        self.channel = self._open_channel()
        return router

    def start_all(self, verifier_flags=(), router_flags=(), head=False):
        self.start_drafter(head=head)
        self.start_verifier(*verifier_flags)
        for server in self.servers.values():
            server.wait_ready()
        self.start_router(*router_flags, head=head)

    def replace(self, role, starter, *arguments, **options):
        """Ends a process and starts it again with other flags, at the same address."""
        self.servers[role].send(15)
        self.servers[role].close()
        starter(*arguments, **options).wait_ready()

    def close(self):
        if self.channel is not None:
            self.channel.close()
        for role in ("router", "verifier", "drafter"):
            server = self.servers.get(role)
            if server is None:
                continue
            if server.running:
                server.send(15)
            server.close()
        shutil.rmtree(self.folder, ignore_errors=True)


# Of requests with a constraint, whose property names are forced.
SCHEMAS = tuple(
    json.dumps({"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]})
    for name in ("height_in_metres", "number_of_inhabitants")
)


class Traffic:
    """Clients that send requests of all kinds until they are stopped. What fails is kept by its status."""

    def __init__(self, stack, clients=CLIENTS, tenants=TENANTS, max_tokens=32, prompts=None, mistakes=True):
        self.stack = stack
        self.tokens = [tenant["token"] for tenant in tenants]
        self.max_tokens = max_tokens
        self.prompts = prompts or calibration_prompts()
        self.mistakes = mistakes
        self.completed = 0
        self.failures = []
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self._client, args=(i,), daemon=True) for i in range(clients)]
        for thread in self.threads:
            thread.start()

    def _client(self, number):
        generator = random.Random(number)
        while not self.stopping.is_set():
            request = request_for(generator.choice(self.prompts), self.max_tokens)
            request.sampling.seed = generator.randrange(1 << 30)
            token = generator.choice(self.tokens)
            kind = generator.random() if self.mistakes else 1.0
            if kind < 0.02:
                request.stopping.max_tokens = 1 << 20  # Refused.
            elif 0.1 <= kind < 0.2:
                request.stopping.ignore_eos = False
                request.constraint.json_schema.schema = SCHEMAS[kind < 0.15]
            try:
                generation = Generation(self.stack.channel, request, token=token)
                if 0.02 <= kind < 0.04:
                    generation.read(4)
                    generation.call.cancel()
                else:
                    generation.read()
            except grpc.RpcError as error:
                with self.lock:
                    self.failures.append(error.code().name)
                self.stopping.wait(0.02)
            with self.lock:
                self.completed += 1

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join(PATIENCE_SECONDS)


def scale(text):
    """The rules with a second for every minute, so that minutes pass while one watches."""
    seconds = {"m": 1, "h": 60, "d": 1440}

    def shorter(match):
        return f"{int(match[1]) * seconds[match[2]]}s"

    return re.sub(r"(?<![\w.])(\d+)(m|h|d)(?!\w)", shorter, text)


class Prometheus:
    """Debian's Prometheus on the deployed configuration and rules, with the stack's addresses, once a second."""

    def __init__(self, stack, scaled=False):
        self.stack = stack
        self.folder = stack.folder / "prometheus"
        self.folder.mkdir()
        for path in PROMETHEUS.glob("*.rules.yml"):
            text = path.read_text()
            (self.folder / path.name).write_text(scale(text) if scaled else text)
        config = (PROMETHEUS / "prometheus.yml").read_text()
        for role, port in (("router", 9101), ("verifier", 9102), ("drafter", 9103)):
            target = f"localhost:{port}"
            assert target in config, target
            config = config.replace(target, stack.addresses[role][1])
        config = re.sub(r"(scrape|evaluation)_interval: \w+", r"\1_interval: 1s", config)
        (self.folder / "prometheus.yml").write_text(config)
        self.address = free_address()
        self.log = open(self.folder / "log", "w", encoding="utf-8")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={self.folder}/prometheus.yml"]
            + [f"--storage.tsdb.path={self.folder}/data", f"--web.listen-address={self.address}"],
            stdout=self.log,
            stderr=subprocess.STDOUT,
            env=clean_environment(),
        )
        wait_until(self._ready, "Prometheus")

    def _ready(self):
        if self.process.poll() is not None:
            raise AssertionError((self.folder / "log").read_text())
        try:
            return self._get("/-/ready") is not None
        except (OSError, AssertionError):
            return False

    def _get(self, path, **parameters):
        query = "?" + urllib.parse.urlencode(parameters) if parameters else ""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://{self.address}{path}{query}", timeout=PATIENCE_SECONDS) as reply:
                return reply.read().decode()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}{query}: {error.read().decode()}") from error

    def _data(self, path, **parameters):
        reply = json.loads(self._get(path, **parameters))
        assert reply["status"] == "success", reply
        return reply["data"]

    def query(self, expression):
        """[(labels, value), ...] now; a query that cannot be parsed fails."""
        data = self._data("/api/v1/query", query=expression)
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(sample["metric"], float(sample["value"][1])) for sample in data["result"]]

    def query_range(self, expression, start, end, step):
        """[(labels, [(time, value), ...]), ...]"""
        data = self._data("/api/v1/query_range", query=expression, start=start, end=end, step=step)
        return [
            (series["metric"], [(float(at), float(value)) for at, value in series["values"]])
            for series in data["result"]
        ]

    def rules(self, kind):
        """The loaded rules: "record" or "alert"."""
        groups = self._data("/api/v1/rules", type=kind)["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def alerts(self, *states):
        """Names of the alerts that are in one of the states: "firing", "pending"."""
        alerts = self._data("/api/v1/alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] in states}

    def severities(self, name):
        """Of the alerts of that name that fire."""
        alerts = self._data("/api/v1/alerts")["alerts"]
        labels = [alert["labels"] for alert in alerts if alert["state"] == "firing"]
        return {found["severity"] for found in labels if found["alertname"] == name}

    def targets_up(self):
        return sum(value for _, value in self.query("up"))

    def close(self):
        self.process.terminate()
        self.process.wait(PATIENCE_SECONDS)
        self.log.close()

