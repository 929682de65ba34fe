"""What `kubectl kustomize` makes of k8s/, as Python objects."""

import collections
import dataclasses
import functools
import pathlib
import re
import shutil
import subprocess

import yaml

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
K8S = REPOSITORY / "k8s"
OVERLAYS = ("cpu-demo", "gpu", "grace", "ha", "inference")
# The first kubectl whose kustomize knows everything that k8s/ uses.
OLDEST_KUBECTL = (1, 27)
WORKLOAD_KINDS = ("Deployment", "StatefulSet")


def why_not_here():
    """Why k8s/ cannot be rendered on this machine, or nothing."""
    program = shutil.which("kubectl")
    if program is None:
        return "there is no kubectl on this machine"
    run = subprocess.run([program, "version", "--client"], capture_output=True, text=True, check=False)
    version = re.search(r'(?:Client Version: |GitVersion:")v(\d+)\.(\d+)', run.stdout)
    if version is None:
        return f"`kubectl version --client` says no version: {run.stdout}{run.stderr}"
    if (int(version[1]), int(version[2])) < OLDEST_KUBECTL:
        return f"kubectl is {version[1]}.{version[2]}; expected {'.'.join(map(str, OLDEST_KUBECTL))} or newer"
    return None


def seconds(text):
    """Of a duration as flags have it: 1m30s."""
    units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smh])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"not a duration: {text}")
    return sum(float(number) * units[unit] for number, unit in parts)


@dataclasses.dataclass
class Workload:
    """A Deployment or StatefulSet."""

    object: dict

    @property
    def kind(self):
        return self.object["kind"]

    @property
    def name(self):
        return self.object["metadata"]["name"]

    @property
    def role(self):
        return self.labels["app.kubernetes.io/component"]

    @property
    def is_tandem(self):
        return self.labels["app.kubernetes.io/name"] == "tandem"

    @property
    def labels(self):
        """Of its pods."""
        return self.object["spec"]["template"]["metadata"]["labels"]

    @property
    def annotations(self):
        return self.object["spec"]["template"]["metadata"].get("annotations", {})

    @property
    def pod(self):
        return self.object["spec"]["template"]["spec"]

    @property
    def container(self):
        """The one that serves."""
        return self.pod["containers"][0]

    @property
    def sidecars(self):
        """The containers beside that one, each seen as if it were the one that serves."""
        return [Sidecar(self.object, container) for container in self.pod["containers"][1:]]

    @property
    def command(self):
        return self.container["command"] + self.container["args"]

    def flag(self, name):
        """The last value of --name; "" for a flag without one; None when it is not there."""
        value = None
        for argument in self.container["args"]:
            if argument == f"--{name}":
                value = ""
            elif argument.startswith(f"--{name}="):
                value = argument.split("=", 1)[1]
        return value

    def port(self, name):
        """The number of the named container port; None when there is none."""
        for port in self.container.get("ports", []):
            if port["name"] == name:
                return port["containerPort"]
        return None


@dataclasses.dataclass
class Sidecar(Workload):
    """A workload's further container."""

    beside: dict

    @property
    def container(self):
        return self.beside

    @property
    def name(self):
        return f"{self.object['metadata']['name']}-{self.beside['name']}"


class Manifests:
    """The objects of one rendered folder."""

    def __init__(self, folder, objects):
        self.folder = folder
        self.objects = objects
        self.by_kind = collections.defaultdict(list)
        for item in objects:
            self.by_kind[item["kind"]].append(item)

    def names(self, kind):
        return [item["metadata"]["name"] for item in self.by_kind[kind]]

    def get(self, kind, name):
        for item in self.by_kind[kind]:
            if item["metadata"]["name"] == name:
                return item
        raise KeyError(f"{self.folder}: no {kind} {name}")

    @property
    def all_workloads(self):
        return [Workload(item) for kind in WORKLOAD_KINDS for item in self.by_kind[kind]]

    @property
    def workloads(self):
        """Tandem's own."""
        return [w for w in self.all_workloads if w.is_tandem]

    @property
    def etcd(self):
        """The StatefulSet of the overlays whose routers share one; None for the others."""
        return next((w for w in self.all_workloads if w.role == "etcd"), None)

    def _router_file(self, volume_name, file):
        router = next(workload for workload in self.workloads if workload.role == "router")
        volume = next(volume for volume in router.pod["volumes"] if volume["name"] == volume_name)
        return self.get("ConfigMap", volume["configMap"]["name"])["data"][file]

    @property
    def router_config(self):
        return self._router_file("config", "router.yaml")

    @property
    def router_tenants(self):
        return self._router_file("tenants", "tenants.yaml")

    def replicas(self, workload):
        """How many pods there are at the start: those of the workload, or what scales it begins with."""
        if "replicas" in workload.object["spec"]:
            return workload.object["spec"]["replicas"]
        for kind, least in (("HorizontalPodAutoscaler", "minReplicas"), ("ScaledObject", "minReplicaCount")):
            for item in self.by_kind[kind]:
                target = item["spec"]["scaleTargetRef"]
                if (target["kind"], target["name"]) == (workload.kind, workload.name):
                    return item["spec"][least]
        return 1

    def services_of(self, workload):
        return [s for s in self.by_kind["Service"] if matches(s["spec"]["selector"], workload.labels)]


def matches(labels_wanted, labels):
    return all(labels.get(key) == value for key, value in labels_wanted.items())


def selected(selector, labels):
    """A LabelSelector's meaning."""
    unknown = set(selector) - {"matchLabels"}
    if unknown:
        raise ValueError(f"label selectors with {unknown} are not understood here")
    return matches(selector.get("matchLabels", {}), labels)


@functools.lru_cache(maxsize=None)
def render(folder):
    """The objects of k8s/`folder`. RuntimeError with kubectl's words when it cannot be rendered, or warns."""
    run = subprocess.run(
        ["kubectl", "kustomize", str(K8S / folder)], capture_output=True, text=True, check=False
    )
    if run.returncode != 0 or run.stderr:
        raise RuntimeError(f"kubectl kustomize {folder}: {run.stderr}")
    return Manifests(folder, [item for item in yaml.safe_load_all(run.stdout) if item])
