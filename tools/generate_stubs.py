"""Generates the Python stubs of proto/cursus into the package cursus_proto.

Protoc derives a module's name from the proto's path, which would be `cursus.v1…`, and the import name `cursus` belongs
to the legacy Python SDK. So the files are generated aside, their imports of each other are pointed at `cursus_proto`,
and only then they take their place. The proto paths inside the descriptors stay as they are: reflection and
other languages see `cursus/v1/….proto`.

With --check nothing is written; the exit status tells whether the committed stubs are what would be generated.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

from google import rpc
from grpc_tools import protoc

ROOT_PACKAGE = "cursus"
STUB_PACKAGE = "cursus_proto"
STUB_PATTERN = "*_pb2*.py*"
PACKAGE_DOCSTRINGS = {
    "v1": '"""Generated from cursus/v1: the public contract."""\n',
    "internal": '"""Generated: what only the services themselves speak."""\n',
    "internal/v1": '"""Generated from cursus/internal/v1: the broker\'s view of record sets as bytes."""\n',
}
INIT_FILES = {f"{package}/__init__.py": text for package, text in PACKAGE_DOCSTRINGS.items()}


def googleapis_include() -> Path:
    """The directory below which google/rpc/*.proto lies, as the installed googleapis-common-protos brings it."""
    return Path(next(iter(rpc.__path__))).parents[1]


def generate(proto_dir: Path) -> dict[str, str]:
    """Text of every generated file, by its path below the package directory."""
    protos = sorted((proto_dir / ROOT_PACKAGE).rglob("*.proto"))
    if not protos:
        raise SystemExit(f"no .proto file below {proto_dir / ROOT_PACKAGE}")
    with tempfile.TemporaryDirectory() as out:
        run_protoc(proto_dir, protos, Path(out))
        generated = dict(INIT_FILES)
        for proto in protos:
            stem = Path(out) / proto.relative_to(proto_dir).with_suffix("")
            has_service = re.search(r"^service\s", proto.read_text(encoding="utf-8"), re.MULTILINE) is not None
            for suffix in ("_pb2.py", "_pb2.pyi", *(("_pb2_grpc.py", "_pb2_grpc.pyi") if has_service else ())):
                path = stem.with_name(stem.name + suffix)
                name = path.relative_to(Path(out) / ROOT_PACKAGE).as_posix()
                generated[name] = point_imports_at_the_stub_package(path.read_text(encoding="utf-8"))
    return generated


def run_protoc(proto_dir: Path, protos: list[Path], out: Path) -> None:
    scripts = Path(sysconfig.get_path("scripts"))
    well_known = Path(protoc.__file__).parent / "_proto"
    arguments = [
        "protoc",
        f"--proto_path={proto_dir}",
        f"--proto_path={googleapis_include()}",
        f"--proto_path={well_known}",
        f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
        f"--python_out={out}",
        f"--grpc_python_out={out}",
        f"--mypy_out=quiet:{out}",
        f"--mypy_grpc_out=quiet:{out}",
        *(str(proto) for proto in protos),
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed; its messages are above")


def point_imports_at_the_stub_package(text: str) -> str:
    """Rewrites `from cursus.v1 import x_pb2`. Method names and descriptors, which also contain `cursus.`, stay."""
    return re.sub(rf"^from {ROOT_PACKAGE}\.", f"from {STUB_PACKAGE}.", text, flags=re.MULTILINE)


def committed(package_dir: Path) -> dict[str, str]:
    """What generate() would have to produce for nothing to change."""
    paths = [path for package in PACKAGE_DOCSTRINGS for path in (package_dir / package).glob(STUB_PATTERN)]
    paths += [package_dir / name for name in INIT_FILES if (package_dir / name).exists()]
    return {path.relative_to(package_dir).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def write(package_dir: Path, generated: dict[str, str]) -> None:
    """Replaces all stubs, so that those of a removed proto go too."""
    for name in committed(package_dir):
        (package_dir / name).unlink()
    for name, text in generated.items():
        path = package_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    for package in PACKAGE_DOCSTRINGS:
        shutil.rmtree(package_dir / package / "__pycache__", ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate the Python stubs of the Cursus contract.")
    parser.add_argument("proto_dir", type=Path, help="directory that contains cursus/**/*.proto")
    parser.add_argument("package_dir", type=Path, help="directory of the package cursus_proto")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the stubs are not up to date")
    options = parser.parse_args()
    generated, present = generate(options.proto_dir), committed(options.package_dir)
    if options.check:
        stale = sorted(name for name in generated.keys() | present.keys() if generated.get(name) != present.get(name))
        for name in stale:
            print(f"{options.package_dir / name} is not what `make proto` generates", file=sys.stderr)
        return 1 if stale else 0
    write(options.package_dir, generated)
    return 0


if __name__ == "__main__":
    sys.exit(main())
