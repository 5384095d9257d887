"""What is generated and committed is what the generators give, and names no place it was generated at."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_generating_the_stubs_again_changes_nothing() -> None:
    command = [sys.executable, "tools/generate_stubs.py", "proto", "proto/cursus_proto", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_generating_the_routing_vectors_again_changes_nothing() -> None:
    command = [sys.executable, "tools/routing_vectors.py", "proto/testdata/routing.json", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_the_lock_names_no_index() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    assert not re.search(r"^--?(index|extra-index|find-links|trusted|i |f )", lock, re.MULTILINE)


def test_every_pinned_package_has_hashes() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    pins = re.findall(r"^\S+==\S+.*\\$\n    --hash=sha256:", lock, re.MULTILINE)
    assert len(pins) == len(re.findall(r"^[A-Za-z0-9]", lock, re.MULTILINE))


def test_the_npm_lock_names_no_registry() -> None:
    assert "resolved" not in (ROOT / "tools" / "package-lock.json").read_text()
