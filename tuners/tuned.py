"""``fasttrain.toml``: what was measured to help, one table per script, read back before training.

    ["train.py"]
    checksum = "..."                    # over the lines of this table: tells a hand-edited one
    run = "20261130-210604-train"       # where it was measured
    gain = 2.62                         # all settings together, against the script as it is
    low = 2.51                          # 95 % interval
    high = 2.71
    effect = "reseeded"
    loader = { dataset = "...", file = "train.py", line = 34, sampler = "RandomSampler" }
    optimizers = ["torch.optim.adamw.AdamW"]

    ["train.py".settings.dataloader-workers]
    value = { num_workers = 8, prefetch_factor = 4, persistent_workers = true }
    gain = 2.41
    ...

Pure functions over text; only ``load`` touches a file. Standard library only: ``enable()`` reads it in user processes.
"""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fasttrain_doctor.diagnosis import Diagnosis
from fasttrain_doctor.errors import UsageError
from fasttrain_doctor.evidence import Effect
from fasttrain_doctor.tuners import toml_text
from fasttrain_doctor.tuners.fixes import Plan, Value, all_fixes

FILE = "fasttrain.toml"
OPENING = "# What fasttrain-doctor measured to help; `fasttrain-doctor run` trains with it.\n\n"
_EFFECTS = tuple(effect.name.lower() for effect in Effect)
_NUMBERS = ("gain", "low", "high")


@dataclass(frozen=True, kw_only=True, slots=True)
class Applies:
    """The objects the settings were measured on; ``run`` says so where it finds others."""

    dataset: str | None = None  # qualified class
    dataset_length: int | None = None  # only where another loader differs from the training one by nothing else
    file: str | None = None  # where the training loader is made
    line: int | None = None
    sampler: str | None = None
    optimizers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One fix with its value; gain and interval are ratios of times per sample, None where not tried alone."""

    fix: str
    value: Value
    effect: str
    run: str
    gain: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """All that is kept for one script."""

    settings: tuple[Setting, ...]
    run: str
    effect: str
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    applies: Applies = Applies()


@dataclass(frozen=True, slots=True)
class TunedConfig:
    """A config file that was read: entries by script (path relative to the file, or module)."""

    entries: Mapping[str, Entry]
    path: Path | None = None


def entry_of(diagnosis: Diagnosis, run: str, applies: Applies) -> Entry:
    """Return what a confirmed diagnosis leaves to keep; a fix's own gain is that of its trial alone.

    Raises:
        UsageError: ``nothing-tuned``.
    """
    tuned = diagnosis.tuned
    if tuned is None:
        raise UsageError("nothing-tuned", f"run {run} confirmed no faster plan: there is nothing to apply")
    settings = []
    for fix, value in sorted(tuned.settings.items()):
        alone = [trial for trial in diagnosis.trials if trial.settings == {fix: value} and trial.speedup is not None]
        trial = alone[-1] if alone else None
        speedup = trial.speedup if trial is not None else None
        settings.append(
            Setting(
                fix=fix,
                value=value,
                effect=trial.effect if trial is not None else tuned.effect,
                run=run,
                gain=speedup.mid if speedup is not None else None,
                low=speedup.low if speedup is not None else None,
                high=speedup.high if speedup is not None else None,
            )
        )
    whole = tuned.speedup
    return Entry(
        settings=tuple(settings),
        run=run,
        effect=tuned.effect,
        gain=whole.mid,
        low=whole.low,
        high=whole.high,
        applies=applies,
    )


def key_for(target: str, folder: Path, cwd: Path) -> str:
    """Return the table of a script given as on the command line: a path relative to ``folder``, or a module's name."""
    if not target.endswith(".py") and os.sep not in target and not (cwd / target).is_file():
        return target
    return Path(os.path.relpath(cwd / target, folder)).as_posix()


