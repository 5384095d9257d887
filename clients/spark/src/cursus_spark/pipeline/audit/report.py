"""The outcome of an audit: as a document for programs, as text, and as a page of HTML that needs nothing beside it.

Whatever comes from the topic or the broker is escaped before it goes into the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Final

from cursus_grpc.cli.output import column as text_column
from cursus_grpc.cli.output import duration, number, plain_lines, plural, size
from cursus_spark.pipeline.audit import plots
from cursus_spark.pipeline.audit.batches import DELAYS_MS, SIZES
from cursus_spark.pipeline.audit.findings import CHECKS, Finding, Severity
from cursus_spark.pipeline.audit.statistics import PartitionStatistics, Timeline

_DRAWN: Final = 16
"""Partitions with a timeline of their own; of more, those with most records are drawn, and the sum of all."""

_SIZE_LABELS: Final = ("≤ 64", "≤ 256", "≤ 1 Ki", "≤ 4 Ki", "≤ 16 Ki", "≤ 64 Ki", "≤ 256 Ki", "≤ 1 Mi", "more")
_DELAY_LABELS: Final = ("early", "≤ 10 ms", "≤ 0.1 s", "≤ 1 s", "≤ 10 s", "≤ 1 m", "≤ 10 m", "≤ 1 h", "≤ 1 d", "later")
assert len(_SIZE_LABELS) == len(SIZES) + 1
assert len(_DELAY_LABELS) == len(DELAYS_MS) + 1


@dataclass(frozen=True, slots=True)
class Audit:
    """All that an audit found out."""

    topic: str
    broker: str
    made_ms: int
    window_ms: int
    severities: Mapping[str, Severity]
    partitions: Sequence[PartitionStatistics]
    timeline: Timeline
    findings: Sequence[Finding]

    @property
    def records(self) -> int:
        return sum(one.records for one in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.partitions)

    @property
    def violations(self) -> list[Finding]:
        return [one for one in self.findings if one.severity is Severity.VIOLATION]

    @property
    def verdict(self) -> str:
        if not self.violations:
            return f"{self.topic} is complete: {plural(self.records, 'record')}, no violation"
        return f"{self.topic} is not sound: {plural(len(self.violations), 'kind')} of violations"

    def document(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "complete": not self.violations,
            "records": self.records,
            "bytes": self.bytes,
            "window_ms": self.window_ms,
            "checks": {name: severity.value for name, severity in self.severities.items()},
            "findings": [one.document() for one in self.findings],
            "partitions": [one.document() for one in self.partitions],
        }

    def text(self) -> str:
        """For a terminal: the partitions, what was found, and the verdict last."""
        lines = plain_lines(
            [
                *(number(head) for head in ("PARTITION", "RECORDS", "BATCHES", "BYTES", "FIRST", "NEXT")),
                *(text_column(head) for head in ("FROM", "TO")),
                number("RECORDS/S"),
            ],
            [
                [
                    *(one.partition, one.records, one.batches, size(one.bytes), one.start, one.end),
                    *(_moment(one.first_ms), _moment(one.last_ms)),
                    _rate(one.rate),
                ]
                for one in self.partitions
            ],
        )
        for finding in self.findings:
            lines.append(f"{finding.severity.value}: {finding.line()} ({finding.check.name})")
            lines += [f"  {one.partition}:{one.offset}  {one.text}" for one in finding.examples[:5]]
            if len(finding.examples) > 5:
                lines.append("  …")
        return "\n".join([*lines, self.verdict])


def _moment(time_ms: int | None) -> str | None:
    """In UTC, to the millisecond: what is compared with other machines' logs."""
    if time_ms is None:
        return None
    return (
        datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
    )


def _rate(rate: float | None) -> str | None:
    return None if rate is None else f"{rate:,.1f}" if rate < 100 else f"{rate:,.0f}"


def page(audit: Audit) -> str:
    """The report."""
    sound = not audit.violations
    title = escape(audit.topic)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Audit of {title}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<header>
