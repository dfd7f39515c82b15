"""Trials send nothing: pushes do nothing, trackers are off, and the script goes on as after a success."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# The shape of huggingface_hub: methods of HfApi, and the same bound to one client as functions of the module.
HUB = """
class RepoUrl(str):
    @property
    def repo_id(self): return "/".join(self.split("/")[-2:])
class CommitInfo(str):
    def __new__(cls, commit_url, commit_message, commit_description, oid):
        self = super().__new__(cls, commit_url); self.oid = oid; return self
class HfApi:
    def create_repo(self, repo_id, **kw): raise SystemExit("sent")
    def create_commit(self, repo_id, operations, **kw): raise SystemExit("sent")
    def upload_folder(self, *, repo_id, folder_path, **kw): return self.create_commit(repo_id, [])
    def hf_hub_download(self, repo_id): return "downloaded " + repo_id
api = HfApi()
create_repo, create_commit, upload_folder = api.create_repo, api.create_commit, api.upload_folder
hf_hub_download = api.hf_hub_download
"""
WANDB = "def init(project=None, mode=None): return mode\n"


def execute(folder: Path, source: str, **env: str) -> subprocess.CompletedProcess[str]:
    (folder / "huggingface_hub").mkdir(exist_ok=True)
    (folder / "huggingface_hub" / "__init__.py").touch()
    (folder / "huggingface_hub" / "hf_api.py").write_text(HUB)
    (folder / "wandb.py").write_text(WANDB)
    prelude = "from fasttrain_doctor.probe import offline; offline.install()\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + source],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("caller", ["HfApi()", "hf_api"])
def test_pushes_do_nothing_and_look_done(tmp_path: Path, caller: str) -> None:
    done = execute(
        tmp_path,
        "from huggingface_hub import hf_api\nfrom huggingface_hub.hf_api import HfApi\n"
        f"api = {caller}\n"
        "print(api.create_repo('me/model').repo_id)\n"
        "print(len(api.create_commit('me/model', []).oid), len(api.create_commit(repo_id='me/model', operations=[]).oid))\n"
        "print(api.upload_folder(repo_id='me/model', folder_path='.', run_as_future=True).result().oid[:3])\n"
        "print(api.hf_hub_download('me/model'))\n",
    )
    assert done.stdout == "me/model\n40 40\n000\ndownloaded me/model\n"
    assert done.stderr.count("`create_commit` to the hub was not done") == 1


def test_a_tracker_asked_for_in_code_is_overruled(tmp_path: Path) -> None:
    source = "import wandb; print(wandb.init('p', mode='online'), wandb.init('p'))\n"
    assert execute(tmp_path, source, WANDB_MODE="disabled").stdout == "disabled None\n"


def test_the_users_own_choice_of_tracker_stands(tmp_path: Path) -> None:
    source = "import wandb; print(wandb.init('p', mode='online'))\n"
    assert execute(tmp_path, source, WANDB_MODE="online").stdout == "online\n"
