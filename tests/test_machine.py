"""The machine is described by what may be used, on every kind of control groups, and nothing is invented."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrain_doctor import cgroups, nvml
from fasttrain_doctor.errors import UsageError
from fasttrain_doctor.evidence import Gpu, Machine
from fasttrain_doctor.machine import cpu_flags, gpus, limits, machine, torch_of

V2 = "31 23 0:28 {mounted} /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
V1 = "32 31 0:29 {mounted} /sys/fs/cgroup/{names} rw - cgroup cgroup rw,{names}"


class Tree:
    """A recorded /proc/self and cgroup file system."""

    def __init__(self, folder: Path, groups: str, *mounts: str) -> None:
        self.root = folder
        self.proc = folder / "proc" / "self"
        self.proc.mkdir(parents=True)
        (self.proc / "cgroup").write_text(groups + "\n")
        (self.proc / "mountinfo").write_text("22 1 8:1 / / rw - ext4 /dev/sda rw\n" + "\n".join(mounts) + "\n")

    def write(self, folder: str, files: Mapping[str, str]) -> None:
        place = self.root / "sys/fs/cgroup" / folder
        place.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (place / name).write_text(text + "\n")

    def quota(self) -> float | None:
        return cgroups.quota(cgroups.find("cpu", self.proc, self.root))

    def memory(self) -> cgroups.Memory | None:
        return cgroups.memory(cgroups.find("memory", self.proc, self.root))


def test_v2_takes_the_smallest_quota_on_the_way_up(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "0::/pod/box", V2.format(mounted="/"))
    tree.write("", {"cgroup.controllers": "cpu memory"})
    tree.write("pod", {"cpu.max": "250000 100000", "memory.max": "4096", "memory.current": "1096"})
    tree.write("pod/box", {"cpu.max": "max 100000", "memory.max": "max", "memory.stat": "inactive_file 96\nanon 1"})
    assert tree.quota() == 2.5
    assert tree.memory() == cgroups.Memory(limit=4096, free=3000)


def test_page_cache_that_can_go_counts_as_free(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "0::/", V2.format(mounted="/"))
    files = {"memory.max": "4096", "memory.current": "4000", "memory.stat": "inactive_file 3000"}
    tree.write("", {"cgroup.controllers": "memory", **files})
    assert tree.memory() == cgroups.Memory(limit=4096, free=3096)


def test_v1_knows_none_and_nested_limits(tmp_path: Path) -> None:
    tree = Tree(
        tmp_path,
        "4:memory:/job/a\n3:cpu,cpuacct:/job/a",
        V1.format(mounted="/", names="cpu,cpuacct"),
        V1.format(mounted="/", names="memory"),
    )
    tree.write("cpu,cpuacct/job/a", {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"})
    tree.write("cpu,cpuacct/job", {"cpu.cfs_quota_us": "400000", "cpu.cfs_period_us": "100000"})
    tree.write("memory/job/a", {"memory.limit_in_bytes": "9223372036854771712"})
    tree.write("memory/job", {"memory.limit_in_bytes": "8192", "memory.usage_in_bytes": "192"})
    assert tree.quota() == 4
    assert tree.memory() == cgroups.Memory(limit=8192, free=8000)


@pytest.mark.parametrize("path", ["/docker/abc", "/docker/abc/child", "/../other"])
def test_a_container_sees_only_its_part_of_the_tree(tmp_path: Path, path: str) -> None:
    tree = Tree(tmp_path, f"3:cpu:{path}", V1.format(mounted="/docker/abc", names="cpu"))
    tree.write("cpu", {"cpu.cfs_quota_us": "150000", "cpu.cfs_period_us": "100000"})
    assert tree.quota() == 1.5


def test_both_versions_at_once_ask_the_one_that_has_the_controller(tmp_path: Path) -> None:
    tree = Tree(
        tmp_path,
        "3:cpu:/a\n0::/x",
        V1.format(mounted="/", names="cpu"),
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
    )
    tree.write("cpu/a", {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"})
    tree.write("unified", {"cgroup.controllers": ""})
    assert tree.quota() == 0.5


def test_no_control_groups_are_no_limit(tmp_path: Path) -> None:
    assert cgroups.find("cpu", tmp_path, tmp_path) is None
    assert cgroups.quota(None) is None
    assert cgroups.memory(None) is None
    assert cgroups.throttling(None) is None


@pytest.mark.parametrize(
    ("stat", "seconds"),
    [
        ("nr_periods 10\nnr_throttled 4\nthrottled_usec 2500000", 2.5),
        ("nr_periods 10\nnr_throttled 4\nthrottled_time 2500000000", 2.5),
    ],
)
def test_throttling_is_read_from_the_group_that_sets_the_quota(tmp_path: Path, stat: str, seconds: float) -> None:
    tree = Tree(tmp_path, "0::/a/b", V2.format(mounted="/"))
    tree.write("", {"cgroup.controllers": "cpu"})
    tree.write("a", {"cpu.stat": stat})
    tree.write("a/b", {"cpu.stat": "usage_usec 7"})
    found = cgroups.throttling(cgroups.find("cpu", tree.proc, tree.root))
    assert found == cgroups.Throttling(seconds, throttled=4, periods=10)


@given(st.lists(st.one_of(st.none(), st.integers(1, 64)), min_size=1, max_size=6))
def test_the_quota_is_the_smallest_of_any_depth(quotas: list[int | None]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        names = [f"g{i}" for i in range(len(quotas))]
        tree = Tree(Path(folder), "0::/" + "/".join(names), V2.format(mounted="/"))
        tree.write("", {"cgroup.controllers": "cpu"})
        for depth, quota in enumerate(quotas, 1):
            tree.write("/".join(names[:depth]), {"cpu.max": "max 1000" if quota is None else f"{quota * 1000} 1000"})
        assert tree.quota() == min((q for q in quotas if q is not None), default=None)


def test_this_machine(tmp_path: Path) -> None:
    facts = machine()
    assert 0 < facts.cores <= facts.logical_cores
    assert facts.memory is not None
    assert facts.memory_free is not None
    assert 0 < facts.memory_free <= facts.memory
    assert (facts.torch or "").partition("+")[0] == version("torch").partition("+")[0]
    assert "torch" not in _imported_by("import fasttrain_doctor.machine as m; m.machine()")


def _imported_by(source: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{source}\nimport sys, json; print(json.dumps(list(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout))


def test_a_quota_limits_the_cores(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "0::/", V2.format(mounted="/"))
    tree.write(
        "",
        {
            "cgroup.controllers": "cpu memory",
            "cpu.max": "50000 100000",
            "memory.max": str(1 << 30),
            "memory.current": "0",
        },
    )
    facts = machine(tmp_path / "proc", tmp_path)
    assert (facts.cores, facts.memory, facts.memory_free, facts.shm_free) == (0.5, 1 << 30, 1 << 30, None)


def test_only_flags_that_matter_and_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nflags\t\t: fpu avx2 avx512f sse\nflags : never read\n")
    assert cpu_flags(tmp_path / "cpuinfo") == ("avx2", "avx512f")
    assert cpu_flags(tmp_path / "none") == ()


def test_another_interpreters_torch_is_its_own(tmp_path: Path) -> None:
    facts = Machine(cores=1, logical_cores=1, torch="9.9", torch_cuda="1")
    assert torch_of(sys.executable, facts).torch == machine().torch
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    assert (torch_of(str(bare), facts).torch, torch_of(str(bare), facts).torch_cuda) == (None, None)


def test_an_interpreter_that_does_not_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        torch_of("/bin/false", Machine(cores=1, logical_cores=1))
    assert error.value.slug == "python-fails"


BIG = Machine(
    cores=64, logical_cores=64, memory=1 << 40, memory_free=1 << 39, shm_free=1 << 35, torch="2.8", torch_cuda="13.0",
    gpus=(Gpu("NVIDIA H200", capability=(9, 0)),), cpu_flags=("avx2", "amx_bf16"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cores": 4.0}, "4 of 64 cores"),
        ({"cores": 1.5, "logical_cores": 2}, "share 1.5 cores"),
        ({"shm_free": 64 << 20}, "64 MiB"),
        ({"memory_free": 1 << 30}, "1.0 GiB of memory"),
        ({"torch": None}, "torch is not installed"),
        ({"gpus": ()}, "no GPU is visible"),
        ({"torch_cuda": None}, "built without CUDA"),
        ({"gpus": (Gpu("Tesla T4", capability=(7, 5)),)}, "Tesla T4 has neither bf16"),
        ({"gpus": (), "cpu_flags": ("avx2",)}, "no bf16 instructions"),
    ],
)
def test_what_limits_training_is_said(change: dict[str, object], said: str) -> None:
    import dataclasses

    assert limits(BIG) == []
    assert any(said in sentence for sentence in limits(dataclasses.replace(BIG, **change)))  # type: ignore[arg-type]


def test_what_was_not_measured_is_not_said() -> None:
    unknown = Machine(cores=64, logical_cores=64, torch="2.8", torch_cuda="13.0", gpus=(Gpu("?"),))
    assert limits(unknown) == []


class FakeNvml(types.ModuleType):
    """Two GPUs; the second does not tell its power, as some do not."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.nvmlInit = lambda: None
        self.nvmlDeviceGetCount = lambda: 2
        self.nvmlDeviceGetHandleByIndex = lambda i: i
        self.nvmlSystemGetDriverVersion = lambda: b"580.1"
        self.nvmlDeviceGetName = lambda h: f"GPU {h}"
        self.nvmlDeviceGetCudaComputeCapability = lambda h: (9, 0)
        self.nvmlDeviceGetMemoryInfo = lambda h: types.SimpleNamespace(total=100, used=40)
        self.nvmlDeviceGetUtilizationRates = lambda h: types.SimpleNamespace(gpu=50, memory=25)
        self.nvmlDeviceGetClockInfo = lambda h, kind: 1000 * kind
        self.nvmlDeviceGetPcieThroughput = lambda h, way: 7 + way
        self.nvmlDeviceGetCurrentClocksEventReasons = lambda h: 0x4 | 0x40

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> int:
        if uuid != b"GPU-one":
            raise self.NVMLError("not found")
        return 1

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        if handle == 1:
            raise self.NVMLError("not supported")
        return 350_000


