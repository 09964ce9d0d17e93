"""Settings from `shardplan.toml`, or `[tool.shardplan]` in `pyproject.toml`, in the working directory.

A key is an option's name without its dashes. At the top it holds for every verb with such an option, in a table with a
verb's name for that verb alone. The command line and the environment win over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.text_files import read_text

_MARK = "\ufeff"
"""With which editors of Windows begin a file, and TOML may not begin."""
Settings = dict[str, dict[str, object]]


def read_settings(group: click.Group) -> Settings:
    """Defaults for each verb of `group` by parameter name: what click takes as `default_map`.

    Raises `ShardplanError` for a file that is not TOML and for keys that no verb has.
    """
    for name, path in (("shardplan.toml", ()), ("pyproject.toml", ("tool", "shardplan"))):
        table = _table(Path(name), path)
        if table is not None:
            return _by_verb(table, group, name)
    return {}


def _table(file: Path, path: tuple[str, ...]) -> Mapping[str, object] | None:
    """The table at `path`; None where there is no file or no such table."""
    if not file.is_file():
        return None
    import tomllib

    try:
        found: object = tomllib.loads(read_text(file).removeprefix(_MARK))
    except RecursionError:
        raise ShardplanError(error("bad-configuration", "it is nested too deeply", file=str(file))) from None
    except OSError as problem:
        summary = f"cannot read it: {problem.strerror or problem}"
        raise ShardplanError(error("bad-configuration", summary, file=str(file))) from None
    except ValueError as problem:
        raise ShardplanError(error("bad-configuration", f"not valid TOML: {problem}", file=str(file))) from None
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    if _has_zero_byte(found):  # which no system takes in the name of a file
        raise ShardplanError(error("bad-configuration", "a value holds a zero byte", file=str(file)))
    return found if isinstance(found, Mapping) else None


def _has_zero_byte(value: object) -> bool:
    entries = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return "\0" in value if isinstance(value, str) else any(map(_has_zero_byte, entries))


def _by_verb(table: Mapping[str, object], group: click.Group, file: str) -> Settings:
    options = {verb: _options(command) for verb, command in sorted(group.commands.items())}
    everywhere = {name for names in options.values() for name in names}
    settings: Settings = {verb: {} for verb in options}
    problems: list[Diagnostic] = []
    own = {key: value for key, value in table.items() if key in options and isinstance(value, Mapping)}
    for key, value in table.items():
        if key in own:
            continue
        if key not in everywhere:
            problems.append(_unknown(key, [*everywhere, *options], file))
        for verb, named in options.items():
            if key in named:
                settings[verb] |= _set(named[key], value)
    for verb, values in own.items():
        assert isinstance(values, Mapping)
        for key, value in values.items():
            if key in options[verb]:
                settings[verb] |= _set(options[verb][key], value)
            else:
                problems.append(_unknown(key, options[verb], file))
    if problems:
        raise ShardplanError(*problems)
    return settings


def _options(command: click.Command) -> dict[str, click.Option]:
    """Options by their names as written on the command line, without dashes: `memory-limit`."""
    return {
        flag.lstrip("-"): parameter
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.name != "help"
        for flag in parameter.opts
        if flag.startswith("--")
    }


def _set(option: click.Option, value: object) -> dict[str, object]:
    """A value by the name of its parameter; what may be repeated may be given once, as on the command line."""
    return {str(option.name): [value] if option.multiple and not isinstance(value, list) else value}


def _unknown(key: str, known: object, file: str) -> Diagnostic:
    assert isinstance(known, list | dict)
    hint = did_you_mean(key, known) or "keys are options without their dashes, such as cluster or memory-limit"
    return error("unknown-key", f"no option is called '{key}'", hint=hint, file=file)
