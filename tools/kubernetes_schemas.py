"""Writes JSON schemas of Kubernetes objects for kubeconform, strict: a field that does not exist is a mistake.

They are made of what the projects themselves publish as Go modules: the API server's OpenAPI document, and the custom
resources of the Prometheus operator and cert-manager. `go mod download` fetches and verifies them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

KUBERNETES: Final = "k8s.io/kubernetes@v1.36.3"
CUSTOM: Final = (
    (
        "github.com/prometheus-operator/prometheus-operator@v0.85.0",
        ("monitoring.coreos.com_servicemonitors.yaml", "monitoring.coreos.com_prometheusrules.yaml"),
        "example/prometheus-operator-crd",
    ),
    ("github.com/cert-manager/cert-manager@v1.18.2", ("crd-certificates.yaml",), "deploy/crds"),
)
DONE: Final = ".complete"
_KEPT: Final = (
    "$ref",
    "type",
    "required",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
)


def module_directory(module: str) -> Path:
    """Where go keeps the module. Raises RuntimeError with what go said."""
    with tempfile.TemporaryDirectory() as outside:  # No go.mod of anybody's in the way.
        done = subprocess.run(["go", "mod", "download", "-json", module], cwd=outside, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"go mod download {module}: {done.stdout}{done.stderr}")
    return Path(json.loads(done.stdout)["Dir"])


def built_in(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """File names and schemas of everything in an OpenAPI document that has a kind."""
    definitions = {name: _strict(definition) for name, definition in document["definitions"].items()}
    definitions["io.k8s.apimachinery.pkg.api.resource.Quantity"] = {"type": ["string", "number"]}
    for name, definition in document["definitions"].items():
        for kind in definition.get("x-kubernetes-group-version-kind", ()):
            if "properties" not in definition or len(definition["x-kubernetes-group-version-kind"]) != 1:
                continue
            needed = _closure(name, definitions)
            schema = {"$ref": f"#/definitions/{name}", "definitions": {key: definitions[key] for key in needed}}
            yield file_name(kind["kind"], kind["group"], kind["version"]), schema


def custom(resource: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same for the versions of a CustomResourceDefinition."""
    spec = resource["spec"]
    for version in spec["versions"]:
        schema = _strict(version["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"type": "object"}
        yield file_name(spec["names"]["kind"], spec["group"], version["name"]), schema


def file_name(kind: str, group: str, version: str) -> str:
    """As kubeconform asks for it: only the first part of the group."""
    return "-".join([kind.lower(), *([group.split(".")[0]] if group else []), version]) + ".json"


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with unknown fields refused wherever the known ones are listed."""
    if schema.get("format") == "int-or-string" or schema.get("x-kubernetes-int-or-string"):
        return {"type": ["string", "integer"]}
    found = {name: value for name, value in schema.items() if name in _KEPT}
    if isinstance(items := schema.get("items"), dict):
        found["items"] = _strict(items)
    if isinstance(additional := schema.get("additionalProperties"), dict):
        found["additionalProperties"] = _strict(additional)
    if isinstance(properties := schema.get("properties"), dict):
        found["properties"] = {name: _strict(value) for name, value in properties.items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            found.setdefault("additionalProperties", False)
    return found


def _closure(name: str, definitions: dict[str, Any]) -> set[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            waiting += list(_references(definitions[current]))
    return found


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference.removeprefix("#/definitions/")
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from _references(item)


def write(directory: Path) -> None:
    """Raises RuntimeError if a module cannot be had."""
    directory.mkdir(parents=True, exist_ok=True)
    document = json.loads((module_directory(KUBERNETES) / "api/openapi-spec/swagger.json").read_text(encoding="utf-8"))
    schemas = dict(built_in(document))
    for module, names, place in CUSTOM:
        for name in names:
            text = (module_directory(module) / place / name).read_text(encoding="utf-8")
            schemas |= dict(custom(yaml.safe_load(text)))
    for name, schema in schemas.items():
        (directory / name).write_text(json.dumps(schema), encoding="utf-8")
    (directory / DONE).touch()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    options = parser.parse_args()
    if (options.directory / DONE).exists():
        return 0
    if shutil.which("go") is None:
        print("the schemas are made of Go modules, and there is no go", file=sys.stderr)
        return 1
    write(options.directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
