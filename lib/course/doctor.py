"""`make doctor`: looks at this machine and says of each thing whether it will do, and what to do.

Run as a file and leaning on Python alone, so that it answers where nothing is installed.
"""

import multiprocessing
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
RANK_BYTES = 0.4e9  # what a rank weighs at most, most of it shared with the others
OK, NOTE, NO = "ok", "note", "NO"


def python():
    """Python itself; one older than 3.11 does not come this far (setup.sh)."""
    version = sys.version.split()[0]
    where = "in .venv" if Path(sys.prefix).name == ".venv" else f"at {sys.executable}"
    return OK, f"{version} {where}", ""


def torch():
    """PyTorch, in the version that the stored outputs come from."""
    try:
        import torch
    except ImportError as error:
        return NO, f"not there ({error})", "`make lab` installs it into .venv"
    if torch.__version__.split("+")[0] != "2.13.0":
        return NO, torch.__version__, "`make lab` installs 2.13.0; remove .venv if it does not"
    return OK, torch.__version__, ""


def backends():
    """What carries the collectives."""
    try:
        import torch.distributed as dist
    except ImportError:
        return NO, "PyTorch is not there", "`make lab`"
    if not dist.is_available() or not dist.is_gloo_available():
        return NO, "no gloo", "this build of PyTorch lacks it: install the one of requirements.txt"
    return OK, "gloo, nccl" if dist.is_nccl_available() else "gloo", ""


def gpus():
    """The GPUs that PyTorch sees; none is fine."""
    try:
        import torch

        cards = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    except (ImportError, RuntimeError) as error:
        return NOTE, f"not seen ({error})", "ranks run on the CPU; a driver may be too old"
    if not cards:
        return OK, "none: ranks run on the CPU, slow motion plays the GPUs", ""
    return OK, ", ".join(f"{card.name} {card.total_memory / 1e9:.0f} GB" for card in cards), ""


def cores():
    """The cores that this process may use."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = _number("/sys/fs/cgroup/cpu.max")
    period = _number("/sys/fs/cgroup/cpu.max", place=1)
    if quota and period:
        count = min(count, max(1, int(quota / period)))
    if count < 2:
        return NOTE, "1", "everything runs, and takes longer; slow motion may slip"
    return OK, str(count), ""


def memory():
    """Memory that is free for ranks."""
    free = _free_memory()
    if free is None:
        return NOTE, "unknown", "eight ranks want about 3 GB"
    found = f"{free / 1e9:.1f} GB free, room for {int(free / RANK_BYTES)} ranks"
    if free < 8 * RANK_BYTES:
        return NOTE, found, "close other programs, or keep to smaller worlds"
    return OK, found, ""


def shared_memory():
    """/dev/shm, through which large tensors travel."""
    if not sys.platform.startswith("linux"):
        return OK, "not needed here", ""
    if not os.access("/dev/shm", os.W_OK):
        return NOTE, "cannot be written", "large tensors take the slower way through a pipe"
    free = shutil.disk_usage("/dev/shm").free
    if free < 256e6:
        remedy = "in a container: docker run --shm-size=1g; else large tensors go the slower way"
        return NOTE, f"{free / 1e6:.0f} MB free", remedy
    return OK, f"{free / 1e9:.1f} GB free", ""


def disk():
    """Space for .venv and the book."""
    free, need = shutil.disk_usage(ROOT).free, 1e9 if (ROOT / ".venv/.ready").exists() else 10e9
    found = f"{free / 1e9:.0f} GB free"
    if free < need:
        return NO, found, f"make room for {need / 1e9:.0f} GB: PyTorch with CUDA is large"
    return OK, found, ""


def loopback():
    """Two ends on this machine can talk: JupyterLab and gloo need that, and nothing beyond."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            with socket.create_connection(server.getsockname(), timeout=5):
                return OK, "127.0.0.1 answers", ""
    except OSError as error:
        return NO, str(error), "a firewall or a sandbox closes loopback: allow it for Python"


def port():
    """JupyterLab's usual port."""
    try:
        with socket.create_server(("127.0.0.1", 8888)):
            return OK, "8888 is free", ""
    except OSError:
        return OK, "8888 is taken: JupyterLab takes another and prints it", ""


def private_folder():
    """Where the ranks' sockets lie; the path of a Unix socket is short by law."""
    folder = tempfile.gettempdir()
    if not os.access(folder, os.W_OK):
        return NO, f"{folder} cannot be written", "set TMPDIR to a folder of yours"
    if len(folder) > 60:
        return NOTE, f"{folder} is a long path", "set TMPDIR=/tmp if ranks fail to start"
    return OK, folder, ""


def open_files():
    """How many files and sockets a process may hold open."""
    try:
        import resource
    except ImportError:
        return OK, "not limited in this way here", ""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= limit < 256:
        return NOTE, str(limit), "`ulimit -n 1024` before `make lab`"
    return OK, "no limit" if limit < 0 else str(limit), ""


def start_method():
    """How ranks start."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        return OK, "forkserver: ranks start from a server that has PyTorch in memory", ""
    return NOTE, "spawn", "each rank imports PyTorch for itself: the first World takes seconds"


CHECKS = {
    "Python": python,
    "PyTorch": torch,
    "backends": backends,
    "GPUs": gpus,
    "cores": cores,
    "memory": memory,
    "/dev/shm": shared_memory,
    "disk": disk,
    "loopback": loopback,
    "port": port,
    "sockets' folder": private_folder,
    "open files": open_files,
    "ranks start by": start_method,
}


def main() -> int:
    """Prints a line for each check; returns 1 where the course cannot run as it is."""
    worst = OK
    for name, check in CHECKS.items():
        verdict, found, remedy = check()
        print(f"{verdict:<5}{name:<16} {found}")
        if remedy:
            print(f"{'':<21} -> {remedy}")
        worst = NO if NO in (verdict, worst) else worst
    print("This machine can run the course." if worst != NO else "Mend what says NO first.")
    return 1 if worst == NO else 0


def _number(path: str, place: int = 0) -> float | None:
    try:
        return float(Path(path).read_text().split()[place])
    except (OSError, ValueError, IndexError):  # no such file, or "max"
        return None


def _free_memory() -> float | None:
    free = None
    try:
        import psutil

        free = float(psutil.virtual_memory().available)
    except ImportError:
        if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
            free = float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    limit, used = (_number(f"/sys/fs/cgroup/memory.{end}") for end in ("max", "current"))
    if limit and used and free is not None:
        free = min(free, limit - used)
    return free


if __name__ == "__main__":
    sys.exit(main())
