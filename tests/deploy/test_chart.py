"""The chart, rendered by real helm with every values file of ci/: accepted by the schemas, restricted, and meaning what
it says. `make helm-check`; the tests of what it commands to run are in test_chart_commands.py."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.harness.chart import CHART, HelmRefused, Rendered, helm, render, restricted_violations, why_no_helm
from tests.harness.containers import cache_directory
from tests.harness.tools import ROOT, find_tool

needs_helm = pytest.mark.skipif(why_no_helm() is not None, reason=f"{why_no_helm()}")
SCENARIOS: Final = ("default", *sorted(path.stem for path in (CHART / "ci").glob("*.yaml")))


def _arguments(scenario: str) -> list[str]:
    return [] if scenario == "default" else ["--values", str(CHART / "ci" / f"{scenario}.yaml")]


def _set(*values: str) -> list[str]:
    return [part for value in values for part in ("--set-json", value)]


@pytest.fixture(scope="module", params=SCENARIOS)
def scenario(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def rendered(scenario: str) -> Rendered:
    return Rendered(render(*_arguments(scenario)))


def test_schema_and_readme_are_what_values_yaml_says() -> None:
    command = [sys.executable, "tools/chart_reference.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_chart_and_distributions_have_one_version() -> None:
    from tools.build_images import version

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == version()


@needs_helm
def test_lint_finds_nothing(scenario: str) -> None:
    assert "0 chart(s) failed" in helm(
        "lint", "--strict", str(CHART), "--kube-version", "1.36.0", *_arguments(scenario)
    )


@pytest.fixture(scope="module")
def kubeconform() -> list[str]:
    """The command, with schemas that are made once and kept in the cache."""
    program = find_tool("kubeconform")
    if program is None:
        pytest.skip("needs kubeconform (`make tools-helm` builds it with go)")
    schemas = cache_directory() / "schemas-1.36.3"
    if not (schemas / ".complete").exists():
        if shutil.which("go") is None:
            pytest.skip("the schemas are made of Go modules, and there is no go")
        made = subprocess.run([sys.executable, "tools/kubernetes_schemas.py", str(schemas)], cwd=ROOT, timeout=280)
        assert made.returncode == 0
    location = f"{schemas}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
    return [program, "-strict", "-schema-location", location]


@needs_helm
def test_every_object_fits_the_schemas_of_kubernetes_and_of_custom_resources(
    scenario: str, kubeconform: list[str]
) -> None:
    done = subprocess.run(kubeconform, input=render(*_arguments(scenario)), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


@needs_helm
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("terminationGracePeriodSeconds:", "terminationGraceSeconds:"),
        ("  replicas: 1", "  replicas: one"),
        ("clusterIP: None", "clusterIP: [None]"),
    ],
)
def test_the_schemas_would_notice(kubeconform: list[str], right: str, wrong: str) -> None:
    text = render()
    assert right in text
    done = subprocess.run(kubeconform, input=text.replace(right, wrong), capture_output=True, text=True, timeout=120)
    assert done.returncode != 0


@needs_helm
def test_every_pod_is_restricted_and_has_no_token(rendered: Rendered) -> None:
    pods = dict(rendered.pods())
    assert {"StatefulSet/cursus-broker", "Deployment/cursus-gateway", "Pod/cursus-test-broker"} <= set(pods)
    for name, spec in pods.items():
        assert restricted_violations(spec) == [], name
        assert spec["automountServiceAccountToken"] is False, name
        # Else a Service named `cursus` would set CURSUS_PORT=tcp://…, which the gateway would read as its port.
        assert spec["enableServiceLinks"] is False, name
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, name
            assert container["resources"]["requests"], name


def test_the_restricted_rules_would_notice() -> None:
    good: dict[str, Any] = {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {"name": "a", "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}
        ],
    }
    assert restricted_violations(good) == []
    bad = json.loads(json.dumps(good))
    bad["hostNetwork"] = True
    bad["volumes"] = [{"name": "host", "hostPath": {"path": "/"}}]
    bad["securityContext"] = {}
    bad["containers"][0]["securityContext"] = {"capabilities": {"drop": []}}
    assert len(restricted_violations(bad)) == 6


@needs_helm
def test_the_services_take_the_settings_they_are_given(rendered: Rendered, tmp_path: Path) -> None:
    """By the services themselves: --print-config stops at the first thing it does not like."""
    shown: dict[str, Any] = {}
    for service in ("broker", "gateway"):
        file = tmp_path / f"{service}.yaml"
        file.write_text(rendered.get("ConfigMap", f"cursus-{service}")["data"][file.name], encoding="utf-8")
        command = [sys.executable, "-m", f"cursus_{service}", "--config", str(file), "--print-config"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        shown[service] = yaml.safe_load(done.stdout)
    assert shown["broker"]["data_dir"] == "/var/lib/cursus"
    assert shown["broker"]["host"] == shown["gateway"]["host"] == "0.0.0.0"
    broker = "cursus-broker-0.cursus-broker-headless.messaging.svc.cluster.local:50051"
    assert shown["gateway"]["broker"] in (broker, [broker])


@needs_helm
def test_the_broker_advertises_the_name_its_pod_has_in_the_headless_service(rendered: Rendered) -> None:
    statefulset = rendered.get("StatefulSet", "cursus-broker")
    assert statefulset["spec"]["serviceName"] == "cursus-broker-headless"
    environment = {one["name"]: one for one in statefulset["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert environment["POD_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    assert environment["CURSUS_ADVERTISED_HOST"]["value"] == (
        "$(POD_NAME).cursus-broker-headless.messaging.svc.cluster.local"
    )
    headless = rendered.get("Service", "cursus-broker-headless")["spec"]
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)


@needs_helm
@pytest.mark.parametrize(("kind", "name"), [("StatefulSet", "broker"), ("Deployment", "gateway")])
def test_the_grace_covers_prestop_drain_and_closing(kind: str, name: str) -> None:
    values = [f"{name}.preStopSeconds=3", f"{name}.drainSeconds=50", f"{name}.closingSeconds=7"]
    rendered = Rendered(render(*_set(*values)))
    spec = rendered.get(kind, f"cursus-{name}")["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == 60
    assert spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"] == 3
    settings = yaml.safe_load(rendered.get("ConfigMap", f"cursus-{name}")["data"][f"{name}.yaml"])
    assert settings["grace_ms"] == "50s"


@needs_helm
def test_probes_ask_the_health_port_over_http(rendered: Rendered) -> None:
    for label in ("StatefulSet/cursus-broker", "Deployment/cursus-gateway"):
        container = dict(rendered.pods())[label]["containers"][0]
        paths = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
        assert paths == {
            "startupProbe": {"path": "/live", "port": "health"},
            "livenessProbe": {"path": "/live", "port": "health"},
            "readinessProbe": {"path": "/ready", "port": "health"},
        }
    startup = dict(rendered.pods())["StatefulSet/cursus-broker"]["containers"][0]["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600


@needs_helm
def test_claims_outlive_the_release_and_the_broker_blocks_no_drain() -> None:
    rendered = Rendered(render())
    policy = rendered.get("StatefulSet", "cursus-broker")["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert policy == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert rendered.names("PodDisruptionBudget") == {"cursus-gateway"}
    selector = rendered.get("PodDisruptionBudget", "cursus-gateway")["spec"]["selector"]["matchLabels"]
    assert selector["app.kubernetes.io/component"] == "gateway"


def _templates(rendered: Rendered) -> dict[str, Any]:
    kinds = (("StatefulSet", "cursus-broker"), ("Deployment", "cursus-gateway"))
    return {name: rendered.get(kind, name)["spec"]["template"] for kind, name in kinds}


@needs_helm
def test_a_changed_setting_rolls_its_service_and_no_other() -> None:
    before = _templates(Rendered(render()))
    broker = _templates(Rendered(render(*_set('broker.config.log={"linger_ms": "7ms"}'))))
    assert broker["cursus-broker"] != before["cursus-broker"]
    assert broker["cursus-gateway"] == before["cursus-gateway"]
    gateway = _templates(Rendered(render(*_set('gateway.config.connections={"limit": 7}'))))
    assert gateway["cursus-broker"] == before["cursus-broker"]
    assert gateway["cursus-gateway"] != before["cursus-gateway"]
    elsewhere = _templates(Rendered(render(*_set("metrics.serviceMonitor.enabled=true", "gateway.replicaCount=5"))))
    assert elsewhere == before


@needs_helm
def test_a_new_chart_changes_nothing_that_kubernetes_cannot_change(tmp_path: Path) -> None:
    """Selectors and claim templates are for ever; and without a new image no pod restarts."""
    newer = tmp_path / "cursus"
    shutil.copytree(CHART, newer)
    (newer / "Chart.yaml").write_text((CHART / "Chart.yaml").read_text().replace("version: 0.1.0", "version: 9.9.9", 1))
    images = ('broker.image.tag="0.1.0"', 'gateway.image.tag="0.1.0"')
    old, new = Rendered(render(*_set(*images))), Rendered(render(*_set(*images), chart=newer))
    for kind, name in (("StatefulSet", "cursus-broker"), ("Deployment", "cursus-gateway")):
        was, is_ = old.get(kind, name)["spec"], new.get(kind, name)["spec"]
        assert was["selector"] == is_["selector"]
        assert was["template"] == is_["template"]
        assert was.get("volumeClaimTemplates") == is_.get("volumeClaimTemplates")


@needs_helm
def test_large_numbers_reach_the_settings_as_they_are() -> None:
    """helm reads numbers as floating point, and would write some as 3.3554432e+07."""
    rendered = Rendered(render(*_arguments("production-values")))
    assert "max_batch_bytes: 33554432" in rendered.get("ConfigMap", "cursus-broker")["data"]["broker.yaml"]
    topics = json.loads(rendered.get("ConfigMap", "cursus-topics")["data"]["topics.json"])
    assert '"retention_ms": 604800000' in rendered.get("ConfigMap", "cursus-topics")["data"]["topics.json"]
    assert [topic["name"] for topic in topics] == ["orders", "clicks"]


@needs_helm
def test_private_keys_are_mounted_only_by_their_owners() -> None:
    rendered = Rendered(render(*_arguments("tls-values")))
    pods = dict(rendered.pods())
    whole = {name: {v["secret"]["secretName"] for v in spec["volumes"] if "secret" in v} for name, spec in pods.items()}
    assert whole["StatefulSet/cursus-broker"] == {"cursus-broker-tls"}
    assert whole["Deployment/cursus-gateway"] == {"cursus-gateway-tls"}
    for name, spec in pods.items():
        for volume in spec["volumes"]:
            for source in volume.get("projected", {}).get("sources", ()):
                keys = {item["key"] for item in source["secret"]["items"]}
                owner = source["secret"]["name"]
                assert keys == ({"ca.crt"} if owner == "cursus-broker-tls" else {"tls.crt", "tls.key"}), name
    settings = yaml.safe_load(rendered.get("ConfigMap", "cursus-gateway")["data"]["gateway.yaml"])
    assert set(settings["upstream"]) == {"tls_ca", "tls_cert", "tls_key"}
    names = rendered.get("Certificate", "cursus-broker-tls")["spec"]["dnsNames"]
    assert "*.cursus-broker-headless.messaging.svc.cluster.local" in names


@needs_helm
def test_autoscaling_leaves_the_number_of_gateways_alone() -> None:
    rendered = Rendered(render(*_arguments("production-values")))
    assert "replicas" not in rendered.get("Deployment", "cursus-gateway")["spec"]
    scaled = rendered.get("HorizontalPodAutoscaler", "cursus-gateway")["spec"]
    assert scaled["scaleTargetRef"]["name"] == "cursus-gateway"
    assert [metric["resource"]["name"] for metric in scaled["metrics"]] == ["cpu", "memory"]


@needs_helm
def test_metrics_services_are_what_the_service_monitor_selects() -> None:
    rendered = Rendered(render(*_arguments("production-values")))
    spec = rendered.get("ServiceMonitor", "cursus")["spec"]
    wanted = spec["selector"]["matchExpressions"][0]["values"]
    selected = [
        one
        for one in rendered.objects
        if one["kind"] == "Service" and one["metadata"]["labels"]["app.kubernetes.io/component"] in wanted
    ]
    assert {one["metadata"]["name"] for one in selected} == {"cursus-broker-headless", "cursus-gateway-metrics"}
    assert all("metrics" in {port["name"] for port in one["spec"]["ports"]} for one in selected)
    # What the world may reach has no metrics.
    assert {port["name"] for port in rendered.get("Service", "cursus-gateway")["spec"]["ports"]} == {"tcp", "bare"}


@needs_helm
@pytest.mark.parametrize(
    ("kind", "name", "file"),
    [
        ("PrometheusRule", "cursus", "files/alerts/cursus.yaml"),
        ("ConfigMap", "cursus-dashboards", "files/dashboards/cursus.json"),
    ],
)
def test_alerts_and_dashboards_are_the_files(kind: str, name: str, file: str) -> None:
    rendered = Rendered(render(*_arguments("production-values")))
    if not (CHART / file).exists():
        pytest.skip(f"there is no {file}")
    found = rendered.get(kind, name)
    text = (CHART / file).read_text(encoding="utf-8")
    if kind == "PrometheusRule":
        assert found["spec"]["groups"] == yaml.safe_load(text)["groups"]
    else:
        assert json.loads(found["data"]["cursus.json"]) == json.loads(text)
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"


@needs_helm
def test_the_images_are_those_that_make_images_builds() -> None:
    from tools.build_images import IMAGES, version

    rendered = Rendered(render(*_arguments("production-values")))
    found = {container["image"] for _, spec in rendered.pods() for container in spec["containers"]}
    assert found == {f"registry.example/messaging/{image.name}:{version()}" for image in IMAGES}


@needs_helm
def test_a_digest_wins_and_an_own_registry_too() -> None:
    digest = "sha256:" + "0" * 64
    values = [
        f'broker.image.digest="{digest}"',
        'broker.image.registry="own.example"',
        'global.imageRegistry="all.example"',
    ]
    spec = dict(Rendered(render(*_set(*values))).pods())["StatefulSet/cursus-broker"]
    assert spec["containers"][0]["image"] == f"own.example/cursus-broker@{digest}"


WRONG: Final = (
    (("broker.replicaCount=2",), "broker.replicaCount is 1, or 0 to stop it"),
    (('broker.config.data_dir="/x"',), "broker.config.data_dir is set by the chart"),
    (("gateway.config.port=1",), "gateway.config.port is set by the chart"),
    (('gateway.config.upstream={"tls_ca": "/x"}',), "gateway.config.upstream.tls_ca is set by the chart"),
    (("tls.enabled=true",), "tls.enabled needs tls.existingSecret or tls.certManager.enabled"),
    (("tls.mutual=true",), "tls.mutual needs tls.enabled"),
    (("tls.enabled=true", 'tls.existingSecret="a"', "tls.mutual=true"), "tls.mutual needs tls.clientSecret"),
    (("tls.certManager.enabled=true",), "needs tls.certManager.issuerRef.name"),
    (("gateway.tls.enabled=true",), "gateway.tls.enabled needs gateway.tls.existingSecret"),
    (("broker.persistence.enabled=false", 'broker.persistence.existingClaim="a"'), "existingClaim needs"),
    (("gateway.autoscaling.enabled=true", "gateway.autoscaling.minReplicas=11"), "minReplicas is above maxReplicas"),
    (("spark.archive.enabled=true",), "spark.archive.enabled needs spark.archive.lake"),
    (('provisioning.topics=[{"name": "a"}, {"name": "a"}]',), "provisioning.topics names a twice"),
    (('gateway.listeners=[{"name": "x", "port": 9080, "profile": "ok"}]',), "port 9080 is taken"),
    # What the schema refuses by itself.
    (("broker.persistance={}",), "additional properties 'persistance' not allowed"),
    (('broker.config.log={"segment_byte": 1}',), "additional properties 'segment_byte' not allowed"),
    (('broker.config.log={"segment_bytes": 1}',), "/broker/config/log/segment_bytes"),
    (('broker.config.logging={"level": "loud"}',), "value must be one of 'debug', 'info', 'warning', 'error'"),
    (('broker.profile="fast"',), "value must be one of '', 'throughput', 'latency', 'memory'"),
    (('broker.persistence.size="big"',), "/broker/persistence/size"),
    (('gateway.replicaCount="two"',), "/gateway/replicaCount"),
    (("gateway.service.ports.tcp=70000",), "maximum: got 70,000, want 65,535"),
    (('provisioning.topics=[{"partitions": 4}]',), "missing property 'name'"),
    (('provisioning.topics=[{"name": "a b"}]',), "/provisioning/topics/0/name"),
    (('broker.image.digest="latest"',), "/broker/image/digest"),
    (('gateway.service.type="Ingress"',), "value must be one of 'ClusterIP', 'NodePort', 'LoadBalancer'"),
)


@needs_helm
@pytest.mark.parametrize(("values", "words"), WRONG, ids=[words for _, words in WRONG])
def test_wrong_values_are_refused_with_a_reason(values: tuple[str, ...], words: str) -> None:
    with pytest.raises(HelmRefused) as refused:
        render(*_set(*values))
    assert words in str(refused.value)


@needs_helm
def test_all_that_is_wrong_is_told_together() -> None:
    with pytest.raises(HelmRefused) as refused:
        render(*_set("broker.replicaCount=2", "tls.enabled=true", "spark.archive.enabled=true"))
    assert str(refused.value).count("\n  - ") == 5
