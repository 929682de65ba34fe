"""Verifiers and drafters that make themselves known to routers: what is used, for how long, and who is refused. Some of
the tests need an etcd, and are left out where there is none."""

import json
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

import grpc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from certificates import Authority  # noqa: E402
from etcd_test import Etcd  # noqa: E402
from processes import (  # noqa: E402
    BIN_DIR,
    DRAFTERS,
    MODELS,
    ON,
    TARGET,
    Generation,
    ProcessTest,
    check_config,
    fixed_port,
    request_for,
    wait_until,
)

TTL_SECONDS = 3
DRAFTER = DRAFTERS[0]
REGISTERED = "tandem_router_registered_servers"
needs_etcd = unittest.skipUnless(shutil.which("etcd") and shutil.which("etcdctl"), "there is no etcd")


def words(log, event):
    """Log lines of an event."""
    entries = []
    for line in log.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if event in entry.get("event", ""):
            entries.append(entry)
    return entries


class RegistrationTest(ProcessTest):
    """A router whose configuration names no server, and servers that register with it."""

    def start_open_router(self, *flags, port=0, name="router", registration=None, drafters=(), tenant=None):
        config = {
            "models": [{"name": TARGET, "folder": str(MODELS / TARGET)}],
            "drafters": list(drafters),
            "registration": registration or {"verifiers": True, "drafters": True, "ttl_seconds": TTL_SECONDS},
            "tenants": [{"name": "acme", "token": "secret", "drafter": DRAFTER, "admin": True, **(tenant or {})}],
        }
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(config))
        return self.start("tandem-router", "--config", path, *flags, port=port)

    def registering(self, *routers):
        flags = []
        for router in routers:
            flags += ["--register", getattr(router, "address", router)]
        return flags

    def registered(self, router, kind):
        return router.metric(REGISTERED, kind=kind)

    def wait_registered(self, router, verifiers, drafters):
        """Until the router uses so many."""
        wait_until(
            lambda: (self.registered(router, "verifier"), self.registered(router, "drafter")) == (verifiers, drafters),
            f"{verifiers} verifiers and {drafters} drafters",
        )

    def output(self, router, max_tokens=32, drafter="", mode=None):
        with router.channel() as channel:
            request = request_for(max_tokens=max_tokens)
            if drafter:
                request.speculation.drafter = drafter
            if mode is not None:
                request.speculation.mode = mode
            return Generation(channel, request).read()

    def listed_servers(self, router):
        """What `tandem servers` lists."""
        command = [str(BIN_DIR / "tandem"), "servers", "--json", "--endpoint", router.address, "--token", "secret"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def drafted_output(self, router):
        """Of the registered drafter, once the verifier has connected to it."""
        return wait_until(
            lambda: (lambda generation: generation if generation.accepted > 0 else None)(self.output(router)),
            "drafted tokens",
        )

    def test_a_registered_drafter_is_found_at_its_socket(self):
        """It registers its port, and tells nobody but who asks it where it listens besides."""
        router = self.start_open_router().wait_ready()
        sockets = ("--local-sockets", self.folder / "sockets")
        verifier = self.start_verifier(*self.registering(router), *sockets).wait_ready()
        drafter = self.start_drafter([DRAFTER], flags=(*self.registering(router), *sockets)).wait_ready()
        self.wait_registered(router, 1, 1)
        self.drafted_output(router)
        verifier.wait_logged("using a drafter's socket on this machine")
        (socket,) = (self.folder / "sockets").iterdir()
        (listed,) = (server for server in self.listed_servers(router) if server["role"] == "drafter")
        self.assertEqual(listed["address"], drafter.address)
        self.assertNotIn(socket.stem, json.dumps(listed))
        drafter.send(signal.SIGTERM)
        self.assertEqual(drafter.wait(), 0)
        self.assertFalse(socket.exists())

    def test_servers_come_and_a_generation_runs(self):
        impatient = self.start_open_router("--wait-for-verifier", "0s", name="impatient").wait_ready()
        with impatient.channel() as channel:
            self.assert_fails(
                Generation(channel, request_for()), grpc.StatusCode.UNAVAILABLE, "no verifier of the model is known"
            )
        router = self.start_open_router("--wait-for-verifier", "10m").wait_ready()
        # Not ready, and yet it lets verifiers register.
        self.assertEqual((router.health(), router.health("tandem.v1.Registry")), ("NOT_SERVING", "SERVING"))
        info = router.info("secret")
        self.assertEqual((info.serving, list(info.unserved_models)), (False, [TARGET]))
        with router.channel() as channel:
            waiting = Generation(channel, request_for())
            wait_until(lambda: router.metric("tandem_router_waiting_for_verifier") == 1, "a request that waits")
            verifier = self.start_verifier(*self.registering(router)).wait_ready()
            self.assertEqual(len(waiting.read().tokens), 32)
        self.wait_registered(router, 1, 0)
        wait_until(lambda: router.health() == "SERVING", "the router to be ready")
        info = router.info("secret")
        self.assertEqual((info.serving, list(info.unserved_models)), (True, []))
        # Without its tenant's drafter, which may come.
        plain = self.output(router)
        self.assertEqual((len(plain.tokens), plain.stats.drafter), (32, ""))
        with router.channel() as channel:
            request = request_for()
            request.speculation.mode = ON
            self.assert_fails(
                Generation(channel, request), grpc.StatusCode.FAILED_PRECONDITION, "no drafter was named"
            )
        drafter = self.start_drafter(models=DRAFTERS[:2], flags=self.registering(router)).wait_ready()
        self.wait_registered(router, 1, 1)
        drafted = self.drafted_output(router)
        self.assertEqual(drafted.stats.drafter, DRAFTER)
        self.assertEqual(drafted.output, plain.output)
        self.assertEqual(self.output(router, drafter=DRAFTERS[1]).output, plain.output)
        self.assertEqual({entry.name for entry in router.info("secret").drafters}, set(DRAFTERS[:2]))
        listed = self.listed_servers(router)
        self.assertEqual(
            {(entry["role"], entry["name"], entry["address"]) for entry in listed},
            {("verifier", TARGET, verifier.address)} | {("drafter", name, drafter.address) for name in DRAFTERS[:2]},
        )
        for entry in listed:
            self.assertEqual((entry["source"], entry["state"]), ("registered", "ready"))
            self.assertRegex(entry["registration"]["weights_sha256"], "^[0-9a-f]{64}$")
        for server in (verifier, drafter):
            wait_until(lambda s=server: s.metric("tandem_registered_routers") == 1, "a server that says so")
            self.assertEqual(len(words(server.log, "registered")), 1, server.log)
        # The same as of a router that was told of them.
        configured = self.start_router([verifier.address], drafter.address).wait_ready()
        self.assertEqual(self.output(configured).output, plain.output)

    def test_a_drain_is_the_end_at_once_and_a_kill_at_the_end_of_the_lease(self):
        ttl = 600
        registration = {"verifiers": True, "drafters": True, "ttl_seconds": ttl}
        router = self.start_open_router(registration=registration).wait_ready()
        verifier = self.start_verifier(*self.registering(router)).wait_ready()
        drafter = self.start_drafter(models=DRAFTERS[:1], flags=self.registering(router)).wait_ready()
        self.wait_registered(router, 1, 1)
        for server, left in ((drafter, (1, 0)), (verifier, (0, 0))):
            server.send(signal.SIGTERM)
            self.wait_registered(router, *left)  # Long before the lease ends.
            self.assertEqual(server.wait(), 0, server.log)
        self.assertEqual(len(words(router.log, "server left")), 2)

        short = self.start_open_router(name="short").wait_ready()
        verifier = self.start_verifier(*self.registering(short)).wait_ready()
        drafter = self.start_drafter(models=DRAFTERS[:1], flags=self.registering(short)).wait_ready()
        self.wait_registered(short, 1, 1)
        for server in (drafter, verifier):
            server.kill()
        self.wait_registered(short, 0, 0)
        self.assertEqual(len(words(short.log, "server gone")), 2)

    def test_a_server_that_stands_still_is_gone_and_comes_back(self):
        router = self.start_open_router().wait_ready()
        verifier = self.start_verifier(*self.registering(router)).wait_ready()
        self.wait_registered(router, 1, 0)
        verifier.send(signal.SIGSTOP)
        self.wait_registered(router, 0, 0)
        verifier.send(signal.SIGCONT)
        self.wait_registered(router, 1, 0)
        self.assertEqual(len(self.output(router).tokens), 32)

    def test_a_router_that_comes_late_or_again(self):
        """A server serves without its router, and a router that begins with nothing learns from the next calls."""
        port = fixed_port()
        address = f"127.0.0.1:{port}"
        verifier = self.start_verifier(*self.registering(address)).wait_ready()
        wait_until(lambda: words(verifier.log, "registration failed"), "a warning")
        self.assertEqual(verifier.health(), "SERVING")
        self.assertEqual(verifier.metric("tandem_registered_routers"), 0)
        router = self.start_open_router(port=port).wait_ready()
        self.wait_registered(router, 1, 0)
        expected = self.output(router).output
        state = ("--state", f"sqlite://{self.folder}/state.db")
        for flags in ((), state, state):
            router.kill()
            router = self.start_open_router(*flags, port=port).wait_ready()
            self.wait_registered(router, 1, 0)
            self.assertEqual(self.output(router).output, expected)

    def test_who_is_refused(self):
        router = self.start_open_router(drafters=[{"name": "code-1m", "endpoint": "elsewhere:1", "draft_model": "x"}])
        router.wait_ready()

        def refusal(server, *parts):
            entry = wait_until(lambda: words(server.log, "registration failed"), "a refusal")[0]
            for part in parts:
                self.assertIn(part, entry["error"])
            self.assertEqual(server.health(), "SERVING")
            server.send(signal.SIGTERM)
            self.assertEqual(server.wait(), 0, server.log)

        taken = ("--register-name", "one")
        first = self.start_verifier(*self.registering(router), *taken).wait_ready()
        self.wait_registered(router, 1, 0)
        second = self.start_verifier(*self.registering(router), *taken).wait_ready()
        refusal(second, "the name is taken by", first.address)
        drafter = self.start_drafter(models=("code-1m",), flags=self.registering(router)).wait_ready()
        refusal(drafter, "code-1m", "configured drafter")
        flags = ("--window-policy", "fixed", *self.registering(router))
        other = self.start("tandem-verifier", "--model", f"another={MODELS / TARGET}", *flags).wait_ready()
        refusal(other, '"another" is not served here', TARGET)
        # What a router expects of a model is that of its folder.
        folder = self.other_vocabulary(MODELS / f"tandem-draft-{DRAFTER}")
        drafter = self.start("tandem-drafter", "--model", f"{DRAFTER}={folder}", *self.registering(router)).wait_ready()
        refusal(drafter, DRAFTER, "vocabulary")
        folder = self.other_weights(MODELS / TARGET)
        other = self.start("tandem-verifier", "--model", f"{TARGET}={folder}", *flags).wait_ready()
        refusal(other, "outputs would differ", first.address)
        rounded = self.start_verifier("--weight-dtype", "int8", *self.registering(router)).wait_ready()
        refusal(rounded, "int8")
        self.assertEqual(self.registered(router, "verifier"), 1)
        # Nobody may where nobody is asked to.
        closed = self.start_router([first.address], "127.0.0.1:1").wait_ready()
        other = self.start_verifier(*self.registering(closed)).wait_ready()
        refusal(other, "accepts no registrations", "registration: {verifiers: true}")

    def other_vocabulary(self, model):
        folder = self.folder / "vocabulary"
        shutil.copytree(model, folder)
        path = folder / "tokenizer.json"
        tokenizer = json.loads(path.read_text())
        vocabulary = tokenizer["model"]["vocab"]
        # Two whole words change places.
        one, two = sorted(vocabulary, key=len)[-2:]
        vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
        path.write_text(json.dumps(tokenizer))
        return folder

    def other_weights(self, model):
        folder = self.folder / "weights"
        shutil.copytree(model, folder)
        path = folder / "model.safetensors"
        content = bytearray(path.read_bytes())
        content[-2] ^= 1
        path.write_bytes(content)
        return folder

    def test_flags(self):
        """What cannot be right is said before anything is loaded."""
        cases = (
            (("--register", "r:1", "--listen", "0.0.0.0:0", "--insecure"), "--advertise: missing"),
            (("--register", "r:1", "--listen", "[::]:0", "--insecure"), "--advertise: missing"),
            (("--register", "r:1", "--advertise", "host"), "--advertise"),
            (("--register", "r:1", "--advertise", "0.0.0.0:7002"), "--advertise"),
            (("--register", "r:1", "--advertise", "host:0"), "--advertise"),
            (("--advertise", "host:7002"), "--register"),
            (("--register-name", "n"), "--register"),
        )
        draft_model = f"a={MODELS}/tandem-draft-{DRAFTER}"
        for program, model in (("tandem-verifier", MODELS / TARGET), ("tandem-drafter", draft_model)):
            for flags, part in cases:
                with self.subTest(program=program, flags=flags):
                    code, output = check_config([BIN_DIR / program, "--model", model, *flags])
                    self.assertEqual(code, 1, output)
                    self.assertIn(part, output)
        models = {"models": [{"name": TARGET, "folder": str(MODELS / TARGET)}], "allow_anonymous": True}
        for registration, part in (
            ({}, "expected at least one verifier"),
            ({"drafters": True}, "expected at least one verifier"),
            ({"verifiers": True, "ttl_seconds": 2}, "registration.ttl_seconds: 2, expected 3 to 3600"),
            ({"verifiers": True}, "is good"),
        ):
            path = self.folder / "checked.yaml"
            path.write_text(json.dumps({**models, "registration": registration}))
            code, output = check_config([BIN_DIR / "tandem-router", "--config", path])
            self.assertIn(part, output)
            self.assertEqual(code == 0, part == "is good", output)

    def test_with_certificates(self):
        """What a certificate says is all that may be registered."""
        authority = Authority(self.folder / "tls")
        files = {role: authority.sign(role, role) for role in ("router", "verifier", "drafter")}

        def tls(role):
            certificate, key = files[role]
            return ("--tls-certificate", certificate, "--tls-key", key, "--tls-ca", authority.ca)

        router = self.start_open_router(*tls("router")).wait_ready()
        flags = ("--window-policy", "fixed", "--local-drafter", "none", *self.registering(router))
        verifier = ("tandem-verifier", "--model", MODELS / TARGET, *flags)
        drafter = ("tandem-drafter", "--model", f"{DRAFTER}={MODELS}/tandem-draft-{DRAFTER}", *self.registering(router))
        self.start(*verifier, *tls("verifier")).wait_ready()
        self.start(*drafter, *tls("drafter")).wait_ready()
        self.wait_registered(router, 1, 1)
        credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes())
        with grpc.secure_channel(router.address, credentials) as channel:
            generation = wait_until(
                lambda: (lambda g: g if g.accepted > 0 else None)(Generation(channel, request_for()).read()),
                "drafted tokens",
            )
            self.assertEqual(len(generation.tokens), 32)
        impostor = self.start(*drafter, *tls("verifier"), "--register-name", "impostor")
        impostor.wait_ready()
        entry = wait_until(lambda: words(impostor.log, "registration failed"), "a refusal")[0]
        self.assertEqual(entry["code"], "PERMISSION_DENIED")

    def start_pair(self, etcd, **options):
        state = ("--state", f"etcd://{etcd.address}/tandem")
        self.first = self.start_open_router(*state, name="first", **options).wait_ready()
        self.second = self.start_open_router(*state, name="second", **options).wait_ready()

    @needs_etcd
    def test_routers_on_one_etcd_agree(self):
        etcd = Etcd(self.folder)
        self.addCleanup(etcd.close)
        etcd.start().wait_ready()
        self.start_pair(etcd)
        verifier = self.start_verifier(*self.registering(self.first)).wait_ready()
        drafter = self.start_drafter(models=DRAFTERS[:1], flags=self.registering(self.second)).wait_ready()
        for router in (self.first, self.second):
            self.wait_registered(router, 1, 1)
        expected = self.drafted_output(self.first).output
        self.assertEqual(self.drafted_output(self.second).output, expected)
        # Past many leases, of which each router renews one.
        time.sleep(3 * TTL_SECONDS)
        for router in (self.first, self.second):
            self.assertEqual((self.registered(router, "verifier"), self.registered(router, "drafter")), (1, 1))
            self.assertEqual(words(router.log, "server gone"), [])
        # A name is taken on whichever router.
        other = self.start_verifier(*self.registering(self.second), "--register-name", verifier.address).wait_ready()
        entry = wait_until(lambda: words(other.log, "registration failed"), "a refusal")[0]
        self.assertIn(verifier.address, entry["error"])
        drafter.send(signal.SIGTERM)
        for router in (self.first, self.second):
            self.wait_registered(router, 1, 0)
        verifier.kill()
        # And is free again.
        for router in (self.first, self.second):
            wait_until(lambda r=router: words(r.log, "server gone") != [], "the end of the lease")
            self.wait_registered(router, 1, 0)
            self.assertEqual(self.output(router).output, expected)
        self.assertIn("registered", other.log)

    @needs_etcd
    def test_servers_outlast_their_etcd(self):
        etcd = Etcd(self.folder)
        self.addCleanup(etcd.close)
        etcd.start().wait_ready()
        self.start_pair(etcd)
        # Both kinds at one router each: the other one knows them by etcd only.
        self.start_verifier(*self.registering(self.first)).wait_ready()
        self.start_drafter(models=DRAFTERS[:1], flags=self.registering(self.second)).wait_ready()
        for router in (self.first, self.second):
            self.wait_registered(router, 1, 1)
        expected = self.drafted_output(self.first).output
        etcd.kill()
        for router in (self.first, self.second):
            wait_until(lambda r=router: r.metric("tandem_router_state_connected") == 0, "a router that says so")
        time.sleep(3 * TTL_SECONDS)
        for router in (self.first, self.second):
            self.assertEqual((self.registered(router, "verifier"), self.registered(router, "drafter")), (1, 1))
            self.assertEqual(self.output(router).output, expected)
        etcd.start()
        for router in (self.first, self.second):
            wait_until(lambda r=router: r.metric("tandem_router_state_connected") == 1, "a recovery")
        time.sleep(3 * TTL_SECONDS)
        for router in (self.first, self.second):
            self.assertEqual((self.registered(router, "verifier"), self.registered(router, "drafter")), (1, 1))
            self.assertEqual(words(router.log, "server gone"), [])
            self.assertEqual(self.output(router).output, expected)


if __name__ == "__main__":
    unittest.main(verbosity=2)
