"""The command's subcommands, their options, and their exit codes.

0: done. 1: it couldn't be done, or ``doctor`` found something that fails. 2: it couldn't even begin.
``verify`` has its own: 1 is a difference, 2 that it couldn't be run, 3 that vendors couldn't be asked.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final, NoReturn

import typer
from pydantic import BaseModel, ConfigDict
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from turnsaga import __version__
from turnsaga.cli._adopting import adopt as adopt_engine
from turnsaga.cli._doctor import examine, worst
from turnsaga.cli._loading import AppNotLoaded, load_deployment
from turnsaga.cli._output import print_json, print_table
from turnsaga.cli._questions import Owners, effects, turns
from turnsaga.cli._session import Session
from turnsaga.cli._verify import Scope
from turnsaga.cli._verify import verify as verify_effects
from turnsaga.deployment import Deployment, Status
from turnsaga.errors import TurnSagaError
from turnsaga.ledger import State, TurnState
from turnsaga.logs import configure, forward_engine_logs
from turnsaga.models import RulingWord

__all__ = ["command"]

command: Final = typer.Typer(
    name="turnsaga", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
_turns: Final = typer.Typer(no_args_is_help=True, help="Turns of all users.")
_effects: Final = typer.Typer(no_args_is_help=True, help="Effects of all users.")
command.add_typer(_turns, name="turns")
command.add_typer(_effects, name="effects")

App = Annotated[
    str | None,
    typer.Option("--app", envvar="TURNSAGA_APP", help="the deployment, such as workers.build:app"),
]
AsJson = Annotated[bool, typer.Option("--json", help="answer in JSON, one object a line")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="only this tenant's")]
User = Annotated[str | None, typer.Option("--user", help="only users of this name")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="at most so many")]
TurnId = Annotated[str, typer.Argument(metavar="TURN", help="the turn's id, trn_…")]
EffectId = Annotated[str, typer.Argument(metavar="EFFECT", help="the effect's id, eff_…")]
TurnFilter = Annotated[str | None, typer.Option("--turn", help="only this turn's")]
_LINE: Final = ("turn", "tenant", "user", "conversation", "state", "effects", "created_at", "ended_at")
_EFFECT: Final = ("effect", "turn", "tenant", "user", "title", "state", "needs_attention", "at")
_COMPARED: Final = ("effect", "tool", "identity", "state", "verdict", "vendor", "fixed", "remedy")
_FIGURES: Final = ("checked", "agree", "differ", "cant_be_asked", "open", "unreachable", "fixed", "more")


class Aborting(BaseModel):
    """The answer to an abort: the turn's state now, and whether this call is the one that stopped it."""

    model_config = ConfigDict(frozen=True)

    turn: str
    state: TurnState
    first: bool


class Found(StrEnum):
    """What a person found out about an effect that needed one, as the command is given it."""

    APPLIED = "applied"
    NOT_APPLIED = "not-applied"
    UNDONE = "undone"
    STANDS = "stands"

    @property
    def word(self) -> RulingWord:
        """Return the ledger's word for it."""
        words: dict[Found, RulingWord] = {
            Found.APPLIED: "applied",
            Found.NOT_APPLIED: "not_applied",
            Found.UNDONE: "undone",
            Found.STANDS: "stands",
        }
        return words[self]


def _say_version(asked: bool) -> None:  # noqa: FBT001  # typer calls it so
    if asked:
        typer.echo(f"turnsaga {__version__}")
        raise typer.Exit


@command.callback()
def main(
    *,
    version: Annotated[  # noqa: ARG001  # its callback answers
        bool, typer.Option("--version", is_eager=True, callback=_say_version, help="say the version and end")
    ] = False,
) -> None:
    """Look after a deployment: its connections, its turns, its effects.

    An operator's tool: it reads and writes the ledger's database and Temporal directly, across all tenants
    and users, with the rights of whoever calls it.
    """
    # Logs go to stderr, the answer alone to stdout.
    configure("development")
    forward_engine_logs("development")


