"""A real Kubernetes control plane on loopback: etcd, API server, controllers, scheduler, and kwok, which says of every
pod that it runs. Everything above the kubelet is real: admission, StatefulSets, rollouts, claims. No container
runs."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.harness.containers import cache_directory
from tests.harness.tools import find_tool
from tests.harness.waiting import eventually
from tools.control_plane import STAGES

NEEDED: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok", "helm")
START_S: Final = 300.0
NODE: Final = "kwok-node-0"


def why_no_control_plane() -> str | None:
    missing = [name for name in NEEDED if find_tool(name) is None]
    return f"needs {', '.join(missing)} (apt-get install etcd-server, tools/control_plane.py)" if missing else None


class ControlPlaneEnded(Exception):
    """A process of it ended, with the end of its log: there is nothing to wait for."""


class ControlPlane:
    """A context manager: leaving it ends every process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self._token = secrets.token_hex(16)
        self._ports = _free_ports(5)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.kubeconfig = directory / "kubeconfig"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def environ(self) -> Mapping[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "HELM_CACHE_HOME": str(self._directory / "helm")}

    def run(self, name: str, *arguments: str, check: bool = True, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """helm or kubectl against this control plane."""
        program = find_tool(name)
        assert program is not None
        done = subprocess.run(
            [program, *arguments], env=self.environ, input=stdin, capture_output=True, text=True, timeout=900
        )
        assert not check or done.returncode == 0, f"{name} {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        return self.run("kubectl", *arguments, stdin=stdin).stdout

    def get(self, kind: str, name: str, namespace: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", kind, name, "--namespace", namespace, "-o", "json"))
        return found

    def apply(self, *objects: Mapping[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"kind": "List", "apiVersion": "v1", "items": list(objects)}))

    def _start(self) -> None:
        etcd, peer, api, manager, scheduler = self._ports
        key = self._write_signing_key()
        (self._directory / "tokens.csv").write_text(f"{self._token},admin,admin,system:masters\n")
        self._write_kubeconfig(api)
        loopback = "127.0.0.1"
        self._spawn(
            *("etcd", "--data-dir", str(self._directory / "etcd"), "--unsafe-no-fsync=true"),
            *(
                "--listen-client-urls",
                f"http://{loopback}:{etcd}",
                "--advertise-client-urls",
                f"http://{loopback}:{etcd}",
            ),
            *("--listen-peer-urls", f"http://{loopback}:{peer}"),
        )
        self._spawn(
            *("kube-apiserver", f"--etcd-servers=http://{loopback}:{etcd}"),
            *(f"--bind-address={loopback}", f"--advertise-address={loopback}", f"--secure-port={api}"),
            *(f"--cert-dir={self._directory / 'certificates'}", f"--token-auth-file={self._directory / 'tokens.csv'}"),
            "--service-account-issuer=https://kubernetes.default.svc",
            # The distribution's etcd 3.4 cannot stream lists; clients that try wait half a minute to repeat it.
            "--feature-gates=WatchList=false",
            *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
            *(
                "--authorization-mode=RBAC",
                "--service-cluster-ip-range=10.96.0.0/16",
                "--endpoint-reconciler-type=none",
            ),
        )
        self._wait(
            "the API server", lambda: self.run("kubectl", "get", "--raw", "/readyz", check=False).returncode == 0
        )
        authenticated = (f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", f"--bind-address={loopback}")
        self._spawn(
            *("kube-controller-manager", *authenticated, f"--secure-port={manager}"),
            *("--use-service-account-credentials=true", f"--service-account-private-key-file={key}"),
            f"--cert-dir={self._directory / 'manager-certificates'}",
        )
        certificates = f"--cert-dir={self._directory / 'scheduler-certificates'}"
        self._spawn("kube-scheduler", *authenticated, f"--secure-port={scheduler}", certificates)
        self.apply(_node())
        self._spawn(
            *("kwok", f"--kubeconfig={self.kubeconfig}", f"--config={cache_directory() / STAGES}"),
            *(
                "--manage-all-nodes=true",
                "--node-lease-duration-seconds=40",
                "--cidr=10.0.0.0/16",
                "--node-ip=10.0.0.1",
            ),
        )
        ready = '{.status.conditions[?(@.type=="Ready")].status}'
        self._wait("a node", lambda: self.kubectl("get", "node", NODE, "-o", f"jsonpath={ready}") == "True")
        self._wait(
            "service accounts",
            lambda: self.run("kubectl", "get", "serviceaccount", "default", check=False).returncode == 0,
        )

    def _spawn(self, name: str, *arguments: str) -> None:
        program = find_tool(name) or shutil.which(name)
        assert program is not None, name
        log = self._stack.enter_context((self._directory / f"{name}.log").open("wb"))
        process = subprocess.Popen([program, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._processes[name] = process
        self._stack.callback(_end, process)

    def _wait(self, what: str, condition: Any) -> None:
        def there() -> bool:
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise ControlPlaneEnded(f"{name}: {(self._directory / f'{name}.log').read_text()[-2000:]}")
            assert condition(), f"no sign of {what}; logs are in {self._directory}"
            return True

        asyncio.run(eventually(there, START_S))

    def _write_signing_key(self) -> Path:
        key = rsa.generate_private_key(65537, 2048)
        path = self._directory / "service-accounts.key"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
            )
        )
        return path

    def _write_kubeconfig(self, port: int) -> None:
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [
                {
                    "name": "test",
                    "cluster": {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True},
                }
            ],
            "users": [{"name": "admin", "user": {"token": self._token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
        }
        self.kubeconfig.write_text(json.dumps(content))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_ports(count: int) -> list[int]:
    """Free when asked; these programs cannot be told to take any and say which."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _node() -> dict[str, Any]:
    room = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti"}
    labels = {
        "kubernetes.io/hostname": NODE,
        "kubernetes.io/os": "linux",
        "topology.kubernetes.io/zone": "zone-a",
        "type": "kwok",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NODE, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}},
        "status": {"allocatable": room, "capacity": room},
    }
