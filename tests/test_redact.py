"""No secret is written, and nothing else is touched."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrain_doctor.redact import MASK, is_secret_name, redact, redact_argv, redact_bytes, redact_env, secret_values

LETTERS = string.ascii_letters + string.digits
SECRET = st.text(LETTERS, min_size=16, max_size=40).filter(lambda s: not s.isdigit() and any(c.isdigit() for c in s))
NAMES = st.sampled_from(
    [
        "api-key",
        "api_key",
        "wandb-key",
        "hf-token",
        "token",
        "password",
        "auth_token",
        "secret",
        "access-key",
        "hub_token",
    ]
)
WORDS = st.text(string.printable, max_size=30)


@pytest.mark.parametrize(
    "argv",
    [
        ["--tokenizer", "gpt2"],
        ["--key-dim", "64"],
        ["--max-tokens", "1024"],
        ["--token-dropout=0.1"],
        ["--num-key-value-heads", "8"],
        ["--secret-santa", "yes"],
        ["--password-free"],
        ["--use-token", "true", "--push-to-hub"],
        ["--keys", "a,b"],
        ["--compat", "x", "--pattern", "y"],
        ["--data", "https://example.org/a@b/c.tar"],
        ["--remote", "ssh://git@example.org/repo"],
        ["--sort-key", "length", "--key", "image"],
        ["--monkey", "banana"],
        ["train.py", "--lr", "1e-3", "--out", "/data/runs/sketch-of-a-model"],
    ],
)
def test_ordinary_arguments_stay(argv: list[str]) -> None:
    assert redact_argv(argv) == argv


@pytest.mark.parametrize(
    ("argv", "kept"),
    [
        (["--api-key", "abc", "--lr", "1"], ["--api-key", MASK, "--lr", "1"]),
        (["--hf_token=abc def"], [f"--hf_token={MASK}"]),
        (["wandb.api_key=abc"], [f"wandb.api_key={MASK}"]),
        (["--password", "-starts-with-dash"], ["--password", MASK]),
        (["--db", "postgresql://me:pw@host/db"], ["--db", f"postgresql://me:{MASK}@host/db"]),
        (["--repo", "https://0123456789abcdef0123@example.org"], ["--repo", f"https://{MASK}@example.org"]),
        (["--token", "--verbose"], ["--token", "--verbose"]),
        (["--header", "Authorization: Bearer abcdefghijk"], ["--header", f"Authorization: Bearer {MASK}"]),
    ],
)
def test_secret_arguments_go(argv: list[str], kept: list[str]) -> None:
    assert redact_argv(argv) == kept


@pytest.mark.parametrize(
    "secret",
    [
        "hf_" + "a1" * 17,
        "ghp_" + "a1" * 18,
        "github_pat_" + "a1_" * 10,
        "sk-" + "proj-" + "a1" * 20,
        "AKIA" + "ABCD1234" * 2,
        "xoxb-" + "1234-abcd",
        "glpat-" + "a1" * 10,
        "eyJhbGciOiJI.eyJzdWIiOiIx.sig",
    ],
)
@pytest.mark.parametrize(
    "around", ["{}", "loaded {} from the store", "x={}", "https://h/?q={}", "('{}',)", "/data/{}/x"]
)
def test_known_forms_go_wherever_they_stand(secret: str, around: str) -> None:
    assert secret not in redact(around.format(secret))
    assert secret not in " ".join(redact_argv([around.format(secret)]))


@given(
    NAMES, SECRET, st.sampled_from(["--{n}={s}", "--{n} {s}", "{n}={s}", "{n}: {s}", '"{n}": "{s}"', "'{n}': '{s}'"])
)
def test_a_value_after_a_secret_name_goes(name: str, secret: str, form: str) -> None:
    assert secret not in redact("before " + form.format(n=name, s=secret) + " after")


@given(NAMES, SECRET, st.booleans(), st.lists(WORDS, max_size=3))
def test_arguments_never_leak(name: str, secret: str, joined: bool, rest: list[str]) -> None:
    words = [f"--{name}={secret}"] if joined else [f"--{name}", secret]
    assert secret not in " ".join(redact_argv([*words, *rest]))


@given(st.lists(WORDS, max_size=6), NAMES, SECRET)
def test_redacting_twice_changes_nothing(words: list[str], name: str, secret: str) -> None:
    text = " ".join([*words, f"--{name} {secret}", "https://u:p@h"])
    assert redact(redact(text)) == redact(text)
    argv = redact_argv([*words, f"--{name}", secret])
    assert redact_argv(argv) == argv


@given(SECRET, NAMES, WORDS)
def test_an_environments_secrets_are_known_by_value_everywhere(secret: str, name: str, around: str) -> None:
    env = {"MY_" + name.upper().replace("-", "_"): secret, "OTHER": f"x {secret} y", "HOME": "/home/me"}
    assert all(secret not in value for value in redact_env(env).values())
    assert redact_env(env)["HOME"] == "/home/me"
    assert secret not in redact(f"{around}{secret}", secret_values(env))


@given(st.binary(max_size=80))
def test_bytes_without_secrets_are_kept_to_the_byte(data: bytes) -> None:
    assert redact_bytes(b"loss " + data.replace(b":", b"")[:3]) == b"loss " + data.replace(b":", b"")[:3]


def test_output_of_a_training_is_not_touched() -> None:
    line = "epoch 3 [120/938] loss: 0.231 tokens/s: 12034 key_padding: False token: 17 lr=0.001"
    assert redact(line) == line


@pytest.mark.parametrize("name", ["PWD", "OLDPWD", "PATH", "TOKENIZERS_PARALLELISM", "KEYBOARD", "SSH_AUTH_SOCK"])
def test_plain_variables_are_not_secret(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "WANDB_API_KEY",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "DB_PASSWORD",
        "GITHUB_TOKEN",
        "MYSQL_PWD",
    ],
)
def test_usual_secret_variables_are_known(name: str) -> None:
    assert is_secret_name(name)
