"""One run of the command: what every command can be told, and the clients it makes.

The common options work in front of the command's name and behind it; behind wins.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from cursus_grpc import Admin, Consumer, CursusError, Producer, RecordMetadata
from cursus_grpc.cli.connection import BadConfiguration, Connection, load
from cursus_grpc.types import Acks, Compression, Reset

T = TypeVar("T")

Delivered = Callable[[RecordMetadata | None, CursusError | None], object]
"""Told of every published record: its place, or why it has none. On the client's own thread."""

CLIENT_ID: Final = "cursus-cli"

CONNECT_S: Final = 1.0
"""How long the first connection may take where no timeout is asked for. Whoever mistyped an address should not have to
wait for it; a connection that breaks later is waited for as long as the command's timeouts say."""


class Session:
    """What was said on the command line, and what follows from it."""

    def __init__(self) -> None:
        self.flags: dict[str, object] = {}
        self._connection: Connection | None = None
        self._reached = False

    @property
    def json(self) -> bool:
        return self.flags.get("output") == "json"

    @property
    def debug(self) -> bool:
        return bool(self.flags.get("debug"))

    @property
    def connection(self) -> Connection:
        """Raises BadConfiguration."""
        if self._connection is None:
            self._connection = load(self.flags, os.environ)
        return self._connection

    def admin(self) -> Admin:
        """Use it as a context manager. Raises BadConfiguration, and BrokerUnreachable or TlsFailed if there is no
        broker, as the other two do."""
        found = self.connection
        admin = _made(
            lambda: Admin(found.broker, tls=found.tls, request_timeout_s=found.timeout_s, client_id=CLIENT_ID)
        )
        if not self._reached:
            try:
                admin.connect(CONNECT_S if found.origins["timeout"] == "default" else found.timeout_s)
            except BaseException:
                admin.close()
                raise
            self._reached = True
        return admin

    def _reach(self) -> Connection:
        """Make sure, once, that there is a broker."""
        if not self._reached:
            self.admin().close()
        return self.connection

    def producer(
        self,
        *,
        acks: Acks = 1,
        compression: Compression = "none",
        linger_ms: float = 0.0,
        batch_bytes: int = 256 * 1024,
        delivery_timeout_s: float = 120.0,
        on_delivery: Delivered | None = None,
    ) -> Producer:
        found = self._reach()
        return _made(
            lambda: Producer(
                found.broker,
                tls=found.tls,
                client_id=CLIENT_ID,
                max_block_s=found.timeout_s,
                acks=acks,
                compression=compression,
                linger_ms=linger_ms,
                batch_bytes=batch_bytes,
                delivery_timeout_s=delivery_timeout_s,
                on_delivery=on_delivery,
            )
        )

    def consumer(self, *, group: str | None = None, reset: Reset = "earliest") -> Consumer:
        found = self._reach()
        return _made(
            lambda: Consumer(
                found.broker,
                tls=found.tls,
                client_id=CLIENT_ID,
                request_timeout_s=found.timeout_s,
                group=group,
                reset=reset,
            )
        )


def _made(make: Callable[[], T]) -> T:
    """The clients refuse addresses and options that make no sense with ValueError."""
    try:
        return make()
    except ValueError as error:
        raise BadConfiguration(str(error)) from error


class ReaderLeft(Exception):
    """Whoever read our output has enough, as `head -1` has after a line. Not a BrokenPipeError any more, because click
    would exit by itself on one, with 1, and it is not a failure."""


pass_session = click.make_pass_decorator(Session)


def _keep(context: click.Context, parameter: click.Parameter, value: object) -> None:
    if value is not None and parameter.name is not None:
        context.ensure_object(Session).flags[parameter.name] = value


def _common_options() -> list[click.Parameter]:
    def option(*names: str, **attributes: Any) -> click.Option:
        return click.Option(names, expose_value=False, callback=_keep, default=None, **attributes)

    return [
        option("--broker", metavar="HOST:PORT", help="The broker, or several, separated by commas. [CURSUS_BROKER]"),
        option("--tls/--no-tls", help="Speak TLS. On if any of the following is given. [CURSUS_TLS]"),
        option("--tls-ca", metavar="FILE", help="PEM of the authorities to trust. [CURSUS_TLS_CA]"),
        option("--tls-cert", metavar="FILE", help="PEM of the client's certificate. [CURSUS_TLS_CERT]"),
        option("--tls-key", metavar="FILE", help="PEM of its private key. [CURSUS_TLS_KEY]"),
        option("--tls-server-name", metavar="NAME", help="Name in the broker's certificate. [CURSUS_TLS_SERVER_NAME]"),
        option("--timeout", metavar="SECONDS", help="How long a call may take; 10, and 1 to connect. [CURSUS_TIMEOUT]"),
        option("--config", metavar="FILE", help="Configuration; ~/.config/cursus/config.toml. [CURSUS_CONFIG]"),
        option("--output", "-o", type=click.Choice(["text", "json"]), help="For people or for programs; text."),
        option("--debug", is_flag=True, help="Show the traceback of a failure."),
    ]


# Parameters that name something in the broker. Keys, values and paths may be any bytes.
_NAMES: Final = ("topic", "topics", "name", "names", "group", "like")


def _refuse_bytes(context: click.Context) -> None:
    """Names are text. An argument that is not UTF-8 arrives with surrogates in it, which no message can carry."""
    for parameter in _NAMES:
        value = context.params.get(parameter)
        for name in value if isinstance(value, tuple) else (value,):
            if isinstance(name, str) and any("\ud800" <= char <= "\udfff" for char in name):
                raise click.BadParameter("it is not UTF-8", context, param_hint=parameter.upper())


class _Common(click.Command):
    """Adds the common options and shows them apart from the command's own."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self._common = _common_options()
        self.params = [*self.params, *self._common]

    def invoke(self, ctx: click.Context) -> Any:
        _refuse_bytes(ctx)
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderLeft from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = [
            record
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option)
            and parameter not in self._common
            and (record := parameter.get_help_record(ctx)) is not None
        ]
        common = [record for one in self._common if (record := one.get_help_record(ctx)) is not None]
        if own:
            with formatter.section("Options"):
                formatter.write_dl(own)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)
        if ctx.parent is None or not isinstance(self, click.Group):
            with formatter.section("Options of every command"):
                formatter.write_dl(common)


class Command(_Common):
    """A leaf."""


class Group(_Common, click.Group):
    """A noun, whose verbs are `Command`s."""

    command_class = Command
    group_class = type
