"""Certificates and programs are replaced while clients request outputs that are known."""

import hashlib
import json
import pathlib
import shutil
import ssl
import subprocess
import time

from certificates import Authority
from cluster import DRAFTERS, TOKEN, Settings
from load import Load
from measure import quantile
from processes import BIN_DIR, MODELS, PATIENCE_SECONDS, TARGET, clean_environment, wait_until
from run import PROMPTS, Skipped, reference, requests

TOKENS = 24
# Files are checked every ten seconds.
TAKEN_SECONDS = 25.0
# A tenant of the tenants file, and one that both versions change in turns.
IN_FILE, SHARED = "in-the-file", "changed-by-both"
# Nobody listens there.
ABSENT = "127.0.0.1:9"


def _shown(address):
    """The certificate that a server shows, or nothing if the connection ends before."""
    host, port = address.rsplit(":", 1)
    try:
        return ssl.get_server_certificate((host, int(port)), timeout=5.0)
    except OSError:
        return ""


class _Certificates:
    """One certificate for each part, signed by the current one of two authorities, and what everybody trusts."""

    def __init__(self, folder):
        self.folder = folder
        self.authorities = [Authority(folder / name) for name in ("first", "second")]
        self.current = 0
        self.trust = folder / "trust.pem"
        self.trust_all = folder / "trust-all.pem"  # Of clients.
        self._write(self.trust, self.authorities[:1])
        self._write(self.trust_all, self.authorities)
        self.files = {}

    @staticmethod
    def _write(path, authorities):
        new = path.with_suffix(".new")
        new.write_text("".join(authority.ca.read_text() for authority in authorities))
        new.replace(path)

    def flags(self):
        return (
            *("--tls-certificate", str(self.folder / "live" / "{name}.pem")),
            *("--tls-key", str(self.folder / "live" / "{name}.key"), "--tls-ca", str(self.trust)),
        )

    def renew(self, name, role):
        """Replaces the part's certificate and key, one after the other, as certificate tools do."""
        live = self.folder / "live"
        live.mkdir(exist_ok=True)
        pem, key = self.authorities[self.current].sign(name, role)
        for source, target in ((key, live / f"{name}.key"), (pem, live / f"{name}.pem")):
            copy = target.with_suffix(".new")
            shutil.copy(source, copy)
            copy.replace(target)

    def file(self, name):
        return (self.folder / "live" / f"{name}.pem").read_text().strip()

    def trust_both(self):
        self._write(self.trust, self.authorities)

    def trust_current(self):
        self._write(self.trust, [self.authorities[self.current]])


def _await_shown(cluster, certificates):
    """Waits until every server shows the certificate in its file. Returns the seconds that this took."""
    began = time.monotonic()
    for name in cluster.names:
        wait_until(
            lambda n=name: _shown(cluster.address(n)).strip() == certificates.file(n),
            f"{name} to show its new certificate",
            timeout=TAKEN_SECONDS,
        )
    return time.monotonic() - began