@pytest.mark.parametrize(
    ("visible", "handles"),
    [(None, (0, 1)), ("1,0", (1, 0)), ("", ()), ("-1", ()), ("0,7,1", (0,)), ("GPU-one", (1,)), ("GPU-none,0", ())],
)
def test_gpus_are_those_that_cuda_shows_the_script(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, handles: tuple[int, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = nvml.open_nvml()
    assert found.handles == handles
    assert (found.absent is None) == bool(handles)
    assert [gpu.name for gpu in gpus()] == [f"GPU {h}" for h in handles]


def test_a_gpu_says_what_it_can_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    library = nvml.open_nvml(visible="0,1")
    first, second = (nvml.sample(library, handle, pcie=handle == 1) for handle in library.handles)
    assert first == nvml.GpuSample(
        busy=0.5, memory_busy=0.25, memory_used=40, clock=10**9, clock_memory=2 * 10**9, power=350.0,
        slowed_by=("power-cap", "thermal-hardware"),
    )  # fmt: skip
    assert (second.power, second.pcie_sent, second.pcie_received) == (None, 7000, 8000)
    assert gpus()[0] == Gpu("GPU 0", memory=100, capability=(9, 0), driver="580.1")


def test_without_a_driver_there_is_no_gpu_and_one_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml()

    def fails() -> None:
        raise fake.NVMLError("Driver Not Loaded")

    fake.nvmlInit = fails
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert nvml.open_nvml() == nvml.Nvml(None, (), "NVML: Driver Not Loaded")
    assert gpus() == ()
