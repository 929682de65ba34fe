"""Commands of rendered manifests, made to run on this machine: paths of volumes become folders here."""

import pathlib
import subprocess
import tempfile

import grpc
import yaml

from manifests import REPOSITORY

DEMO_MODELS = REPOSITORY / "deploy" / "demo-models"
TLS_FOLDER = "/run/tandem/tls"
CONFIG_FOLDER = "/etc/tandem"
SOCKETS_FOLDER = "/run/tandem/sockets"


def lay_out_models(folder):
    """Runs what the init container of cpu-demo runs."""
    subprocess.run(
        [REPOSITORY / "deploy" / "docker" / "tandem-demo-models", folder],
        env={"PATH": "/usr/bin:/bin", "TANDEM_DEMO_MODELS": str(DEMO_MODELS)},
        check=True,
    )


def issue_certificates(certificates, folder):
    """For every Certificate that names a role or a CA: ca.crt, tls.crt and tls.key in folder/SECRET, as cert-manager
    would fill the secret."""
    folder.mkdir(parents=True, exist_ok=True)
    ca = ["-days", "2", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    _openssl(
        ["req", "-x509", *ca, "-subj", "/CN=Tandem CA", "-keyout", folder / "ca.key", "-out", folder / "ca.crt"]
    )
    for certificate in certificates:
        spec = certificate["spec"]
        if spec.get("isCA"):
            continue
        secret = folder / spec["secretName"]
        secret.mkdir()
        names = [f"DNS:{name}" for name in spec.get("dnsNames", [])]
        names += [f"URI:{uri}" for uri in spec.get("uris", [])]
        extensions = secret / "extensions"
        extensions.write_text(
            f"subjectAltName=critical,{','.join(names)}\nkeyUsage=digitalSignature,keyEncipherment\n"
            "extendedKeyUsage=serverAuth,clientAuth\n"
        )
        request = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/"]
        _openssl(["req", *request, "-keyout", secret / "tls.key", "-out", secret / "request"])
        signed = ["-CA", folder / "ca.crt", "-CAkey", folder / "ca.key", "-CAcreateserial", "-days", "2"]
        _openssl(
            ["x509", "-req", "-in", secret / "request", *signed, "-extfile", extensions, "-out", secret / "tls.crt"]
        )
        (secret / "ca.crt").write_bytes((folder / "ca.crt").read_bytes())


def _openssl(arguments):
    run = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise RuntimeError(f"openssl {arguments[0]}: {run.stderr}")


class Machine:
    """Folders that stand for the volumes of one overlay's pods."""

    def __init__(self, manifests, folder):
        """Fills `folder` with models, the router's configuration and certificates."""
        self.manifests = manifests
        self.folder = pathlib.Path(folder)
        self.models = self.folder / "models"
        lay_out_models(self.models)
        issue_certificates(manifests.by_kind["Certificate"], self.folder / "tls")
        # Somewhere short: the path of a socket is bounded.
        self.sockets = tempfile.TemporaryDirectory(prefix="tandem-")

    def close(self):
        self.sockets.cleanup()

    def command(self, workload, bin_dir, **listen):
        """The command of the workload's container. listen="127.0.0.1:0" and the like replace addresses."""
        secrets = [v["secret"]["secretName"] for v in workload.pod["volumes"] if "secret" in v]
        command = [str(bin_dir / workload.command[0])]
        for argument in workload.command[1:]:
            name = argument.removeprefix("--").split("=")[0]
            if name.replace("-", "_") in listen:
                argument = f"--{name}={listen[name.replace('-', '_')]}"
            argument = argument.replace("/models/", f"{self.models}/")
            if secrets:
                argument = argument.replace(TLS_FOLDER, str(self.folder / "tls" / secrets[0]))
            argument = argument.replace(CONFIG_FOLDER, str(self.folder / "config"))
            argument = argument.replace(SOCKETS_FOLDER, f"{self.sockets.name}/sockets")
            command.append(argument)
        return command

    def write_config(self, endpoints=None):
        """The router's configuration; `endpoints` maps the names of Services to addresses here, and verifiers that
        it lacks are left out."""
        config = yaml.safe_load(self.manifests.router_config)
        for model in config["models"]:
            model["folder"] = model["folder"].replace("/models/", f"{self.models}/")
            if endpoints is not None:
                model["verifiers"] = [endpoints[v] for v in model["verifiers"] if v in endpoints]
        if endpoints is not None:
            for drafter in config["drafters"]:
                drafter["endpoint"] = endpoints[drafter["endpoint"].removeprefix("dns:///")]
        for path, content in (
            ("config/router.yaml", yaml.safe_dump(config)),
            # Where the replacement of CONFIG_FOLDER puts it.
            ("config-tenants/tenants.yaml", self.manifests.router_tenants),
        ):
            file = self.folder / path
            file.parent.mkdir(exist_ok=True)
            file.write_text(content)


def health(address, service="", timeout=5.0):
    """grpc.health.v1's answer there, as a kubelet asks for it: "SERVING", "NOT_SERVING", or why there is none."""
    name = service.encode()
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        # The two messages are one field each, which spares the test a package.
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        try:
            reply = check(b"\x0a" + bytes([len(name)]) + name if name else b"", timeout=timeout)
        except grpc.RpcError as error:
            return error.code().name
    return {b"\x08\x01": "SERVING", b"\x08\x02": "NOT_SERVING"}.get(reply, repr(reply))
