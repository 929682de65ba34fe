"""The kinds in k8s/ that are not Kubernetes' own, as JSON schemas: what their published definitions (cert-manager 1.16,
KEDA 2.16, Gateway API 1.2 and its inference extension 1.0) say of the fields that are used here. Any other field is an error."""

import jsonschema

_TEXT = {"type": "string", "minLength": 1}
_NAME = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"}
_PORT_NUMBER = {"type": "integer", "minimum": 1, "maximum": 65535}
_DURATION = {"type": "string", "pattern": r"^(\d+h)?(\d+m)?(\d+s)?$", "minLength": 2}
_COUNT = {"type": "integer", "minimum": 0}


def _object(required, **properties):
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


def _list(items):
    return {"type": "array", "items": items, "minItems": 1}


def _kind(api_version, spec):
    metadata = _object(
        ["name", "namespace"],
        name=_NAME,
        namespace=_NAME,
        labels={"type": "object"},
        annotations={"type": "object"},
    )
    return _object(
        ["apiVersion", "kind", "metadata", "spec"],
        apiVersion={"const": api_version},
        kind={"type": "string"},
        metadata=metadata,
        spec=spec,
    )


_USAGES = ["digital signature", "key encipherment", "server auth", "client auth"]
_CERTIFICATE = _object(
    ["secretName", "issuerRef"],
    isCA={"type": "boolean"},
    commonName={"type": "string", "maxLength": 64},
    secretName=_NAME,
    duration=_DURATION,
    renewBefore=_DURATION,
    privateKey=_object(
        [],
        algorithm={"enum": ["RSA", "ECDSA", "Ed25519"]},
        size={"enum": [256, 384, 521, 2048, 4096, 8192]},
        rotationPolicy={"enum": ["Never", "Always"]},
    ),
    usages=_list({"enum": _USAGES}),
    dnsNames=_list({"type": "string", "pattern": r"^(\*\.)?[a-z0-9.-]+$"}),
    uris=_list({"type": "string", "format": "uri"}),
    issuerRef=_object(["name"], kind={"enum": ["Issuer", "ClusterIssuer"]}, name=_NAME),
)
_ISSUER = {
    "oneOf": [
        _object(["selfSigned"], selfSigned={"type": "object", "maxProperties": 0}),
        _object(["ca"], ca=_object(["secretName"], secretName=_NAME)),
    ]
}
_SCALED_OBJECT = _object(
    ["scaleTargetRef", "triggers"],
    scaleTargetRef=_object(["name"], apiVersion=_TEXT, kind=_TEXT, name=_NAME),
    minReplicaCount=_COUNT,
    maxReplicaCount=_COUNT,
    pollingInterval=_COUNT,
    fallback=_object(
        ["failureThreshold", "replicas"],
        failureThreshold=_COUNT,
        replicas=_COUNT,
        behavior={
            "enum": ["static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"]
        },
    ),
    advanced=_object(
        [],
        horizontalPodAutoscalerConfig=_object(
            [],
            behavior=_object(
                [],
                scaleDown=_object(
                    [],
                    stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
                    policies=_list(
                        _object(
                            ["type", "value", "periodSeconds"],
                            type={"enum": ["Pods", "Percent"]},
                            value={"type": "integer", "minimum": 1},
                            periodSeconds={"type": "integer", "minimum": 1, "maximum": 1800},
                        )
                    ),
                ),
            ),
        ),
    ),
    triggers=_list(
        _object(
            ["type", "metadata"],
            type={"const": "prometheus"},
            # All values are text.
            metadata=_object(
                ["serverAddress", "query", "threshold"],
                serverAddress={"type": "string", "pattern": "^https?://"},
                query=_TEXT,
                threshold={"type": "string", "pattern": r"^\d+(\.\d+)?$"},
            ),
        )
    ),
)
_GATEWAY = _object(
    ["gatewayClassName", "listeners"],
    gatewayClassName=_NAME,
    listeners=_list(
        _object(
            ["name", "port", "protocol"],
            name=_NAME,
            hostname=_NAME,
            port=_PORT_NUMBER,
            protocol={"enum": ["HTTP", "HTTPS", "TLS", "TCP", "UDP"]},
            tls=_object(
                [],
                mode={"enum": ["Terminate", "Passthrough"]},
                certificateRefs=_list(_object(["name"], kind={"const": "Secret"}, name=_NAME)),
            ),
        )
    ),
)


def _route(**rule):
    """A route with rules of these fields."""
    return _object(
        ["parentRefs", "rules"],
        parentRefs=_list(_object(["name"], name=_NAME, sectionName=_NAME)),
        hostnames=_list(_NAME),
        rules=_list(_object(["backendRefs"], **rule)),
    )


_GRPC_ROUTE = _route(
    matches=_list(_object(["method"], method=_object([], service=_TEXT, method=_TEXT))),
    backendRefs=_list(_object(["name", "port"], name=_NAME, port=_PORT_NUMBER)),
)
_HTTP_ROUTE = _route(
    matches=_list(
        _object(
            ["path"],
            path=_object(
                ["type", "value"],
                type={"enum": ["Exact", "PathPrefix", "RegularExpression"]},
                value={"type": "string", "pattern": "^/"},
            ),
        )
    ),
    backendRefs=_list(
        _object(
            ["name"],
            group={"type": "string", "pattern": r"^([a-z0-9.-]+)?$"},
            kind={"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9-]*$"},
            name=_NAME,
            port=_PORT_NUMBER,
        )
    ),
    timeouts=_object([], request=_DURATION, backendRequest=_DURATION),
)
_INFERENCE_POOL = _object(
    ["selector", "targetPorts", "endpointPickerRef"],
    selector=_object(["matchLabels"], matchLabels={"type": "object", "minProperties": 1}),
    targetPorts={**_list(_object(["number"], number=_PORT_NUMBER)), "maxItems": 8, "uniqueItems": True},
    appProtocol={"enum": ["http", "kubernetes.io/h2c"]},
    endpointPickerRef=_object(
        ["name", "port"],
        kind={"const": "Service"},
        name=_NAME,
        port=_object(["number"], number=_PORT_NUMBER),
        failureMode={"enum": ["FailOpen", "FailClose"]},
    ),
)

SCHEMAS = {
    ("cert-manager.io/v1", "Certificate"): _CERTIFICATE,
    ("cert-manager.io/v1", "Issuer"): _ISSUER,
    ("keda.sh/v1alpha1", "ScaledObject"): _SCALED_OBJECT,
    ("gateway.networking.k8s.io/v1", "Gateway"): _GATEWAY,
    ("gateway.networking.k8s.io/v1", "GRPCRoute"): _GRPC_ROUTE,
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): _HTTP_ROUTE,
    ("inference.networking.k8s.io/v1", "InferencePool"): _INFERENCE_POOL,
}


def is_custom(item):
    """Whether `item` is not of Kubernetes' own groups, which have no dot or end in k8s.io but for the Gateway API's."""
    group = item["apiVersion"].rpartition("/")[0]
    return "." in group and (not group.endswith(".k8s.io") or group.startswith(("gateway.", "inference.")))


def validate(item):
    """jsonschema.ValidationError when the custom resource is not what its kind allows; KeyError for a kind unknown here."""
    key = (item["apiVersion"], item["kind"])
    jsonschema.validate(item, _kind(key[0], SCHEMAS[key]))
