"""Which GPUs there are and which are free, asked of pretended drivers; nothing starts CUDA."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lib.ranks.gpus import devices, gpu_locks, survey
from lib.ranks.gpus.devices import Gpu

ROOT = Path(__file__).parents[3]
# Two libraries as NVIDIA's driver brings them. The order is CUDA's; NVML knows names alone.
DRIVER = r"""
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
static char *word(const char *list, int index) {
  static char copy[4096];
  strcpy(copy, list ? list : "");
  char *part = strtok(copy, " ");
  while (part && index--) part = strtok(NULL, " ");
  return part;
}
int cuInit(unsigned flags) { return getenv("CUDA_BROKEN") ? 803 : 0; }
int cuDeviceGetCount(int *count) {
  for (*count = 0; word(getenv("CUDA_ORDER"), *count); ++*count);
  return 0;
}
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetName(char *name, int size, int device) {
  return snprintf(name, size, "Pretended %d", device) < 0;
}
int cuDeviceGetUuid_v2(unsigned char *raw, int device) {
  char *text = word(getenv("CUDA_ORDER"), device);
  for (int i = 0; i < 16; i++) sscanf(text + 2 * i, "%2hhx", raw + i);
  return 0;
}
"""
NVML = r"""
#include <stdlib.h>
#include <string.h>
int nvmlInit_v2(void) { return getenv("NVML_BROKEN") ? 999 : 0; }
int nvmlDeviceGetHandleByUUID(const char *name, char **handle) {
  char *list = getenv("NVML_MEMORY");
  *handle = list ? strstr(list, name) : 0;
  return *handle ? 0 : 6;
}
int nvmlDeviceGetMemoryInfo(char *handle, unsigned long long *memory) {
  char *number = strchr(handle, '=') + 1;
  if (*number == '?') return 3;
  memory[2] = strtoull(number, &number, 10);
  memory[0] = strtoull(number + 1, 0, 10);
  memory[1] = memory[0] - memory[2];
  return 0;
}
"""
A, B, C = "8932f937d72c4106c12f20bd9faed9f6", "01" * 16, "ab" * 16
NAMES = [
    "8932f937-d72c-4106-c12f-20bd9faed9f6",
    "01010101-0101-0101-0101-010101010101",
    "abababab-abab-abab-abab-abababababab",
]


@pytest.fixture(autouse=True)
def each_for_itself(monkeypatch):
    """No GPU stands for several, whatever the environment says."""
    monkeypatch.delenv("RANKS_GPU_SHARES", raising=False)


@pytest.fixture(scope="module")
def drivers(tmp_path_factory):
    """A folder with a pretended libcuda and libnvidia-ml."""
    folder = tmp_path_factory.mktemp("drivers")
    for name, source in {"libcuda.so.1": DRIVER, "libnvidia-ml.so.1": NVML}.items():
        (folder / "source.c").write_text(source)
        words = ["cc", "-shared", "-fPIC", "-w", "-o", folder / name, folder / "source.c"]
        try:
            subprocess.run(words, check=True, timeout=60)
        except FileNotFoundError:
            pytest.skip("there is no C compiler")
    return folder


@pytest.fixture
def driver(drivers, monkeypatch):
    """`driver(order, memory)` sets what the pretended driver tells."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(drivers))

    def tells(*order, **memory):
        monkeypatch.setenv("CUDA_ORDER", " ".join(order))
        text = ";".join(f"{n.replace('_', '-')}={share}" for n, share in memory.items())
        monkeypatch.setenv("NVML_MEMORY", text)

    return tells


def test_memory_is_matched_by_name_and_not_by_number(driver):
    """CUDA counts in another order than NVML, after CUDA_VISIBLE_DEVICES or by speed."""
    full, empty = {f"GPU-{NAMES[0]}": "60/80"}, {f"GPU-{NAMES[1]}": "2/80"}
    for memory in (full | empty, empty | full):
        driver(B, A, **memory)
        assert devices.visible("cuda") == [
            Gpu(0, f"GPU-{NAMES[1]}", 2 / 80, "Pretended 0", 80),
            Gpu(1, f"GPU-{NAMES[0]}", 60 / 80, "Pretended 1", 80),
        ]


