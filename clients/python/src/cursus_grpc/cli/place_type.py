"""A place in a log as the value of an option."""

from __future__ import annotations

import time

import click

from cursus_grpc.cli import places


class PlaceType(click.ParamType[places.WrittenPlace]):
    """A place as `places.py` reads it."""

    name = "PLACE"

    def convert(
        self, value: str | places.WrittenPlace, param: click.Parameter | None, ctx: click.Context | None
    ) -> places.WrittenPlace:
        if not isinstance(value, str):
            return value
        try:
            return places.parse(value, int(time.time() * 1000))
        except ValueError as error:
            self.fail(str(error), param, ctx)
