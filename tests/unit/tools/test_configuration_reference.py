from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_configuration_reference_is_what_the_settings_say() -> None:
    command = [sys.executable, "tools/configuration_reference.py", "docs/configuration.md", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