<p class="kind">Audit of a topic</p>
<h1>{title}</h1>
<p class="verdict {"good" if sound else "bad"}">{"Complete: no violation" if sound else "Not sound"}</p>
<p class="made">{escape(audit.broker)} · {_moment(audit.made_ms)}</p>
</header>
{_figures(audit)}
{_findings(audit)}
{_partitions(audit)}
{_timelines(audit)}
{_classes(audit)}
{_checks(audit)}
</main>
</body>
</html>
"""


def _figures(audit: Audit) -> str:
    firsts = [one.first_ms for one in audit.partitions if one.first_ms is not None]
    lasts = [one.last_ms for one in audit.partitions if one.last_ms is not None]
    span = duration((max(lasts) - min(firsts)) / 1_000) if firsts else "–"
    figures = [
        ("records", f"{audit.records:,}"),
        ("of keys and values", size(audit.bytes)),
        ("partitions", f"{len(audit.partitions):,}"),
        ("from first to last", span),
        ("kinds of violations", str(len(audit.violations))),
        ("kinds of notes", str(len(audit.findings) - len(audit.violations))),
    ]
    cards = "".join(f"<div><b>{escape(value)}</b><span>{name}</span></div>" for name, value in figures)
    return f'<section class="figures">{cards}</section>'


def _findings(audit: Audit) -> str:
    if not audit.findings:
        return "<section><h2>Findings</h2><p>None: every check below was made, and found nothing.</p></section>"
    return f"<section><h2>Findings</h2>{''.join(map(_finding, audit.findings))}</section>"


def _finding(finding: Finding) -> str:
    rows = ([str(one.partition), f"{one.offset:,}", escape(one.text)] for one in finding.examples)
    counts = ", ".join(
        f"{count:,} in partition {number}" for number, count in sorted(finding.by_partition.items())[:16]
    )
    more = f" and {len(finding.by_partition) - 16} more partitions" if len(finding.by_partition) > 16 else ""
    return (
        f'<article class="{finding.severity.value}"><h3><span class="badge">{finding.severity.value}</span>'
        f"{escape(finding.check.title)}<em>{plural(finding.count, 'record')}</em></h3>"
        f"<p>{escape(finding.check.meaning)}</p><p class='where'>{counts}{more}.</p>"
        f"{_table(['r:partition', 'r:offset', 'what'], rows)}</article>"
    )


def _partitions(audit: Audit) -> str:
    heads = [
        *("r:partition", "r:records", "r:batches", "r:size", "r:producers", "r:first offset", "r:next offset"),
        *("first stored", "last stored", "r:records/s"),
    ]
    rows = (
        [
            *(str(one.partition), f"{one.records:,}", f"{one.batches:,}", size(one.bytes), f"{one.producers:,}"),
            *(f"{one.start:,}", f"{one.end:,}", _moment(one.first_ms) or "–", _moment(one.last_ms) or "–"),
            _rate(one.rate) or "–",
        ]
        for one in audit.partitions
    )
    return f"<section><h2>Partitions</h2>{_table(heads, rows)}</section>"


def _timelines(audit: Audit) -> str:
    counts = audit.timeline.counts
    if not counts:
        return ""
    shown = sorted(sorted(counts, key=lambda one: -sum(counts[one]))[:_DRAWN])
    highest = max(max(counts[one]) for one in shown)
    drawings = []
    start_ms, step_ms = audit.timeline.start_ms, audit.timeline.step_ms
    if len(counts) > len(shown):
        total = [sum(column) for column in zip(*counts.values(), strict=True)]
        drawings.append(plots.over_time("all", total, max(total), start_ms, step_ms, axis=True))
    drawings += [
        plots.over_time(f"{one}", counts[one], highest, start_ms, step_ms, axis=one == shown[-1]) for one in shown
    ]
    which = "" if len(shown) == len(counts) else f", the {len(shown)} largest of {len(counts)} and the sum of all"
    return (
        f"<section><h2>Records over time</h2><p>By append time, in UTC, a row for each partition{which}; a bar is"
        f" {escape(duration(step_ms / 1_000) if step_ms >= 1_000 else f'{step_ms} ms')}, the highest has"
        f" {highest:,} records.</p><div class='rows'>{''.join(drawings)}</div></section>"
    )


def _classes(audit: Audit) -> str:
    sizes = [sum(column) for column in zip(*(one.sizes for one in audit.partitions if one.sizes), strict=True)]
    delays = [sum(column) for column in zip(*(one.delays for one in audit.partitions if one.delays), strict=True)]
    if not sizes:
        return ""
    stated = sum(delays)
    lateness = (
        plots.over_classes("Delays", _DELAY_LABELS, delays)
        if stated
        else "<p class='none'>No record states a time of its own.</p>"
    )
    return (
        "<section class='pair'><div><h2>Sizes</h2><p>Key and value of a record, in bytes.</p>"
        f"{plots.over_classes('Sizes', _SIZE_LABELS, sizes)}</div>"
        "<div><h2>Lateness</h2><p>From the time the producer stated to the time the broker stored it;"
        f" {stated:,} of {audit.records:,} records state one.</p>{lateness}</div></section>"
    )


def _checks(audit: Audit) -> str:
    found = {one.check.name: one.count for one in audit.findings}
    rows = (
        [
            f"<code>{name}</code>",
            escape(CHECKS[name].title),
            severity.value,
            "not made" if severity is Severity.OFF else f"{found.get(name, 0):,}" if name in found else "none",
        ]
        for name, severity in audit.severities.items()
    )
    return (
        f"<section><h2>Checks</h2><p>Content is compared over {escape(duration(audit.window_ms / 1_000))}.</p>"
        f"{_table(['check', 'looks for', 'counts as', 'r:found'], rows)}</section>"
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML. A head that begins with `r:` makes a column of numbers."""
    kinds = [' class="r"' if head.startswith("r:") else "" for head in heads]
    head = "".join(f"<th{kind}>{name.removeprefix('r:')}</th>" for name, kind in zip(heads, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


_STYLE: Final = """
:root { --ink: #1c2430; --soft: #5d6878; --line: #dfe4ea; --paper: #fff; --back: #f4f6f8; --bar: #3d7ea6;
  --good: #1f7a4d; --bad: #b3372c; --note: #8a6414 }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #9aa6b5; --line: #323b47; --paper: #1d242d;
  --back: #141a21; --bar: #6bb0d8; --good: #5cc794; --bad: #f0857a; --note: #dcb45a } }
* { box-sizing: border-box }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif }
main { max-width: 1240px; margin: 0 auto; padding: 32px 24px 64px }
header { margin-bottom: 24px }
h1 { font-size: 30px; margin: 0; overflow-wrap: anywhere }
h2 { font-size: 18px; margin: 0 0 8px }
h3 { font-size: 16px; margin: 0 0 6px; display: flex; gap: 10px; align-items: center; flex-wrap: wrap }
h3 em { margin-left: auto; font-style: normal; font-weight: 400; color: var(--soft) }
p { margin: 0 0 10px }
.kind, .made, .where, section > p, .pair p { color: var(--soft) }
.kind { margin: 0; text-transform: uppercase; letter-spacing: .08em; font-size: 12px }
.verdict { display: inline-block; margin: 10px 0 6px; padding: 4px 14px; border-radius: 16px; color: #fff;
  font-weight: 600; background: var(--good) }
.verdict.bad { background: var(--bad) }
@media (prefers-color-scheme: dark) { .verdict, .badge { color: #10151b !important } }
.made { margin: 0; font-size: 13px }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; padding: 20px;
  margin: 0 0 20px }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 16px }
.figures b { display: block; font-size: 22px; font-variant-numeric: tabular-nums }
.figures span { color: var(--soft); font-size: 13px }
article { border-left: 4px solid var(--note); padding: 4px 0 4px 16px; margin: 16px 0 24px }
article:last-child { margin-bottom: 0 }
article.violation { border-color: var(--bad) }
.badge { font-size: 12px; padding: 1px 9px; border-radius: 10px; background: var(--note); color: #fff }
.violation .badge { background: var(--bad) }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums }
th { text-align: left; font-weight: 600; color: var(--soft); white-space: nowrap }
th, td { padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top }
tr:last-child td { border-bottom: 0 }
td { overflow-wrap: anywhere }
.r { text-align: right; white-space: nowrap; padding: 5px 16px 5px 0 }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(380px, 1fr)); gap: 32px }
svg { display: block; width: 100%; height: auto }
.bar { fill: var(--bar) }
.axis { stroke: var(--line); stroke-width: 1 }
.tick, .count { font-size: 11px; fill: var(--soft) }
.label { font-size: 13px; fill: var(--ink) }
.none { padding-top: 48px; text-align: center }
"""
