"""Broker and client need no numpy: only what asks for `cursus-proto[columns]` does."""

from __future__ import annotations

import subprocess
import sys

IMPORT_ALL = """
import importlib, pkgutil, sys
sys.modules["numpy"] = None  # importing it fails from now on
for name in ("cursus_broker", "cursus_grpc", "cursus_proto", "cursus_service", "cursus_transport"):
    for module in pkgutil.walk_packages(importlib.import_module(name).__path__, name + "."):
        if not module.name.startswith("cursus_proto.columns") and not module.name.endswith(".__main__"):
            importlib.import_module(module.name)
            print(module.name)
"""


def test_broker_and_client_do_not_import_numpy() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"cursus_broker.app", "cursus_grpc._records", "cursus_proto.uniform"} <= set(done.stdout.split())


def test_columns_do() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.modules['numpy'] = None; import cursus_proto.columns"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "numpy" in done.stderr
