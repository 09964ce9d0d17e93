"""Shared parts of all verbs: output options, where warnings and results go, and the exit codes.

| code | meaning                                                                 |
|------|-------------------------------------------------------------------------|
| 0    | done, same, fresh                                                       |
| 1    | the answer is "no"                                                      |
| 2    | could not answer: bad arguments, unreadable or invalid input            |
| 3    | proven infeasible                                                       |
| 4    | a limit ended the search (no plan, or not optimal where that was asked) |
| 70   | our defect                                                              |
| 130  | interrupted                                                             |
| 141  | whoever read our output stopped reading                                 |
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from shardplan.errors import Diagnostic
from shardplan.escapes import one_line
from shardplan.text_lines import columns_of, folded_line
from shardplan.verbs.streams import DEGRADE, discard

if TYPE_CHECKING:
    from rich.console import Console

    from shardplan.render.progress import ProgressLine, Standing

    OnStanding = Callable[[Standing], None]

EXIT_DONE, EXIT_NO, EXIT_USAGE, EXIT_INFEASIBLE, EXIT_LIMIT = 0, 1, 2, 3, 4
EXIT_DEFECT, EXIT_INTERRUPTED, EXIT_PIPE = 70, 130, 141
STANDARD_OUTPUT = "-"
"""The name of an output that is printed."""
_SOURCES = {
    ParameterSource.COMMANDLINE: "command line",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT_MAP: "configuration",
    ParameterSource.DEFAULT: "default",
}
_IN_SETTINGS = "it is set in shardplan.toml, or [tool.shardplan] of pyproject.toml"
_FILES = frozenset(("FILE", "DIR", "FILE...", "FILE.html", "FILE.png", "FILE.onnx", "MODEL"))
"""Words for files in the help."""
_NO_STREAMS = frozenset(("html", "junit", "sarif", "plot"))
"""Options whose files are written beside what a verb prints."""
_COLORS = {"error": "red", "warning": "yellow", "note": "cyan"}
Verb = TypeVar("Verb", bound=Callable[..., Any])


@dataclass
class Session:
    """One run of one verb. Results go to standard output, everything else to standard error."""

    command: str
    as_json: bool = False
    color: Literal["auto", "always", "never"] = "auto"
    quiet: bool = False
    verbose: bool = False
    defaults: frozenset[str] = frozenset()
    """Names of the options that the user left to their defaults."""
    diagnostics: list[Diagnostic] = field(default_factory=list)
    started_s: float = field(default_factory=time.monotonic)
    failure: Mapping[str, object] | None = None
    """The `result` of the JSON document if the verb fails from here on."""
    closing: list[str] = field(default_factory=list)
    """Lines for standard error after everything else: which other files the verb wrote."""
    line: ProgressLine | None = None
    """Of a terminal, while the verb is at work."""

    def say(self, diagnostic: Diagnostic) -> None:
        """Print a diagnostic and keep it for the JSON document; `--quiet` prints errors only."""
        self.diagnostics.append(diagnostic)
        if diagnostic.severity == "error" or not self.quiet:
            self.note(self._styled(diagnostic), color=self._wants_color(sys.stderr.isatty()))

    def note(self, text: str, *, color: bool | None = None) -> None:
        """Print a line on standard error."""
        with self._hidden():
            click.echo(text, err=True, color=color)

    def say_all(self, diagnostics: Iterable[Diagnostic]) -> None:
        """`say` each."""
        for diagnostic in diagnostics:
            self.say(diagnostic)

    @contextlib.contextmanager
    def working(self, reads: str = "") -> Iterator[None]:
        """Meanwhile a terminal has a line that says what is being done: `reading model.onnx ⠹ 3 s`. `reads`: the file
        that the verb reads first."""
        from shardplan.render.progress import FIRST_S, ProgressLine

        after_s = max(0.0, FIRST_S - time.process_time())  # imports have taken their part of it
        doing = f"reading {one_line(reads.rpartition('/')[2])}".rstrip()
        with ProgressLine(sys.stderr, enabled=not self.quiet, doing=doing, after_s=after_s) as self.line:
            yield
        self.line = None

    def begin(self, doing: str, amount: Callable[[float], str] | None = None, *, keeps: bool = False) -> OnStanding:
        """Say on that line what begins; what comes back is called with how far it is, as often as the caller likes.
        `amount` writes a cost, in picoseconds unless it is given; `keeps`: Ctrl-C ends it with the best so far."""
        from shardplan.render.progress import picoseconds

        return self.line.begin(doing, amount or picoseconds, keeps=keeps) if self.line else lambda _: None

    def _hidden(self) -> contextlib.AbstractContextManager[None]:
        return self.line.hidden() if self.line else contextlib.nullcontext()

    def paint(self, draw: Callable[[Console], None]) -> None:
        """Let `draw` print a part of the result on standard output, unless that belongs to a document."""
        if not self.as_json:
            from shardplan.render.console import make_console

            with self._hidden():
                draw(make_console(self.color))
                sys.stdout.flush()

    def tell(self, draw: Callable[[Console], None]) -> None:
        """`paint` what is no result: where nobody reads it any more, the verb goes on."""
        try:
            self.paint(draw)
        except BrokenPipeError:
            discard(sys.stdout)

    def write_text(self, text: str) -> None:
        """Print a result that has a form of its own, in UTF-8 whatever the terminal's encoding."""
        with self._hidden():
            sys.stdout.flush()
            raw = getattr(sys.stdout, "buffer", None)
            if raw is None:
                sys.stdout.write(text)
            else:
                raw.write(text.encode(errors=DEGRADE))
                raw.flush()

    def write_document(self, result: Mapping[str, object] | None) -> None:
        """Print the JSON document, with every diagnostic said so far."""
        from shardplan.render.documents import document

        self.write_text(document(self.command, result, self.diagnostics))

    def finish(self, result: Mapping[str, object], draw: Callable[[Console], None]) -> int:
        """Print the whole result, as a document or as `draw` paints it."""
        if self.as_json:
            self.write_document(result)
        else:
            self.paint(draw)
        return EXIT_DONE

    def show_values(self, context: click.Context) -> None:
        """Print every option's effective value and where it comes from."""
        shown_as = {p.name: _written(p) for p in context.command.params if p.name in context.params}
        width = max(map(len, shown_as.values()), default=0)
        for name, written in shown_as.items():
            source = context.get_parameter_source(name)
            where = _SOURCES.get(source, "default") if source else "default"
            value = context.params[name]
            shown = ", ".join(value) if isinstance(value, tuple) else "" if value is None else str(value)
            click.echo(one_line(f"{written:{width}}  {shown or '-'}  ({where})"), err=True)

    def _styled(self, diagnostic: Diagnostic) -> str:
        label = f"{diagnostic.severity}[{diagnostic.code}]"
        painted = click.style(label, fg=_COLORS[diagnostic.severity], bold=True)
        lines = str(diagnostic).splitlines()
        return "\n".join(folded_line(line, columns_of(sys.stderr)) for line in lines).replace(label, painted, 1)

    def _wants_color(self, terminal: bool) -> bool:
        if self.color == "auto":
            return terminal and "NO_COLOR" not in os.environ
        return self.color == "always"


