"""Who may call what: every RPC of every server, called with right, wrong, expired and no certificates, and without
TLS; and with no, wrong and right tenants' tokens. Certificates are made by the openssl command.
"""

import importlib
import json
import math
import pathlib
import shutil
import signal
import subprocess
import sys
import unittest

import grpc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from certificates import Authority  # noqa: E402
from processes import (  # noqa: E402
    BIN_DIR,
    MODELS,
    PATIENCE_SECONDS,
    REPOSITORY,
    TARGET,
    TARGET_MS,
    Generation,
    ProcessTest,
    bearer,
    clean_environment,
    fixed_port,
    request_for,
    settings,
    wait_until,
)

DRAFTER = "general-1m"
ROLES = ("router", "verifier", "drafter", "client", "operator")
TENANTS = {"client", "operator", "no role", "no certificate"}
SERVERS = {"verifier", "drafter"}
GENERATION_METHODS = ("Generate", "GenerateOnce", "Tokenize", "Detokenize", "ListModels")
ADMIN_METHODS = ("ListTenants", "GetTenant", "SetTenant", "DeleteTenant", "ListDrafters", "GetDrafter") + (
    *("SetDrafter", "DeleteDrafter", "SwapTenantDrafter", "DrainDrafter", "ListServers", "Watch"),
    *("ListVerifiers", "AddVerifier", "RemoveVerifier", "DeleteRecords"),
)
# Who may call which RPC, written down a second time.
ALLOWED = {
    "router": {
        **{f"/tandem.v1.Generation/{method}": TENANTS for method in GENERATION_METHODS},
        "/tandem.v1.Routing/ExplainChoice": TENANTS,
        "/tandem.v1.Routing/Calibrate": TENANTS,
        "/tandem.v1.Admin/GetServerInfo": TENANTS,
        **{f"/tandem.v1.RouterAdmin/{method}": TENANTS for method in ADMIN_METHODS},
        **{f"/tandem.v1.Registry/{method}": SERVERS for method in ("Register", "Deregister")},
    },
    "verifier": {
        "/tandem.v1.Verifier/Generate": {"router"},
        "/tandem.v1.Verifier/SwapDrafter": {"router", "operator"},
        **{f"/tandem.v1.Verifier/{method}": {"operator"} for method in ("LoadModel", "UnloadModel", "LoadAdapter", "UnloadAdapter")},
        "/tandem.v1.Admin/GetServerInfo": {"router", "operator"},
    },
    "drafter": {
        "/tandem.v1.Drafter/Draft": {"verifier"},
        "/tandem.v1.Drafter/Score": {"router"},
        **{f"/tandem.v1.Drafter/{method}": {"operator"} for method in ("LoadDraftModel", "UnloadDraftModel")},
        "/tandem.v1.Admin/GetServerInfo": {"router", "verifier", "operator"},
    },
}
# Of what a stranger must not be told.
SECRETS = ("acme", "secret", DRAFTER, TARGET, "tandem-", str(REPOSITORY))


def every_rpc():
    """Every method of every service in proto/, as gRPC's path."""
    paths = []
    for proto in sorted((REPOSITORY / "proto" / "tandem" / "v1").glob("*.proto")):
        module = importlib.import_module(f"tandem.v1.{proto.stem}_pb2")
        for service in module.DESCRIPTOR.services_by_name.values():
            paths += [f"/{service.full_name}/{method.name}" for method in service.methods]
    return paths


def call(address, credentials, path, metadata=(), message=b""):
    """Code and details that a call of any kind with one message ends with."""
    options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    if credentials is None:
        channel = grpc.insecure_channel(address, options=options)
    else:
        channel = grpc.secure_channel(address, credentials, options=options)
    with channel:
        stream = channel.stream_stream(path)(iter([message]), metadata=metadata, timeout=PATIENCE_SECONDS)
        try:
            for _ in stream:
                pass
            return grpc.StatusCode.OK, ""
        except grpc.RpcError as error:
            return error.code(), error.details()


