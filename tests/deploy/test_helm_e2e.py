"""The life of a release on a real API server with real controllers, in a namespace that enforces `restricted`.

Where reality ends: no container runs. kwok says of every pod that it is ready, and of a Job's that it succeeded, so
admission, StatefulSet, claims and their binding, rollouts, hooks, upgrade, rollback and uninstall are real, and probes,
mounts and what the containers do are not, `helm test` among them; test_images.py and test_chart_commands.py run those.
`make helm-e2e`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import yaml

from tests.harness.chart import CHART
from tests.harness.control_plane import ControlPlane, why_no_control_plane
from tests.harness.waiting import eventually

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("CURSUS_HELM_E2E"), reason="needs minutes and built programs; `make helm-e2e`"
    ),
    pytest.mark.skipif(why_no_control_plane() is not None, reason=f"{why_no_control_plane()}"),
    pytest.mark.timeout(1800),
]

NAMESPACE: Final = "messaging"
RELEASE: Final = "cursus"
WAIT_S: Final = 300.0
PLACE: Final = ("--namespace", NAMESPACE)
CLAIM: Final = "data-cursus-broker-0"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("cluster")) as running:
        labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
        running.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}},
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {
                    "name": "manual",
                    "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
                },
                "provisioner": "kubernetes.io/no-provisioner",
            },
            *[_volume(number) for number in range(2)],
        )
        yield running


def _volume(number: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"volume-{number}"},
        "spec": {
            "capacity": {"storage": "20Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "manual",
            "hostPath": {"path": f"/nowhere/{number}"},
        },
    }


def _eventually(condition: Callable[[], Any], what: str) -> Any:
    def holds() -> Any:
        found = condition()
        assert found, what
        return found

    return asyncio.run(eventually(holds, WAIT_S))


def _checksum(cluster: ControlPlane) -> str:
    """Of the settings that the broker's running pod has."""
    pod = cluster.get("pod", "cursus-broker-0", NAMESPACE)
    return str(pod["metadata"]["annotations"]["checksum/config"])


def _settings(cluster: ControlPlane) -> str:
    return str(cluster.get("configmap", "cursus-broker", NAMESPACE)["data"]["broker.yaml"])


def _bound(cluster: ControlPlane) -> tuple[str, str]:
    """The claim's own identity, and the volume it is bound to."""
    claim = cluster.get("pvc", CLAIM, NAMESPACE)
    return str(claim["metadata"]["uid"]), str(claim["spec"].get("volumeName", ""))


