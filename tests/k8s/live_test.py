"""The manifests against the real binaries: arguments, probes, metrics, and a generation through what they start."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request

from localized import Machine, health
from manifests import OVERLAYS, REPOSITORY, render

sys.path.insert(0, str(REPOSITORY / "tests" / "e2e"))

from processes import (  # noqa: E402
    BIN_DIR, ProcessTest, Server, check_config, clean_environment, fixed_port, request_for, wait_until,
)  # fmt: skip

DEMO_TOKEN = "change-me"
RANKS = REPOSITORY / "deploy" / "docker" / "tandem-verifier-ranks"


def group_exists(group):
    try:
        os.killpg(group, 0)
        return True
    except ProcessLookupError:
        return False


class ArgumentsTest(unittest.TestCase):
    """Every container's arguments, files included, are what its binary takes."""

    def check(self, command):
        status, output = check_config(command)
        self.assertEqual(status, 0, output)

    def test_arguments_are_taken_by_the_binaries(self):
        for overlay in OVERLAYS:
            manifests = render(f"overlays/{overlay}")
            with tempfile.TemporaryDirectory(prefix="tandem-k8s-") as folder:
                machine = Machine(manifests, folder)
                self.addCleanup(machine.close)
                machine.write_config()
                for workload in manifests.workloads:
                    for container in [workload, *workload.sidecars]:
                        with self.subTest(overlay=overlay, workload=container.name):
                            self.check_workload(machine, container)

    def check_workload(self, machine, workload):
        command = machine.command(workload, BIN_DIR)
        if workload.command[0] != RANKS.name:
            self.check(command)
            return
        arguments = [str(BIN_DIR / "tandem-verifier"), *command[2:]]
        if not (BIN_DIR / "tandem-cuda.so").exists():
            # A build without CUDA refuses the devices.
            self.check(arguments)
            return
        # With what the script adds to them.
        shared = ["--device=cuda:0", f"--gpus={command[1]}", "--gpu-rank=0", "--gpu-rendezvous=/tmp/ranks"]
        self.check(arguments + shared)

    def test_wrong_arguments_are_noticed(self):
        manifests = render("overlays/cpu-demo")
        with tempfile.TemporaryDirectory(prefix="tandem-k8s-") as folder:
            machine = Machine(manifests, folder)
            self.addCleanup(machine.close)
            machine.write_config()
            for workload in manifests.workloads:
                command = machine.command(workload, BIN_DIR)
                with self.subTest(workload=workload.name):
                    self.assertNotEqual(check_config([*command, "--no-such-flag"])[0], 0)
                    self.assertNotEqual(check_config([*command, "--drain-grace=soon"])[0], 0)
            (machine.folder / "config" / "router.yaml").write_text("models: [{name: target}]")
            (router,) = [w for w in manifests.workloads if w.role == "router"]
            self.assertNotEqual(check_config(machine.command(router, BIN_DIR))[0], 0)


