"""What a curve is, and how one is measured: at every size each tree has a round in turn, and the medians are told."""

from __future__ import annotations

import math
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import processes
from bench.compare import progress
from bench.report import Bound, Figure, Result
from bench.scale.plot import Line, draw
from bench.setting import Setting
from bench.trees import PRESENT, Tree

Round = Callable[[], Awaitable[float]]
"""Does the work of a step some times, and answers what it cost once."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where one curve is measured at one size, with the sources of one tree."""

    tree: Tree
    scratch: Path

    @asynccontextmanager
    async def broker(self, *arguments: str) -> AsyncIterator[processes.Service]:
        async with processes.broker(self.scratch / "broker", *arguments, environment=self.tree.environment) as started:
            yield started


@dataclass(frozen=True, slots=True)
class Ratio:
    """A bar for the cost at one size against that at another."""

    size: int
    to_size: int
    most: float


@dataclass(frozen=True, slots=True)
class ThanBefore:
    """A bar for the cost at one size against that of the older tree."""

    size: int
    most: float


@dataclass(frozen=True, slots=True)
class Curve:
    name: str
    title: str
    grows: str
    """What the sizes count."""
    cost: str
    """What is measured, with its unit last."""
    sizes: Sequence[int]
    quick_most: int
    """The largest size of a quick run."""
    prepare: Callable[[Stage, int], AbstractAsyncContextManager[Round]]
    bars: Sequence[Ratio | ThanBefore] = ()
    notes: Sequence[str] = ()

    @property
    def unit(self) -> str:
        return self.cost.rpartition(" ")[2]


def doubling(first: int, last: int) -> tuple[int, ...]:
    """Sizes from the first on, each twice the one before, and the last."""
    sizes = [first]
    while sizes[-1] * 2 < last:
        sizes.append(sizes[-1] * 2)
    return (*sizes, last)


Costs = Mapping[int, float]


async def measure(curve: Curve, setting: Setting) -> Result:
    trees = [PRESENT] if setting.against is None else [PRESENT, setting.against]
    sizes = [size for size in curve.sizes if not setting.quick or size <= curve.quick_most]
    costs: dict[str, dict[int, float]] = {tree.name: {} for tree in trees}
    for size in sizes:
        for tree, cost in zip(trees, await _at_size(curve, setting, trees, size), strict=True):
            costs[tree.name][size] = cost
            progress(f"{curve.name}: {tree.name}, {size:,} {curve.grows}: {cost:,.4g} {curve.unit}")
    picture = f"{curve.name}.svg"
    return Result(
        curve.name,
        curve.title,
        [*_judged(curve, costs), *(_exponent_figure(curve, name, found) for name, found in costs.items())],
        [],
        curve.notes,
        lines=[*_table(curve, costs), "", f"![{curve.title}]({picture})"],
        files={picture: draw(curve.title, curve.grows, curve.cost, [Line(name, one) for name, one in costs.items()])},
        data={"curve": curve.cost, "grows": curve.grows, "costs": costs},
    )


async def _at_size(curve: Curve, setting: Setting, trees: Sequence[Tree], size: int) -> list[float]:
    """The median cost of each tree. All of them are there all the time; those whose turn it is not are idle."""
    found: list[list[float]] = [[] for _ in trees]
    async with AsyncExitStack() as stages:
        rounds: list[Round] = []
        for number, tree in enumerate(trees):
            scratch = setting.scratch / f"{size}-{number}"
            scratch.mkdir()
            rounds.append(await stages.enter_async_context(curve.prepare(Stage(tree, scratch), size)))
        for number in range(-1, setting.scale.rounds):
            for one, collected in zip(rounds, found, strict=True):
                cost = await one()
                if number >= 0:  # the first is for warming up
                    collected.append(cost)
    return [statistics.median(costs) for costs in found]


def exponent(costs: Costs) -> float:
    """The slope of the upper half of the curve where both axes are logarithmic: 0 is flat, 1 is linear. The lower half
    shows what a step costs anyhow. Needs two sizes."""
    points = sorted(costs.items())[-max(2, math.ceil(len(costs) / 2)) :]
    xs, ys = [math.log(size) for size, _ in points], [math.log(cost) for _, cost in points]
    return statistics.linear_regression(xs, ys).slope


def _exponent_figure(curve: Curve, tree: str, costs: Costs) -> Figure:
    largest = max(costs)
    value = exponent(costs) if len(costs) > 1 else math.nan
    return Figure(f"{curve.name}, {tree}: exponent up to {largest:,} {curve.grows}", value, "")


def _judged(curve: Curve, costs: Mapping[str, Costs]) -> list[Figure]:
    now = costs[PRESENT.name]
    before = next((found for name, found in costs.items() if name != PRESENT.name), None)
    figures = []
    for bar in curve.bars:
        match bar:
            case Ratio(size, to_size, most) if size in now and to_size in now:
                name = f"{curve.name}: {size:,} / {to_size:,} {curve.grows}"
                figures.append(Figure(name, now[size] / now[to_size], "×", Bound.AT_MOST, most))
            case ThanBefore(size, most) if before is not None and size in now:
                name = f"{curve.name}: now / before at {size:,} {curve.grows}"
                figures.append(Figure(name, now[size] / before[size], "×", Bound.AT_MOST, most))
            case _:
                progress(f"{curve.name}: {bar} is not judged by this run")
    return figures


def _table(curve: Curve, costs: Mapping[str, Costs]) -> list[str]:
    names: Final = list(costs)
    return [
        f"{curve.cost.capitalize()}, by {curve.grows}:",
        "",
        f"| {curve.grows} | {' | '.join(names)} |",
        f"| ---: {'| ---: ' * len(names)}|",
        *(f"| {size:,} | {' | '.join(f'{costs[name][size]:,.4g}' for name in names)} |" for size in costs[names[0]]),
    ]