@_turns.command("list")
def list_turns(
    *,
    app: App = None,
    as_json: AsJson = False,
    tenant: Tenant = None,
    user: User = None,
    state: Annotated[list[TurnState] | None, typer.Option("--state", help="only in this state")] = None,
    limit: Limit = 50,
) -> None:
    """List turns, the newest first."""

    async def run(session: Session) -> None:
        found = await session.reader.ask(turns, Owners(tenant, user), states=state or (), limit=limit)
        if as_json:
            print_json(*found)
        else:
            print_table(_LINE, found, empty="There are no such turns.")

    _in_session(app, run)


@_turns.command("show")
def show_turn(
    turn: TurnId, *, app: App = None, as_json: AsJson = False, tenant: Tenant = None, user: User = None
) -> None:
    """Show a turn with its effects and, once it has ended, its settlement."""

    async def run(session: Session) -> None:
        view = await session.turn(turn, Owners(tenant, user))
        if as_json:
            print_json(view)
            return
        print_table(("turn", "conversation", "state", "reason"), [view], empty="")
        typer.echo()
        columns = ("order", "effect", "title", "state", "needs_attention", "error", "no_undo_reason")
        print_table(columns, view.effects, empty="It has no effects.")

    _in_session(app, run)


@_turns.command("abort")
def abort_turn(
    turn: TurnId,
    *,
    app: App = None,
    as_json: AsJson = False,
    tenant: Tenant = None,
    user: User = None,
    reason: Annotated[str | None, typer.Option("--reason", help="why; its user reads it")] = None,
) -> None:
    """Stop a turn: nothing more of it is sent, and what it did is undone in reverse order.

    The fence is written before the answer. On a turn that is settling or has ended this changes nothing.
    """

    async def run(session: Session) -> None:
        answer = await session.abort(turn, Owners(tenant, user), reason=reason)
        stopped = Aborting(turn=turn, state=answer.state, first=answer.first)
        if as_json:
            print_json(stopped)
        elif answer.first:
            typer.echo(f"{turn} is {stopped.state}: nothing more of it is sent; see turnsaga turns show")
        else:
            typer.echo(f"{turn} is {stopped.state} already; nothing was changed")

    _in_session(app, run)


@_effects.command("list")
def list_effects(
    *,
    app: App = None,
    as_json: AsJson = False,
    tenant: Tenant = None,
    user: User = None,
    turn: TurnFilter = None,
    state: Annotated[list[State] | None, typer.Option("--state", help="only in this state")] = None,
    attention: Annotated[
        bool,
        # The short name is that of earlier versions.
        typer.Option("--needs-attention", "--attention", help="only those that wait for a person"),
    ] = False,
    limit: Limit = 50,
) -> None:
    """List effects, the latest changed first; with --needs-attention those first that waited longest."""

    async def run(session: Session) -> None:
        found = await session.reader.ask(
            effects, Owners(tenant, user), states=state or (), turn=turn, attention=attention, limit=limit
        )
        if as_json:
            print_json(*found)
        else:
            print_table(_EFFECT, found, empty="There are no such effects.")

    _in_session(app, run)


@_effects.command("show")
def show_effect(
    effect: EffectId, *, app: App = None, as_json: AsJson = False, tenant: Tenant = None, user: User = None
) -> None:
    """Show the canonical record of one effect."""

    async def run(session: Session) -> None:
        view = await session.effect(effect, Owners(tenant, user))
        if as_json:
            print_json(view)
            return
        print_table(("effect", "turn", "tool", "title", "state", "order"), [view], empty="")
        typer.echo()
        print_table(("key", "identity", "error", "no_undo_reason", "needs_attention", "at"), [view], empty="")

    _in_session(app, run)


@_effects.command("resolve")
def resolve_effect(
    effect: EffectId,
    *,
    word: Annotated[Found, typer.Option("--as", help="what was found out about it")],
    note: Annotated[str, typer.Option("--note", help="how that is known; recorded, with who said it")],
    app: App = None,
    as_json: AsJson = False,
    tenant: Tenant = None,
    user: User = None,
) -> None:
    """Say what became of an effect that needs a person; the ledger takes their word.

    One that is unknown was applied or not-applied. One whose undo failed was undone by other means, or
    stands: then its user is shown the note. The same word again changes nothing.
    """

    async def run(session: Session) -> None:
        view = await session.resolve(effect, Owners(tenant, user), word=word.word, note=note)
        if as_json:
            print_json(view)
        else:
            print_table(("effect", "title", "state", "needs_attention", "no_undo_reason"), [view], empty="")

    _in_session(app, run)