def load(path: Path) -> TunedConfig:
    """Read a config file.

    Raises:
        UsageError: ``config-missing``, ``config-unreadable``, or what ``parse`` raises.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise UsageError("config-missing", f"{path} does not exist: `fasttrain-doctor apply` writes it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("config-unreadable", f"{path} cannot be read: {error}") from None
    return TunedConfig(parse(text, str(path)), path)


def parse(text: str, name: str = FILE) -> dict[str, Entry]:
    """Return the entries of a config's text; every fix and value in it is one that can be installed.

    Raises:
        UsageError: ``config-malformed`` (no TOML, with line and column), ``config-unknown-key``,
            ``config-unknown-fix``, ``config-bad-value``.
    """
    return {script: _entry(f'{name}: ["{script}"]', table) for script, table in _tables(text, name).items()}


def _tables(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError("config-malformed", f"{name} is not valid TOML: {error}") from None


def _checked(where: str, table: object, known: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise UsageError("config-bad-value", f"{where} must be a table, got {table!r}")
    for key, given in table.items():
        if key not in known:
            raise UsageError("config-unknown-key", f"{where} has no key `{key}`; it takes {', '.join(known)}")
        if not isinstance(given, known[key]) or (isinstance(given, bool) and key != "value"):
            raise UsageError("config-bad-value", f"{where} cannot take {key} = {given!r}")
    return table


def _effect(where: str, table: Mapping[str, Any]) -> str:
    effect = table.get("effect")
    if effect not in _EFFECTS:
        raise UsageError("config-bad-value", f"{where} needs effect = one of {', '.join(_EFFECTS)}, got {effect!r}")
    return str(effect)


_NUMBER: dict[str, type | tuple[type, ...]] = dict.fromkeys(_NUMBERS, (int, float))
_SCRIPT: dict[str, type | tuple[type, ...]] = {
    "checksum": str,
    "run": str,
    "effect": str,
    "loader": dict,
    "optimizers": list,
    "settings": dict,
    **_NUMBER,
}
_LOADER: dict[str, type | tuple[type, ...]] = {
    "dataset": str,
    "dataset_length": int,
    "file": str,
    "line": int,
    "sampler": str,
}
_SETTING: dict[str, type | tuple[type, ...]] = {
    "value": (bool, int, float, str, dict),
    "effect": str,
    "run": str,
    **_NUMBER,
}


def _entry(where: str, table: object) -> Entry:
    held = _checked(where, table, _SCRIPT)
    loader = _checked(f"{where} loader", held.get("loader", {}), _LOADER)
    settings = held.get("settings", {})
    return Entry(
        settings=tuple(_setting(f"{where} settings.{fix}", fix, given) for fix, given in settings.items()),
        run=held.get("run", ""),
        effect=_effect(where, held),
        applies=Applies(**loader, optimizers=tuple(map(str, held.get("optimizers", ())))),
        **{key: float(held[key]) for key in _NUMBERS if key in held},
    )


def _setting(where: str, fix: str, table: object) -> Setting:
    fixes = all_fixes()
    if fix not in fixes:
        raise UsageError("config-unknown-fix", f"{where}: no such fix; there are {', '.join(fixes)}")
    held = _checked(where, table, _SETTING)
    if "value" not in held:
        raise UsageError("config-bad-value", f"{where} needs a value")
    try:
        fixes[fix].install(held["value"])
    except ValueError as error:
        raise UsageError("config-bad-value", f"{where}: {error}") from None
    numbers = {key: float(held[key]) for key in _NUMBERS if key in held}
    return Setting(fix=fix, value=held["value"], effect=_effect(where, held), run=held.get("run", ""), **numbers)


def plan_for(config: TunedConfig, script: str) -> Plan | None:
    """Return the plan for a script's table (see ``key_for``), None where the config has none."""
    entry = config.entries.get(script)
    return None if entry is None else {setting.fix: setting.value for setting in entry.settings}


@dataclass(frozen=True, slots=True)
class Settings:
    """What to install for one script: its plan, and the facts of the loader it is for."""

    plan: Plan
    loader: Mapping[str, Any]


