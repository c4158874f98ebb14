# SPDX-License-Identifier: Apache-2.0
"""manifests.py RENDERED: what deploy/kubernetes promises, of each overlay rendered into RENDERED.

RENDERED has OVERLAY.yaml for each, "base" among them. Prints "passed NAME" or "FAILED NAME" with
what is wrong.
"""

import copy
import json
import pathlib
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

import kubernetes.client
import kubernetes_validate
import yaml

DEPLOY = pathlib.Path(__file__).parents[3] / "deploy"
GIB = 1 << 30
IO_URING = {"io_uring_setup", "io_uring_enter", "io_uring_register"}
VERSIONS = ("1.29", "1.33", kubernetes_validate.latest_version())
RENDERED = {path.stem: [document for document in yaml.safe_load_all(path.read_text()) if document]
            for path in sorted(pathlib.Path(sys.argv[1]).glob("*.yaml"))}
EXAMPLE = list(yaml.safe_load_all((DEPLOY / "kubernetes/examples/vllm.yaml").read_text()))


def find(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(document for document in documents if document["kind"] == kind)


def pod_of(overlay: str) -> dict[str, Any]:
    spec: dict[str, Any] = find(RENDERED[overlay], "DaemonSet")["spec"]["template"]["spec"]
    return spec


def size(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([KMGT]i)B?", str(text)).groups()  # type: ignore[union-attr]
    return int(number) << {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}[unit]


def configuration_of(overlay: str) -> dict[str, str]:
    """Keys such as host.bytes, of the ConfigMap and then of the command line."""
    text = find(RENDERED[overlay], "ConfigMap")["data"]["kvtierd.conf"]
    keys = {f"{section}.{key}": str(value) for section, values in yaml.safe_load(text).items()
            for key, value in values.items()}
    for argument in pod_of(overlay)["containers"][0]["args"]:
        if argument.startswith("--set="):
            key, value = argument.removeprefix("--set=").split("=", 1)
            keys[key] = value
    return keys


def is_of_the_api(document: dict[str, Any]) -> bool:
    return not str(document["apiVersion"]).startswith("monitoring.coreos.com/")


def validate(document: dict[str, Any]) -> None:
    for version in VERSIONS:
        kubernetes_validate.validate(document, version, strict=True)
    group, _, version = document["apiVersion"].rpartition("/")
    walk(document, version[0].upper() + version[1:] + document["kind"])


def walk(value: Any, kind: str) -> None:
    """Against the classes of the official client: fields, types, and what is required."""
    if match := re.fullmatch(r"list\[(.*)\]", kind):
        for item in value:
            walk(item, match[1])
    elif match := re.fullmatch(r"dict\(str, (.*)\)", kind):
        for item in value.values():
            walk(item, match[1])
    elif hasattr(kubernetes.client, kind):
        walk_fields(value, getattr(kubernetes.client, kind), kind)
    elif kind in ("str", "bool", "int"):
        if type(value).__name__ != kind:
            raise ValueError(f"{value!r} is no {kind}")


def walk_fields(value: dict[str, Any], model: Any, kind: str) -> None:
    names = {there: here for here, there in model.attribute_map.items()}
    fields = {}
    for name, field in value.items():
        if name not in names:
            raise ValueError(f"{kind} has no field {name}")
        walk(field, model.openapi_types[names[name]])
        fields[names[name]] = field
    model(**fields)  # raises when one that is required is missing


def objects_are_valid() -> None:
    for overlay, documents in [*RENDERED.items(), ("vllm.yaml", EXAMPLE)]:
        for document in filter(is_of_the_api, documents):
            try:
                validate(document)
            except Exception as error:
                raise AssertionError(f"{overlay}, {document['kind']}: {error}") from error


def mistakes_are_found() -> None:
    def unknown_field(pod: dict[str, Any]) -> None:
        pod["containers"][0]["readinessProb"] = {}

    def wrong_type(pod: dict[str, Any]) -> None:
        pod["terminationGracePeriodSeconds"] = "60"

    def missing_name(pod: dict[str, Any]) -> None:
        del pod["volumes"][0]["name"]

    checkers: list[Callable[[dict[str, Any]], object]] = [
        lambda document: kubernetes_validate.validate(document, VERSIONS[0], strict=True),
        lambda document: walk(document, "V1DaemonSet")]
    for mistake in (unknown_field, wrong_type, missing_name):
        for checker in checkers:
            document = copy.deepcopy(find(RENDERED["base"], "DaemonSet"))
            mistake(document["spec"]["template"]["spec"])
            try:
                checker(document)
            except Exception:
                continue
            raise AssertionError(f"{mistake.__name__} is not found")


def limits_include_the_arenas() -> None:
    for overlay in RENDERED:
        resources = pod_of(overlay)["containers"][0]["resources"]
        keys, limits = configuration_of(overlay), resources["limits"]
        if "hugepages-2Mi" in limits:
            assert keys["host.huge_pages"] == "2MiB", overlay
            assert size(limits["hugepages-2Mi"]) >= size(keys["host.bytes"]), overlay
            assert size(limits["memory"]) >= 4 * GIB, overlay
            assert resources["requests"]["hugepages-2Mi"] == limits["hugepages-2Mi"], overlay
        else:
            assert size(limits["memory"]) >= size(keys["host.bytes"]) + 4 * GIB, overlay
        assert resources["requests"]["memory"] == limits["memory"], overlay
        assert "cpu" not in limits, overlay


def drains_fit_the_grace() -> None:
    for overlay in RENDERED:
        pool = 10 if "pool.backend" in configuration_of(overlay) else 0
        drain = int(configuration_of(overlay)["drain.seconds"])
        assert pod_of(overlay)["terminationGracePeriodSeconds"] >= drain + pool + 10, overlay


def keys_are_the_daemons() -> None:
    known = yaml.safe_load((DEPLOY / "kvtierd.conf").read_text())
    for overlay in RENDERED:
        for name in configuration_of(overlay):
            section, key = name.split(".")
            assert key in known[section], f"{overlay}: {name}"


def nodes_are_replaced_one_by_one() -> None:
    strategy = find(RENDERED["base"], "DaemonSet")["spec"]["updateStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}, strategy


def daemons_may_do_little() -> None:
    for overlay in RENDERED:
        pod, container = pod_of(overlay), pod_of(overlay)["containers"][0]
        context = container["securityContext"]
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"]
        assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}, overlay
        assert context["seccompProfile"]["type"] == "Localhost", overlay
        assert "privileged" not in context and not pod["automountServiceAccountToken"], overlay


def probes_ask_the_metrics_port() -> None:
    for overlay in RENDERED:
        container = pod_of(overlay)["containers"][0]
        port = next(p["containerPort"] for p in container["ports"] if p["name"] == "metrics")
        assert configuration_of(overlay)["metrics.listen"].endswith(f":{port}"), overlay
        paths = [container[f"{probe}Probe"]["httpGet"] for probe in
                 ("startup", "liveness", "readiness")]
        assert [p["path"] for p in paths] == ["/healthz", "/healthz", "/readyz"], overlay
        assert all(p["port"] == "metrics" for p in paths), overlay


def peers_are_found_by_the_service() -> None:
    for overlay in ("rdma", "everything"):
        service = find(RENDERED[overlay], "Service")
        labels = find(RENDERED[overlay], "DaemonSet")["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"].items() <= \
            labels.items(), overlay
        name = "{name}.{namespace}.svc".format(**service["metadata"])
        assert configuration_of(overlay)["rdma.peers"] == name, overlay
        assert pod_of(overlay)["hostNetwork"], overlay


def monitors_scrape_a_port_that_is_there() -> None:
    monitor = find(RENDERED["everything"], "PodMonitor")
    template = find(RENDERED["everything"], "DaemonSet")["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= \
        template["metadata"]["labels"].items()
    assert monitor["metadata"]["namespace"] == "kvtier"
    names = [port["name"] for port in template["spec"]["containers"][0]["ports"]]
    assert [end["port"] in names for end in monitor["spec"]["podMetricsEndpoints"]] == [True]
    # What Prometheus would call the job without and with the relabelings: the rules know both.
    rules = (DEPLOY / "prometheus/kvtier.rules.yml").read_text()
    jobs = re.search(r'up\{job=~"([^"]+)"\}', rules)
    assert jobs, "no rule asks whether a daemon is up"
    labels = {rule["targetLabel"]: rule.get("replacement")
              for rule in monitor["spec"]["podMetricsEndpoints"][0]["relabelings"]
              if "targetLabel" in rule}
    for job in (f"{monitor['metadata']['namespace']}/{monitor['metadata']['name']}", labels["job"]):
        assert re.fullmatch(jobs[1], job), job


def overlays_of_everything_have_every_part() -> None:
    one = configuration_of("everything")
    for overlay in RENDERED:
        assert configuration_of(overlay).items() <= one.items(), overlay
        volumes = [volume["name"] for volume in pod_of(overlay)["volumes"]]
        assert set(volumes) <= {volume["name"] for volume in pod_of("everything")["volumes"]}


def examples_reach_the_socket() -> None:
    pod = find(EXAMPLE, "Deployment")["spec"]["template"]["spec"]
    volume = next(v for v in pod["volumes"] if v["name"] == "kvtier")
    socket = pathlib.Path(configuration_of("base")["socket.path"])
    theirs = next(v for v in pod_of("base")["volumes"] if v["name"] == "socket")
    assert volume["hostPath"]["path"] == theirs["hostPath"]["path"] == str(socket.parent)
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts["kvtier"] == str(socket.parent)
    assert pod_of("base")["securityContext"]["runAsGroup"] in \
        pod["securityContext"]["supplementalGroups"]
    assert pod["hostPID"] and pod_of("base")["hostPID"]
    arguments = pod["containers"][0]["args"]
    connector = json.loads(arguments[arguments.index("--kv-transfer-config") + 1])
    assert connector["kv_connector_module_path"] == "kvtier.vllm"
    source = pathlib.Path(DEPLOY.parent, "client/python/kvtier/vllm/__init__.py").read_text()
    assert connector["kv_connector"] in source


def profiles_add_io_uring_to_the_default_and_nothing_else() -> None:
    default = json.loads(pathlib.Path("/usr/share/containers/seccomp.json").read_text())
    profile = json.loads((DEPLOY / "seccomp.json").read_text())
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    allowed = {name for rule in default["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW"
               and not rule.get("includes", {}).get("caps") for name in rule["names"]}
    ours = {name for rule in profile["syscalls"] for name in rule["names"]}
    assert ours - allowed - {"socket"} == IO_URING, ours - allowed
    assert not ours & {"mount", "unshare", "setns", "ptrace", "bpf", "keyctl", "clone3"}


CLAIMS = [objects_are_valid, mistakes_are_found, limits_include_the_arenas, drains_fit_the_grace,
          keys_are_the_daemons, nodes_are_replaced_one_by_one, daemons_may_do_little,
          probes_ask_the_metrics_port, peers_are_found_by_the_service,
          monitors_scrape_a_port_that_is_there, overlays_of_everything_have_every_part,
          examples_reach_the_socket, profiles_add_io_uring_to_the_default_and_nothing_else]

for claim in CLAIMS:
    try:
        claim()
        print(f"passed {claim.__name__}")
    except Exception:
        print(f"FAILED {claim.__name__}\n{traceback.format_exc(limit=-1)}")