class RanksTest(unittest.TestCase):
    """The script that starts a process for each GPU, with a program in the verifier's place."""

    def run_ranks(self, program, *, stop=False):
        """(exit status, sorted flags of the ranks) with a shell script as tandem-verifier, $rank its rank."""
        with tempfile.TemporaryDirectory(prefix="tandem-k8s-") as folder:
            fake = pathlib.Path(folder) / "tandem-verifier"
            fake.write_text(
                f'#!/bin/bash\nfor a; do case $a in --gpu-rank=*) rank=${{a#*=}};; esac; done\n'
                f'echo "$@" >>{folder}/said\n{program}\n'
            )
            fake.chmod(0o755)
            environment = {"PATH": f"{folder}:/usr/bin:/bin", "TANDEM_RANKS_PATIENCE_SECONDS": "5"}
            log = open(f"{folder}/log", "w", encoding="utf-8")  # pylint: disable=consider-using-with
            self.addCleanup(log.close)
            process = subprocess.Popen(
                [RANKS, "2", "--model=m"], env=environment, stdout=log, stderr=log, start_new_session=True
            )
            said = pathlib.Path(folder) / "said"
            try:
                wait_until(lambda: said.exists() and len(said.read_text().splitlines()) == 2, "two ranks")
                if stop:
                    wait_until(lambda: (pathlib.Path(folder) / "ready").exists(), "a rank 0 that can be stopped")
                    process.send_signal(signal.SIGTERM)
                status = process.wait(60)
                wait_until(lambda: not group_exists(process.pid), "an end of all processes")
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait(60)
                print(pathlib.Path(log.name).read_text(encoding="utf-8"), end="")
            return status, sorted(said.read_text().splitlines())

    # Rank 0 ends when it is told to, and says that it can be told.
    SERVING = 'trap "touch ${0%/*}/done; exit 0" TERM; touch ${0%/*}/ready; while :; do sleep 0.05; done'
    # Rank 1 waits for it: its end ends rank 0.
    READY = "until [[ -e ${0%/*}/ready ]]; do sleep 0.05; done"

    def test_ranks_share_a_file_and_end_with_rank_0(self):
        program = f"if ((rank == 0)); then {self.SERVING}; fi; until [[ -e ${{0%/*}}/done ]]; do sleep 0.05; done"
        status, ranks = self.run_ranks(program, stop=True)
        self.assertEqual(status, 0)
        for rank, flags in enumerate(ranks):
            self.assertIn(f"--model=m --device=cuda:{rank} --gpus=2 --gpu-rank={rank} --gpu-rendezvous=", flags)
        self.assertEqual(len({flags.rpartition("=")[2] for flags in ranks}), 1)

    def test_one_that_fails_ends_all(self):
        status, _ = self.run_ranks(f"if ((rank == 0)); then {self.SERVING}; fi; {self.READY}; exit 3")
        self.assertEqual(status, 3)

    def test_a_follower_that_just_ends_is_a_failure(self):
        status, _ = self.run_ranks(f"if ((rank == 0)); then {self.SERVING}; fi; {self.READY}; exit 0")
        self.assertEqual(status, 1)


@unittest.skipIf(shutil.which("etcd") is None, "there is no etcd on this machine")
class EtcdTest(ProcessTest):
    """The etcd of `ha` as processes on loopback, and a router with the arguments of that overlay on it."""

    def start_etcd(self, machine, etcd):
        """Returns what their names and ports in the manifests became here."""
        pods = [f"etcd-{index}" for index in range(etcd.object["spec"]["replicas"])]
        ports = {(pod, name): fixed_port() for pod in pods for name in ("client", "peer", "metrics")}
        here = {
            f"{pod}.etcd.tandem.svc:{etcd.port(name)}": f"localhost:{port}" for (pod, name), port in ports.items()
        }
        for pod in pods:
            command = etcd.command
            own = {f"0.0.0.0:{etcd.port(name)}": f"127.0.0.1:{ports[pod, name]}" for name in ("client", "peer", "metrics")}
            folders = {"/var/lib/etcd": str(self.folder / pod), "/run/etcd/tls": str(machine.folder / "tls" / "etcd-tls")}
            for old, new in ({"$(POD_NAME)": pod} | here | own | folders).items():
                command = [argument.replace(old, new) for argument in command]
            (self.folder / pod).mkdir()
            with open(self.folder / f"{pod}.log", "wb") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, env=clean_environment())
            self.addCleanup(process.wait, 60)
            self.addCleanup(process.kill)

        def healthy(pod):
            probe = etcd.container["readinessProbe"]["httpGet"]
            address = f"http://127.0.0.1:{ports[pod, probe['port']]}{probe['path']}"
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            try:
                return b"true" in opener.open(address, timeout=5).read()
            except OSError:
                return False

        for pod in pods:
            wait_until(lambda p=pod: healthy(p), f"{pod}: {(self.folder / f'{pod}.log').read_text()[-2000:]}")
        return here

    def test_routers_find_their_etcd(self):
        manifests = render("overlays/ha")
        machine = Machine(manifests, self.folder / "machine")
        self.addCleanup(machine.close)
        here = self.start_etcd(machine, manifests.etcd)
        machine.write_config()
        (router,) = [w for w in manifests.workloads if w.role == "router"]
        addresses = {f"{name}_listen": "127.0.0.1:0" for name in ("health", "metrics")}
        command = machine.command(router, BIN_DIR, listen="127.0.0.1:0", **addresses)
        for old, new in here.items():
            command = [argument.replace(old, new) for argument in command]
        server = Server(pathlib.Path(command[0]).name, *command[1:])
        self.servers.append(server)
        server.wait_ready()
        self.assertEqual(server.metric("tandem_router_state_connected"), 1)


