"""Whether the manifests fit together, by themselves: schemas, names, labels, ports, policies, security."""

import pathlib
import re
import unittest

import custom_resources
import jsonschema
import kubernetes_validate
import network_policies
import yaml
from manifests import K8S, OVERLAYS, REPOSITORY, render, seconds, selected

KUBERNETES = "1.32"
NAMESPACE = "tandem"
FOLDERS = OVERLAYS + ("gateway",)
# What a pod needs after it was told to drain, beyond its own waiting.
EXIT_SECONDS = 5
GRPC_PORTS = {"router": 7001, "verifier": 7002, "drafter": 7003}
METRICS_PORTS = {"router": 9101, "verifier": 9102, "drafter": 9103}
# Volumes that the Pod Security Standard "restricted" allows.
VOLUME_KINDS = {"configMap", "emptyDir", "persistentVolumeClaim", "secret", "projected", "downwardAPI"}


def is_valid(item):
    """Raises when Kubernetes, or the definition of a custom resource, would refuse the object."""
    if custom_resources.is_custom(item):
        custom_resources.validate(item)
    else:
        kubernetes_validate.validate(item, KUBERNETES, strict=True)


def pod_of(workload):
    ports = {port["name"]: port["containerPort"] for port in workload.container["ports"]}
    return {"namespace": NAMESPACE, "labels": workload.labels, "ports": ports}