def test_a_part_of_a_gpu_has_its_own_name_and_memory(driver):
    driver(C, **{f"MIG-{NAMES[2]}": "1/10"})
    assert devices.visible("cuda") == [Gpu(0, f"MIG-{NAMES[2]}", 0.1, "Pretended 0", 10)]


def test_what_nvml_does_not_tell_is_unknown(driver, monkeypatch):
    driver(A, B, **{f"GPU-{NAMES[0]}": "?"})
    names = [f"GPU-{name}" for name in NAMES[:2]]
    unknown = [Gpu(i, name, None, f"Pretended {i}") for i, name in enumerate(names)]
    assert devices.visible("cuda") == unknown
    monkeypatch.setenv("NVML_BROKEN", "1")
    assert devices.visible("cuda") == unknown


def test_a_driver_that_refuses_to_work_shows_no_gpu(driver, monkeypatch):
    driver(A)
    monkeypatch.setenv("CUDA_BROKEN", "1")
    assert devices.visible("cuda") == []


def test_without_a_driver_to_ask_only_the_number_is_known(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    gpus = [Gpu(0, "cuda-0"), Gpu(1, "cuda-1")]
    if not devices._survey():
        assert devices.visible("cuda") == gpus
    assert devices.visible("other") == [Gpu(0, "other-0"), Gpu(1, "other-1")]
    monkeypatch.setattr(survey, "__file__", "/missing.py")
    assert devices.visible("cuda") == gpus


def test_a_gpu_can_stand_for_several(driver, monkeypatch):
    monkeypatch.setenv("RANKS_GPU_SHARES", "2")
    whole = [f"GPU-{NAMES[1]}", f"GPU-{NAMES[0]}"]
    driver(B, A, **{f"GPU-{NAMES[0]}": "60/80", f"GPU-{NAMES[1]}": "2/80"})
    found = devices.visible("cuda")
    assert [gpu.index for gpu in found] == [0, 1, 2, 3]
    assert [gpu.name for gpu in found] == [f"{w}-share-{part}" for w in whole for part in (0, 1)]
    assert {gpu.used for gpu in found} == {None}, "what others use is no reason to leave a share"
    for nonsense in ("0", "many", "65"):
        monkeypatch.setenv("RANKS_GPU_SHARES", nonsense)
        with pytest.raises(ValueError, match=f"RANKS_GPU_SHARES='{nonsense}' is set"):
            devices.visible("cuda")


def test_busy_are_gpus_that_a_world_holds_or_whose_memory_is_in_use(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_locks, "_FOLDER", str(tmp_path))
    gpus = [Gpu(0, "a", 0.0999), Gpu(1, "b", 0.1), Gpu(2, "c", 0.004), Gpu(3, "d"), Gpu(4, "e", 1)]
    other = gpu_locks.GpuLock("c")
    other.hold()
    assert devices.busy(gpus, [gpu_locks.GpuLock(gpu.name) for gpu in gpus]) == {
        1: "10 % of the memory in use",
        2: "held by another World",
        4: "100 % of the memory in use",
    }


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([0], "cuda:0"),
        ([0, 1, 2, 3], "cuda:0–3"),
        ([1, 4, 5, 6], "cuda:1, 4–6"),
        ([0, 2, 4], "cuda:0, 2, 4"),
        ([3, 2, 1, 0], "cuda:3, 2, 1, 0"),
        ([7, 4, 5, 6], "cuda:7, 4–6"),
    ],
)
def test_numbers_of_gpus_are_written_as_ranges(numbers, text):
    assert devices.numbered("cuda", numbers) == text


def test_reasons_are_told_once_for_all_gpus_that_share_them():
    why = {5: "full", 0: "held", 1: "held", 4: "full"}
    assert devices.reasons("cuda", why) == "cuda:0–1 (held), cuda:4–5 (full)"


# Which accelerator there is.


@pytest.fixture
def cuda_of_torch(monkeypatch):
    """PyTorch as it is where it was built for CUDA; whatever starts CUDA raises."""

    def started(*_):
        raise AssertionError("this starts CUDA in the notebook's own process")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    for module, name in STARTERS:
        if name != "device_count":
            monkeypatch.setattr(module, name, started, raising=False)
    counts = []

    def count():
        counts.append(1)
        return 4

    monkeypatch.setattr(torch.accelerator, "device_count", count)
    return counts


