"""The health command of the images, against a real health server."""

from __future__ import annotations

import asyncio

import pytest

from cursus_service.http import Health, HttpServer, health_handler
from cursus_service.probe import main


async def _ask(health: Health, *more: str, environ: dict[str, str] | None = None) -> int:
    async with HttpServer(health_handler(lambda: health)) as server:
        _, port = await server.start("127.0.0.1", 0)
        given = {name: value.format(port=port) for name, value in (environ or {}).items()}
        return await asyncio.to_thread(main, [str(port if not environ else 1), *more], given)


async def test_it_is_content_with_a_service_that_is_ready() -> None:
    assert await _ask(Health(None)) == 0


async def test_it_says_why_a_service_is_not_ready(capsys: pytest.CaptureFixture[str]) -> None:
    assert await _ask(Health("starting", {"broker": "recovering"})) == 1
    assert "/ready says 503" in (said := capsys.readouterr().err)
    assert "recovering" in said
    assert await _ask(Health("starting"), "/live") == 0


async def test_the_variable_that_moves_the_port_moves_the_probe() -> None:
    assert await _ask(Health(None), environ={"CURSUS_HEALTH_PORT": "{port}"}) == 0


def test_nobody_there_and_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["1"], {}) == 1
    assert "port 1 does not answer" in capsys.readouterr().err
    assert main(["http"], {}) == 2