class DemoTest(ProcessTest):
    """The pods of cpu-demo as processes on loopback, with their own arguments but for addresses and folders."""

    def setUp(self):
        super().setUp()
        self.manifests = render("overlays/cpu-demo")
        self.machine = Machine(self.manifests, self.folder / "machine")
        self.addCleanup(self.machine.close)
        self.health_ports = {}
        self.running = {}

    def start_workload(self, workload):
        port, health_port = fixed_port(), fixed_port()
        command = self.machine.command(
            workload,
            BIN_DIR,
            listen=f"127.0.0.1:{port}",
            health_listen=f"127.0.0.1:{health_port}",
            metrics_listen="127.0.0.1:0",
        )
        server = Server(pathlib.Path(command[0]).name, *command[1:], port=port)
        self.servers.append(server)
        self.running[workload.name] = server
        self.health_ports[workload.name] = health_port
        return server

    def start_all(self):
        """Routers last: their configuration names the others."""
        workloads = sorted(self.manifests.workloads, key=lambda w: w.role == "router")
        endpoints = {}
        for workload in workloads:
            if workload.role == "router":
                self.machine.write_config(endpoints)
            for sidecar in workload.sidecars:
                server = self.start_workload(sidecar).wait_ready()
                endpoints[sidecar.flag("listen")] = server.address
            server = self.start_workload(workload).wait_ready()
            name = "verifier-0.verifier" if workload.role == "verifier" else workload.name
            endpoints[f"{name}.tandem.svc:{workload.port('grpc')}"] = server.address

    def test_probes_metrics_and_a_generation(self):
        self.start_all()
        containers = [container for w in self.manifests.workloads for container in [w, *w.sidecars]]
        for workload in containers:
            server = self.running[workload.name]
            for probe in ("startup", "liveness", "readiness"):
                if f"{probe}Probe" not in workload.container:
                    continue
                service = workload.container[f"{probe}Probe"]["grpc"].get("service", "")
                address = f"127.0.0.1:{self.health_ports[workload.name]}"
                with self.subTest(workload=workload.name, probe=probe):
                    wait_until(lambda a=address, s=service: health(a, s) == "SERVING", "a probe that passes")
                    self.assertEqual(server.health(service), "SERVING")
        self.assertNotEqual(health(address, "no.such.service"), "SERVING")

        self.channel = self.running["router"].channel()
        self.addCleanup(self.channel.close)
        self.assertEqual(len(self.generate(request_for(max_tokens=8), token=DEMO_TOKEN).read().tokens), 8)

        # The head beside the verifier drafts, and its features go over the pod's socket.
        request = request_for(max_tokens=48)
        request.speculation.drafter = "eagle3"
        request.speculation.window_policy = "fixed"
        self.assertEqual(self.drafted(request, token=DEMO_TOKEN)[-1].stats.drafter, "eagle3")
        self.running["verifier"].wait_logged("using a drafter's socket on this machine")

        for scaler in render("overlays/ha").by_kind["ScaledObject"]:
            query = scaler["spec"]["triggers"][0]["metadata"]["query"]
            name = scaler["spec"]["scaleTargetRef"]["name"]
            for metric in re.findall(r"tandem_\w+", query):
                holder = "router" if metric.startswith("tandem_router_") else name
                self.assertIsNotNone(self.running[holder].metric(metric), f"{holder} has no {metric}")

        # Readiness drops before anything else does.
        self.running["router"].send(signal.SIGTERM)
        address = f"127.0.0.1:{self.health_ports['router']}"
        wait_until(lambda: health(address) == "NOT_SERVING", "a router that is not ready")
        self.assertEqual(health(address, "liveness"), "SERVING")
        self.assertEqual(len(self.generate(request_for(max_tokens=8), token=DEMO_TOKEN).read().tokens), 8)
        self.assertEqual(self.running["router"].wait(), 0)