class ManifestsTest(unittest.TestCase):
    def each(self):
        """Each workload of each overlay, as a sub-test."""
        for overlay in OVERLAYS:
            manifests = render(f"overlays/{overlay}")
            for workload in manifests.workloads:
                with self.subTest(overlay=overlay, workload=workload.name):
                    yield manifests, workload

    def each_of_all(self):
        """Those that are not Tandem's own as well."""
        for overlay in OVERLAYS:
            manifests = render(f"overlays/{overlay}")
            for workload in manifests.all_workloads:
                with self.subTest(overlay=overlay, workload=workload.name):
                    yield manifests, workload

    def each_overlay(self):
        for overlay in OVERLAYS:
            with self.subTest(overlay=overlay):
                yield render(f"overlays/{overlay}")

    def test_every_overlay_has_what_it_is_for(self):
        self.assertEqual(sorted(p.name for p in (K8S / "overlays").iterdir()), sorted(OVERLAYS))
        for manifests in self.each_overlay():
            kinds = [(workload.kind, workload.role) for workload in manifests.workloads]
            self.assertCountEqual(
                kinds,
                [("Deployment", "router"), ("StatefulSet", "verifier")] + 3 * [("Deployment", "drafter")],
            )
            others = [workload for workload in manifests.all_workloads if workload not in manifests.workloads]
            self.assertEqual([w.name for w in others], ["etcd"] if manifests.folder == "overlays/ha" else [])
        # The demo asks for nothing that is not in every cluster.
        custom = [item["kind"] for item in render("overlays/cpu-demo").objects if custom_resources.is_custom(item)]
        self.assertEqual(custom, [])
        self.assertEqual(render("overlays/cpu-demo").names("PersistentVolumeClaim"), [])

    def test_every_object_is_valid(self):
        for folder in FOLDERS:
            path = folder if folder == "gateway" else f"overlays/{folder}"
            for item in render(path).objects:
                with self.subTest(folder=folder, kind=item["kind"], name=item["metadata"]["name"]):
                    is_valid(item)
                    if item["kind"] != "Namespace":
                        self.assertEqual(item["metadata"]["namespace"], NAMESPACE)

    def test_validation_notices_mistakes(self):
        overlay = render("overlays/ha")
        for kind, name, field, value in (
            ("Deployment", "router", "replica", 3),
            ("Service", "router", "ports", [{"port": "grpc"}]),
            ("PodDisruptionBudget", "router", "maxUnavailable", []),
            ("ScaledObject", "verifier", "minReplicas", 2),
            ("Certificate", "router", "usages", ["server authentication"]),
            ("InferencePool", "tandem", "targetPorts", [{"number": 7080}, {"number": 7080}]),
            ("HTTPRoute", "inference", "rules", [{"backendRefs": [{"pool": "tandem"}]}]),
        ):
            item = (render("overlays/inference") if kind in ("InferencePool", "HTTPRoute") else overlay).get(kind, name)
            broken = {**item, "spec": {**item["spec"], field: value}}
            with self.subTest(kind=kind):
                with self.assertRaises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
                    is_valid(broken)

    def test_labels_select_the_pods_they_are_meant_for(self):
        for manifests, workload in self.each():
            spec = workload.object["spec"]
            self.assertTrue(selected(spec["selector"], workload.labels))
            for constraint in workload.pod["topologySpreadConstraints"]:
                self.assertTrue(selected(constraint["labelSelector"], workload.labels))
            budgets = [
                budget["metadata"]["name"]
                for budget in manifests.by_kind["PodDisruptionBudget"]
                if selected(budget["spec"]["selector"], workload.labels)
            ]
            self.assertEqual(budgets, [workload.name])
            names = [service["metadata"]["name"] for service in manifests.services_of(workload)]
            extra = ["router-pods"] if workload.role == "router" else []
            self.assertCountEqual(names, [workload.name, *extra])
            if workload.kind == "StatefulSet":
                self.assertEqual(spec["serviceName"], workload.name)

    def test_services_reach_ports_that_are_there(self):
        for manifests, workload in self.each():
            for service in manifests.services_of(workload):
                (port,) = service["spec"]["ports"]
                self.assertEqual(port["port"], GRPC_PORTS[workload.role])
                self.assertEqual(workload.port(port["targetPort"]), port["port"])
                self.assertEqual(port["appProtocol"], "kubernetes.io/h2c")
                if service["metadata"]["name"] != "router":
                    self.assertEqual(service["spec"]["clusterIP"], "None")
                else:
                    self.assertNotIn("clusterIP", service["spec"])

    def test_containers_listen_where_their_ports_say(self):
        for _, workload in self.each():
            flags = {"grpc": "listen", "health": "health-listen", "metrics": "metrics-listen"}
            for port, flag in flags.items():
                self.assertEqual(workload.flag(flag), f"0.0.0.0:{workload.port(port)}", flag)
            self.assertEqual(workload.port("grpc"), GRPC_PORTS[workload.role])
            self.assertEqual(workload.port("metrics"), METRICS_PORTS[workload.role])
            self.assertEqual(workload.annotations["prometheus.io/port"], str(workload.port("metrics")))

    def test_probes(self):
        for _, workload in self.each():
            probes = {name: workload.container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
            for name, probe in probes.items():
                self.assertEqual(probe["grpc"]["port"], workload.port("health"), name)
            self.assertEqual((probes["startup"]["failureThreshold"], probes["startup"]["periodSeconds"]), (60, 10))
            # A pod is not killed for what only keeps it from being ready.
            self.assertEqual(probes["liveness"]["grpc"]["service"], "liveness")
            self.assertEqual(probes["readiness"]["grpc"].get("service", ""), "")
            # A router is ready when its verifiers are, and not started anew for them.
            started = "liveness" if workload.role == "router" else ""
            self.assertEqual(probes["startup"]["grpc"].get("service", ""), started)

    def test_there_is_time_to_drain(self):
        for _, workload in self.each():
            grace = seconds(workload.flag("drain-delay")) + seconds(workload.flag("drain-grace"))
            self.assertGreater(workload.pod["terminationGracePeriodSeconds"], grace + EXIT_SECONDS)
            # Longer than it takes the readiness probe, or a router's own question, to notice.
            probe = workload.container["readinessProbe"]
            self.assertLessEqual(probe["periodSeconds"] * probe["failureThreshold"], seconds(workload.flag("drain-delay")))
            # gRPC asks for names again after 30 s.
            if workload.kind == "StatefulSet":
                self.assertGreater(workload.object["spec"]["minReadySeconds"], 30)
            else:
                self.assertEqual(workload.object["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"], 0)

    def test_pods_are_restricted(self):
        for manifests, workload in self.each_of_all():
            pod = workload.pod
            context = pod["securityContext"]
            self.assertTrue(context["runAsNonRoot"])
            self.assertGreater(context["runAsUser"], 0)
            self.assertEqual(context["seccompProfile"], {"type": "RuntimeDefault"})
            self.assertIs(pod["automountServiceAccountToken"], False)
            self.assertIn(pod["serviceAccountName"], manifests.names("ServiceAccount"))
            for volume in pod["volumes"]:
                self.assertLessEqual(set(volume) - {"name"}, VOLUME_KINDS)
            for container in pod["containers"] + pod.get("initContainers", []):
                context = container["securityContext"]
                self.assertIs(context["readOnlyRootFilesystem"], True)
                self.assertIs(context["allowPrivilegeEscalation"], False)
                self.assertEqual(context["capabilities"], {"drop": ["ALL"]})
                self.assertLessEqual({"cpu", "memory"}, set(container["resources"]["requests"]))
                self.assertIn("memory", container["resources"]["limits"])
                claims = workload.object["spec"].get("volumeClaimTemplates", [])
                names = [volume["name"] for volume in pod["volumes"]] + [c["metadata"]["name"] for c in claims]
                for mount in container["volumeMounts"]:
                    self.assertIn(mount["name"], names)

    def test_what_pods_mount_is_there(self):
        for manifests, workload in self.each_of_all():
            secrets = [c["spec"]["secretName"] for c in manifests.by_kind["Certificate"]]
            for volume in workload.pod["volumes"]:
                if "configMap" in volume:
                    self.assertIn(volume["configMap"]["name"], manifests.names("ConfigMap"))
                elif "persistentVolumeClaim" in volume:
                    claim = volume["persistentVolumeClaim"]["claimName"]
                    self.assertIn(claim, manifests.names("PersistentVolumeClaim"))
                elif "secret" in volume:
                    self.assertIn(volume["secret"]["secretName"], secrets)

    def test_the_router_names_services_and_models_that_are_there(self):
        for manifests in self.each_overlay():
            config = yaml.safe_load(manifests.router_config)
            workloads = {workload.name: workload for workload in manifests.workloads}
            (model,) = config["models"]
            verifier = workloads["verifier"]
            self.assertEqual(verifier.flag("model"), f"{model['name']}={model['folder']}")
            for index, endpoint in enumerate(model["verifiers"]):
                self.assertEqual(endpoint, f"verifier-{index}.verifier.{NAMESPACE}.svc:7002")
            most = [
                item["spec"]["maxReplicaCount"]
                for item in manifests.by_kind["ScaledObject"]
                if item["spec"]["scaleTargetRef"]["name"] == "verifier"
            ]
            self.assertEqual(most or [len(model["verifiers"])], [len(model["verifiers"])])
            self.assertLessEqual(manifests.replicas(verifier), len(model["verifiers"]))
            beside = {sidecar.flag("listen"): sidecar for w in manifests.workloads for sidecar in w.sidecars}
            for drafter in config["drafters"]:
                if drafter["endpoint"] in beside:
                    # Of every verifier's own pod.
                    self.assertRegex(drafter["endpoint"], r"^127\.0\.0\.1:")
                    served, _, _ = beside.pop(drafter["endpoint"]).flag("model").partition("=")
                    self.assertEqual(served, drafter["draft_model"])
                    continue
                # Every pod behind the Service is one of a pool, which takes one without an address of its own.
                self.assertRegex(drafter["endpoint"], "^dns:///")
                name, _, port = drafter["endpoint"].removeprefix("dns:///").partition(f".{NAMESPACE}.svc:")
                self.assertEqual(port, str(workloads[name].port("grpc")))
                served, _, _ = workloads[name].flag("model").partition("=")
                self.assertEqual(served, drafter["draft_model"])
            self.assertEqual(beside, {})
            pools = [d for d in config["drafters"] if d["endpoint"].startswith("dns:")]
            self.assertEqual(len(pools), len(workloads) - 2)

    def test_the_head_of_the_demo_shares_a_folder_with_its_verifier(self):
        manifests = render("overlays/cpu-demo")
        verifier = next(w for w in manifests.workloads if w.role == "verifier")
        (head,) = verifier.sidecars
        folder = verifier.flag("local-sockets")
        self.assertEqual(head.flag("local-sockets"), folder)
        self.assertEqual(head.flag("head-target"), verifier.flag("model").partition("=")[2])
        # Below a volume of the pod's own, which both may write to: the folder itself is made by whoever comes first,
        # with the rights of the user of both.
        volumes = {volume["name"]: volume for volume in verifier.pod["volumes"]}
        mounts = [
            {m["name"] for m in container["volumeMounts"] if folder.startswith(m["mountPath"] + "/")}
            for container in (verifier.container, head.container)
        ]
        self.assertEqual(mounts[0], mounts[1])
        (name,) = mounts[0]
        self.assertIn("emptyDir", volumes[name])
        for container in (verifier.container, head.container):
            self.assertNotIn("runAsUser", container["securityContext"])
            (mount,) = (m for m in container["volumeMounts"] if m["name"] == name)
            self.assertNotIn("readOnly", mount)
        # Nobody outside of the pod reaches it, and no port of the two is the same.
        self.assertTrue(head.flag("listen").startswith("127.0.0.1:"))
        self.assertIsNone(head.flag("insecure"))
        ports = [port["containerPort"] for c in (verifier.container, head.container) for port in c["ports"]]
        self.assertEqual(len(ports), len(set(ports)))
        for probe in ("startupProbe", "livenessProbe"):
            self.assertEqual(head.flag("health-listen"), f"0.0.0.0:{head.container[probe]['grpc']['port']}")
        # What the demo's drafters do not have stays in the overlay.
        base = yaml.safe_load((K8S / "base" / "router-config.yaml").read_text())
        demo = yaml.safe_load(manifests.router_config)
        self.assertEqual([d for d in demo["drafters"] if d["endpoint"] != head.flag("listen")], base["drafters"])
        self.assertEqual(demo["models"], base["models"])
        for overlay in OVERLAYS:
            if overlay not in ("cpu-demo", "inference"):
                self.assertEqual([w.name for w in render(f"overlays/{overlay}").workloads if w.sidecars], [])

    def test_what_scales_has_a_target_and_no_rival(self):
        for manifests in self.each_overlay():
            scalers = manifests.by_kind["HorizontalPodAutoscaler"] + manifests.by_kind["ScaledObject"]
            targets = [(s["spec"]["scaleTargetRef"]["kind"], s["spec"]["scaleTargetRef"]["name"]) for s in scalers]
            self.assertEqual(len(targets), len(set(targets)))
            for kind, name in targets:
                self.assertNotIn("replicas", manifests.get(kind, name)["spec"])

    def test_only_routers_reach_verifiers_and_only_those_two_drafters(self):
        outsider = {"namespace": "default", "labels": {}, "ports": {}}
        neighbour = {"namespace": NAMESPACE, "labels": {"app": "other"}, "ports": {}}
        prometheus = {"namespace": "monitoring", "labels": {"app": "prometheus"}, "ports": {}}
        names = {"namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}, "ports": {}}
        callers = {"drafter": {"router", "verifier"}, "verifier": {"router"}}
        for manifests, server in self.each():
            policies = manifests.by_kind["NetworkPolicy"]

            def may(client, port, to=pod_of(server), protocol="TCP", policies=policies):
                return network_policies.allowed(policies, client, to, port, protocol)

            grpc_port, metrics_port = server.port("grpc"), server.port("metrics")
            for client in manifests.workloads:
                expected = client.role in callers.get(server.role, set())
                self.assertEqual(may(pod_of(client), grpc_port), expected, client.name)
                self.assertFalse(may(pod_of(client), metrics_port), client.name)
                self.assertTrue(may(pod_of(client), 53, to=names, protocol="UDP"), client.name)
                self.assertFalse(may(pod_of(client), 443, to=outsider), client.name)
            for stranger in (outsider, neighbour):
                reaches = server.role == "router" and stranger is outsider
                self.assertEqual(may(stranger, grpc_port), reaches)
                self.assertFalse(may(stranger, metrics_port))
            self.assertTrue(may(prometheus, metrics_port))

    def test_certificates_name_roles_and_every_endpoint(self):
        for manifests, workload in self.each():
            if not manifests.by_kind["Certificate"]:
                self.assertEqual(workload.flag("insecure"), "")
                continue
            self.assertIsNone(workload.flag("insecure"))
            (secret,) = [v["secret"]["secretName"] for v in workload.pod["volumes"] if "secret" in v]
            (certificate,) = [c for c in manifests.by_kind["Certificate"] if c["spec"]["secretName"] == secret]
            spec = certificate["spec"]
            self.assertEqual(spec["uris"], [f"spiffe://tandem/role/{workload.role}"])
            self.assertIn(spec["issuerRef"]["name"], manifests.names("Issuer"))
            config = yaml.safe_load(manifests.router_config)
            endpoints = {
                "router": [f"router.{NAMESPACE}.svc", f"router-pods.{NAMESPACE}.svc"],
                "verifier": [e.rpartition(":")[0] for e in config["models"][0]["verifiers"]],
                "drafter": [d["endpoint"].removeprefix("dns:///").rpartition(":")[0] for d in config["drafters"]],
            }
            patterns = [re.escape(name).replace(r"\*", "[^.]+") for name in spec["dnsNames"]]
            for endpoint in endpoints[workload.role]:
                self.assertTrue(any(re.fullmatch(pattern, endpoint) for pattern in patterns), endpoint)
            mount = next(m for m in workload.container["volumeMounts"] if m["name"] == "tls")
            for flag, file in (("tls-ca", "ca.crt"), ("tls-certificate", "tls.crt"), ("tls-key", "tls.key")):
                self.assertEqual(workload.flag(flag), f"{mount['mountPath']}/{file}")

    def test_tenants_change_without_a_rollout_and_the_rest_with_one(self):
        for manifests in self.each_overlay():
            router = next(w for w in manifests.workloads if w.role == "router")
            maps = {v["name"]: v["configMap"]["name"] for v in router.pod["volumes"] if "configMap" in v}
            self.assertEqual(maps["tenants"], "router-tenants")
            self.assertRegex(maps["config"], "^router-config-[a-z0-9]{10}$")
            # A file that is mounted by itself would stay as it is.
            for mount in router.container["volumeMounts"]:
                self.assertNotIn("subPath", mount)
                if mount["name"] == "tenants":
                    self.assertEqual(router.flag("tenants"), f"{mount['mountPath']}/tenants.yaml")
            self.assertLessEqual(set(yaml.safe_load(manifests.router_tenants)), {"drafters", "tenants"})

    def test_etcd_is_what_the_routers_ask(self):
        manifests = render("overlays/ha")
        etcd, spec = manifests.etcd, manifests.etcd.object["spec"]
        router = next(w for w in manifests.workloads if w.role == "router")
        hosts = [f"etcd-{index}.etcd.{NAMESPACE}.svc" for index in range(spec["replicas"])]
        endpoints = ",".join(f"{host}:{etcd.port('client')}" for host in hosts)
        self.assertEqual(router.flag("state"), f"etcd://{endpoints}/tandem")
        for flag in ("ca", "certificate", "key"):
            self.assertEqual(router.flag(f"state-tls-{flag}"), router.flag(f"tls-{flag}"))
        peers = ",".join(f"{host.partition('.')[0]}=https://{host}:{etcd.port('peer')}" for host in hosts)
        self.assertEqual(etcd.flag("initial-cluster"), peers)
        # An odd number, over zones and nodes, of which one may be missing.
        self.assertEqual(spec["replicas"], 3)
        keys = {c["topologyKey"]: c["whenUnsatisfiable"] for c in etcd.pod["topologySpreadConstraints"]}
        self.assertEqual(set(keys.values()), {"DoNotSchedule"})
        self.assertEqual(spec["podManagementPolicy"], "Parallel")
        self.assertTrue(selected(spec["selector"], etcd.labels))
        (service,) = manifests.services_of(etcd)
        self.assertEqual(service["metadata"]["name"], spec["serviceName"])
        self.assertIs(service["spec"]["publishNotReadyAddresses"], True)
        self.assertEqual(manifests.get("PodDisruptionBudget", "etcd")["spec"]["maxUnavailable"], 1)
        names = manifests.get("Certificate", "etcd")["spec"]["dnsNames"]
        self.assertLessEqual(set(hosts), set(names))
        for name in ("startup", "readiness"):
            self.assertEqual(etcd.container[f"{name}Probe"]["httpGet"], {"path": "/health", "port": "metrics"})

    def test_only_routers_and_members_reach_etcd(self):
        manifests = render("overlays/ha")
        policies, etcd = manifests.by_kind["NetworkPolicy"], manifests.etcd
        for client in manifests.all_workloads:
            for name in ("client", "peer", "metrics"):
                expected = client.role == "etcd" and name != "metrics" or (client.role, name) == ("router", "client")
                with self.subTest(client=client.name, port=name):
                    found = network_policies.allowed(policies, pod_of(client), pod_of(etcd), etcd.port(name))
                    self.assertEqual(found, expected)
        for client in manifests.workloads:
            self.assertFalse(network_policies.allowed(policies, pod_of(etcd), pod_of(client), client.port("grpc")))

    def test_images_are_built_with_every_library(self):
        """Images are built elsewhere: at least the libraries are those that builds on this machine need."""
        script = (K8S.parent / "deploy" / "install.sh").read_text()
        listed = re.search(r"# Libraries\.\n(.*?)# Tests", script, re.DOTALL)[1].split()
        dockerfile = (K8S.parent / "deploy" / "docker" / "Dockerfile").read_text().split()
        self.assertIn("libsqlite3-dev", listed)
        self.assertEqual([name for name in listed if name not in dockerfile], [])

    def test_prometheus_gives_the_labels_that_queries_ask_for(self):
        jobs = yaml.safe_load((K8S / "prometheus" / "scrape.yaml").read_text())
        labels = {}
        for job in jobs:
            keep, *others = job["relabel_configs"]
            role, port = keep["regex"].split(";")
            self.assertEqual(job["job_name"], f"tandem-{role}")
            labels[role] = {rule["target_label"] for rule in others if "target_label" in rule}
            self.assertIn("__meta_kubernetes_pod_phase", [name for rule in others for name in rule["source_labels"]])
            for workload in render("overlays/ha").workloads:
                if workload.role == role:
                    self.assertEqual(workload.port(port), METRICS_PORTS[role])
        self.assertEqual(set(labels), set(METRICS_PORTS))
        for scaler in render("overlays/ha").by_kind["ScaledObject"]:
            role = "drafter" if scaler["metadata"]["name"].startswith("drafter") else "verifier"
            query = scaler["spec"]["triggers"][0]["metadata"]["query"]
            self.assertLessEqual(set(re.findall(r"(\w+)=", query)), labels[role])

    def test_the_gateway_routes_to_the_routers(self):
        gateway = render("gateway")
        (route,) = gateway.by_kind["GRPCRoute"]
        listeners = gateway.by_kind["Gateway"][0]["spec"]["listeners"]
        self.assertEqual(route["spec"]["hostnames"], [listeners[0]["hostname"]])
        (rule,) = route["spec"]["rules"]
        (backend,) = rule["backendRefs"]
        service = render("overlays/ha").get("Service", backend["name"])
        self.assertEqual(backend["port"], service["spec"]["ports"][0]["port"])
        protos = "".join(path.read_text() for path in (K8S.parent / "proto" / "tandem" / "v1").glob("*.proto"))
        for match in rule["matches"]:
            self.assertIn(f"service {match['method']['service'].rpartition('.')[2]} {{", protos)

    def test_inference_pools_are_of_routers(self):
        manifests = render("overlays/inference")
        router = next(w for w in manifests.workloads if w.role == "router")
        self.assertEqual(router.flag("http-listen"), f"0.0.0.0:{router.port('http')}")
        ports = {}
        for pool in manifests.by_kind["InferencePool"]:
            spec = pool["spec"]
            self.assertEqual([w.name for w in manifests.workloads if selected(spec["selector"], w.labels)], ["router"])
            (port,) = spec["targetPorts"]
            ports[pool["metadata"]["name"]] = port["number"], spec.get("appProtocol", "http")
        self.assertEqual(sorted(ports.values()), [(7001, "kubernetes.io/h2c"), (router.port("http"), "http")])
        (route,) = manifests.by_kind["HTTPRoute"]
        (listener,) = manifests.by_kind["Gateway"][0]["spec"]["listeners"]
        self.assertEqual(route["spec"]["hostnames"], [listener["hostname"]])
        self.assertEqual(route["spec"]["parentRefs"], [{"name": "inference", "sectionName": listener["name"]}])
        found = {}
        for rule in route["spec"]["rules"]:
            (match,), (backend,) = rule["matches"], rule["backendRefs"]
            self.assertEqual((backend["group"], backend["kind"]), ("inference.networking.k8s.io", "InferencePool"))
            found[match["path"]["value"]] = ports[backend["name"]][0]
        proto = (K8S.parent / "proto" / "vllm" / "vllm_engine.proto").read_text()
        service = f"/{re.search('^package (.+);', proto, re.M)[1]}.{re.search('^service (.+) {', proto, re.M)[1]}"
        self.assertEqual(found, {"/v1": router.port("http"), service: router.port("grpc")})
        # Who may reach what is new: clients the HTTP port, and pickers the metrics.
        policies = manifests.by_kind["NetworkPolicy"]
        picker = {"app.kubernetes.io/component": "endpoint-picker"}
        proxy = {"gateway.networking.k8s.io/gateway-name": "inference"}
        for labels, namespace, http, metrics in (
            (picker, NAMESPACE, True, True),
            (proxy, NAMESPACE, True, False),
            ({}, "default", True, False),
            ({"app": "other"}, NAMESPACE, False, False),
        ):
            pod = {"namespace": namespace, "labels": labels, "ports": {}}
            for port, expected in (("http", http), ("metrics", metrics)):
                with self.subTest(labels=labels, port=port):
                    may = network_policies.allowed(policies, pod, pod_of(router), router.port(port))
                    self.assertEqual(may, expected)

    def test_the_learning_component_fits_the_base(self):
        manifests = render("../tests/k8s/learning")
        for item in manifests.objects:
            with self.subTest(kind=item["kind"], name=item["metadata"]["name"]):
                is_valid(item)
        claims = set(manifests.names("PersistentVolumeClaim"))
        router = next(workload for workload in manifests.workloads if workload.role == "router")
        drafter = next(workload for workload in manifests.workloads if workload.name == "drafter-learned")
        pod = manifests.get("CronJob", "learning")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        (job,) = pod["containers"]
        for volumes in (router.pod["volumes"], drafter.pod["volumes"], pod["volumes"]):
            claimed = {v["persistentVolumeClaim"]["claimName"] for v in volumes if "persistentVolumeClaim" in v}
            self.assertLessEqual(claimed, claims)
        mounted = {mount["mountPath"]: mount for mount in router.container["volumeMounts"]}
        self.assertIn(router.flag("spool-keys"), mounted)
        self.assertEqual(router.flag("spool"), "/spool/$(SPOOL_POD_NAME)")
        self.assertFalse(mounted["/spool"].get("readOnly", False))
        self.assertEqual(drafter.flag("models-folder"), "/learned")
        # What the job is told is what the programs take, and where things are.
        script = job["args"][0]
        programs = [(REPOSITORY / "deploy" / "learning" / name).read_text() for name in ("tandem-learn", "tandem-trainer")]
        for flag in re.findall(r"--[a-z-]+[a-z]", script):
            self.assertTrue(any(f'add("{flag}"' in program for program in programs), flag)
        paths = {mount["mountPath"] for mount in job["volumeMounts"]}
        for path in ("/spool", "/spool-keys", "/learned", "/models"):
            self.assertIn(path, paths)
            self.assertIn(path, script)
        # It reaches routers and drafters, and they let it in.
        for name in ("router", "drafter-learned"):
            self.assertIn(f"{name}.tandem.svc:", script)
        policy = manifests.get("NetworkPolicy", "drafter-learned")["spec"]
        self.assertTrue(selected(policy["podSelector"], drafter.labels))
        context = job["securityContext"]
        self.assertEqual((context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]), (False, True))
        self.assertTrue(pod["securityContext"]["runAsNonRoot"])

    def test_grace_nodes_give_whole_cores(self):
        kubelet = yaml.safe_load(pathlib.Path(K8S / "overlays" / "grace" / "kubelet.yaml").read_text())
        self.assertEqual(kubelet["cpuManagerPolicy"], "static")
        for workload in render("overlays/grace").workloads:
            if workload.role != "drafter":
                continue
            resources = workload.container["resources"]
            self.assertEqual(workload.pod["nodeSelector"], {"kubernetes.io/arch": "arm64"})
            # What makes a pod's quality of service "guaranteed", and the number of its CPUs whole.
            self.assertEqual(resources["requests"], resources["limits"])
            self.assertGreater(int(resources["limits"]["cpu"]), int(workload.flag("threads")))
