"""While diagnosing, nothing is sent to a hub and no experiment is recorded: the script runs many times.

The calls do nothing and return what a successful one would; the first of each kind is said once on standard error.
Reading (downloads) works as always. Trackers are also switched off by environment (``launch.TRACKERS``); here what a
script asks for in code is overruled, unless the user's own environment had asked for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from fasttrain_doctor.probe import unseen
from fasttrain_doctor.probe.imports import on_import

# Methods of huggingface_hub.HfApi that change something on the hub, and are functions of the module as well.
_PUSHES = (
    "create_repo",
    "create_commit",
    "create_branch",
    "create_tag",
    "delete_repo",
    "delete_branch",
    "delete_tag",
    "delete_file",
    "delete_files",
    "delete_folder",
    "move_repo",
    "upload_file",
    "upload_folder",
    "upload_large_folder",
    "preupload_lfs_files",
    "update_repo_settings",
    "update_repo_visibility",
    "create_pull_request",
    "create_discussion",
    "super_squash_history",
)
_said: set[str] = set()


def install() -> None:
    """Block pushes and online trackers in this process, now or when their libraries are imported."""
    on_import("huggingface_hub.hf_api", _block_hub)
    on_import("wandb", _block_wandb)


def _say(what: str) -> None:
    if what not in _said:
        _said.add(what)
        sys.stderr.write(f"fasttrain-doctor: {what} was not done: the script is only being measured\n")


def _block_hub(module: Any) -> None:
    for name in _PUSHES:
        original = getattr(module.HfApi, name, None)
        if original is None:  # not in this version
            continue
        blocked = _blocked(module, name, original, bound=True)
        setattr(module.HfApi, name, blocked)
        if hasattr(module, name):  # the same, bound to a client of the module's own
            setattr(module, name, _blocked(module, name, getattr(module, name), bound=False))


def _blocked(module: Any, name: str, original: Callable[..., Any], *, bound: bool) -> Callable[..., Any]:
    @unseen.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            given = args[1:] if bound else args
            repo = kwargs.get("repo_id", given[0] if given else "")
            _say(f"`{name}` to the hub")
            return _answer(module, name, str(repo), kwargs)
        except BaseException as error:
            unseen.strip(error)
            raise

    blocked: Callable[..., Any] = call
    return blocked


def _answer(module: Any, name: str, repo: str, kwargs: dict[str, Any]) -> Any:
    """Return what callers read from a successful call; a future where they asked for one."""
    endpoint = "https://huggingface.co"
    answer: Any = None
    if name == "create_repo":
        kind = kwargs.get("repo_type") or "model"
        prefix = "" if kind == "model" else f"{kind}s/"
        answer = module.RepoUrl(f"{endpoint}/{prefix}{repo if '/' in repo else f'not-sent/{repo}'}")
    elif name in ("create_commit", "upload_file", "upload_folder", "delete_file", "delete_files", "delete_folder"):
        message = str(kwargs.get("commit_message") or "not sent")
        answer = module.CommitInfo(
            commit_url=f"{endpoint}/{repo}/commit/{'0' * 40}",
            commit_message=message,
            commit_description="",
            oid="0" * 40,
        )
    if kwargs.get("run_as_future"):
        from concurrent.futures import Future

        future: Future[Any] = Future()
        future.set_result(answer)
        return future
    return answer


def _block_wandb(module: Any) -> None:
    if os.environ.get("WANDB_MODE") != "disabled":  # the user's own choice stands
        return
    original = module.init

    @unseen.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        try:
            if kwargs.get("mode") not in (None, "disabled"):
                _say(f"recording the run with wandb (mode={kwargs['mode']!r})")
                kwargs["mode"] = "disabled"
            return original(*args, **kwargs)
        except BaseException as error:
            unseen.strip(error)
            raise

    module.init = init
