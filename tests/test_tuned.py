"""fasttrain.toml: what is written is read back, what others wrote stays, what cannot be used is refused with a name."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrain_doctor.errors import Exit, UsageError
from fasttrain_doctor.tuners import toml_text
from fasttrain_doctor.tuners.tuned import (
    Applies,
    Entry,
    Setting,
    TunedConfig,
    dumps,
    edited,
    entry_of,
    key_for,
    load,
    merge,
    parse,
    plan_for,
)
from tests.sample_success import SUCCESS

WORKERS = Setting(
    fix="dataloader-workers",
    value={"num_workers": 8, "prefetch_factor": 4, "persistent_workers": True},
    effect="reseeded",
    run="20261130-210604-train",
    gain=2.41,
    low=2.33,
    high=2.49,
)
AMP = Setting(fix="amp", value="bfloat16", effect="precision", run="20261130-210604-train")
ENTRY = Entry(
    settings=(AMP, WORKERS),
    run="20261130-210604-train",
    effect="precision",
    gain=2.62,
    low=2.51,
    high=2.71,
    applies=Applies(
        dataset="train.Pictures", file="train.py", line=34, sampler="RandomSampler", optimizers=("torch.optim.sgd.SGD",)
    ),
)

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
numbers = st.none() | st.floats(0.01, 100)
settings = st.builds(
    Setting,
    fix=st.just("dataloader-workers"),
    value=st.fixed_dictionaries({"num_workers": st.integers(0, 64), "prefetch_factor": st.integers(1, 8)}),
    effect=st.sampled_from(["exact", "reseeded"]),
    run=text,
    gain=numbers,
    low=numbers,
    high=numbers,
)
entries = st.builds(
    Entry,
    settings=settings.map(lambda s: (s,)) | st.just((AMP,)) | st.just(()),
    run=text,
    effect=st.sampled_from(["exact", "rounding", "precision"]),
    gain=numbers,
    applies=st.builds(
        Applies,
        dataset=st.none() | text,
        file=st.none() | text,
        line=st.none() | st.integers(0, 10**6),
        sampler=st.none() | text,
        optimizers=st.lists(text, max_size=3).map(tuple),
    ),
)


def slug(call: object, *args: object, **kwargs: object) -> str:
    with pytest.raises(UsageError) as caught:
        call(*args, **kwargs)  # type: ignore[operator]
    assert caught.value.exit == Exit.USAGE
    return caught.value.slug


@given(script=text, entry=entries)
def test_what_is_written_is_read_back(script: str, entry: Entry) -> None:
    assert parse(merge("", script, entry)) == {script: entry}


@given(
    given=st.recursive(
        st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | text,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
        max_leaves=6,
    )
)
def test_any_value_survives_toml(given: object) -> None:
    assert tomllib.loads(f"x = {toml_text.value(given)}")["x"] == given


@given(scripts=st.lists(text, min_size=2, max_size=4, unique=True), new=entries, entry=entries)
def test_merging_changes_one_table_only(scripts: list[str], new: Entry, entry: Entry) -> None:
    existing = ""
    for script in scripts:
        existing = merge(existing, script, entry)
    merged = merge(existing, scripts[0], new)
    assert parse(merged) == dict.fromkeys(scripts, entry) | {scripts[0]: new}
    assert merge(merged, scripts[0], new) == merged  # the same again changes nothing
    assert list(parse(merged)) == scripts  # tables stay in their places


@given(st.text(alphabet='[]"ab.#=\n \t1', max_size=120))
def test_the_blocks_of_a_text_are_the_text(text: str) -> None:
    assert "".join(block.text for block in toml_text.blocks(text)) == text


def test_other_lines_stay_as_they_are() -> None:
    mine = merge("# mine\n\n", "train.py", ENTRY)
    other = '# about the other\n["other.py"]  # by hand\neffect = "exact"\n'
    merged = merge(mine + "\n" + other, "train.py", replace(ENTRY, gain=3.0))
    assert merged.startswith("# mine\n\n")
    assert merged.endswith(other)
    assert parse(merged)["train.py"].gain == 3.0


def test_a_hand_edited_table_is_not_overwritten_without_force() -> None:
    written = merge("", "train.py", ENTRY)
    assert not edited(written, "train.py")
    for by_hand in (
        written.replace("num_workers = 8", "num_workers = 6"),
        written.replace('["train.py".settings.amp]', '# keep!\n["train.py".settings.amp]'),
        "\n".join(line for line in written.splitlines() if not line.startswith("checksum")),
    ):
        assert edited(by_hand, "train.py")
        assert slug(merge, by_hand, "train.py", ENTRY) == "config-edited"
        assert merge(by_hand, "train.py", ENTRY, force=True) == written
        assert merge(by_hand, "other.py", ENTRY).startswith(by_hand)  # another script's table is no reason to refuse


def test_line_ends_and_trailing_blanks_are_no_edit() -> None:
    written = merge("", "train.py", ENTRY)
    assert not edited(written.replace("\n", "\r\n") + "\n\n", "train.py")


def test_a_layout_that_cannot_be_split_by_lines_is_refused() -> None:
    inline = '"train.py" = { effect = "exact" }\n'
    assert slug(merge, inline, "train.py", ENTRY, force=True) == "config-unmergeable"
    hidden = 'x = """\n["train.py"]\n"""\n'
    assert slug(merge, hidden, "train.py", ENTRY) == "config-unmergeable"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('["train.py"\n', "config-malformed"),
        ('["train.py"]\neffect = "exact"\nspeed = 2\n', "config-unknown-key"),
        ('["train.py"]\neffect = "great"\n', "config-bad-value"),
        ('["train.py"]\neffect = "exact"\ngain = true\n', "config-bad-value"),
        ('["train.py"]\neffect = "exact"\nloader = { line = "x" }\n', "config-bad-value"),
        ('"train.py" = 3\n', "config-bad-value"),
        ('["train.py"]\neffect = "exact"\n["train.py".settings.faster]\nvalue = true\n', "config-unknown-fix"),
        ('["train.py"]\neffect = "exact"\n["train.py".settings.amp]\neffect = "exact"\n', "config-bad-value"),
        ('["train.py"]\neffect = "exact"\n["train.py".settings.amp]\nvalue = "int4"\n', "config-bad-value"),
        (
            '["t"]\neffect = "exact"\n[t.settings.dataloader-workers]\neffect = "exact"\nvalue = { num_workers = -1 }\n',
            "config-bad-value",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(text: str, expected: str) -> None:
    assert slug(parse, text) == expected


def test_a_malformed_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "fasttrain.toml"
    path.write_text('["train.py"]\neffect = \n')
    with pytest.raises(UsageError, match=rf"{path}.*line 2"):
        load(path)


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    assert slug(load, tmp_path / "fasttrain.toml") == "config-missing"
    (tmp_path / "latin").write_bytes(b'x = "\xe9"')
    assert slug(load, tmp_path / "latin") == "config-unreadable"
    assert slug(load, tmp_path) == "config-unreadable"


def test_the_plan_of_a_script(tmp_path: Path) -> None:
    path = tmp_path / "fasttrain.toml"
    path.write_text(merge("", "train.py", ENTRY))
    config = load(path)
    assert plan_for(config, "train.py") == {"amp": "bfloat16", "dataloader-workers": WORKERS.value}
    assert plan_for(config, "other.py") is None
    assert plan_for(TunedConfig({}), "train.py") is None


def test_scripts_are_named_relative_to_the_file(tmp_path: Path) -> None:
    assert key_for("train.py", tmp_path, tmp_path) == "train.py"
    assert key_for("./a/../train.py", tmp_path, tmp_path) == "train.py"
    assert key_for("train.py", tmp_path, tmp_path / "sub") == "sub/train.py"
    assert key_for(str(tmp_path / "train.py"), tmp_path, Path("/")) == "train.py"
    assert key_for("pkg.train", tmp_path, tmp_path) == "pkg.train"


def test_a_confirmed_diagnosis_becomes_an_entry() -> None:
    """Each fix keeps the gain of its trial alone, the whole keeps the confirmed one."""
    tuned = SUCCESS.tuned
    assert tuned is not None
    entry = entry_of(SUCCESS, "20261130-210604-train", Applies(file="train.py", line=34))
    assert (entry.gain, entry.low, entry.high) == (tuned.speedup.mid, tuned.speedup.low, tuned.speedup.high)
    assert {setting.fix: setting.value for setting in entry.settings} == tuned.settings
    for setting in entry.settings:
        alone = [t for t in SUCCESS.trials if t.settings == {setting.fix: setting.value} and t.speedup is not None]
        assert setting.gain == (alone[-1].speedup.mid if alone and alone[-1].speedup is not None else None)
    assert parse(merge("", "train.py", entry)) == {"train.py": entry}


def test_without_a_confirmed_plan_there_is_nothing_to_apply() -> None:
    assert slug(entry_of, replace(SUCCESS, tuned=None), "run", Applies()) == "nothing-tuned"


def test_a_name_that_is_not_text_is_refused() -> None:
    assert slug(merge, "", os.fsdecode(b"tr\xe9in.py"), ENTRY) == "config-bad-value"
    with pytest.raises(ValueError):
        dumps("\ud800", ENTRY)


def test_reading_it_imports_neither_torch_nor_anything_of_ours_that_users_lack() -> None:
    code = (
        "import sys; from fasttrain_doctor.tuners import tuned; tuned.parse(sys.stdin.read());"
        "print([m for m in ('torch', 'triton', 'msgspec', 'optuna', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=merge("", "train.py", ENTRY), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