STARTERS = [
    (torch.cuda, "device_count"),
    (torch.cuda, "is_available"),
    (torch.cuda, "init"),
    (torch.cuda, "_lazy_init"),
    (torch.cuda, "mem_get_info"),
    (torch.cuda, "get_device_properties"),
    (torch._C, "_cuda_init"),
    (torch._C, "_cuda_getDeviceCount"),
    (torch._C, "_cuda_getCurrentRawStream"),
    (torch.accelerator, "device_count"),
    (torch.accelerator, "is_available"),
    (torch.accelerator, "get_memory_info"),
    (torch.accelerator, "current_device_index"),
]


def test_the_accelerator_is_found_without_starting_cuda(cuda_of_torch, monkeypatch):
    assert devices.accelerator() == "cuda"
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 0)
    assert devices.accelerator() is None


def test_of_a_part_of_a_gpu_pytorch_is_not_asked_how_many(cuda_of_torch, monkeypatch):
    """PyTorch counts through NVML, but for parts of GPUs, of which it asks CUDA itself."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"MIG-{NAMES[0]}")
    assert devices.accelerator() == "cuda" and not cuda_of_torch
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert devices.accelerator() == "cuda" and cuda_of_torch


def test_looking_at_gpus_does_not_start_cuda(cuda_of_torch, driver):
    driver(A)
    assert [gpu.name for gpu in devices.visible("cuda")] == [f"GPU-{NAMES[0]}"]


def test_what_has_no_collectives_that_ranks_can_use_is_no_accelerator(monkeypatch):
    for kind in ("mps", "xpu", "unheard-of"):
        found = type("", (), {"type": kind})
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda found=found: found)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
        assert devices.accelerator() is None
    monkeypatch.setitem(dist.Backend.default_device_backend_map, "unheard-of", "its-own")
    monkeypatch.setitem(dist.Backend._plugins, "ITS-OWN", None)
    assert devices.accelerator() == "unheard-of"
    assert devices.own_backend("unheard-of") is None  # it says that it cannot work
    monkeypatch.setattr(dist.Backend, "backend_list", [*dist.Backend.backend_list, "its-own"])
    assert devices.own_backend("unheard-of") == "its-own"


def test_the_backend_of_cuda_is_nccl_where_pytorch_has_it(monkeypatch):
    for there, name in ((True, "nccl"), (False, None)):
        monkeypatch.setattr(dist, "is_nccl_available", lambda there=there: there)
        assert devices.own_backend("cuda") == name


def test_the_environment_can_force_the_cpu(monkeypatch):
    for word, forced in (("", False), ("cpu", True), (" CPU ", True)):
        monkeypatch.setenv("RANKS_DEVICE", word)
        assert devices.cpu_forced() is forced
    monkeypatch.setenv("RANKS_DEVICE", "gpu")
    with pytest.raises(ValueError, match="RANKS_DEVICE='gpu' .* It can be 'cpu'"):
        devices.cpu_forced()


# The server that ranks are forked from: a CUDA that was started there is dead in every rank.

FORBID = """
import sys, torch
def forbidden(*_, **__):
    raise SystemExit("CUDA was started, or asked how many GPUs there are")
for name in {names!r}:
    module, _, last = name.rpartition(".")
    setattr(sys.modules[module], last, forbidden)
{asked}
import lib.ranks.kernel.preloaded
import torch.distributed, lib.ranks.process.worker, lib.ranks.groups.process_group
print("loaded", flush=True)
"""


def preload(asked=""):
    names = [f"{module.__name__}.{name}" for module, name in STARTERS]
    code = FORBID.format(names=names, asked=asked)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT
    )


def test_ranks_start_with_what_their_first_step_needs(worlds):
    wanted = ["torch.distributed", "torch._dynamo"]
    assert worlds(2).run(lambda: [name in sys.modules for name in wanted]) == [[True, True]] * 2


def test_the_preload_does_not_start_cuda_nor_count_gpus():
    done = preload()
    assert done.stdout == "loaded\n", done.stderr
    assert "CUDA was started" in preload("torch.cuda.device_count()").stderr  # so it does see
