"""What is changed while clients ask for outputs that are known: certificates, and the programs themselves."""

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
from processes import BIN_DIR, MODELS, PATIENCE_SECONDS, clean_environment, wait_until
from run import PROMPTS, Skipped, reference, requests

TOKENS = 24
# Files are looked at every ten seconds.
TAKEN_SECONDS = 25.0


def _shown(address):
    """The certificate that a server shows, or nothing where the connection ends before."""
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
        """Certificate and key in place of the part's, one after the other, as cert tools do."""
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
    """Until every server shows the certificate that its file has; how long that took in seconds."""
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
    settings = Settings(verifiers=2, drafters=DRAFTERS[:1], step_ms="10")
    settings.tls = {role: made.flags() for role in ("drafter", "verifier", "router")}
    asked = requests(TOKENS)
    taken = []
    with run.cluster(settings) as cluster:
        expected = reference(cluster, asked, ca=str(made.trust_all))
        times = run.times(2, 100)
        with Load(
            addresses=cluster.routers, token=TOKEN, requests=asked, rate=10, fresh=True, ca=str(made.trust_all), seed=run.seed
        ) as load:
            for number in range(times):
                for name, role in names.items():
                    made.renew(name, role)
                # The last ones of a long run are waited for, and so is every tenth: others are replaced before they are read.
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
                    # Links between servers live on; with these parts they are made anew by what now holds.
                    for name in ("verifier-0", "general-1m"):
                        cluster.roll(name)
            # Everybody has to be able to connect anew by now.
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
    """Tokens that drafters have brought, by the verifiers that live."""
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


class _Upgrade:
    """Parts go from one set of binaries to the other, one after the other, while a load runs."""

    def __init__(self, run, cluster, bin_dirs):
        self._run = run
        self._cluster = cluster
        self._bin_dirs = bin_dirs
        self._tools = {which: _Tool(folder) for which, folder in bin_dirs.items()}
        self._written = {}  # Tenant -> weight, as the state files must have it.
        self._pause = max(0.2, run.seconds(0.0) / 40) if not run.short else 0.2
        self.rolls = 0

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
        """Everything, kind by kind; drafts have to come over every mixture."""
        for kind in kinds:
            for name in self._cluster.of_kind(kind):
                self._roll(name, which)
            before = _guessed(self._cluster)
            wait_until(lambda b=before: _guessed(self._cluster) > b, f"drafts when every {kind} is the {which} one")
        self.write(which)

    def write(self, which):
        """Tenants into the state of every router, by each set's tool."""
        name, weight = f"by-{which}-{self.rolls}", 2 + len(self._written)
        for router in self._cluster.of_kind("router"):
            self._tools[which](
                self._cluster.address(router), "tenants", "set", name, "--tenant-token", name, "--weight", weight
            )
        self._written[name] = weight

    def _check_state(self, router):
        """What was written by either set is what the router says, by the words of either set's tool."""
        for tool in self._tools.values():
            for name, weight in self._written.items():
                told = json.loads(tool(self._cluster.address(router), "tenants", "get", name, "--json"))
                found = told.get("config", told).get("weight")
                if found != weight:
                    raise AssertionError(f"{router}: tenant {name} has weight {found}, expected {weight}: {told}")


def _calibrations(run, cluster, bin_dirs):
    """What either version's `tandem calibrate` writes is what either version's router begins with."""
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
            told = json.loads(_Tool(reader_dir)(address, "explain", PROMPTS[0], "--json"))
            samples = {c["drafter"]: c["samples"] for c in told["candidates"] if c["drafter"]}
            if set(samples) != set(DRAFTERS) or min(samples.values()) < len(PROMPTS):
                raise AssertionError(f"the {reader} router has not learned from the {writer} one's calibration: {told}")
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
    old = run.old_bin_dir or (BIN_DIR if run.short else None)
    if old is None:
        raise Skipped("upgrade needs --old-bin-dir, a folder with an older version's binaries")
    bin_dirs = {"old": pathlib.Path(old).resolve(), "new": BIN_DIR.resolve()}
    settings = Settings(routers=2, verifiers=2, drafters=DRAFTERS, step_ms="10")
    settings.router_flags = (
        *("--state", f"sqlite://{run.folder}/{{name}}.db", "--calibration", MODELS / "calibration.bin"),
    )
    settings.tenant = {"drafter_policy": "pinned"}
    asked = requests(TOKENS)
    called, calling = ("drafter", "verifier", "router"), ("router", "verifier", "drafter")
    names = [*DRAFTERS, *(f"{kind}-{number}" for kind in ("verifier", "router") for number in range(2))]
    with run.cluster(settings, bin_dirs=dict.fromkeys(names, bin_dirs["old"])) as cluster:
        expected = reference(cluster, asked)
        rolling = _Upgrade(run, cluster, bin_dirs)
        rolling.write("old")
        with Load(
            addresses=cluster.routers, token=TOKEN, requests=asked, rate=8, resume=True, seed=run.seed
        ) as load:
            rolling.all_to("new", called)
            rolling.all_to("old", calling)
            if not run.short:
                rolling.all_to("new", calling)
                rolling.all_to("old", called)
            records = load.end()
        if not run.short:
            _calibrations(run, cluster, bin_dirs)
    report = run.report
    report.figure("processes that were replaced by the other version's", rolling.rolls)
    report.figure("binaries", " and ".join(_digest(folder) for folder in bin_dirs.values()))
    run.failures("requests", [record for record in records.all if record.code != "OK"])
    report.figure("requests", len(records.all))
    report.figure("longest pause within an output", 1e3 * max(record.longest_gap for record in records.ok), "ms")
    report.figure("p99", 1e3 * quantile([record.seconds for record in records.ok], 0.99), "ms")
    run.outputs(records, expected)
