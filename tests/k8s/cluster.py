"""The pods of a rendered overlay as processes of this machine, kept as a kubelet keeps them.

Every pod has a network namespace with an address of its own, a read-only root with the volumes that its manifest
mounts, the user that it names and no capabilities. Probes run from the node, NetworkPolicies are packet filters, names
are answered by a DNS server as a cluster's would, and only for pods that are ready. Needs root, iproute2 and nftables,
and runs in namespaces of its own (see pods.py), so that everything ends with it.

What is not a cluster here: images are this machine's files, or of Tandem's own containers those of an image's root file
system (etcd is always the one that is installed), a Service with a cluster address is answered like a headless one, a
volume that a pod claims is a folder that outlives it, and resource limits and seccomp profiles are not applied.
"""

import http.client
import itertools
import os
import pathlib
import re
import socket
import struct
import subprocess
import threading
import time
import urllib.request

import network_policies
from localized import DEMO_MODELS, health, issue_certificates, lay_out_models
from manifests import REPOSITORY

NODE = "10.244.0.1"
NAMESPACE = "tandem"
DOMAIN = "cluster.local"
# Where images have the binaries and the demo models (deploy/docker).
IMAGE_BIN = "usr/local/bin"
IMAGE_MODELS = "opt/tandem/demo-models"
# Of names; CoreDNS says the same.
TTL_SECONDS = 5


def run(*command, stdin=None):
    done = subprocess.run([str(c) for c in command], input=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr}")
    return done.stdout


class Dns(threading.Thread):
    """Answers questions for A records with `lookup(name)`, a list of addresses, or None where there is no such name."""

    def __init__(self, lookup):
        super().__init__(daemon=True)
        self.lookup = lookup
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((NODE, 53))

    def run(self):
        while True:
            question, client = self.socket.recvfrom(4096)
            try:
                self.socket.sendto(self.answer(question), client)
            except (IndexError, struct.error, UnicodeDecodeError):
                continue  # Not a question.

    def answer(self, question):
        labels, at = [], 12
        while question[at]:
            labels.append(question[at + 1 : at + 1 + question[at]].decode())
            at += 1 + question[at]
        kind, _ = struct.unpack(">HH", question[at + 1 : at + 5])
        addresses = self.lookup(".".join(labels).lower())
        known = addresses is not None
        answers = addresses if known and kind == 1 else []
        header = question[:2] + struct.pack(">HHHHH", 0x8580 if known else 0x8583, 1, len(answers), 0, 0)
        records = b"".join(
            b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, TTL_SECONDS, 4) + socket.inet_aton(a) for a in answers
        )
        return header + question[12 : at + 5] + records


