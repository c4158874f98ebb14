# SPDX-License-Identifier: Apache-2.0
"""pod.py daemon|engine MANIFESTS FOLDER [ARGUMENT...]: a Pod for podman of what Kubernetes gets.

The Pod is the template of the DaemonSet or Deployment in MANIFESTS, with its ConfigMap. What is
changed is what a single small machine has not: GPUs, other nodes, gigabytes. Folders of the host
lie below FOLDER. hostPID goes, so that daemon and engine are in PID namespaces of their own. The
ARGUMENTs are what the engine runs.
"""

import pathlib
import sys
from typing import Any

import yaml

ARENAS = "64MiB"
SMALLER = {"--set=nvme.bytes=512GiB": "--set=nvme.bytes=128MiB"}
NODE = ("affinity", "tolerations", "priorityClassName", "hostPID", "enableServiceLinks")


def read(path: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(pathlib.Path(path).read_text())
            if document]


def find(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(document for document in documents if document["kind"] == kind)


def shrink_container(container: dict[str, Any]) -> None:
    for key in ("startupProbe", "livenessProbe", "readinessProbe", "ports"):
        # podman would look for curl in the image, and publish ports.
        container.pop(key, None)
    container["imagePullPolicy"] = "Never"
    container["resources"] = {"limits": {"memory": "512Mi"}}


def make_pod(template: dict[str, Any], name: str, folder: str) -> dict[str, Any]:
    spec = {key: value for key, value in template["spec"].items() if key not in NODE}
    for container in spec["containers"] + spec.get("initContainers", []):
        shrink_container(container)
    for volume in spec["volumes"]:
        if "hostPath" in volume:
            volume["hostPath"]["path"] = folder + volume["hostPath"]["path"]
    spec["restartPolicy"] = "Never"
    # podman knows the profile of a container by this older name alone, and no folders in it.
    annotations = {
        f"container.seccomp.security.alpha.kubernetes.io/{container['name']}":
            "localhost/" + pathlib.Path(
                container["securityContext"]["seccompProfile"]["localhostProfile"]).name
        for container in spec["containers"]
        if "seccompProfile" in container.get("securityContext", {})}
    return {"apiVersion": "v1", "kind": "Pod", "spec": spec,
            "metadata": {"name": name, "labels": {"app": name}, "annotations": annotations}}


def make_daemon(documents: list[dict[str, Any]], folder: str) -> list[dict[str, Any]]:
    configuration = find(documents, "ConfigMap")
    text = configuration["data"]["kvtierd.conf"]
    if "bytes: 32GiB" not in text:
        raise SystemExit("the ConfigMap has no host.bytes of 32GiB to make smaller")
    configuration["data"]["kvtierd.conf"] = text.replace("bytes: 32GiB", f"bytes: {ARENAS}")
    pod = make_pod(find(documents, "DaemonSet")["spec"]["template"], "kvtierd", folder)
    container = pod["spec"]["containers"][0]
    container["args"] = [SMALLER.get(argument, argument) for argument in container["args"]]
    container["args"].append("--set=host.piece_bytes=16MiB")
    for one in pod["spec"]["initContainers"] + [container]:
        one["image"] = "localhost/kvtier:test"
    return [configuration, pod]


def make_engine(documents: list[dict[str, Any]], folder: str,
                command: list[str]) -> list[dict[str, Any]]:
    pod = make_pod(find(documents, "Deployment")["spec"]["template"], "engine", folder)
    container = pod["spec"]["containers"][0]
    container |= {"image": "localhost/kvtier-engine:test", "command": command, "args": []}
    # As the user of any image; this podman does not know supplementalGroups.
    group = pod["spec"].pop("securityContext")["supplementalGroups"][0]
    container["securityContext"] = {"runAsUser": 1000, "runAsGroup": group}
    return [pod]


def main() -> None:
    kind, manifests, folder, *command = sys.argv[1:]
    documents = read(manifests)
    made = make_daemon(documents, folder) if kind == "daemon" else \
        make_engine(documents, folder, command)
    yaml.safe_dump_all(made, sys.stdout, sort_keys=False)


main()
