"""What the NetworkPolicies of rendered manifests let through, by the rules of the Kubernetes API."""

from manifests import selected


def _selects(policy, pod, direction):
    spec = policy["spec"]
    return (
        policy["metadata"]["namespace"] == pod["namespace"]
        and direction in spec["policyTypes"]
        and selected(spec["podSelector"], pod["labels"])
    )


def _is_peer(policy, peers, pod):
    """No list of peers: everybody."""
    if not peers:
        return True
    for peer in peers:
        if set(peer) == {"ipBlock"}:
            continue  # No pod has such an address.
        if set(peer) - {"podSelector", "namespaceSelector"}:
            raise ValueError(f"peers with {set(peer)} are not understood here")
        if "namespaceSelector" in peer:
            # Every namespace has its name as a label.
            namespace = {"kubernetes.io/metadata.name": pod["namespace"]}
            if not selected(peer["namespaceSelector"], namespace):
                continue
        elif policy["metadata"]["namespace"] != pod["namespace"]:
            continue
        if selected(peer.get("podSelector", {}), pod["labels"]):
            return True
    return False


def _is_port(ports, server, number, protocol):
    """No list of ports: all. Named ports are those of the pod that is called."""
    if not ports:
        return True
    for port in ports:
        wanted = port.get("port")
        if isinstance(wanted, str):
            wanted = server["ports"].get(wanted)
        if wanted in (None, number) and port.get("protocol", "TCP") == protocol:
            return True
    return False


def allowed(policies, client, server, number, protocol="TCP"):
    """Whether `client` may call port `number` of `server`.

    Both are {"namespace": name, "labels": {...}, "ports": {name: number}}.
    """
    for pod, other, direction, peers in ((server, client, "Ingress", "from"), (client, server, "Egress", "to")):
        applying = [policy for policy in policies if _selects(policy, pod, direction)]
        if not applying:
            continue
        if not any(
            _is_peer(policy, rule.get(peers), other) and _is_port(rule.get("ports"), server, number, protocol)
            for policy in applying
            for rule in policy["spec"].get(direction.lower(), [])
        ):
            return False
    return True