@command.command()
def sweep(*, app: App = None, as_json: AsJson = False) -> None:
    """Look once, from here, for turns that nobody settles, as the sweeper's schedule does.

    Workers carry out what it starts. It stops at a Temporal that isn't the ledger's.
    """

    async def run(session: Session) -> None:
        report = await session.sweep()
        if as_json:
            print_json(report)
        else:
            print_table(tuple(type(report).model_fields), [report], empty="")

    _in_session(app, run)


@command.command()
def adopt(
    *,
    app: App = None,
    as_json: AsJson = False,
    yes: Annotated[bool, typer.Option("--yes", help="do it; without this it only shows")] = False,
) -> None:
    """Make the Temporal that is configured the ledger's, once the ledger's own is gone for good.

    Shows both. Turns whose runs the new one doesn't know are settled by the next sweep, so what they did
    is undone: see that no worker runs on the old one any more.
    """

    async def run(session: Session) -> None:
        answer = await adopt_engine(session, yes=yes)
        if as_json:
            print_json(answer)
            return
        print_table(tuple(type(answer).model_fields), [answer], empty="")
        typer.echo()
        typer.echo(
            f"the ledger belongs to the configured Temporal now; turns to settle: {answer.to_settle}"
            if answer.adopted
            else "nothing was changed; if the ledger's Temporal is gone for good, say it again with --yes"
        )

    _in_session(app, run)


@command.command()
def verify(
    *,
    app: App = None,
    as_json: AsJson = False,
    tenant: Tenant = None,
    user: User = None,
    turn: TurnFilter = None,
    since: Annotated[
        datetime | None, typer.Option("--since", help="only those changed since then, in UTC")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="at most so many")] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="write down what vendors know of effects that are unknown")
    ] = False,
) -> None:
    """Compare the ledger with the vendors, effect by effect, the oldest first.

    Sends nothing but questions. Ends with 0 if all that could be asked agrees, with 1 if anything differs,
    with 2 if it couldn't be run, and with 3 if vendors couldn't be asked.
    """
    changed = None if since is None else since.replace(tzinfo=UTC)

    async def run(session: Session) -> None:
        scope = Scope(Owners(tenant, user), turn=turn, since=changed, limit=limit)
        lines, summary = await verify_effects(session, scope, fix=fix)
        if as_json:
            print_json(*lines, summary)
        else:
            print_table(_COMPARED, lines, empty="Nothing differs, and nothing is open.")
            typer.echo()
            print_table(_FIGURES, [summary], empty="")
        raise typer.Exit(summary.exit_code)

    _in_session(app, run, refused=2)


@command.command()
def doctor(*, app: App = None, as_json: AsJson = False) -> None:
    """Check every connection of a deployment, and say what to do about each that is wrong.

    Changes nothing. Ends with 0 if all is well or there are only warnings, with 1 if something fails.
    """
    checked = asyncio.run(examine(_loaded(app)))
    if as_json:
        print_json(*checked)
    else:
        print_table(("check", "status", "what", "remedy"), checked, empty="")
    raise typer.Exit(1 if worst(checked) is Status.FAIL else 0)


def _loaded(app: str | None) -> Deployment:
    try:
        return load_deployment(app)
    except AppNotLoaded as error:
        _refuse(str(error), code=2)


def _in_session(app: str | None, work: Callable[[Session], Awaitable[None]], *, refused: int = 1) -> None:
    deployment = _loaded(app)

    async def run() -> None:
        async with Session.open(deployment) as session:
            await work(session)

    try:
        asyncio.run(run())
    except (TurnSagaError, ApplicationError) as error:
        _refuse(str(error), code=refused)
    except RPCError as error:
        _refuse(f"Temporal refuses it: {error.status.name}: {error.message}", code=refused)


def _refuse(reason: str, *, code: int) -> NoReturn:
    sys.stderr.write(f"turnsaga: {reason}\n")
    raise typer.Exit(code)
