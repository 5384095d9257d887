"""One run of the command: what every command can be told, and the clients it makes.

The common options work in front of the command's name and behind it; behind wins.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

import cursus_grpc
from cursus_grpc.cli.connection import BadConfiguration, Connection, load
from cursus_grpc.errors import BrokerUnreachable, CursusError
from cursus_grpc.types import Acks, Compression, RecordMetadata, Reset

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from cursus_grpc import Admin, Consumer, Producer

T = TypeVar("T")

Delivered = Callable[[RecordMetadata | None, CursusError | None], object]
"""Told of every published record: its place, or why it has none. On the client's own thread."""

CLIENT_ID: Final = "cursus-cli"

CONNECT_S: Final = 1.0
"""How long the first connection may take where no timeout is asked for. Whoever mistyped an address should not have to
wait for it; a connection that breaks later is waited for as long as the command's timeouts say."""


_MIB: Final = 1024 * 1024
_BUFFER_BYTES: Final = 32 * _MIB


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
            lambda: cursus_grpc.Admin(
                found.broker, tls=found.tls, request_timeout_s=found.timeout_s, client_id=CLIENT_ID
            )
        )
        if not self._reached:
            try:
                admin.connect(CONNECT_S if found.is_default("timeout") else found.timeout_s)
            except BrokerUnreachable as error:
                admin.close()
                from cursus_grpc.cli import answering  # only where something is wrong

                raise answering.explained(error, found, os.environ) from error
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
        max_record_bytes: int = 0,
        on_delivery: Delivered | None = None,
    ) -> Producer:
        """`max_record_bytes`: what a record may have, where that is more than a producer usually keeps in memory."""
        found = self._reach()
        return _made(
            lambda: cursus_grpc.Producer(
                found.broker,
                tls=found.tls,
                client_id=CLIENT_ID,
                max_block_s=found.timeout_s,
                acks=acks,
                compression=compression,
                linger_ms=linger_ms,
                batch_bytes=batch_bytes,
                buffer_bytes=max(_BUFFER_BYTES, max_record_bytes + _MIB),
                delivery_timeout_s=delivery_timeout_s,
                on_delivery=on_delivery,
            )
        )

    def consumer(self, *, group: str | None = None, reset: Reset = "earliest") -> Consumer:
        found = self._reach()
        return _made(
            lambda: cursus_grpc.Consumer(
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


def _profiles(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from cursus_grpc.cli import config_file

    try:
        path, _ = config_file.locate(context.ensure_object(Session).flags, os.environ)
        named = config_file.read(path, required=False).profiles
    except BadConfiguration:
        return []
    return [CompletionItem(name) for name in named if name.startswith(incomplete)]


def _common_options() -> list[click.Parameter]:
    def option(*names: str, **attributes: Any) -> click.Option:
        return click.Option(names, expose_value=False, callback=_keep, default=None, **attributes)

    return [
        option("--broker", metavar="HOST:PORT", help="The broker, or several, separated by commas. [CURSUS_BROKER]"),
        option("--tls/--no-tls", help="Speak TLS. On if any of the following is given. [CURSUS_CLI_TLS]"),
        option("--tls-ca", metavar="FILE", help="PEM of the authorities to trust. [CURSUS_CLI_TLS_CA]"),
        option("--tls-cert", metavar="FILE", help="PEM of the client's certificate. [CURSUS_CLI_TLS_CERT]"),
        option("--tls-key", metavar="FILE", help="PEM of its private key. [CURSUS_CLI_TLS_KEY]"),
        option(
            "--tls-server-name", metavar="NAME", help="Name in the broker's certificate. [CURSUS_CLI_TLS_SERVER_NAME]"
        ),
        option(
            "--timeout", metavar="SECONDS", help="How long a call may take; 10, and 1 to connect. [CURSUS_CLI_TIMEOUT]"
        ),
        option("--config", metavar="FILE", help="Configuration; ~/.config/cursus/config.yaml. [CURSUS_CLI_CONFIG]"),
        option(
            "--profile",
            metavar="NAME",
            shell_complete=_profiles,
            help="One of the profiles in the configuration. [CURSUS_CLI_PROFILE]",
        ),
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


class Later(NamedTuple):
    """A command that is imported when it is asked for: `module:name`, and what a list of commands says of it."""

    place: str
    help: str


class LaterGroup(Group):
    """A group whose commands are imported one by one: whoever wants the version pays for none of them."""

    def __init__(self, *args: Any, later: Mapping[str, Later] | None = None, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.later: Mapping[str, Later] = later or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.later, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = self.later.get(cmd_name)
        if found is None:
            return super().get_command(ctx, cmd_name)
        module, _, name = found.place.partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limit = formatter.width - 6 - max(map(len, self.list_commands(ctx)), default=0)
        rows = []
        for name in self.list_commands(ctx):
            found = self.later.get(name)
            if found is not None:
                rows.append((name, found.help))
            elif (command := super().get_command(ctx, name)) is not None:
                rows.append((name, command.get_short_help_str(limit)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)
