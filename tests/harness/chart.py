"""The chart rendered by real helm, as objects."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.harness.tools import ROOT, find_tool

CHART: Final = ROOT / "deploy/helm/cursus"
KUBERNETES: Final = "1.36.0"
"""Said to helm: one that was built by `go install` believes in a far older Kubernetes otherwise."""

Object = dict[str, Any]


class HelmRefused(AssertionError):
    """helm did not render; what it said is the message."""


def why_no_helm() -> str | None:
    return None if find_tool("helm") else "needs helm (`make tools-helm` builds it with go)"


def helm(*arguments: str, environ: Mapping[str, str] | None = None) -> str:
    """Raises HelmRefused."""
    program = find_tool("helm")
    assert program is not None, why_no_helm()
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=600, env=environ)
    if done.returncode != 0:
        raise HelmRefused(done.stderr + done.stdout)
    return done.stdout


def render(*arguments: str, release: str = "cursus", chart: Path = CHART) -> str:
    """Everything the chart makes, as one stream of YAML."""
    place = ("--namespace", "messaging", "--kube-version", KUBERNETES)
    return helm("template", release, str(chart), *place, *arguments)


class Rendered:
    """The objects of one rendering, by kind and name."""

    def __init__(self, text: str) -> None:
        self.objects: list[Object] = [found for found in yaml.safe_load_all(text) if found]

    def get(self, kind: str, name: str) -> Object:
        return next(one for one in self.objects if (one["kind"], one["metadata"]["name"]) == (kind, name))

    def names(self, kind: str) -> set[str]:
        return {one["metadata"]["name"] for one in self.objects if one["kind"] == kind}

    def pods(self) -> Iterator[tuple[str, Object]]:
        """Every pod spec, whoever would make the pod."""
        for one in self.objects:
            label = f"{one['kind']}/{one['metadata']['name']}"
            match one["kind"]:
                case "Pod":
                    yield label, one["spec"]
                case "StatefulSet" | "Deployment" | "Job":
                    yield label, one["spec"]["template"]["spec"]
                case "CronJob":
                    yield label, one["spec"]["jobTemplate"]["spec"]["template"]["spec"]


def restricted_violations(spec: Object) -> list[str]:
    """What the restricted Pod Security Standard forbids in a pod. The baseline's host fields are included."""
    found = [f"{name} is set" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    allowed = {
        "configMap",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "csi",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    for volume in spec.get("volumes", ()):
        found += [f"volume {volume['name']} is a {kind}" for kind in set(volume) - {"name"} - allowed]
    pod = spec.get("securityContext", {})
    for container in [*spec.get("initContainers", ()), *spec["containers"]]:
        name, own = container["name"], container.get("securityContext", {})
        if own.get("privileged"):
            found.append(f"{name} is privileged")
        if own.get("allowPrivilegeEscalation") is not False:
            found.append(f"{name} may escalate privileges")
        if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
            found.append(f"{name} may be root")
        if own.get("runAsUser", pod.get("runAsUser")) == 0:
            found.append(f"{name} runs as root")
        if own.get("capabilities", {}).get("drop") != ["ALL"] or set(own["capabilities"].get("add", ())) - {
            "NET_BIND_SERVICE"
        }:
            found.append(f"{name} keeps capabilities")
        profile = own.get("seccompProfile", pod.get("seccompProfile", {})).get("type")
        if profile not in ("RuntimeDefault", "Localhost"):
            found.append(f"{name} has the seccomp profile {profile}")
        found += [
            f"{name} takes host port {port['hostPort']}" for port in container.get("ports", ()) if "hostPort" in port
        ]
    return found
