"""Runs the pods of an overlay on this machine, without a cluster, and does to them what a cluster does.

    tests/k8s/pods [--bin-dir build/dev/bin] [--overlay cpu-demo] [--rounds 1] [--clients 3]
                   [--image FOLDER] [SCENARIO ...]

Every pod is a process in a network namespace of its own, with the probes, volumes, users and NetworkPolicies of the
rendered manifests (cluster.py says how). While clients generate through the routers, the scenarios are gone through,
all of them by default:

  policies      who can connect to whom
  tenant        a tenant made with `tandem` at one router holds at all of them (*)
  verifier      rolling update of the verifiers
  drafter       rolling update of the drafters
  router        rolling update of the routers
  etcd          rolling update of the routers' etcd (*)
  crash         kill -9 of a verifier: its container is started again
  router-crash  kill -9 of a router
  etcd-crash    kill -9 of one member of the etcd after the other; then the majority stands still, and comes back (*)
  stall         a verifier stands still (SIGSTOP): its liveness fails, and it is started again

Those with (*) are for overlays whose routers share an etcd (ha). No request may fail, all outputs must be what they
were at first, and the tenant must still be there. Needs root, kubectl, iproute2, nftables, and etcd for ha.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import yaml
from cluster import IMAGE_BIN, NAMESPACE, Cluster
from manifests import OVERLAYS, render, why_not_here

# In the order of the file's head.
SCENARIOS = (
    "policies", "tenant", "verifier", "drafter", "router", "etcd", "crash", "router-crash", "etcd-crash", "stall",
)  # fmt: skip
ETCD_SCENARIOS = ("tenant", "etcd", "etcd-crash")
TOKEN = "change-me"
ADMIN_TOKEN = "the-operators-token"
GUEST_TOKEN = "the-guests-token"
IN_NAMESPACES = "TANDEM_PODS_IN_NAMESPACES"


def enter_namespaces(overlay):
    """Runs this program anew where networks, mounts and processes of its own end with it."""
    tools = ["ip", "nft", "unshare", "setpriv", "openssl"]
    if why_not_here() is None and render(f"overlays/{overlay}").etcd is not None:
        tools.append("etcd")
    missing = [tool for tool in tools if shutil.which(tool) is None]
    reason = why_not_here() or (f"{', '.join(missing)} is missing" if missing else None)
    if os.geteuid() != 0:
        reason = "it takes root, for network namespaces"
    if reason:
        sys.exit(f"pods.py: {reason}")
    os.environ[IN_NAMESPACES] = "yes"
    # ip netns keeps names in /run/netns: of these namespaces' own, gone with them.
    script = 'mount -t tmpfs tandem /run && mkdir /run/netns && exec "$@"'
    command = [sys.executable, "-B", *sys.argv]
    flags = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
    os.execvp("unshare", ["unshare", *flags, "sh", "-ec", script, "pods", *command])


def in_client_pod(cluster, command):
    """The command, as a process of a pod in another namespace."""
    etc = cluster.folder / "etc" / "resolv.conf"
    script = f'mount --bind {etc} /etc/resolv.conf; exec "$@"'
    enter = ["ip", "netns", "exec", "client", "unshare", "--mount", "--propagation", "private"]
    return [*enter, "bash", "-ec", script, "client", *map(str, command)]


def client_command(cluster, *flags, token=TOKEN, target=f"dns:///router-pods.{NAMESPACE}.svc:7001"):
    """load_client.py in a pod of another namespace."""
    client = [sys.executable, "-B", pathlib.Path(__file__).resolve().parent / "load_client.py", "--token", token]
    client += ["--clients", cluster.clients, "--target", target]
    if cluster.manifests.by_kind["Certificate"]:
        client += ["--tls-ca", cluster.folder / "tls" / "ca.crt", "--server-name", f"router-pods.{NAMESPACE}.svc"]
    return in_client_pod(cluster, [*client, *flags])


class Traffic:
    """The clients, in a pod of another namespace. Leaving the context checks what came of their requests."""

    def __init__(self, cluster, name, *, resume=False):
        self.cluster = cluster
        self.name = name
        self.command = client_command(cluster, *(["--resume"] if resume else []))

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.cluster.tick.wait(3)
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            # What comes after the event is looked at as well.
            self.cluster.tick.wait(3)
        out, _ = self.process.communicate("", timeout=180)
        if kind is not None:
            return
        result = json.loads(out)
        self.cluster.say(f"{self.name}: {json.dumps(result)}")
        assert result["failed"] == 0 and result["completed"] > 0, f"{self.name}: {result}\n{self.cluster.logs()}"
        assert result["accepted"] > 0, f"{self.name}: nothing was drafted\n{self.cluster.logs()}"


def await_answers(cluster):
    """Until the routers answer: they are ready before verifiers that load, and ask for addresses every few seconds."""
    subprocess.run(client_command(cluster, "--await-answers", "20"), stdin=subprocess.DEVNULL, check=True)


def workloads(cluster, role):
    return [workload for workload in cluster.manifests.all_workloads if workload.role == role]


def pods_with(cluster, role):
    return [pod for workload in workloads(cluster, role) for pod in cluster.pods_of(workload)]


def kill(cluster, pod):
    """kill -9; returns when the container has been started again and is ready."""
    before = pod.restarts
    pod.send(signal.SIGKILL)
    cluster.wait(lambda: pod.restarts == before + 1, "a restart", 60)
    cluster.wait_ready(pod, 3)


def policies(cluster):
    """One client of each kind against one server of each kind, on every port."""
    if "prometheus" not in cluster.strangers:
        cluster.add_stranger("prometheus", "monitoring")
    # Who may call; the rest may not.
    callers = {
        "router": {"grpc": {"client", "prometheus"}},
        "verifier": {"grpc": {"router"}},
        "drafter": {"grpc": {"router", "verifier"}},
        "etcd": {"client": {"router", "etcd"}, "peer": {"etcd"}},
    }
    roles = [role for role in callers if workloads(cluster, role)]
    # Two pods of a role where there are two, so that they can call one another.
    clients = {role: pods_with(cluster, role)[0] for role in roles}
    servers = {role: pods_with(cluster, role)[-1] for role in roles}
    netns = {role: pod.netns for role, pod in clients.items()} | {name: name for name in cluster.strangers}
    cases = [
        (client, server, port, client in ({"prometheus"} if port == "metrics" else callers[server].get(port, ())))
        for server in roles
        for port in servers[server].policy_view["ports"]
        for client in netns
        if clients.get(client) is not servers[server]
    ]

    def try_one(case):
        client, server, port, expected = case
        pod = servers[server]
        found = cluster.reaches(netns[client], pod.address, pod.workload.port(port))
        return None if found == expected else f"{client} to {port} of {server}: expected {expected}"

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        wrong = [finding for finding in pool.map(try_one, cases) if finding]
    assert not wrong, wrong
    cluster.say(f"policies: {len(cases)} connections as they should be, {sum(c[3] for c in cases)} of them open")


def tandem(cluster, *arguments):
    """What the command line says to an operator, of one of the routers."""
    tls = cluster.folder / "tls"
    flags = [f"--tls-ca={tls}/ca.crt", f"--tls-certificate={tls}/operator-tls/tls.crt"]
    flags += [f"--tls-key={tls}/operator-tls/tls.key", "--token", ADMIN_TOKEN, "--timeout", "5s"]
    command = [cluster.binaries / "tandem", *arguments, "--endpoint", f"router-pods.{NAMESPACE}.svc:7001", *flags]
    return subprocess.run(
        in_client_pod(cluster, command), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


def tenant(cluster):
    """The operator's own tenant comes with a ConfigMap, the guest by the command line at whichever router."""
    file = yaml.safe_load(cluster.manifests.router_tenants)
    digest = hashlib.sha256(ADMIN_TOKEN.encode()).hexdigest()
    file["tenants"] = [t for t in file["tenants"] if t["name"] != "operator"]
    file["tenants"].append({"name": "operator", "token_sha256": digest, "admin": True})
    cluster.change_config("router-tenants", "tenants.yaml", yaml.safe_dump(file))
    answers = []

    def is_made():
        answers.append(tandem(cluster, "tenants", "set", "guest", "--tenant-token", GUEST_TOKEN))
        return answers[-1].returncode == 0

    try:
        cluster.wait(is_made, "a router that knows the operator", 20)
    except AssertionError:
        cluster.say(f"tenant: the last answer was: {answers[-1].stderr}")
        raise
    cluster.has_guest = True
    check_guest(cluster)