def _written(parameter: click.Parameter) -> str:
    """An option as in a file of settings, `memory-limit`; an argument by its name."""
    return max(parameter.opts, key=len).lstrip("-") if isinstance(parameter, click.Option) else str(parameter.name)


def whence(context: click.Context, name: str) -> str:
    """A hint to where the value of the parameter `name` comes from; empty for the command line and for a default."""
    source = context.get_parameter_source(name)
    if source is ParameterSource.DEFAULT_MAP:
        return _IN_SETTINGS
    variable = next((each.envvar for each in context.command.params if each.name == name), None)
    return f"it is set in the environment, as {variable}" if source is ParameterSource.ENVIRONMENT else ""


def _refuse_empty(context: click.Context) -> None:
    """Refuse empty text for an option, which would be as if the option were not given. Each entry of an option that
    may be repeated has a check of its own. Raises `click.BadParameter`."""
    for parameter in context.command.params:
        name = parameter.name or ""
        is_left = context.get_parameter_source(name) is ParameterSource.DEFAULT
        if isinstance(parameter, click.Option) and context.params.get(name) == "" and not is_left:
            raise click.BadParameter("the text is empty", context, parameter)


def _refuse_names(context: click.Context) -> None:
    """Refuse files without a name, which would be the working directory, and `-` for what is no stream. Raises
    `click.UsageError`."""
    for parameter in context.command.params:
        given = context.params.get(parameter.name or "")
        names = given if isinstance(given, tuple) else (given,)
        is_option = isinstance(parameter, click.Option)
        called = f"--{_written(parameter)}" if is_option else parameter.human_readable_name
        is_file = isinstance(parameter.type, click.Path) or not _FILES.isdisjoint(str(parameter.metavar).split("|"))
        if "" in names and is_file:
            raise click.UsageError(f"{called}: the name of the file is empty")
        if STANDARD_OUTPUT in names and parameter.name in _NO_STREAMS:
            raise click.UsageError(f"{called} -: this is written to a file, not to standard output; give it a name")