def certificates(run):
    """Certificates of all parts are replaced under load, and in the long form the authority too, in the three steps of
    docs/operate/operations.md. Every request has a connection of its own, so that each one is a handshake."""
    if shutil.which("openssl") is None:
        raise Skipped("there is no openssl on this machine")
    names = {"general-1m": "drafter", "verifier-0": "verifier", "verifier-1": "verifier", "router-0": "router"}
    made = _Certificates(run.folder)
    for name, role in names.items():
        made.renew(name, role)
    # What comes while a verifier is replaced waits.
    settings = Settings(verifiers=2, drafters=DRAFTERS[:1], step_ms=f"{run.step or 10}", tenant={"max_queued_requests": 512})
    settings.tls = {role: made.flags() for role in ("drafter", "verifier", "router")}
    asked = requests(TOKENS)
    taken = []
    with run.cluster(settings) as cluster:
        expected = reference(cluster, asked, ca=str(made.trust_all))
        times = run.times(2, 100)
        with Load(
            addresses=cluster.routers, token=TOKEN, requests=asked, rate=run.rate or 10, fresh=True, ca=str(made.trust_all),
            seed=run.seed,
        ) as load:  # fmt: skip
            for number in range(times):
                for name, role in names.items():
                    made.renew(name, role)
                # Waits for the last ones of a long run and for every tenth: the others are replaced before servers read
                # them.
                if number % 10 == 9 or number + 1 == times:
                    taken.append(_await_shown(cluster, made))
                time.sleep(0.2)
                if not run.short and number + 1 in (times // 3, 2 * times // 3):
                    made.trust_both()
                    time.sleep(TAKEN_SECONDS / 2)
                    made.current = 1 - made.current
                    for name, role in names.items():
                        made.renew(name, role)
                    taken.append(_await_shown(cluster, made))
                    made.trust_current()
                    time.sleep(TAKEN_SECONDS / 2)
                    # Links between servers stay open; restarting these parts makes new ones with the new certificates.
                    for name in ("verifier-0", "general-1m"):
                        cluster.roll(name)
            # By now, everybody must be able to make new connections.
            cluster.roll("general-1m")
            cluster.wait_for_verifiers("router-0")
            before = _guessed(cluster)
            wait_until(lambda: _guessed(cluster) > before, "drafts over a new link")
            records = load.end()
        unusable = sum("TLS files cannot be used" in server.log for server in cluster.running.values())
    report = run.report
    report.figure("rotations of all certificates", times)
    report.figure("changes of the authority", 0 if run.short else 2)
    report.figure("until new certificates are shown, slowest", max(taken), "s")
    report.figure("requests, each with a handshake", len(records.all))
    report.figure("servers that met a certificate without its key for a moment", unusable)
    run.failures("requests", [record for record in records.all if record.code != "OK"])
    run.outputs(records, expected)


def _guessed(cluster):
    """Tokens from drafters, counted by live verifiers."""
    name = "tandem_spec_decode_num_accepted_tokens_total"
    verifiers = (cluster.running[verifier] for verifier in cluster.of_kind("verifier"))
    return sum(verifier.metric(name, source="drafter") or 0 for verifier in verifiers)


class _Tool:
    """`tandem` of one set of binaries, with the admin's token."""

    def __init__(self, bin_dir):
        self._program = pathlib.Path(bin_dir) / "tandem"

    def __call__(self, address, *arguments):
        done = subprocess.run(
            [str(self._program), *map(str, arguments), "--endpoint", address, "--token", TOKEN],
            capture_output=True,
            text=True,
            check=False,
            timeout=5 * PATIENCE_SECONDS,
            env=clean_environment(),
        )
        if done.returncode != 0:
            raise AssertionError(f"tandem {' '.join(map(str, arguments))}: {done.stderr}")
        return done.stdout


def _write_tenants_file(folder, weight):
    """YAML with one tenant, in place of what it was."""
    path = folder / "tenants.yaml"
    new = path.with_suffix(".new")
    new.write_text(f"tenants:\n  - name: {IN_FILE}\n    token: {IN_FILE}\n    weight: {weight}\n")
    new.replace(path)
    return path


class _Upgrade:
    """Switches parts from one set of binaries to the other, one after the other, under load."""

    def __init__(self, run, cluster, bin_dirs):
        self._run = run
        self._cluster = cluster
        self._bin_dirs = bin_dirs
        self._tools = {which: _Tool(folder) for which, folder in bin_dirs.items()}
        self._written = {}  # Tenant -> weight, as the routers' state must have it.
        self._pause = max(0.2, run.seconds(0.0) / 40) if not run.short else 0.2
        self.rolls = 0
        self._new_wrote = False
        # Looks at a new router for what an old one does not know, and how often it was there.
        self.looks = self.kept = self.kept_verifiers = 0

    def _roll(self, name, which):
        self._cluster.bin_dirs[name] = self._bin_dirs[which]
        self._cluster.roll(name)
        self.rolls += 1
        kind = self._cluster.kind(name)
        if kind == "verifier":
            for router in self._cluster.of_kind("router"):
                self._cluster.wait_for_verifiers(router)
        if kind == "router":
            self._cluster.wait_for_verifiers(name)
            self._check_state(name)
        time.sleep(self._pause)

    def all_to(self, which, kinds):
        """Switches everything, kind by kind; drafts must arrive in every mixture."""
        for kind in kinds:
            for name in self._cluster.of_kind(kind):
                self._roll(name, which)
            before = _guessed(self._cluster)
            wait_until(lambda b=before: _guessed(self._cluster) > b, f"drafts when every {kind} is the {which} one")
        self.write(which)

    def write(self, which):
        """Tenants into the state of every router, by each set's tool, and one into the tenants file. What only the new
        version knows is written too: its routers have to find it again after the old ones wrote."""
        name, weight = f"by-{which}-{self.rolls}", 2 + len(self._written)
        for router in self._cluster.of_kind("router"):
            address, tool = self._cluster.address(router), self._tools[which]
            for tenant in (name, SHARED):
                more = ("--text-drafting", "true") if which == "new" and tenant == SHARED else ()
                tool(address, "tenants", "set", tenant, "--tenant-token", tenant, "--weight", weight, *more)
            if which == "new":
                tool(address, "verifiers", "add", TARGET, ABSENT)
        _write_tenants_file(self._run.folder, weight)
        self._written |= {name: weight, SHARED: weight, IN_FILE: weight}
        self._new_wrote = self._new_wrote or which == "new"
        for router in self._cluster.of_kind("router"):
            wait_until(
                lambda r=router: self._weight(which, r, IN_FILE) == weight, f"{router} to reload the tenants file"
            )

    def _config(self, which, router, tenant):
        """As the router says it to this set's tool."""
        told = json.loads(self._tools[which](self._cluster.address(router), "tenants", "get", tenant, "--json"))
        return told.get("config", told)

    def _weight(self, which, router, tenant):
        return self._config(which, router, tenant).get("weight")

    def _check_state(self, router):
        """What was written by either set is what the router says, by the words of either set's tool."""
        for which in self._tools:
            for name, weight in self._written.items():
                found = self._weight(which, router, name)
                if found != weight:
                    raise AssertionError(f"{router} says to the {which} tool: {name} has weight {found}, not {weight}")
        if self._new_wrote and self._cluster.bin_dirs[router] == self._bin_dirs["new"]:
            address, tool = self._cluster.address(router), self._tools["new"]
            self.looks += 1
            self.kept += self._config("new", router, SHARED)["text_drafting"]
            self.kept_verifiers += ABSENT in tool(address, "verifiers", "list", "--json")


def _calibrations(run, cluster, bin_dirs):
    """A router of either version starts with the calibration of either version's `tandem calibrate`."""
    prompts = run.folder / "prompts"
    prompts.write_text("\n".join(PROMPTS + tuple(f"{prompt} and then" for prompt in PROMPTS)))
    plain_flags = cluster.settings.router_flags
    read = 0
    for writer, writer_dir in bin_dirs.items():
        path = run.folder / f"calibration-{writer}"
        cluster.bin_dirs["router-0"] = writer_dir
        cluster.settings.router_flags = plain_flags[:2]
        cluster.roll("router-0")
        cluster.wait_for_verifiers("router-0")
        address = cluster.address("router-0")
        _Tool(writer_dir)(address, "calibrate", "--prompts", prompts, "--max-tokens", 8, "--output", path)
        for reader, reader_dir in bin_dirs.items():
            cluster.bin_dirs["router-0"] = reader_dir
            cluster.settings.router_flags = ("--calibration", path)
            cluster.roll("router-0")
            cluster.wait_for_verifiers("router-0")

            def learned(tool=_Tool(reader_dir)):
                told = json.loads(tool(address, "explain", PROMPTS[0], "--json"))
                samples = {c["drafter"]: c["samples"] for c in told["candidates"] if c["drafter"]}
                return set(samples) == set(DRAFTERS) and min(samples.values()) >= len(PROMPTS)

            # A drafter that registers does so within a second.
            wait_until(learned, f"the {reader} router to have learned from the {writer} one's calibration", timeout=20.0)
            read += 1
    run.report.promise("calibrations read, of each version by each", read, "==", len(bin_dirs) ** 2)


def _digest(folder):
    digest = hashlib.sha256()
    for name in ("tandem-router", "tandem-verifier", "tandem-drafter", "tandem"):
        digest.update((pathlib.Path(folder) / name).read_bytes())
    return digest.hexdigest()[:12]


def upgrade(run):
    """From the old binaries to those of this build and back, twice: those that are called first, then those that call
    first. Every mixture of versions serves; state files, and what was learned, are read by the other version."""
    _upgrade(run, f"sqlite://{run.folder}/{{name}}.db")


def upgrade_etcd(run):
    """The same with routers that share an etcd."""
    if shutil.which("etcd") is None or shutil.which("etcdctl") is None:
        raise Skipped("there is no etcd on this machine (deploy/install.sh)")
    from etcd_test import Etcd  # It needs openssl and etcd, as this scenario does.

    etcd = Etcd(run.folder)
    try:
        etcd.start().wait_ready()
        _upgrade(run, f"etcd://{etcd.address}/tandem")
    finally:
        etcd.close()


def _upgrade(run, state):
    old = run.old_bin_dir or (BIN_DIR if run.short else None)
    if old is None:
        raise Skipped("upgrade needs --old-bin-dir, a folder with an older version's binaries")
    bin_dirs = {"old": pathlib.Path(old).resolve(), "new": BIN_DIR.resolve()}
    # Half of the servers are listed, half register.
    registering = ("verifier-1", DRAFTERS[1])
    settings = Settings(routers=2, verifiers=2, drafters=DRAFTERS, registering=registering, step_ms=f"{run.step or 10}")
    tenants = _write_tenants_file(run.folder, 1)
    settings.router_flags = ("--state", state, "--calibration", MODELS / "calibration.bin", "--tenants", tenants)
    settings.tenant = {"drafter_policy": "pinned"}
    asked = requests(TOKENS)
    called, calling = ("drafter", "verifier", "router"), ("router", "verifier", "drafter")
    names = [*DRAFTERS, *(f"{kind}-{number}" for kind in ("verifier", "router") for number in range(2))]
    with run.cluster(settings, bin_dirs=dict.fromkeys(names, bin_dirs["old"])) as cluster:
        expected = reference(cluster, asked)
        rolling = _Upgrade(run, cluster, bin_dirs)
        rolling.write("old")
        with Load(
            addresses=cluster.routers, token=TOKEN, requests=asked, rate=run.rate or 8, resume=True, seed=run.seed
        ) as load:
            rolling.all_to("new", called)
            rolling.all_to("old", calling)
            if not run.short:
                rolling.all_to("new", calling)
                rolling.all_to("old", called)
            records = load.end()
        if not run.short and state.startswith("sqlite:"):
            _calibrations(run, cluster, bin_dirs)
    report = run.report
    report.figure("processes that were replaced by the other version's", rolling.rolls)
    for what, kept in (("a tenant's new setting", rolling.kept), ("an added verifier", rolling.kept_verifiers)):
        report.promise(f"looks that miss {what} in the state", rolling.looks - kept, "==", 0)
    report.figure("looks", rolling.looks)
    report.figure("binaries", " and ".join(_digest(folder) for folder in bin_dirs.values()))
    run.failures("requests", [record for record in records.all if record.code != "OK"])
    report.figure("requests", len(records.all))
    gaps = [1e3 * record.longest_gap for record in records.ok]
    for name, share in (("p50", 0.5), ("p99", 0.99), ("of all", 1.0)):
        report.figure(f"longest pause within an output, {name}", quantile(gaps, share), "ms")
    report.figure("p99", 1e3 * quantile([record.seconds for record in records.ok], 0.99), "ms")
    report.figure("outputs that went over to another router", sum(len(record.calls) > 1 for record in records.ok))
    run.outputs(records, expected)