def check_guest(cluster):
    """Every router answers the guest, those that have come since, too."""
    routers = pods_with(cluster, "router")
    for pod in routers:
        target = f"ipv4:{pod.address}:{pod.workload.port('grpc')}"
        flags = ("--await-answers", "5", "--max-tokens", "8")
        command = client_command(cluster, *flags, token=GUEST_TOKEN, target=target)
        subprocess.run(command, stdin=subprocess.DEVNULL, check=True)
    cluster.say(f"tenant: {len(routers)} routers know the one that was made at one of them")


def rolled(role):
    def scenario(cluster):
        with Traffic(cluster, f"rolling update of the {role}s", resume=role == "router"):
            for workload in workloads(cluster, role):
                cluster.roll(workload)

    return scenario


def crash(cluster):
    with Traffic(cluster, "kill -9 of a verifier"):
        kill(cluster, pods_with(cluster, "verifier")[0])


def router_crash(cluster):
    with Traffic(cluster, "kill -9 of a router", resume=True):
        kill(cluster, pods_with(cluster, "router")[0])


def etcd_crash(cluster):
    """A router says whether it has an etcd; requests never wait for one."""
    members = pods_with(cluster, "etcd")
    router = pods_with(cluster, "router")[0]

    def connected():
        return router.metric("tandem_router_state_connected") == 1

    with Traffic(cluster, "kill -9 of each etcd member in turn"):
        for pod in members:
            kill(cluster, pod)
        cluster.wait(connected, "a router that is connected to the etcd", 20)
    majority = members[: len(members) // 2 + 1]
    with Traffic(cluster, "SIGSTOP of the etcd's majority"):
        for pod in majority:
            pod.send(signal.SIGSTOP)
        try:
            cluster.wait(lambda: not connected(), "a router that notices", 20)
            # Their ports are still open, so that liveness does not start them anew.
            cluster.tick.wait(5)
        finally:
            for pod in majority:
                pod.send(signal.SIGCONT)
        cluster.wait(connected, "a router that is connected to the etcd", 30)
        for pod in members:
            cluster.wait_ready(pod, 3)


def stall(cluster):
    pod = pods_with(cluster, "verifier")[0]
    before = pod.restarts
    with Traffic(cluster, "SIGSTOP of a verifier"):
        pod.send(signal.SIGSTOP)
        cluster.wait(lambda: not pod.ready, "a verifier that is not ready", 60)
        # A stopped process takes no SIGTERM, and is killed at the end of the grace period: not waited for here.
        spec, grace = pod.workload.pod, pod.workload.pod["terminationGracePeriodSeconds"]
        spec["terminationGracePeriodSeconds"] = 1
        cluster.wait(lambda: pod.restarts == before + 1, "a restart", 120)
        spec["terminationGracePeriodSeconds"] = grace
        cluster.wait_ready(pod, 3)
    pod.killed = False


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--overlay", choices=OVERLAYS, default="cpu-demo")
    parser.add_argument("--rounds", type=int, default=1, help="how often to run the scenarios")
    parser.add_argument("--clients", type=int, default=3, help="requests at a time")
    parser.add_argument(
        "--image", type=lambda folder: pathlib.Path(folder).resolve(), metavar="FOLDER",
        help="where the files of the Dockerfile's image are: Tandem's containers get these, not this machine's",
    )  # fmt: skip
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    args = parser.parse_args()
    unknown = set(args.scenarios) - set(SCENARIOS)
    if unknown:
        parser.error(f"no such scenario: {', '.join(unknown)}")
    if args.image and not (args.image / IMAGE_BIN / "tandem-router").exists():
        parser.error(f"{args.image} has no {IMAGE_BIN}/tandem-router")
    if IN_NAMESPACES not in os.environ:
        enter_namespaces(args.overlay)
    steps = {"policies": policies, "tenant": tenant, "crash": crash, "stall": stall}
    steps |= {"router-crash": router_crash, "etcd-crash": etcd_crash}
    steps.update((role, rolled(role)) for role in ("router", "verifier", "drafter", "etcd"))
    manifests = render(f"overlays/{args.overlay}")
    possible = [name for name in SCENARIOS if manifests.etcd is not None or name not in ETCD_SCENARIOS]
    impossible = set(args.scenarios) - set(possible)
    if impossible:
        parser.error(f"{args.overlay} has no etcd, which {', '.join(impossible)} takes")
    with tempfile.TemporaryDirectory(prefix="tandem-pods-") as folder:
        pathlib.Path(folder).chmod(0o755)
        cluster = Cluster(manifests, folder, pathlib.Path(os.environ["TANDEM_BIN_DIR"]), args.clients, args.image)
        try:
            cluster.add_stranger("client", "default")
            cluster.start()
            cluster.say(f"{args.overlay}: {len(cluster.pods)} pods are ready")
            await_answers(cluster)
            for name in (args.scenarios or possible) * args.rounds:
                steps[name](cluster)
                if cluster.has_guest and name != "tenant":
                    check_guest(cluster)
        finally:
            killed = cluster.stop()
        assert not killed, f"outlived their grace period: {killed}"
        assert not cluster.failures, cluster.failures
        cluster.say("all is well")


if __name__ == "__main__":
    main()