class Pod:
    """One pod, from its init containers to its end. `ready` is what Services go by."""

    def __init__(self, cluster, workload, name):
        self.cluster = cluster
        self.workload = workload
        self.name = name
        self.address = cluster.new_address()
        self.folder = cluster.folder / "pods" / f"{name}-{self.address}"
        self.ready = False
        self.ready_since = None
        self.terminating = False
        self.restarts = 0
        self.killed = False  # It outlived its grace period.
        self.process = None
        self.beside = []  # The processes of further containers, which no probe of this file's asks.
        self.filters = None  # What its packet filter was told last.
        self.stopped = threading.Event()
        self.log = None
        self.thread = threading.Thread(target=self.keep, daemon=True)

    @property
    def policy_view(self):
        ports = {port["name"]: port["containerPort"] for port in self.workload.container["ports"]}
        return {"namespace": NAMESPACE, "labels": self.workload.labels, "ports": ports}

    # --- Its file system and processes ---

    def volumes(self):
        """Volume name -> folder here, made once."""
        folders = {}
        for volume in self.workload.pod["volumes"]:
            folder = self.folder / "volumes" / volume["name"]
            if "configMap" in volume:
                folder.mkdir(parents=True)
                data = self.cluster.manifests.get("ConfigMap", volume["configMap"]["name"])["data"]
                for file, text in data.items():
                    (folder / file).write_text(text)
            elif "secret" in volume:
                folder = self.cluster.folder / "tls" / volume["secret"]["secretName"]
                for file in ("tls.key", "tls.crt", "ca.crt"):
                    os.chown(folder / file, 0, self.workload.pod["securityContext"]["fsGroup"])
                    os.chmod(folder / file, volume["secret"]["defaultMode"])
            elif "persistentVolumeClaim" in volume:
                folder = self.cluster.models
            else:
                self.make_writable(folder)
            folders[volume["name"]] = folder
        for claim in self.workload.object["spec"].get("volumeClaimTemplates", []):
            # The next pod of this name finds what this one leaves.
            volume = claim["metadata"]["name"]
            folder = self.cluster.folder / "claims" / f"{volume}-{self.name}"
            if not folder.exists():
                self.make_writable(folder)
            folders[volume] = folder
        return folders

    def make_writable(self, folder):
        """Makes the folder, for the group of the pod's volumes."""
        folder.mkdir(parents=True)
        os.chown(folder, 0, self.workload.pod["securityContext"]["fsGroup"])
        os.chmod(folder, 0o2775)

    def environment(self, container):
        variables = {}
        for item in container.get("env", []):
            if "value" in item:
                variables[item["name"]] = item["value"]
            elif item["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}:
                variables[item["name"]] = self.name
            else:
                raise ValueError(f"{self.name}: variables from {item['valueFrom']} are not understood here")
        return variables

    def machine_files(self, root):
        """Lines of a shell that make a root out of this machine's files, and go there."""
        etc = self.cluster.folder / "etc"
        return [
            f"mkdir -p {root}", f"mount -t tmpfs -o size=1m tandem {root}", f"cd {root}",
            "mkdir -p usr etc proc dev opt/tandem/demo-models",
            "ln -s usr/bin bin", "ln -s usr/sbin sbin", "ln -s usr/lib lib", "ln -s usr/lib64 lib64",
            "mount --bind /usr usr", "mount -o remount,ro,bind usr",
            f"mount --bind {self.cluster.binaries} {IMAGE_BIN}", f"mount --bind {DEMO_MODELS} {IMAGE_MODELS}",
            f"cp {etc}/resolv.conf {etc}/hosts {etc}/nsswitch.conf etc/",
        ]  # fmt: skip

    def image_files(self, root, image):
        """The same out of an image's. What is written, such as where volumes are mounted, does not reach it."""
        layer = f"{root}-layer"
        options = f"lowerdir={image},upperdir={layer}/upper,workdir={layer}/work"
        etc = self.cluster.folder / "etc"
        return [
            f"mkdir -p {root} {layer}", f"mount -t tmpfs -o size=1m tandem {layer}", f"mkdir {layer}/upper {layer}/work",
            f"mount -t overlay -o {options} tandem {root}", f"cd {root}",
            f"cp {etc}/resolv.conf {etc}/hosts etc/",
        ]  # fmt: skip

    def command(self, container):
        """The container's command in the pod's namespaces, below a root of its own."""
        root = self.folder / f"root-{container['name']}"
        context = self.workload.pod["securityContext"]
        image = self.cluster.image if self.workload.is_tandem else None
        script = self.image_files(root, image) if image else self.machine_files(root)
        # Made anew, as every runtime does.
        script += ["mount -t proc proc proc", "mount -t tmpfs -o size=64k,mode=755 tandem dev"]
        script += [f"touch dev/{d} && mount --bind /dev/{d} dev/{d}" for d in ("null", "zero", "random", "urandom")]
        for mount in container["volumeMounts"]:
            at = mount["mountPath"].lstrip("/")
            script += [f"mkdir -p {at}", f"mount --bind {self.folders[mount['name']]} {at}"]
            if mount.get("readOnly"):
                script += [f"mount -o remount,ro,bind {at}"]
        script += ["mount -o remount,ro,bind ."]
        user = f"{context['runAsUser']}:{context['runAsGroup']}"
        # The pod's group is a supplementary one, as with a kubelet.
        drop = "--no-new-privs --bounding-set=-all --inh-caps=-all"
        script += [
            f"exec chroot --userspec={user} --groups={context['fsGroup']} . /usr/bin/setpriv {drop} \"$@\""
        ]
        namespaces = ["ip", "netns", "exec", self.netns, "unshare", "--mount", "--propagation", "private"]
        variables = self.environment(container)
        # $(NAME) is the variable's value where there is one, and stays as it is where there is none.
        command = [
            re.sub(r"\$\((\w+)\)", lambda found: variables.get(found[1], found[0]), argument)
            for argument in container.get("command", []) + container.get("args", [])
        ]
        return [*namespaces, "bash", "-ec", "\n".join(script), "pod", *command]

    @property
    def netns(self):
        return "pod-" + "-".join(self.address.split(".")[2:])

    def start_container(self, container):
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
        environment.update(self.environment(container))
        return subprocess.Popen(
            self.command(container), env=environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log
        )

    # --- What a kubelet does ---

    def prepare(self):
        """Volumes and network; `thread` then starts the containers."""
        self.folder.mkdir(parents=True)
        self.folders = self.volumes()
        self.log = open(self.folder / "log", "w", encoding="utf-8")  # pylint: disable=consider-using-with
        self.cluster.add_interface(self.netns, self.address)

    def keep(self):
        """Starts the container, asks its probes, starts it anew when it ends or its liveness fails."""
        try:
            for container in self.workload.pod.get("initContainers", []):
                status = self.start_container(container).wait()
                if status != 0:
                    raise RuntimeError(f"{self.name}: init container {container['name']} ended with {status}")
            self.beside = [self.start_container(container) for container in self.workload.pod["containers"][1:]]
            while not self.terminating:
                self.process = self.start_container(self.workload.container)
                self.probe_until_end()
                self.set_ready(False)
                if not self.terminating:
                    self.restarts += 1
                    time.sleep(0.5)
        except Exception as error:  # pylint: disable=broad-except
            self.cluster.failures.append(f"{self.name}: {error!r}")
        self.stopped.set()

    def probe_until_end(self):
        probes = {kind: self.workload.container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")}
        failed = dict.fromkeys(probes, 0)
        now = time.monotonic()
        due = dict.fromkeys(probes, now)
        started = False
        while self.process.poll() is None:
            for kind, probe in probes.items():
                # The startup probe first; the others once it has passed. Only readiness is asked of one that ends.
                wanted = kind != "startup" if started else kind == "startup"
                if not wanted or time.monotonic() < due[kind] or (self.terminating and kind != "readiness"):
                    continue
                due[kind] = time.monotonic() + probe["periodSeconds"]
                if self.passes(probe):
                    failed[kind] = 0
                    started = started or kind == "startup"
                    if kind == "readiness" and not self.terminating:
                        self.set_ready(True)
                    continue
                failed[kind] += 1
                if failed[kind] >= probe["failureThreshold"]:
                    if kind == "readiness":
                        self.set_ready(False)
                    else:
                        self.cluster.say(f"{self.name}: {kind} probe failed: it is killed")
                        self.end_process()
                        return
            self.cluster.tick.wait(0.1)

    def passes(self, probe):
        timeout = probe.get("timeoutSeconds", 1)
        if "grpc" in probe:
            grpc = probe["grpc"]
            return health(f"{self.address}:{grpc['port']}", grpc.get("service", ""), timeout) == "SERVING"
        if "httpGet" in probe:
            try:
                self.fetch(probe["httpGet"]["port"], probe["httpGet"]["path"], timeout)
                return True
            except (OSError, http.client.HTTPException):
                return False
        try:
            address = (self.address, self.workload.port(probe["tcpSocket"]["port"]))
            with socket.create_connection(address, timeout=timeout):
                return True
        except OSError:
            return False

    def fetch(self, port_name, path, timeout=5):
        """The text that the node gets over HTTP; OSError or HTTPException where it gets none."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{self.address}:{self.workload.port(port_name)}{path}", timeout=timeout) as reply:
            return reply.read().decode()

    def metric(self, name):
        """The sum over all labels; None when there is none of that name."""
        values = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)", self.fetch("metrics", "/metrics"), re.MULTILINE)
        return sum(map(float, values)) if values else None

    def set_ready(self, ready):
        if ready != self.ready:
            self.ready = ready
            self.ready_since = time.monotonic() if ready else None

    def end_process(self):
        """SIGTERM, and SIGKILL at the end of the grace period."""
        if self.terminating:
            for sidecar in self.beside:
                if sidecar.poll() is not None:
                    self.cluster.failures.append(f"{self.name}: a container beside the first one ended by itself")
                sidecar.terminate()
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(self.workload.pod["terminationGracePeriodSeconds"])
        except subprocess.TimeoutExpired:
            self.killed = True
            self.process.kill()
            self.process.wait()

    def terminate(self):
        """As when the pod is deleted: it leaves its Services at once."""
        self.terminating = True
        self.set_ready(False)
        self.end_process()
        for sidecar in self.beside:
            sidecar.wait()
        self.stopped.wait()
        self.cluster.disconnect(self)

    def send(self, signal_number):
        self.process.send_signal(signal_number)

    @property
    def log_text(self):
        return (self.folder / "log").read_text(errors="replace")


class Cluster:
    """A node with the pods of one overlay."""

    def __init__(self, manifests, folder, bin_dir, clients=3, image=None):
        """`clients`: how many requests at a time scenarios send. `image`: root of the files of Tandem's own containers,
        in place of this machine's."""
        self.manifests = manifests
        self.image = image
        self.folder = pathlib.Path(folder)
        self.clients = clients
        self.pods = []
        self.strangers = {}  # Pods of other namespaces: name -> (address, view for policies)
        self.has_guest = False  # The scenario `tenant` was gone through.
        self.failures = []
        self.tick = threading.Event()
        self.lock = threading.RLock()
        self.numbers = itertools.count(10)
        self.began = time.monotonic()
        self.prepare(bin_dir)

    def say(self, text):
        print(f"[{time.monotonic() - self.began:6.1f} s] {text}", flush=True)

    def prepare(self, bin_dir):
        self.models = self.folder / "models"
        lay_out_models(self.models)
        issue_certificates(self.manifests.by_kind["Certificate"], self.folder / "tls")
        # What the image has; the user of the pods may read all of it.
        self.binaries = self.folder / "bin"
        self.binaries.mkdir()
        for name in ("tandem-router", "tandem-verifier", "tandem-drafter", "tandem"):
            run("cp", bin_dir / name, self.binaries)
        run("cp", REPOSITORY / "deploy/docker/tandem-demo-models", self.binaries)
        etc = self.folder / "etc"
        etc.mkdir()
        search = f"{NAMESPACE}.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}"
        (etc / "resolv.conf").write_text(f"nameserver {NODE}\nsearch {search}\noptions ndots:5\n")
        (etc / "nsswitch.conf").write_text("hosts: files dns\n")
        (etc / "hosts").write_text("127.0.0.1 localhost\n")
        run("chmod", "-R", "a+rX", self.folder)
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "pods", "type", "bridge")
        run("ip", "addr", "add", f"{NODE}/16", "dev", "pods")
        run("ip", "link", "set", "pods", "up")
        Dns(self.lookup).start()

    # --- Network ---

    def new_address(self):
        number = next(self.numbers)
        return f"10.244.{number >> 8}.{number & 255}"

    def add_interface(self, netns, address):
        interface = "v" + "-".join(address.split(".")[2:])
        run("ip", "netns", "add", netns)
        outside = f"link add {interface} type veth peer name eth0 netns {netns}\nlink set {interface} master pods up\n"
        run("ip", "-batch", "-", stdin=outside)
        inside = f"link set lo up\naddr add {address}/16 dev eth0\nlink set eth0 up\n"
        run("ip", "-n", netns, "-batch", "-", stdin=inside)

    def disconnect(self, pod):
        with self.lock:
            self.pods.remove(pod)
            self.apply_policies()
        run("ip", "netns", "del", pod.netns)

    def add_stranger(self, name, namespace):
        """A pod of another namespace, without a process; returns its network namespace."""
        address = self.new_address()
        self.add_interface(name, address)
        with self.lock:
            self.strangers[name] = (address, {"namespace": namespace, "labels": {"app": name}, "ports": {}})
            self.apply_policies()
        return name

    def apply_policies(self):
        """Each pod's filter: what the NetworkPolicies let in, and of what goes out, names. The node may do all."""
        policies = self.manifests.by_kind["NetworkPolicy"]
        clients = [(pod.address, pod.policy_view) for pod in self.pods] + list(self.strangers.values())
        dns = {"namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}, "ports": {}}
        for pod in self.pods:
            view = pod.policy_view
            rules = ["ct state established,related accept", "iif lo accept", f"ip saddr {NODE} accept"]
            for address, client in clients:
                for port in sorted(set(view["ports"].values())):
                    if network_policies.allowed(policies, client, view, port):
                        rules.append(f"ip saddr {address} tcp dport {port} accept")
            names = network_policies.allowed(policies, view, dns, 53, "UDP")
            out = ["udp dport 53 " + ("accept" if names else "drop")]
            filters = (
                f"add table ip pods\nflush table ip pods\ntable ip pods {{\n"
                f"chain in {{ type filter hook input priority 0; policy drop;\n{chr(10).join(rules)}\n}}\n"
                f"chain out {{ type filter hook output priority 0; policy accept;\n{chr(10).join(out)}\n}}\n}}\n"
            )
            if filters != pod.filters:
                run("ip", "netns", "exec", pod.netns, "nft", "-f", "-", stdin=filters)
                pod.filters = filters

    def reaches(self, netns, address, port):
        """Whether a connection from the namespace opens. A filter drops silently, so that it is waited for."""
        program = (
            "import socket,sys\ns=socket.socket()\ns.settimeout(1.5)\n"
            f"sys.exit(s.connect_ex(({address!r},{port}))!=0)"
        )
        return subprocess.run(["ip", "netns", "exec", netns, "python3", "-c", program], check=False).returncode == 0

    # --- Names ---

    def lookup(self, name):
        name = name.removesuffix(f".{DOMAIN}")
        head, separator, rest = name.partition(f".{NAMESPACE}.svc")
        if not separator or rest:
            return None
        pod_name, _, service_name = head.rpartition(".")
        for service in self.manifests.by_kind["Service"]:
            if service["metadata"]["name"] != service_name:
                continue
            all_of_them = service["spec"].get("publishNotReadyAddresses", False)
            with self.lock:
                found = [
                    pod.address
                    for pod in self.pods
                    if (pod.ready or all_of_them) and service in self.manifests.services_of(pod.workload)
                    and pod_name in ("", pod.name)
                ]
            return found if found or not pod_name else None
        return None

    # --- Controllers ---

    def pods_of(self, workload):
        with self.lock:
            return [pod for pod in self.pods if pod.workload.name == workload.name and not pod.terminating]

    def start_pods(self, wanted):
        """For every (workload, ordinal); the ordinals of Deployments mean nothing. Returns the pods."""
        pods = []
        for workload, ordinal in wanted:
            suffix = str(ordinal) if workload.kind == "StatefulSet" else f"{next(self.numbers)}x"
            pods.append(Pod(self, workload, f"{workload.name}-{suffix}"))
            pods[-1].prepare()
        with self.lock:
            self.pods += pods
            self.apply_policies()
        for pod in pods:
            pod.thread.start()
        return pods

    def start_pod(self, workload, ordinal=None):
        return self.start_pods([(workload, ordinal)])[0]

    def start(self):
        workloads = self.manifests.all_workloads
        self.start_pods([(w, ordinal) for w in workloads for ordinal in range(self.manifests.replicas(w))])
        for pod in list(self.pods):
            self.wait_ready(pod)

    def change_config(self, name, file, text):
        """Another content of a ConfigMap's file, brought to the pods that mount it. Their processes are left alone."""
        self.manifests.get("ConfigMap", name)["data"][file] = text
        with self.lock:
            for pod in self.pods:
                for volume in pod.workload.pod["volumes"]:
                    if volume.get("configMap", {}).get("name") == name:
                        new = pod.folder / f"new-{name}"
                        new.write_text(text)
                        new.rename(pod.folders[volume["name"]] / file)

    def wait(self, condition, what, timeout):
        deadline = time.monotonic() + timeout
        while not condition():
            if self.failures:
                raise AssertionError(f"{self.failures}\n{self.logs()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {timeout} s for {what}\n{self.logs()}")
            self.tick.wait(0.1)

    def wait_ready(self, pod, seconds=0):
        """Until the pod has been ready for so long."""

        def is_ready():
            since = pod.ready_since
            return since is not None and time.monotonic() - since >= seconds

        self.wait(is_ready, f"{pod.name} to be ready", 120 + seconds)

    def roll(self, workload):
        """Replaces every pod, as a rollout with the workload's strategy."""
        if workload.kind == "StatefulSet":
            for pod in sorted(self.pods_of(workload), key=lambda p: p.name, reverse=True):
                ordinal = int(pod.name.rpartition("-")[2])
                pod.terminate()
                self.say(f"{pod.name} has ended{', KILLED' if pod.killed else ''}; it is started anew")
                assert not pod.killed, f"{pod.name} outlived its grace period\n{pod.log_text[-3000:]}"
                self.wait_ready(self.start_pod(workload, ordinal), workload.object["spec"].get("minReadySeconds", 0))
            return
        for pod in self.pods_of(workload):
            # maxSurge 1, maxUnavailable 0.
            self.wait_ready(self.start_pod(workload))
            pod.terminate()
            self.say(f"{pod.name} has ended{', KILLED' if pod.killed else ''}; another serves in its place")
            assert not pod.killed, f"{pod.name} outlived its grace period\n{pod.log_text[-3000:]}"

    def stop(self):
        """Everything at once. Names of pods that outlived their grace period."""
        pods = list(self.pods)
        threads = [threading.Thread(target=pod.terminate) for pod in pods]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [pod.name for pod in pods if pod.killed]

    def logs(self):
        return "\n".join(f"--- {pod.name}\n{pod.log_text[-1500:]}" for pod in list(self.pods))
