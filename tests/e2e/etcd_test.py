"""Routers that share their tenants and drafters in a real etcd: what they agree on, and what its faults do to them."""

import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

import grpc
from processes import (
    DRAFTERS,
    Generation,
    PATIENCE_SECONDS,
    ProcessTest,
    bearer,
    clean_environment,
    fixed_port,
    request_for,
    wait_until,
)
from security_test import Authority
from tandem.v1 import admin_pb2, admin_pb2_grpc

SKIPPED = 77
# What routers that share an etcd have to agree within. docs/operate/operations.md says milliseconds; this is for machines on
# which etcd's disk, both routers and this test wait for one another. Without watches it would be never.
AGREEMENT_SECONDS = 10.0
PREFIX = "/tandem/v1/routing"


class Etcd:
    """A member of an etcd, on ports that stay the same when it is started again."""

    def __init__(self, folder, name="only", flags=(), scheme="http"):
        self.folder = pathlib.Path(folder)
        self.name = name
        self.scheme = scheme
        self.flags = flags
        self.port, self.peer_port = fixed_port(), fixed_port()
        self.cluster = None
        self.process = None

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    @property
    def peer(self):
        return f"{self.name}=http://127.0.0.1:{self.peer_port}"

    def start(self, cluster=None):
        self.cluster = cluster or self.cluster or self.peer
        client = f"{self.scheme}://{self.address}"
        peer = f"http://127.0.0.1:{self.peer_port}"
        command = ["etcd", "--name", self.name, "--data-dir", self.folder / self.name]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", self.cluster, *self.flags]
        log = open(self.folder / f"{self.name}.log", "ab")  # pylint: disable=consider-using-with
        with log:
            self.process = subprocess.Popen(
                list(map(str, command)), stdout=log, stderr=log, env=clean_environment()
            )
        return self

    def ctl(self, *arguments, check=True):
        run = subprocess.run(
            ["etcdctl", "--endpoints", f"{self.scheme}://{self.address}", *map(str, arguments)],
            env=clean_environment() | {"ETCDCTL_API": "3"},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        if check and run.returncode != 0:
            raise AssertionError(f"etcdctl {arguments[0]}: {run.stderr}\n{self.log}")
        return run.stdout if run.returncode == 0 else None

    def wait_ready(self, *credentials):
        wait_until(lambda: self.ctl(*credentials, "endpoint", "health", check=False) is not None, "an etcd")
        return self

    @property
    def log(self):
        return (self.folder / f"{self.name}.log").read_text(errors="replace")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.kill()


class EtcdTest(ProcessTest):
    """A drafter, a verifier, an etcd, and two routers whose state is in it."""

    def add_etcd(self, *arguments, **options):
        etcd = Etcd(self.folder, *arguments, **options)
        self.addCleanup(etcd.close)
        return etcd

    def start_serving(self):
        self.drafter = self.start_drafter(models=DRAFTERS[:2]).wait_ready()
        self.verifier = self.start_verifier().wait_ready()

    def add_router(self, endpoints, *flags):
        """A router on the etcd; its state is everything but memory."""
        return self.start_router(
            [self.verifier.address],
            self.drafter.address,
            flags=("--state", f"etcd://{endpoints}/tandem", *flags),
            admin=True,
        )

    def start_pair(self, endpoints, *flags):
        self.start_serving()
        # One after the other: both write their configuration to one file.
        self.first = self.add_router(endpoints, *flags).wait_ready()
        self.second = self.add_router(endpoints, *flags).wait_ready()
        self.routers = (self.first, self.second)

    def admin(self, router):
        channel = router.channel()
        self.addCleanup(channel.close)
        return admin_pb2_grpc.RouterAdminStub(channel)

    def set_tenant(self, router, name, *fields, **config):
        request = admin_pb2.SetTenantRequest(config={"name": name, **config}, fields=fields)
        return self.admin(router).SetTenant(request, metadata=bearer("secret"), timeout=PATIENCE_SECONDS)

    def tenants(self, router):
        listing = self.admin(router).ListTenants(
            admin_pb2.ListTenantsRequest(), metadata=bearer("secret"), timeout=PATIENCE_SECONDS
        )
        return {info.config.name: info for info in listing.tenants}

    def knows(self, router, token):
        """Whether the router routes by a configuration with this token: reading its store does not tell."""
        try:
            return router.info(token).role == admin_pb2.SERVER_ROLE_ROUTER
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAUTHENTICATED:
                raise
            return False

    def drafter_of(self, router, token="secret"):
        with router.channel() as channel:
            return Generation(channel, request_for(max_tokens=8), token=token).read().stats.drafter

    def assert_agreed_soon(self, condition, what):
        began = time.monotonic()
        wait_until(condition, what)
        self.assertLess(time.monotonic() - began, AGREEMENT_SECONDS, what)

    def connected(self, router):
        return router.metric("tandem_router_state_connected") == 1

    def test_routers_agree_soon(self):
        etcd = self.add_etcd().start().wait_ready()
        self.start_pair(etcd.address)
        for number in range(5):
            one, other = self.routers[number % 2], self.routers[1 - number % 2]
            self.set_tenant(one, f"new{number}", token=f"token{number}", drafter=DRAFTERS[0])
            self.assertTrue(self.knows(one, f"token{number}"), "in force when the call returns")
            self.assert_agreed_soon(lambda: self.knows(other, f"token{number}"), "a new tenant")
        # A swap.
        self.assertEqual(self.drafter_of(self.second), DRAFTERS[0])
        swap = admin_pb2.SwapTenantDrafterRequest(tenant="acme", drafter=DRAFTERS[1])
        self.admin(self.first).SwapTenantDrafter(swap, metadata=bearer("secret"), timeout=PATIENCE_SECONDS)
        self.assert_agreed_soon(lambda: self.drafter_of(self.second) == DRAFTERS[1], "a swap")
        # A canary, and the end of a tenant.
        canary = {"drafter": DRAFTERS[0], "percent": 100}
        policy = "DRAFTER_POLICY_CANARY"
        self.set_tenant(self.second, "acme", "canary", "drafter_policy", canary=canary, drafter_policy=policy)
        self.assert_agreed_soon(lambda: self.drafter_of(self.first) == DRAFTERS[0], "a canary")
        self.admin(self.second).DeleteTenant(
            admin_pb2.DeleteTenantRequest(name="new0"), metadata=bearer("secret"), timeout=PATIENCE_SECONDS
        )
        self.assert_agreed_soon(lambda: not self.knows(self.first, "token0"), "a tenant that is gone")
        # Who makes a change from what has changed meanwhile is told, on whichever router.
        version = self.tenants(self.first)["acme"].version
        self.set_tenant(self.first, "acme", "weight", weight=2)
        with self.assertRaises(grpc.RpcError) as caught:
            request = admin_pb2.SetTenantRequest(
                config={"name": "acme", "weight": 3}, fields=["weight"], expected_version=version
            )
            self.admin(self.second).SetTenant(request, metadata=bearer("secret"), timeout=PATIENCE_SECONDS)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.ABORTED)
        # A router that comes later begins with all of it, whatever its file says.
        third = self.add_router(etcd.address).wait_ready()
        self.assertTrue(self.knows(third, "token4"))
        self.assertEqual(self.tenants(third)["acme"].config.weight, 2)
        for token in ("secret", "token4"):
            self.assertNotIn(token, etcd.ctl("get", "--prefix", "/tandem/"), "tokens in the clear")

    def refused_tokens(self, router):
        """Why a request of 50 tokens is refused there; nothing when it has had them, and owes most of them."""
        with router.channel() as channel:
            try:
                Generation(channel, request_for(max_tokens=50), token="secret-q").read()
            except grpc.RpcError as error:
                self.assertEqual(error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED, error.details())
                return error.details()
        return None

    def test_a_quota_is_of_all_routers(self):
        """What a tenant uses at one router is missing at the other, also after a restart; and without the etcd each gives
        its part."""
        etcd = self.add_etcd().start().wait_ready()
        self.start_pair(etcd.address)
        self.set_tenant(self.first, "quota", token="secret-q", tokens_per_minute=10)
        wait_until(lambda: "quota" in self.tenants(self.second), "the tenant at the second router")
        self.assertIsNone(self.refused_tokens(self.first))
        wait_until(lambda: self.refused_tokens(self.second), "a quota that is used up at the second router")
        self.assertIn("used up its 10 tokens per minute", self.refused_tokens(self.first) or "")
        third = self.add_router(etcd.address).wait_ready()
        self.assertIsNotNone(self.refused_tokens(third), "a router that starts has no quota of its own")
        etcd.kill()
        wait_until(lambda: "this router applies its share" in self.second.log, "a router that counts by itself")

    def test_etcd_goes_away_and_comes_back(self):
        etcd = self.add_etcd().start().wait_ready()
        self.start_pair(etcd.address)
        self.set_tenant(self.first, "kept", token="kept")
        with self.first.channel() as channel:
            running = Generation(channel, request_for(max_tokens=400), timeout=5 * PATIENCE_SECONDS).read(8)
            etcd.kill()
            for router in self.routers:
                wait_until(lambda r=router: not self.connected(r), "a router that says so")
                router.wait_logged("etcd is unreachable")
                self.assertEqual(router.health(), "SERVING")
                # As it was.
                self.assertEqual(self.drafter_of(router), DRAFTERS[0])
                self.assertTrue(self.knows(router, "kept"))
                # By the router, and not by the call's deadline.
                with self.assertRaises(grpc.RpcError) as caught:
                    self.set_tenant(router, "lost", token="lost")
                self.assertEqual(caught.exception.code(), grpc.StatusCode.UNAVAILABLE)
                self.assertIn("etcd", caught.exception.details())
                self.assertFalse(self.knows(router, "lost"))
            running.read()
            self.assertEqual(len(running.tokens), 400)
        etcd.start()
        for router in self.routers:
            wait_until(lambda r=router: self.connected(r), "a router that has recovered")
            router.wait_logged("etcd answers again")
        self.assertEqual(sorted(self.tenants(self.first)), ["acme", "kept"])
        self.set_tenant(self.second, "after", token="after")
        self.assert_agreed_soon(lambda: self.knows(self.first, "after"), "a tenant after the fault")

    def test_etcd_stands_still(self):
        """Its connections stay, and nobody answers: what is changed meanwhile elsewhere is seen afterwards."""
        etcd = self.add_etcd().start().wait_ready()
        self.start_pair(etcd.address)
        etcd.process.send_signal(signal.SIGSTOP)
        for router in self.routers:
            wait_until(lambda r=router: not self.connected(r), "a router that notices")
            self.assertEqual(self.drafter_of(router), DRAFTERS[0])
        etcd.process.send_signal(signal.SIGCONT)
        for router in self.routers:
            wait_until(lambda r=router: self.connected(r), "a router that has recovered")
        self.set_tenant(self.second, "after", token="after")
        self.assert_agreed_soon(lambda: self.knows(self.first, "after"), "a tenant after the fault")

    def test_one_of_three_members_is_lost(self):
        members = [self.add_etcd(name) for name in ("a", "b", "c")]
        cluster = ",".join(member.peer for member in members)
        for member in members:
            member.start(cluster)
        for member in members:
            member.wait_ready()
        self.start_pair(",".join(member.address for member in members))
        for number, member in enumerate(members):
            member.kill()
            # Nobody has to try again.
            self.set_tenant(self.first, f"new{number}", token=f"token{number}")
            wait_until(lambda n=number: self.knows(self.second, f"token{n}"), "the other router")
            self.assertEqual(self.drafter_of(self.second), DRAFTERS[0])
            member.start().wait_ready()
        self.assertEqual(len(self.tenants(self.second)), 4)

    def test_what_is_damaged_is_set_aside(self):
        etcd = self.add_etcd().start().wait_ready()
        self.start_pair(etcd.address)
        etcd.ctl("put", f"{PREFIX}/tenants/acme", "no record at all")
        etcd.ctl("put", f"{PREFIX}/drafters/stranger", "nor this")
        for router in self.routers:
            wait_until(lambda r=router: r.metric("tandem_router_state_damaged_records") == 2, "the damage")
            router.wait_logged("a record of the state is damaged")
            self.assertEqual(self.drafter_of(router), DRAFTERS[0])
        self.set_tenant(self.first, "other", token="other")
        self.assert_agreed_soon(lambda: self.knows(self.second, "other"), "another tenant")
        refused = self.add_router(etcd.address)
        self.assertEqual(refused.wait(), 1)
        self.assertIn("damaged", refused.log)
        self.servers.remove(refused)
        refused.close()
        # Written anew it is whole, and what never was one of ours is deleted by hand.
        self.set_tenant(self.second, "acme", "weight", weight=5)
        etcd.ctl("del", f"{PREFIX}/drafters/stranger")
        for router in self.routers:
            wait_until(lambda r=router: r.metric("tandem_router_state_damaged_records") == 0, "no damage")
        self.assertEqual(self.tenants(self.first)["acme"].config.drafter, DRAFTERS[0])

    def test_no_start_without_etcd(self):
        self.start_serving()
        address = f"127.0.0.1:{fixed_port()}"
        router = self.add_router(address)
        self.assertEqual(router.wait(), 1)
        self.assertIn(f"no etcd answers: etcd at {address}", router.log)
        self.servers.remove(router)
        router.close()

    def test_tls(self):
        authority = Authority(self.folder / "ours")
        server, server_key = authority.sign("etcd")
        client, client_key = authority.sign("router", "router")
        flags = ("--cert-file", server, "--key-file", server_key, "--client-cert-auth")
        etcd = self.add_etcd(flags=(*flags, "--trusted-ca-file", authority.ca), scheme="https").start()
        shown = (f"--cacert={authority.ca}", f"--cert={client}", f"--key={client_key}")
        etcd.wait_ready(*shown)
        tls = ("--state-tls-ca", authority.ca, "--state-tls-certificate", client, "--state-tls-key", client_key)
        self.start_pair(etcd.address, *tls)
        self.set_tenant(self.first, "new", token="new")
        self.assert_agreed_soon(lambda: self.knows(self.second, "new"), "a new tenant over TLS")
        # Without a certificate, and without TLS at all.
        for less in (tls[:2], ()):
            router = self.add_router(etcd.address, *less)
            self.assertEqual(router.wait(), 1)
            self.assertIn("no etcd answers", router.log)
            self.servers.remove(router)
            router.close()

    def test_users(self):
        etcd = self.add_etcd().start().wait_ready()
        password = self.folder / "password"
        password.write_text("pass word\n")
        etcd.ctl("user", "add", "root:root")
        etcd.ctl("role", "add", "tandem")
        etcd.ctl("role", "grant-permission", "tandem", "readwrite", "--prefix=true", "/tandem/v1/")
        etcd.ctl("user", "add", "tandem:pass word")
        etcd.ctl("user", "grant-role", "tandem", "tandem")
        etcd.ctl("auth", "enable")
        self.start_pair(etcd.address, "--state-username", "tandem", "--state-password-file", password)
        self.set_tenant(self.first, "new", token="new")
        self.assert_agreed_soon(lambda: self.knows(self.second, "new"), "a new tenant")
        # Tokens of a member end with it.
        etcd.kill()
        etcd.start()
        for router in self.routers:
            wait_until(lambda r=router: "etcd answers again" in r.log and self.connected(r), "a recovery")
        self.set_tenant(self.second, "newer", token="newer")
        self.assert_agreed_soon(lambda: self.knows(self.first, "newer"), "a new tenant")
        refused = self.add_router(etcd.address)
        self.assertEqual(refused.wait(), 1)
        self.assertIn("user name is empty", refused.log)
        self.servers.remove(refused)
        refused.close()

    def test_a_tenants_file_that_changes(self):
        """Mounted as a ConfigMap is, on routers that share an etcd."""
        etcd = self.add_etcd().start().wait_ready()

        def write(version, text):
            folder = self.folder / version
            folder.mkdir()
            (folder / "tenants.yaml").write_text(text)
            link = self.folder / "new"
            link.symlink_to(version)
            link.rename(self.folder / "data")

        write("v1", "tenants: [{name: first, token: first}]")
        path = self.folder / "tenants.yaml"
        path.symlink_to("data/tenants.yaml")
        self.start_pair(etcd.address, "--tenants", path)
        self.assertTrue(self.knows(self.second, "first"))
        self.set_tenant(self.first, "first", "weight", weight=3)
        write("v2", "tenants: [{name: first, token: first, max_concurrent_requests: 9}, {name: second, token: second}]")
        for router in self.routers:
            wait_until(lambda r=router: self.knows(r, "second"), "a tenant that was added")
        changed = self.tenants(self.first)["first"].config
        self.assertEqual((changed.weight, changed.max_concurrent_requests), (3, 9))
        write("v3", "tenants: [{name: third, token: third, drafter: nobody}]")
        for router in self.routers:
            wait_until(lambda r=router: r.metric("tandem_router_tenants_file_refused") == 1, "a bad file")
            router.wait_logged("the tenants file cannot be used")
            self.assertTrue(self.knows(router, "second"))
        write("v4", "tenants: [{name: third, token: third}]")
        for router in self.routers:
            wait_until(lambda r=router: self.knows(r, "third") and not self.knows(r, "second"), "a good file")
            wait_until(lambda r=router: r.metric("tandem_router_tenants_file_refused") == 0, "no bad file")


if __name__ == "__main__":
    if shutil.which("etcd") is None or shutil.which("etcdctl") is None:
        print("skipped: there is no etcd on this machine (deploy/install.sh)")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