def settings_for(config: TunedConfig, script: str, path: Path) -> Settings:
    """Return what the config at ``path`` holds for a script, given by its path or as a module.

    Raises:
        UsageError: ``script-not-tuned``.
    """
    name = key_for(script, path.resolve().parent, Path.cwd())
    entry = config.entries.get(name)
    if entry is None:
        known = ", ".join(sorted(config.entries)) or "no script"
        raise UsageError("script-not-tuned", f"{path} holds settings for {known}, not for {name}")
    loader = {key: getattr(entry.applies, key) for key in _LOADER if getattr(entry.applies, key) is not None}
    return Settings({setting.fix: setting.value for setting in entry.settings}, loader)


def _assignments(held: Mapping[str, object]) -> str:
    return "".join(f"{toml_text.key(k)} = {toml_text.value(v)}\n" for k, v in held.items() if v is not None)


def _checksum(lines: Iterable[str]) -> str:
    kept = [line.rstrip() for line in lines if not line.lstrip().startswith("checksum")]
    return hashlib.sha256("\n".join(kept).strip().encode()).hexdigest()[:16]


def dumps(script: str, entry: Entry) -> str:
    """Return the table of one script as text, its checksum included.

    Raises:
        ValueError: a name that TOML cannot hold.
    """
    applies = entry.applies
    loader = {key: getattr(applies, key) for key in _LOADER if getattr(applies, key) is not None}
    name = toml_text.key(script)
    numbers = {key: getattr(entry, key) for key in _NUMBERS}
    head = {"run": entry.run, **numbers, "effect": entry.effect, "loader": loader or None}
    body = _assignments({**head, "optimizers": list(applies.optimizers) or None})
    for setting in sorted(entry.settings, key=lambda setting: setting.fix):
        held = {key: getattr(setting, key) for key in ("value", *_NUMBERS, "effect", "run")}
        body += f"\n[{name}.settings.{toml_text.key(setting.fix)}]\n" + _assignments(held)
    whole = f"[{name}]\n{body}"
    checksum = _checksum(toml_text.lines_of(whole))
    return f"[{name}]\n" + _assignments({"checksum": checksum}) + body


def edited(text: str, script: str) -> bool:
    """Say whether the script's table is there and not as it was written (also: never written by the tool)."""
    mine = [block for block in toml_text.blocks(text) if block.name == script]
    held = _tables(text, FILE).get(script)
    if held is None:
        return False
    lines = [line for block in mine for line in block.lines]
    return not isinstance(held, dict) or held.get("checksum") != _checksum(lines)


def merge(existing: str, script: str, entry: Entry, force: bool = False) -> str:
    """Return ``existing`` with the script's table replaced or added; every other line stays as it is.

    Raises:
        UsageError: ``config-malformed``; ``config-edited`` where the table was changed by hand and ``force`` is not
            set; ``config-unmergeable`` where the table's lines cannot be told from the others'.
    """
    before = _tables(existing, FILE)
    if edited(existing, script) and not force:
        raise UsageError(
            "config-edited",
            f'{FILE}: ["{script}"] was edited by hand; --force overwrites it, --dry-run shows with what',
        )
    try:
        table = dumps(script, entry)
    except ValueError as error:
        raise UsageError("config-bad-value", f"{FILE} cannot hold this: {error}") from None
    kept = [block for block in toml_text.blocks(existing) if block.name != script]
    places = [place for place, block in enumerate(toml_text.blocks(existing)) if block.name == script]
    texts = [block.text for block in kept]
    at = places[0] if places else len(texts)
    head, tail = "".join(texts[:at]), "".join(texts[at:])
    if head and not head.endswith("\n"):
        head += "\n"
    gap = "\n" if head.strip() and not head.endswith("\n\n") else ""
    merged = (head if existing.strip() else OPENING) + gap + table + ("\n" + tail.lstrip("\n") if tail.strip() else "")
    expected = before | tomllib.loads(table)
    try:
        same = tomllib.loads(merged) == expected
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        raise UsageError(
            "config-unmergeable", f"{FILE} is written in a way that cannot be added to safely; move it aside first"
        )
    return merged
