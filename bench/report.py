"""What a run found: results against their bars, as a table for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from bench.compare import Series
from bench.machine import Machine


class Bound(StrEnum):
    AT_LEAST = "≥"
    AT_MOST = "≤"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that is judged, or that is only told if it has no bar."""

    name: str
    value: float
    unit: str
    bound: Bound | None = None
    bar: float | None = None

    @property
    def reached(self) -> bool | None:
        if self.bound is None or self.bar is None:
            return None
        return self.value >= self.bar if self.bound is Bound.AT_LEAST else self.value <= self.bar


@dataclass(frozen=True, slots=True)
class Result:
    """What one measure found."""

    measure: str
    title: str
    figures: Sequence[Figure]
    series: Sequence[Series]
    notes: Sequence[str] = ()
    lines: Sequence[str] = ()
    """What it has to show beside its series, in Markdown."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Pictures that `lines` refer to, by name."""
    data: object = None
    """The numbers behind `lines`, for programs."""


def ratio(
    name: str, measured: Series, reference: Series, bound: Bound | None = None, bar: float | None = None
) -> Figure:
    return Figure(f"{name}: {measured.side} / {reference.side}", measured.median / reference.median, "×", bound, bar)


def as_json(machine: Machine, results: Sequence[Result]) -> str:
    document = {
        "machine": asdict(machine),
        "results": [
            {
                "measure": result.measure,
                "title": result.title,
                "figures": [{**asdict(figure), "reached": figure.reached} for figure in result.figures],
                "series": [
                    {
                        "side": series.side,
                        "unit": series.unit,
                        "median": series.median,
                        "rounds": [asdict(one) for one in series.rounds],
                    }
                    for series in result.series
                ],
                "notes": list(result.notes),
                **({} if result.data is None else {"data": result.data}),
            }
            for result in results
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def as_markdown(machine: Machine, results: Sequence[Result]) -> str:
    lines = [
        "# Results",
        "",
        "Written by `make bench`; [README.md](../../README.md) says what the numbers mean.",
        "",
        *(f"- {fact}" for fact in machine.facts()),
        "",
        "## Against the bars",
        "",
        "| figure | found | bar | reached |",
        "| --- | ---: | ---: | --- |",
    ]
    judged = [figure for result in results for figure in result.figures if figure.bar is not None]
    lines += [
        f"| {figure.name} | {_show(figure.value, figure.unit)} | {figure.bound} {_show(figure.bar, figure.unit)}"
        f" | {'yes' if figure.reached else '**no**'} |"
        for figure in judged
        if figure.bar is not None
    ]
    for result in results:
        lines += ["", f"## {result.title}", "", *_series_table(result.series)]
        lines += result.lines
        told = [figure for figure in result.figures if figure.bar is None]
        if told:
            lines += ["", *(f"- {figure.name}: {_show(figure.value, figure.unit)}" for figure in told)]
        lines += ["", *(f"- {note}" for note in result.notes)] if result.notes else []
    return "\n".join(lines) + "\n"


def write(directory: Path, machine: Machine, results: Sequence[Result]) -> None:
    """Replaces the results of an earlier run."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "latest.json").write_text(as_json(machine, results), encoding="utf-8")
    (directory / "latest.md").write_text(as_markdown(machine, results), encoding="utf-8")
    for result in results:
        for name, text in result.files.items():
            (directory / name).write_text(text, encoding="utf-8")


def _series_table(series: Sequence[Series]) -> list[str]:
    if not series:
        return []
    return [
        "| side | median | spread | rounds | server cores | client cores |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *(
            f"| {one.side} | {_show(one.median, one.unit)} | {one.spread:.0%} | {len(one.rounds)}"
            f" | {one.server_cores:.2f} | {one.client_cores:.2f} |"
            for one in series
        ),
    ]


def _show(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if abs(value) >= 100 else f"{value:.2f} {unit}"
