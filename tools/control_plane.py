"""Builds what the chart is tested with, once, and keeps it outside the checkout: helm, kubeconform, kwok, and
Kubernetes' own API server, controllers, scheduler and kubectl.

Everything is built by go from the projects' published modules, which it verifies. Kubernetes replaces its own parts
with directories of its repository; the module written here puts the published ones in their place.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

KUBERNETES: Final = "v1.36.3"
STAGING: Final = KUBERNETES.replace("v1.", "v0.", 1)
PROGRAMS: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
TOOLS: Final = {
    "helm": "helm.sh/helm/v3/cmd/helm@v3.22.0",
    "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0",
    "kwok": "sigs.k8s.io/kwok/cmd/kwok@v0.8.0",
}


STAGES: Final = "kwok-stages.yaml"
_STAGE_FILES: Final = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    *(f"pod/fast/pod-{name}.yaml" for name in ("ready", "complete", "delete")),
)
"""By kwok's own rules pods run and are ready at once, those of Jobs succeed, and deleted ones are gone."""


def cache_directory() -> Path:
    return Path(os.environ.get("CURSUS_TOOLS_CACHE") or Path.home() / ".cache" / "cursus-tools")


def go(*arguments: str, cwd: Path, **environ: str) -> str:
    """Runs go, politely. Its complaints go to our stderr."""
    command = ["nice", "-n", "19", "go", *arguments]
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"control_plane: {' '.join(command)} failed with status {done.returncode}")
    return done.stdout


def write_module(directory: Path) -> None:
    """A module that requires Kubernetes, and the published module of every part that it replaces by a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    found = json.loads(go("mod", "download", "-json", f"k8s.io/kubernetes@{KUBERNETES}", cwd=directory))
    text = Path(found["GoMod"]).read_text(encoding="utf-8")
    parts = sorted(set(re.findall(r"(k8s\.io/[a-z0-9-]+) => \./staging", text)))
    version = re.search(r"^go (\S+)", text, re.MULTILINE)
    assert version is not None
    assert parts
    replaced = "".join(f"\t{part} => {part} {STAGING}\n" for part in parts)
    imports = "".join(f'\t_ "k8s.io/kubernetes/cmd/{name}"\n' for name in PROGRAMS)
    required = f"require k8s.io/kubernetes {KUBERNETES}\n\nreplace (\n{replaced})\n"
    (directory / "go.mod").write_text(f"module controlplane\n\ngo {version.group(1)}\n\n{required}")
    (directory / "tools.go").write_text(f"//go:build tools\n\npackage tools\n\nimport (\n{imports})\n")
    go("mod", "tidy", cwd=directory)


def write_stages(path: Path) -> None:
    """The rules by which kwok simulates, as its module has them, in one file."""
    module = TOOLS["kwok"].replace("/cmd/kwok", "")
    found = Path(json.loads(go("mod", "download", "-json", module, cwd=path.parent))["Dir"])
    parts = [(found / "kustomize/stage" / name).read_text(encoding="utf-8") for name in _STAGE_FILES]
    path.write_text("\n---\n".join(parts), encoding="utf-8")


def build(name: str, programs: Path) -> None:
    started = time.monotonic()
    print(f"control_plane: builds {name}", flush=True)
    module = cache_directory() / "control-plane"
    if name in TOOLS:
        go("install", TOOLS[name], cwd=programs, GOBIN=str(programs), CGO_ENABLED="0")
    else:
        if not (module / "go.sum").exists():
            write_module(module)
        # Without a version the API server calls itself v0.0.0, and no chart would believe in it.
        stamp = f"-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES}"
        flags = ("-trimpath", "-ldflags", stamp)
        target = f"k8s.io/kubernetes/cmd/{name}"
        go("build", *flags, "-o", str(programs / name), target, cwd=module, CGO_ENABLED="0")
    print(f"control_plane: {name} took {time.monotonic() - started:.0f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    everything = [*TOOLS, *PROGRAMS]
    parser.add_argument("--only", nargs="+", choices=everything, default=everything, help="default: all of them")
    options = parser.parse_args()
    programs = cache_directory() / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    missing = [name for name in options.only if not (programs / name).exists()]
    if missing and shutil.which("go") is None:
        sys.stderr.write(f"control_plane: {', '.join(missing)} can only be built with go, and there is none\n")
        return 1
    for name in missing:
        build(name, programs)
    stages = cache_directory() / STAGES
    if "kwok" in options.only and not stages.exists():
        write_stages(stages)
    return 0


if __name__ == "__main__":
    sys.exit(main())