def test_a_release_lives_from_install_to_uninstall_and_its_claim_longer(cluster: ControlPlane) -> None:
    topics = ("--set-json", 'provisioning.topics=[{"name": "orders", "partitions": 4}]')
    waiting = (*PLACE, "--wait", "--timeout", "5m", *topics)
    installed = cluster.run("helm", "install", RELEASE, str(CHART), *waiting)
    # Pod Security admission warns about what it would refuse; helm passes it on.
    assert "would violate" not in installed.stderr, installed.stderr
    assert "cursus topic create greetings" in installed.stdout
    refused = cluster.kubectl("get", "events", *PLACE, "-o", "json")
    reasons = {event["reason"] for event in json.loads(refused)["items"]}
    assert "FailedCreate" not in reasons, refused

    statefulset = cluster.get("statefulset", "cursus-broker", NAMESPACE)
    assert statefulset["status"]["readyReplicas"] == 1
    assert cluster.get("deployment", "cursus-gateway", NAMESPACE)["status"]["readyReplicas"] == 2
    claim = cluster.get("pvc", CLAIM, NAMESPACE)
    assert claim["status"]["phase"] == "Bound"
    assert not claim["metadata"].get("ownerReferences")
    job = cluster.get("job", "cursus-topics", NAMESPACE)
    assert job["status"]["succeeded"] == 1
    pod = cluster.get("pod", "cursus-broker-0", NAMESPACE)
    assert not [volume for volume in pod["spec"]["volumes"] if volume["name"].startswith("kube-api-access")]
    assert cluster.get("pdb", "cursus-gateway", NAMESPACE)["status"]["expectedPods"] == 2
    addresses = cluster.kubectl(
        "get", "endpointslices", *PLACE, "-l", "kubernetes.io/service-name=cursus-gateway", "-o", "json"
    )
    assert sum(len(one["endpoints"]) for one in json.loads(addresses)["items"]) == 2

    first, first_settings, identity = _checksum(cluster), _settings(cluster), _bound(cluster)
    changed = ("--set-json", 'broker.config.log={"linger_ms": "7ms"}')
    gateways = {one["metadata"]["uid"] for one in _pods(cluster, "gateway")}
    cluster.run("helm", "upgrade", RELEASE, str(CHART), *waiting, *changed)
    _eventually(lambda: _checksum(cluster) != first, "the broker's pod is new")
    assert "linger_ms: 7ms" in _settings(cluster)
    assert _bound(cluster) == identity
    # Nothing of the gateways has changed, so they were left alone.
    assert {one["metadata"]["uid"] for one in _pods(cluster, "gateway")} == gateways

    cluster.run("helm", "rollback", RELEASE, "1", *PLACE, "--wait", "--timeout", "5m")
    _eventually(lambda: _checksum(cluster) == first, "the broker's pod has the first settings again")
    assert _settings(cluster) == first_settings
    assert _bound(cluster) == identity

    cluster.run("helm", "uninstall", RELEASE, *PLACE, "--wait", "--timeout", "5m")
    _eventually(lambda: not _pods(cluster, "broker"), "the broker's pod is gone")
    assert _bound(cluster) == identity
    assert cluster.get("pvc", CLAIM, NAMESPACE)["status"]["phase"] == "Bound"

    cluster.run("helm", "install", RELEASE, str(CHART), *waiting)
    assert _bound(cluster) == identity, "a new release of the same name takes up the old data"
    assert cluster.get("statefulset", "cursus-broker", NAMESPACE)["status"]["readyReplicas"] == 1


def _pods(cluster: ControlPlane, component: str) -> list[dict[str, Any]]:
    selector = f"app.kubernetes.io/component={component}"
    found: list[dict[str, Any]] = json.loads(cluster.kubectl("get", "pods", *PLACE, "-l", selector, "-o", "json"))[
        "items"
    ]
    return found


@pytest.mark.parametrize("values", sorted(path.name for path in (CHART / "ci").glob("*.yaml")))
def test_the_api_server_takes_every_object(cluster: ControlPlane, values: str) -> None:
    """By a dry run of the server, which validates, defaults and admits. Custom resources have no server here: their
    schemas are for `make helm-check`."""
    text = cluster.run(
        "helm", "template", "other", str(CHART), *PLACE, "--kube-version", "1.36.0", "-f", str(CHART / "ci" / values)
    ).stdout
    custom = ("monitoring.coreos.com", "cert-manager.io")
    ours = [one for one in yaml.safe_load_all(text) if one and not one["apiVersion"].startswith(custom)]
    # A dry run leaves nothing behind, and pods are admitted only beside their account.
    cluster.apply(*[one for one in ours if one["kind"] == "ServiceAccount"])
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": ours})
    done = cluster.run("kubectl", "apply", "--dry-run=server", *PLACE, "-f", "-", stdin=items)
    assert done.stdout.count("(server dry run)") == len(ours), done.stdout
    assert "would violate" not in done.stderr, done.stderr


def test_the_namespace_really_refuses(cluster: ControlPlane) -> None:
    """Otherwise the tests above would show nothing."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "root"},
        "spec": {"containers": [{"name": "a", "image": "b"}]},
    }
    done = cluster.run("kubectl", "apply", *PLACE, "-f", "-", stdin=json.dumps(pod), check=False)
    assert done.returncode != 0
    assert 'violates PodSecurity "restricted' in done.stderr


def test_a_pod_of_a_release_named_cursus_is_not_told_of_its_services(cluster: ControlPlane) -> None:
    """The kubelet would set CURSUS_PORT=tcp://… for a Service named `cursus`; enableServiceLinks keeps it from that."""
    for component in ("broker", "gateway"):
        for pod in _pods(cluster, component):
            assert pod["spec"]["enableServiceLinks"] is False
