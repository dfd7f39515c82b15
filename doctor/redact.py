"""Take secrets out of text, arguments and environments before anything is written.

By name (``--api-key X``, ``API_TOKEN=X``), by form (``hf_...``, ``ghp_...``, ``AKIA...``), in URLs, and by value: what a
secret variable of the environment holds is taken out wherever it appears. Pure and idempotent.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

MASK = "***"
_TELLING = 8  # characters from which a secret can be told from an ordinary word

# Words that make a name secret. Whole words only: ``--tokenizer``, ``--key-dim`` and ``--max-tokens`` are no secrets.
_WORDS = (
    r"(?:api|access|secret|private|auth|account|license|encryption|signing|wandb|comet|neptune|openai|anthropic)[-_]?key"
    r"|secret|passwd|password|passphrase|pwd|token|credentials?|bearer|pat"
)
_NAME = rf"(?:[A-Za-z0-9]+[-_.])*(?:{_WORDS})(?:[-_](?:id|value|file|hf|access))?"
_OPTION = re.compile(rf"-{{1,2}}{_NAME}", re.IGNORECASE)
# PWD alone is the shell's current folder.
_VARIABLE = re.compile(rf"(?!PWD$|OLDPWD$){_NAME}", re.IGNORECASE)
_HARMLESS = re.compile(
    r"(?i)^(true|false|none|null|yes|no|on|off|[-+]?[\d.]+(e[-+]?\d+)?|\*\*\*)$"
)  # --token 5 counts; masking it hides nothing

# name=value, name: value, "name": "value", --name value, in free text. The name is kept.
_ASSIGNED = re.compile(
    rf"(?<![A-Za-z0-9_.-])(?P<head>(?:--?)?[\"']?(?P<name>{_NAME})[\"']?(?P<sep>\s*[=:]\s*|\s+(?=\S)))"
    r"(?P<quote>[\"']?)(?P<value>[^\s\"',;&)\]}]+)",
    re.IGNORECASE,
)
_URL = re.compile(r"(?P<scheme>\b[a-zA-Z][a-zA-Z0-9+.-]*://)(?P<user>[^\s/@:\"']*)(?P<rest>:[^\s/@\"']*)?@")
_BEARER = re.compile(r"(?i)\b(authorization\s*[:=]\s*(?:bearer|basic|token)|bearer)\s+(?!\*\*\*)[A-Za-z0-9._~+/=-]{8,}")
_FORMS = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{8,}"  # Hugging Face
    r"|api_org_[A-Za-z0-9]{8,}"
    r"|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{20,}"  # GitHub
    r"|glpat-[A-Za-z0-9_-]{16,}"  # GitLab
    r"|sk-[A-Za-z0-9_-]{16,}|sk_(?:live|test)_[A-Za-z0-9]{8,}"  # OpenAI and its like, Stripe
    r"|(?:AKIA|ASIA)[A-Z0-9]{12,}"  # AWS
    r"|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{10,}"  # Google
    r"|xox[abeprs]-[A-Za-z0-9-]{8,}"  # Slack
    r"|dckr_pat_[A-Za-z0-9_-]{16,}|npm_[A-Za-z0-9]{20,}|pypi-[A-Za-z0-9_-]{16,}"
    r"|wandb_v1_[A-Za-z0-9_]{16,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"  # a JSON web token
    r")"
)
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_HINT = re.compile(
    r"(?i)key|secret|passw|passphrase|pwd|token|credential|bearer|basic|pat|://|hf_|api_|gh[pousr]_|glpat|sk[-_]|AKIA|ASIA|AIza"
    r"|ya29|xox|npm_|pypi-|wandb_|eyJ"
)


def is_secret_name(name: str) -> bool:
    """Tell whether a variable, option or key of this name holds a secret."""
    return _VARIABLE.fullmatch(name.lstrip("-")) is not None


def secret_values(env: Mapping[str, str]) -> frozenset[str]:
    """Return the secrets that an environment holds, long enough to be told from ordinary words."""
    return frozenset(v for k, v in env.items() if len(v) >= _TELLING and is_secret_name(k) and not _HARMLESS.match(v))


def redact(text: str, values: Collection[str] = ()) -> str:
    """Return the text with its secrets replaced by ``***``.

    Args:
        text: anything that is going to be written.
        values: secrets known by value (``secret_values``).
    """
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, MASK)
    if not _HINT.search(text):
        return text
    text = _PEM.sub(MASK, text)
    text = _URL.sub(_mask_url, text)
    text = _BEARER.sub(rf"\1 {MASK}", text)
    text = _ASSIGNED.sub(_mask_assigned, text)
    return _FORMS.sub(MASK, text)


def _mask_url(match: re.Match[str]) -> str:
    if match["rest"] is not None:
        return f"{match['scheme']}{match['user']}:{MASK}@"
    # A user without a password is a name (ssh://git@host) unless it is long: https://TOKEN@github.com
    user = match["user"] if len(match["user"]) < 16 else MASK
    return f"{match['scheme']}{user}@"


def _mask_assigned(match: re.Match[str]) -> str:
    value, name = match["value"], match["name"]
    dashes = match["head"].startswith("-")
    separated = match["sep"].strip() != ""
    if (
        _HARMLESS.match(value)
        or not (separated or dashes)
        or name.lower() == "pwd"
        or (dashes and value.startswith("-"))
    ):
        return match[0]
    return f"{match['head']}{match['quote']}{MASK}"


def redact_bytes(line: bytes, values: Collection[str] = ()) -> bytes:
    """Return a line of output with its secrets replaced, every other byte as it was."""
    text = line.decode("utf-8", "surrogateescape")
    return redact(text, values).encode("utf-8", "surrogateescape")


def redact_argv(argv: Sequence[str], values: Collection[str] = ()) -> list[str]:
    """Return a command line with its secrets replaced: ``--api-key X``, ``--token=X``, ``password=X`` and all forms.

    A secret that is named in one argument is taken out of the others as well.
    """
    named = _named(argv)
    known = {*values, *(value for value in named.values() if len(value) >= _TELLING)}
    result = []
    for at, word in enumerate(argv):
        if at in named:
            name, equals, _ = word.partition("=")
            result.append(f"{name}={MASK}" if equals and is_secret_name(name) else MASK)
        else:
            result.append(redact(word, known))
    return result


def _named(argv: Sequence[str]) -> dict[int, str]:
    """Return the secrets that follow their name, by the position of the argument that holds them."""
    found: dict[int, str] = {}
    for at, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if at > 0 and at - 1 not in found and _OPTION.fullmatch(argv[at - 1]) and not word.startswith("--"):
            value = word
        elif not equals or not is_secret_name(name):
            continue
        if value and not _HARMLESS.match(value):
            found[at] = value
    return found


def redact_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with the values of secret variables replaced, and secrets inside other values too."""
    values = secret_values(env)
    return {
        k: MASK if is_secret_name(k) and v and not _HARMLESS.match(v) else redact(v, values) for k, v in env.items()
    }
