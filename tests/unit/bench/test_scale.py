"""The frame of the curves: sizes, exponents, bars and pictures."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench.ballast import Ballast, ballast
from bench.report import Result
from bench.scale.curve import Curve, Ratio, Round, Stage, ThanBefore, doubling, exponent, measure
from bench.scale.curves import CURVES
from bench.scale.plot import Line, draw
from bench.setting import FULL, QUICK, Scale, Setting
from bench.trees import NoSuchTree, Tree, older


def test_sizes_double_up_to_the_last() -> None:
    assert doubling(10, 100) == (10, 20, 40, 80, 100)
    assert doubling(1, 4) == (1, 2, 4)


@pytest.mark.parametrize("power", [0, 0.5, 1, 2])
def test_the_exponent_is_that_of_the_growth(power: float) -> None:
    assert exponent({size: 3 * size**power for size in doubling(1, 512)}) == pytest.approx(power)


def test_what_a_step_costs_anyhow_hides_no_growth_at_the_upper_end() -> None:
    assert exponent({size: 100 + size**2 for size in doubling(1, 1024)}) > 1.5


def test_a_picture_has_every_point_of_every_line() -> None:
    picture = draw(
        "Batches < all", "partitions", "µs", [Line("now", {10: 3.0, 20: 3.1}), Line("before", {10: 3, 20: 90})]
    )
    drawn = ElementTree.fromstring(picture)
    assert len(drawn.findall("{http://www.w3.org/2000/svg}circle")) == 4
    assert "Batches < all" in {text.text for text in drawn.findall("{http://www.w3.org/2000/svg}text")}


def test_every_curve_has_a_name_of_its_own_and_bars_at_sizes_that_it_has() -> None:
    assert len({curve.name for curve in CURVES}) == len(CURVES)
    for curve in CURVES:
        assert min(curve.sizes) <= curve.quick_most
        for bar in curve.bars:
            assert bar.size in curve.sizes


@asynccontextmanager
async def counted(stage: Stage, size: int) -> AsyncIterator[Round]:
    """Quadratic before, flat now."""

    async def one() -> float:
        return 5.0 if stage.tree.name == "now" else float(size * size)

    yield one


CURVE = Curve(
    "counted", "Counting", "things", "steps", (10, 20, 40), 20, counted, [Ratio(40, 10, 1.2), ThanBefore(40, 0.4)]
)


async def measured(tmp_path: Path, scale: Scale, against: Tree | None) -> Result:
    with ballast(tmp_path, 0) as filled:
        assert isinstance(filled, Ballast)
        return await measure(CURVE, Setting(tmp_path, scale, filled, against))


async def test_both_trees_are_measured_and_judged_at_every_size(tmp_path: Path) -> None:
    result = await measured(tmp_path, FULL, Tree("before"))
    found = {figure.name: (figure.value, figure.reached) for figure in result.figures}
    assert found["counted: 40 / 10 things"] == (1.0, True)
    assert found["counted: now / before at 40 things"] == (5 / 1600, True)
    assert found["counted, before: exponent up to 40 things"][0] == pytest.approx(2)
    assert "| 40 | 5 | 1,600 |" in result.lines
    assert list(result.files) == ["counted.svg"]


async def test_a_quick_run_without_an_older_tree_judges_only_what_it_has_seen(tmp_path: Path) -> None:
    result = await measured(tmp_path, QUICK, None)
    assert [figure.name for figure in result.figures] == ["counted, now: exponent up to 20 things"]


def test_a_commit_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(NoSuchTree, match="no-such-commit"), older("no-such-commit", tmp_path):
        pass
