"""The loader as an operator meets it: which source wins, what is refused and how it is named, what is reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest

from cursus_service.settings import (
    KIB,
    MIB,
    Loaded,
    SettingsError,
    Unit,
    load,
    load_or_exit,
    print_config,
    reference_markdown,
    section,
    setting,
)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Listen:
    host: str = setting("127.0.0.1", help="Address to listen on.")
    grpc_port: int = setting(50051, help="Port; 0 picks one.", minimum=0, maximum=65535)


@dataclass(frozen=True, slots=True)
class Storage:
    segment_bytes: int = setting(64 * MIB, help="Roll after this.", unit=Unit.BYTES, minimum=KIB)
    index_bytes: int = setting(4 * KIB, help="One index entry per this.", unit=Unit.BYTES)
    linger_ms: int = setting(100, help="Longest wait for a sync.", unit=Unit.MILLISECONDS, minimum=0)

    def __post_init__(self) -> None:
        if self.index_bytes > self.segment_bytes:
            raise ValueError("index_bytes must not exceed segment_bytes")


@dataclass(frozen=True, slots=True)
class Example:
    """An example service."""

    data_dir: Path = setting(Path("data"), help="Where the data is.")
    colour: Colour = setting(Colour.RED, help="A choice | of two.")
    token: str = setting("", help="Shared secret.", secret=True)
    peers: tuple[str, ...] = setting((), help="Others.")
    quota: int | None = setting(None, help="At most this many bytes.", unit=Unit.BYTES)
    audit: bool = setting(False, help="Write an audit log.")
    listen: Listen = section(Listen, help="Addresses.", flag="")
    log: Storage = section(Storage, help="The log on disk.")


PROFILES = {"latency": {"log.linger_ms": 0}, "throughput": {"log.linger_ms": 500, "log.segment_bytes": 256 * MIB}}


def loaded(argv: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Loaded[Example]:
    return load(Example, argv, environ or {}, program="example", version="1.2", profiles=PROFILES)


def problems(argv: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        loaded(argv, environ)
    return caught.value.problems


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "example.yaml"
    path.write_text(text)
    return path


def test_without_any_source_the_defaults_hold() -> None:
    assert loaded().settings == Example()


def test_flags_win_over_variables_over_the_file_over_the_profile_over_defaults(tmp_path: Path) -> None:
    file = written(tmp_path, "log: {linger_ms: 3, segment_bytes: 3MiB, index_bytes: 3KiB}\nlisten: {host: file}\n")
    result = loaded(
        ["--config", str(file), "--profile=throughput", "--log-linger-ms", "5"],
        {"CURSUS_LOG_LINGER_MS": "4", "CURSUS_LOG_SEGMENT_BYTES": "4MiB"},
    )
    assert result.settings.log == Storage(segment_bytes=4 * MIB, index_bytes=3 * KIB, linger_ms=5)
    assert result.settings.listen == Listen(host="file")
    assert result.origins["log.linger_ms"] == "flag --log-linger-ms"
    assert result.origins["log.segment_bytes"] == "environment CURSUS_LOG_SEGMENT_BYTES"
    assert result.origins["log.index_bytes"] == f"file {file}:1"
    assert result.origins["listen.host"] == f"file {file}:2"
    assert result.origins["listen.grpc_port"] == "default"


def test_a_profile_replaces_defaults_and_says_so() -> None:
    result = loaded(["--profile", "latency"])
    assert result.settings.log.linger_ms == 0
    assert result.origins["log.linger_ms"] == "profile latency"


@pytest.mark.parametrize("named_by", ["flag", "variable", "file"])
def test_a_profile_can_be_named_everywhere(named_by: str, tmp_path: Path) -> None:
    argv = {"flag": ["--profile=latency"], "file": ["--config", str(written(tmp_path, "profile: latency"))]}
    environ = {"variable": {"CURSUS_PROFILE": "latency"}}
    assert loaded(argv.get(named_by, []), environ.get(named_by)).profile == "latency"


def test_a_section_without_a_flag_part_has_top_level_flags() -> None:
    result = loaded(["--grpc-port", "0"], {"CURSUS_HOST": "0.0.0.0"})
    assert result.settings.listen == Listen(host="0.0.0.0", grpc_port=0)


def test_the_file_can_be_named_by_a_variable(tmp_path: Path) -> None:
    file = written(tmp_path, "colour: blue")
    assert loaded(environ={"CURSUS_CONFIG": str(file)}).settings.colour is Colour.BLUE


def test_an_empty_variable_counts_as_absent() -> None:
    assert loaded(environ={"CURSUS_COLOUR": "", "CURSUS_CONFIG": "", "CURSUS_PROFILE": ""}).settings == Example()


@pytest.mark.parametrize("text", ["", "# nothing\n", "log:\n", "{}", "---\n"])
def test_an_empty_file_or_section_changes_nothing(text: str, tmp_path: Path) -> None:
    assert loaded(["--config", str(written(tmp_path, text))]).settings == Example()


def test_the_file_takes_scalars_as_written_and_lists_as_lists(tmp_path: Path) -> None:
    file = written(tmp_path, "data_dir: 010\npeers: [a, 1.10]\nquota: null\naudit: on\n")
    settings = loaded(["--config", str(file)]).settings
    assert (settings.data_dir, settings.peers, settings.quota, settings.audit) == (
        Path("010"),
        ("a", "1.10"),
        None,
        True,
    )


def test_a_boolean_flag_needs_no_value() -> None:
    assert loaded(["--audit"]).settings.audit is True
    assert loaded(["--audit=false"], {"CURSUS_AUDIT": "true"}).settings.audit is False


def test_all_problems_are_reported_together_each_by_its_name(tmp_path: Path) -> None:
    file = written(tmp_path, "log:\n  segment_bytes: big\n  typo: 1\ncolour: green\ncolour: red\n")
    found = problems(
        ["--config", str(file), "--grpc-port", "70000", "--unknown=x"],
        {"CURSUS_LOG_LINGER_MS": "-1", "CURSUS_QUOTA": "many"},
    )
    assert len(found) == 8, found
    text = "\n".join(found)
    assert "unknown argument --unknown=x" in text
    assert f"{file}:3: unknown key log.typo" in text
    assert f"{file}:5: colour is given twice" in text
    assert f"log.segment_bytes (file {file}:2) must be a size" in text
    assert "listen.grpc_port (flag --grpc-port) must be at most 65535, not 70000" in text
    assert "log.linger_ms (environment CURSUS_LOG_LINGER_MS) must be at least 0, not -1" in text
    assert "quota (environment CURSUS_QUOTA) must be a size" in text


def test_an_overridden_bad_value_is_still_refused() -> None:
    (problem,) = problems(["--log-linger-ms", "1"], {"CURSUS_LOG_LINGER_MS": "soon"})
    assert "CURSUS_LOG_LINGER_MS" in problem


def test_a_rule_over_several_fields_is_a_problem_of_its_section() -> None:
    assert problems(["--log-index-bytes", "65MiB"]) == ("log: index_bytes must not exceed segment_bytes",)


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    assert problems(["--profile", "fast"]) == (
        "profile (flag --profile) must be one of latency, throughput, not 'fast'",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("log: [1]", ":1: log must be a mapping"),
        ("just text", ":1: the file must be a mapping"),
        ("a: b: c", ":1: not YAML"),
        ("colour: {x: 1}", ":1: colour must be a value"),
        ("Data-Dir: x", "unknown key Data-Dir; did you mean data_dir?"),
        ("data_dir:", "must be given a value"),
        ("colour: red\n---\ncolour: blue", ": not YAML"),
        ("colour: *nowhere", ": not YAML"),
        ("\x07", ": not YAML"),
        ("[" * 20_000, ": not YAML"),
    ],
)
def test_a_broken_file_is_refused_at_its_line(text: str, expected: str, tmp_path: Path) -> None:
    found = problems(["--config", str(written(tmp_path, text))])
    assert expected in found[0]


def test_an_oversized_or_missing_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in problems(["--config", str(tmp_path / "absent.yaml")])[0]
    assert "larger than" in problems(["--config", str(written(tmp_path, "#" * (MIB + 1)))])[0]


def test_a_secret_is_never_shown() -> None:
    result = loaded(["--token", "hunter2"])
    assert result.settings.token == "hunter2"
    assert "hunter2" not in print_config(result)
    assert "hunter2" not in repr(result.settings)


def test_the_printed_configuration_is_a_file_with_the_same_settings(tmp_path: Path) -> None:
    before = loaded(
        ["--peers", "a:1,b", "--data-dir", "my data", "--profile", "throughput", "--quota", "5GB", "--audit"]
    )
    after = loaded(["--config", str(written(tmp_path, print_config(before)))])
    assert after.settings == before.settings
    assert "linger_ms: 500ms  # profile throughput" in print_config(before)


def test_a_service_with_bad_settings_exits_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load_or_exit(Example, program="example", argv=["--grpc-port", "x"])
    assert caught.value.code == 2
    assert "example: 1 problem in the configuration:\n  listen.grpc_port" in capsys.readouterr().err


def test_print_config_ends_the_process_in_peace(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load_or_exit(Example, program="example", argv=["--print-config", "--grpc-port", "1"])
    assert caught.value.code == 0
    assert "  grpc_port: 1  # flag --grpc-port\n" in capsys.readouterr().out


def test_help_names_every_flag_and_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        loaded(["--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert "--log-segment-bytes SIZE Roll after this. Default 64MiB. [CURSUS_LOG_SEGMENT_BYTES]" in out


def test_the_reference_has_a_row_for_every_setting() -> None:
    text = reference_markdown(Example, PROFILES)
    assert "| `log.segment_bytes` | `--log-segment-bytes`<br>`CURSUS_LOG_SEGMENT_BYTES` | size | `64MiB` |" in text
    assert "A choice \\| of two." in text
    assert "| `log.linger_ms` | 100ms | 0 | 500ms |" in text
    assert text.count("<br>") == 11