def large_model(folder):
    """A model folder of some gigabytes of zeros, which take no place on the disk and seconds to load."""
    hidden, intermediate, layers = 4096, 11008, 8
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODELS / TARGET / name, folder)
    config = json.loads((MODELS / TARGET / "config.json").read_text())
    config.update(hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers, head_dim=64)
    config.update(num_attention_heads=64, num_key_value_heads=8)
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens": [config["vocab_size"], hidden], "model.norm": [hidden]}
    for layer in range(layers):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.{norm}_layernorm": [hidden] for norm in ("input", "post_attention")}
        shapes |= {f"{at}.self_attn.{name}_proj": [64 * 64, hidden] for name in "qo"}
        shapes |= {f"{at}.self_attn.{name}_proj": [8 * 64, hidden] for name in "kv"}
        shapes |= {f"{at}.mlp.{name}_proj": [intermediate, hidden] for name in ("gate", "up")}
        shapes[f"{at}.mlp.down_proj"] = [hidden, intermediate]
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    encoded = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        file.truncate(8 + len(encoded) + end)
    return folder


class SecurityTest(ProcessTest):
    """A drafter, a verifier and a router that all use TLS."""

    def setUp(self):
        super().setUp()
        self.authority = Authority(self.folder / "ours")
        self.files = {role: self.authority.sign(role, role) for role in ROLES}
        self.files["no role"] = self.authority.sign("plain")

    def tls(self, role):
        certificate, key = self.files[role]
        return ("--tls-certificate", certificate, "--tls-key", key, "--tls-ca", self.authority.ca)

    def credentials(self, certificate=None, key=None, ca=None):
        return grpc.ssl_channel_credentials(
            (ca or self.authority.ca).read_bytes(),
            key.read_bytes() if key else None,
            certificate.read_bytes() if certificate else None,
        )

    def callers(self):
        callers = {name: self.credentials(*files) for name, files in self.files.items()}
        callers["no certificate"] = self.credentials()
        return callers

    def start_secure_stack(self):
        model = f"{DRAFTER}={MODELS}/tandem-draft-{DRAFTER}"
        self.drafter = self.start("tandem-drafter", "--model", model, *settings(reflection="true"), *self.tls("drafter"))
        self.verifier = self.start(
            *("tandem-verifier", "--model", MODELS / TARGET, "--window-policy", "fixed"),
            *("--local-drafter", "none", *settings(reflection="true"), "--health-listen", "127.0.0.1:0"),
            *("--simulate-target-ms", TARGET_MS, *self.tls("verifier")),
        )
        self.drafter.wait_ready()
        self.verifier.wait_ready()
        path = self.write_config([self.verifier.address], self.drafter.address)
        self.router = self.start("tandem-router", "--config", path, *settings(reflection="true"), *self.tls("router"))
        self.router.wait_ready()
        self.servers_by_role = {"router": self.router, "verifier": self.verifier, "drafter": self.drafter}

    def write_config(self, verifiers, drafter, token="secret"):
        hashed = subprocess.run(
            [str(BIN_DIR / "tandem"), "hash-token"], input=f"{token}\n", check=True, capture_output=True, text=True
        )
        key, digest = hashed.stdout.strip().split(": ")
        config = {
            "models": [{"name": TARGET, "folder": str(MODELS / TARGET), "verifiers": verifiers}],
            "drafters": [{"name": DRAFTER, "endpoint": drafter, "draft_model": DRAFTER}],
            "tenants": [{"name": "acme", key: digest, "drafter": DRAFTER}],
        }
        path = self.folder / "router.yaml"
        path.write_text(json.dumps(config))
        return path

    def assert_silent(self, details):
        for secret in SECRETS:
            self.assertNotIn(secret, details)

    def test_every_rpc(self):
        self.start_secure_stack()
        served = [path for rpcs in ALLOWED.values() for path in rpcs]
        self.assertEqual(sorted(set(served)), sorted(every_rpc()), "an RPC without a row in this test")
        # Somebody who may do everything can use it: drafted tokens come through three processes.
        with grpc.secure_channel(self.router.address, self.credentials()) as self.channel:
            self.assertEqual(len(self.drafted(request_for())[-1].tokens), 32)

        strangers = Authority(self.folder / "theirs")
        expired = self.authority.sign("expired", "router", days=-1)
        for role, server in self.servers_by_role.items():
            # A router serves who shows no certificate, but not who shows a bad one.
            unheard = {
                "plaintext": None,
                "another CA's": self.credentials(*strangers.sign(f"router-{role}", "router")),
                "expired": self.credentials(*expired),
                "unknown server": self.credentials(*self.files["router"], ca=strangers.ca),
            }
            callers = self.callers()
            if role != "router":
                unheard["no certificate"] = callers.pop("no certificate")
            for path in (*every_rpc(), "/grpc.health.v1.Health/Check", "/tandem.v1.Nobody/Knows"):
                for caller, credentials in unheard.items():
                    with self.subTest(server=role, rpc=path, caller=caller):
                        code, details = call(server.address, credentials, path)
                        self.assertEqual(code, grpc.StatusCode.UNAVAILABLE, details)
                        self.assert_silent(details)
                for caller, credentials in callers.items():
                    with self.subTest(server=role, rpc=path, caller=caller):
                        code, details = call(server.address, credentials, path)
                        denied = grpc.StatusCode.PERMISSION_DENIED
                        if "Health" in path:
                            self.assertEqual(code, grpc.StatusCode.OK)
                        elif caller not in ALLOWED[role].get(path, ()):
                            self.assertEqual(code, denied, details)
                            self.assertEqual(details, "the caller's certificate does not allow this call")
                        elif role == "router" and ALLOWED[role][path] is TENANTS:
                            self.assertEqual(code, grpc.StatusCode.UNAUTHENTICATED, details)
                            self.assert_silent(details)
                        else:
                            self.assertNotIn(code, (denied, grpc.StatusCode.UNAVAILABLE), details)

        # What probes without certificates are given.
        health = f"127.0.0.1:{self.verifier.health_port}"
        self.assertEqual(call(health, None, "/grpc.health.v1.Health/Check")[0], grpc.StatusCode.OK)
        for path in (*every_rpc(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"):
            self.assertEqual(call(health, None, path)[0], grpc.StatusCode.UNIMPLEMENTED, path)
        # Reflection tells operators what there is, and nobody else.
        reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        for server in self.servers_by_role.values():
            for caller, credentials in self.callers().items():
                code, _ = call(server.address, credentials, reflection, message=b"\x3a\x01*")
                may = caller == "operator" or (caller == "client" and server is self.router)
                self.assertEqual(code == grpc.StatusCode.OK, may, f"{server.program}, {caller}: {code}")

    def test_tokens(self):
        self.start_secure_stack()
        credentials = self.callers()["client"]
        metadata = {
            "none": (),
            "wrong": bearer("wrong"),
            "a part": bearer("secre"),
            "empty": [("authorization", "Bearer ")],
            "another scheme": [("authorization", "Basic secret")],
            "two": bearer("secret") + bearer("wrong"),
            "the digest": bearer(json.loads((self.folder / "router.yaml").read_text())["tenants"][0]["token_sha256"]),
        }
        messages = set()
        for path in (path for path, callers in ALLOWED["router"].items() if callers is TENANTS):
            for what, entries in metadata.items():
                with self.subTest(rpc=path, token=what):
                    code, details = call(self.router.address, credentials, path, entries)
                    self.assertEqual(code, grpc.StatusCode.UNAUTHENTICATED, details)
                    self.assert_silent(details)
                    messages.add(details)
            with self.subTest(rpc=path, token="right"):
                code, details = call(self.router.address, credentials, path, bearer("secret"))
                self.assertNotEqual(code, grpc.StatusCode.UNAUTHENTICATED, details)
        self.assertEqual(len(messages), 1, "messages tell wrong tokens apart")

    def test_verifiers_behind_a_name(self):
        """They are called by their addresses, and known by the name."""
        self.start_secure_stack()
        port = fixed_port()
        by_name = self.authority.sign("by-name", "verifier", hosts="DNS:localhost")
        other = self.authority.sign("other", "verifier", hosts="DNS:elsewhere")
        for (certificate, key), code in ((by_name, None), (other, grpc.StatusCode.UNAVAILABLE)):
            self.verifier.send(signal.SIGTERM)
            self.assertEqual(self.verifier.wait(), 0)
            self.verifier = self.start(
                *("tandem-verifier", "--model", MODELS / TARGET, "--window-policy", "fixed"),
                *("--local-drafter", "none", "--tls-certificate", certificate, "--tls-key", key),
                *("--tls-ca", self.authority.ca),
                port=port,
            ).wait_ready()
            path = self.write_config([f"dns:///localhost:{port}"], self.drafter.address)
            router = self.start("tandem-router", "--config", path, *self.tls("router")).wait_ready()
            with grpc.secure_channel(router.address, self.credentials()) as channel:
                if code is None:
                    router.wait_logged("verifier is serving")
                    self.assertEqual(len(Generation(channel, request_for()).read().tokens), 32)
                else:
                    self.assert_fails(Generation(channel, request_for()), code)

    def test_command_line(self):
        self.start_secure_stack()
        arguments = ["generate", "Once", "--max-tokens", "8", "--endpoint", self.router.address, "--token", "secret"]

        def tandem(*more):
            run = subprocess.run(
                [str(BIN_DIR / "tandem"), *arguments, *map(str, more)],
                capture_output=True,
                text=True,
                timeout=PATIENCE_SECONDS,
                check=False,
                env=clean_environment(),
            )
            return run.returncode, run.stdout, run.stderr

        code, output, errors = tandem("--tls-ca", self.authority.ca)
        self.assertEqual((code, output != ""), (0, True), errors)
        certificate, key = self.files["client"]
        with_certificate = tandem("--tls-ca", self.authority.ca, "--tls-certificate", certificate, "--tls-key", key)
        self.assertEqual(with_certificate[0], 0, with_certificate[2])
        code, _, errors = tandem("--timeout", "20s")
        self.assertEqual(code, 1)
        self.assertIn("--tls-ca", errors)
        code, _, errors = tandem("--tls-ca", self.folder / "nothing.pem")
        self.assertEqual(code, 1)
        self.assertIn("nothing.pem", errors)

    def test_load_generator(self):
        self.start_secure_stack()
        prompts, report = self.folder / "prompts.txt", self.folder / "report.json"
        prompts.write_text("Once upon a time\n")

        def bench(*more):
            arguments = ("--prompts", f"story={prompts}", "--drafter", f"off,{DRAFTER}", "--max-tokens", "8")
            arguments += ("--repetitions", "1", "--warm-up", "1", "--token", "secret", "--json", report)
            return self.run_command(
                "tandem-bench", "serve", "--endpoint", self.router.address, *arguments, "--timeout", "20", *more
            )

        ca = ("--tls-ca", self.authority.ca)
        code, log = bench(*ca)
        self.assertEqual(code, 0, log)
        self.assertTrue(json.loads(report.read_text())["identical_outputs"])
        # What verifiers and drafters say of themselves takes a role.
        servers = ("--server", f"v={self.verifier.address}", "--server", f"d={self.drafter.address}")
        certificate, key = self.files["operator"]
        code, log = bench(*ca, *servers, "--tls-certificate", certificate, "--tls-key", key)
        self.assertEqual(code, 0, log)
        self.assertEqual(len(json.loads(report.read_text())["servers"]), 2)
        for wrong, part in (((), "UNAVAILABLE"), ((*ca, *servers), "--server"), (("--tls-ca", prompts), "--tls-ca")):
            code, log = bench(*wrong)
            self.assertNotEqual(code, 0, log)
            self.assertIn(part, log)

    def test_check_config(self):
        """Files and addresses are checked before anything listens, by --check-config and by a start alike."""
        expired = self.authority.sign("expired", "verifier", days=-1)
        config = self.write_config(["127.0.0.1:7002"], "127.0.0.1:7003")
        programs = {
            "drafter": ("tandem-drafter", "--model", MODELS / f"tandem-draft-{DRAFTER}"),
            "verifier": ("tandem-verifier", "--model", MODELS / TARGET),
            "router": ("tandem-router", "--config", config),
        }
        for role, command in programs.items():
            certificate, key = self.files[role]
            ca = self.authority.ca
            cases = (
                (("--listen", "0.0.0.0:0"), "--insecure"),
                (("--tls-certificate", certificate), "--tls-key"),
                (("--tls-certificate", certificate, "--tls-key", ca, "--tls-ca", ca), "--tls-key"),
                (("--tls-certificate", expired[0], "--tls-key", expired[1], "--tls-ca", ca), "expired at"),
                ((*self.tls(role)[:-1], self.folder / "nothing.pem"), "nothing.pem"),
            )
            for flags, part in cases:
                for check in ((), ("--check-config",)):
                    with self.subTest(program=role, flags=flags, check=check):
                        code, log = self.run_program(*command, *flags, *check)
                        self.assertEqual(code, 1, log)
                        self.assertIn(part, log)
            for flags in (("--listen", "0.0.0.0:0", "--insecure"), ("--listen", "0.0.0.0:0", *self.tls(role))):
                code, log = self.run_program(*command, *flags, "--check-config")
                self.assertEqual(code, 0, log)

    def run_program(self, program, *flags):
        return self.run_command(program, "--metrics-listen", "", *flags)

    def run_command(self, program, *arguments):
        run = subprocess.run(
            [str(BIN_DIR / program), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
            env=clean_environment(),
        )
        return run.returncode, run.stdout + run.stderr


class LifeCycleTest(ProcessTest):
    """What probes and clients see of a process from its start to its end."""

    def test_a_verifier_listens_while_it_loads(self):
        verifier = self.start("tandem-verifier", "--model", MODELS / TARGET, "--drain-delay", "10m")
        wait_until(lambda: verifier.early_address, "the verifier's port")
        verifier.address = verifier.early_address
        self.assertEqual(verifier.health("liveness"), "SERVING")
        verifier.wait_ready()
        self.assertEqual(verifier.health(), "SERVING")
        self.assertEqual(verifier.health("tandem.v1.Verifier"), "SERVING")
        # SIGTERM drops readiness first; the process is not to be killed for it.
        verifier.send(signal.SIGTERM)
        wait_until(lambda: verifier.health() == "NOT_SERVING", "readiness to drop")
        self.assertEqual(verifier.health("liveness"), "SERVING")
        wait_until(lambda: not verifier.info().serving, "the verifier to say so")
        verifier.kill()  # It would take requests for ten minutes.

    def test_what_loads_stops_when_told(self):
        """Between tensors, not at the end of gigabytes."""
        folder = large_model(self.folder / "large")
        for command in (
            ("tandem-verifier", "--model", folder, "--kv-tokens", "256"),
            ("tandem-drafter", "--model", f"large={folder}", "--kv-tokens", "256"),
        ):
            server = self.start(*command)
            server.wait_logged('"loading"')
            server.send(signal.SIGTERM)
            self.assertEqual(server.wait(), 0, server.log)
            self.assertIn("stopped while loading", server.log)
            self.assertNotIn('"serving"', server.log)
            self.assertNotIn('"target ready"', server.log)

    def test_liveness_follows_the_engine(self):
        """A step that lasts too long is told from having nothing to do."""
        model = f"{DRAFTER}={MODELS}/tandem-draft-{DRAFTER}"
        pace = ("--simulate-draft-ms", "1500", *settings(liveness_timeout="300ms"))
        drafter = self.start("tandem-drafter", "--model", model, *pace).wait_ready()
        verifier = self.start_verifier().wait_ready()
        self.connect_router([verifier.address], drafter.address)
        self.assertEqual(drafter.health("liveness"), "SERVING")

        def stands_still():
            # Its step takes much longer than this request does.
            self.generate(request_for(max_tokens=8)).read()
            return drafter.health("liveness") == "NOT_SERVING"

        wait_until(stands_still, "the drafter to stand still")
        self.assertEqual(drafter.health(), "SERVING")
        wait_until(lambda: drafter.health("liveness") == "SERVING", "the drafter to be idle")

    def test_a_router_that_ends_says_so_to_its_requests(self):
        """Which is how clients know to go on at another router."""
        drafter = self.start_drafter().wait_ready()
        verifier = self.start_verifier().wait_ready()
        router = self.start_router([verifier.address], drafter.address, flags=("--drain-grace", "200ms")).wait_ready()
        with router.channel() as channel:
            generation = Generation(channel, request_for(max_tokens=2000)).read(8)
            router.send(signal.SIGTERM)
            self.assert_fails(generation, grpc.StatusCode.UNAVAILABLE, "the router is shutting down")
        self.assertEqual(router.wait(), 0, router.log)


if __name__ == "__main__":
    unittest.main(verbosity=2)