def option(*names: str, **settings: Any) -> Callable[[Verb], Verb]:
    """`click.option` that can also be set as `SHARDPLAN_<NAME>`."""
    longest = max((name for name in names if name.startswith("--")), key=len).partition("/")[0]
    variable = "SHARDPLAN_" + longest.removeprefix("--").replace("-", "_").upper()
    return click.option(*names, envvar=variable, **settings)


def completing(names: Callable[[], Iterable[str]], *, files: bool = False) -> Callable[..., list[CompletionItem]]:
    """What a shell offers for an argument: `names`, of a list with commas for its last entry; and `files`."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001 - click's signature
        before, comma, begun = incomplete.rpartition(",")
        found = [CompletionItem(before + comma + name) for name in names() if name.startswith(begun)]
        return [*found, *([CompletionItem(incomplete, type="file")] if files else [])]

    return complete


def verb(function: Callable[..., int]) -> Callable[..., int]:
    """Add the output options of every verb and hand it a `Session` in their place, with a line of progress."""

    @functools.wraps(function)
    def at_work(session: Session, /, *arguments: object, **options: object) -> int:
        with session.working(_read_first(click.get_current_context())):
            return function(session, *arguments, **options)

    return attended_verb(at_work)


def _read_first(context: click.Context) -> str:
    """The first argument of the command, or the first of several; empty where that is none or standard input."""
    named = [context.params.get(each.name or "") for each in context.command.params if isinstance(each, click.Argument)]
    first = next((name for value in named for name in (value if isinstance(value, tuple) else (value,))), None)
    return str(first) if first not in (None, "-") else ""


def attended_verb(function: Callable[..., int]) -> Callable[..., int]:
    """The same without a line of progress: the terminal is for questions, or for another program."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
    @option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        show_default=True,
        help="When to colour; NO_COLOR is honoured.",
    )
    @click.option("-q", "--quiet", is_flag=True, help="Print no warnings and no progress.")
    @click.option("-v", "--verbose", is_flag=True, help="Print each option's value and source, and tracebacks.")
    @click.pass_context
    @functools.wraps(function)
    def with_session(
        context: click.Context,
        /,
        *arguments: object,
        as_json: bool,
        color: Any,
        quiet: bool,
        verbose: bool,
        **options: object,
    ) -> int:
        command = context.command_path.partition(" ")[2].removesuffix(" list")
        sources = {name: context.get_parameter_source(name) for name in context.params}
        defaults = frozenset(name for name, source in sources.items() if source is ParameterSource.DEFAULT)
        session = Session(command, as_json, color, quiet, verbose, defaults)
        context.find_root().obj.session = session
        if verbose:
            session.show_values(context)
        _refuse_names(context)
        _refuse_empty(context)
        try:
            return function(session, *arguments, **options)
        finally:
            for text in session.closing:
                session.note(text)

    return with_session
