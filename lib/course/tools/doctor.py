"""`make doctor`: checks this machine, and says what to do about each problem.

It runs as a file and needs only Python itself, so it works where nothing is installed.
"""

import multiprocessing
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
RANK_BYTES = 0.4e9  # the most memory of a rank, most of which it shares with the others
OK, NOTE, NO = "ok", "note", "NO"


def python():
    """Check Python itself; setup.sh has refused versions older than 3.11 before this."""
    version = sys.version.split()[0]
    where = "in .venv" if Path(sys.prefix).name == ".venv" else f"at {sys.executable}"
    return OK, f"{version} {where}", ""


def torch():
    """Check that PyTorch has the version that the stored outputs come from."""
    try:
        import torch
    except ImportError as error:
        return NO, f"not there ({error})", "`make lab` installs it into .venv"
    if torch.__version__.split("+")[0] != "2.13.0":
        return NO, torch.__version__, "`make lab` installs 2.13.0; remove .venv if it does not"
    return OK, torch.__version__, ""


def backends():
    """Check the backends that carry out the collectives."""
    try:
        import torch.distributed as dist
    except ImportError:
        return NO, "PyTorch is not there", "`make lab`"
    if not dist.is_available() or not dist.is_gloo_available():
        return NO, "no gloo", "this build of PyTorch lacks it: install the one of requirements.txt"
    return OK, "gloo, nccl" if dist.is_nccl_available() else "gloo", ""


def gpus():
    """List the GPUs that ranks could take, and who uses them; none is needed."""
    return _ask_of_gpus("gpus", (NOTE, "not seen", "ranks run on the CPU"))


def worlds():
    """Say which Worlds run on GPUs, and which on the CPU."""
    return _ask_of_gpus("worlds", (NOTE, "not known", "`make lab` installs what is missing"))


def four():
    """Say which backend and which devices World(4) takes on this machine."""
    return _ask_of_gpus("four", (NOTE, "not known", "`make lab` installs what is missing"))


def _ask_of_gpus(question, unknown, *arguments):
    """Call a function of doctor_gpus, which needs PyTorch; return `unknown` where that fails."""
    try:
        if (
            str(ROOT) not in sys.path
        ):  # when it runs as a file, Python finds only this folder's modules
            sys.path.insert(0, str(ROOT))
        from lib.course.tools import doctor_gpus

        return getattr(doctor_gpus, question)(*arguments)
    except (ImportError, OSError, RuntimeError):
        return unknown


def cores():
    """Count the cores that this process may use."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = _number("/sys/fs/cgroup/cpu.max")
    period = _number("/sys/fs/cgroup/cpu.max", place=1)
    if quota and period:
        count = min(count, max(1, int(quota / period)))
    if count < 2:
        return NOTE, "1", "everything runs, and takes longer; slow motion may slip"
    return OK, str(count), ""


def memory():
    """Check how much memory is free for ranks."""
    free = _free_memory()
    if free is None:
        return NOTE, "unknown", "eight ranks want about 3 GB"
    finding = f"{free / 1e9:.1f} GB free, room for {int(free / RANK_BYTES)} ranks"
    if free < 8 * RANK_BYTES:
        return NOTE, finding, "close other programs, or keep to smaller worlds"
    return OK, finding, ""


def shared_memory():
    """Check /dev/shm, through which large tensors are sent, and NCCL's data between some GPUs."""
    if not sys.platform.startswith("linux"):
        return OK, "not needed here", ""
    if not os.access("/dev/shm", os.W_OK):
        return NOTE, "cannot be written", "large tensors take the slower way through a pipe"
    free = shutil.disk_usage("/dev/shm").free
    remedy = _ask_of_gpus("shared_memory", "", free)
    if free < 256e6:
        large = "in a container: docker run --shm-size=1g; else large tensors go the slower way"
        return NOTE, f"{free / 1e6:.0f} MB free", remedy or large
    return NOTE if remedy else OK, f"{free / 1e9:.1f} GB free", remedy


def disk():
    """Check the disk space for .venv and the book."""
    free, need = shutil.disk_usage(ROOT).free, 1e9 if (ROOT / ".venv/.ready").exists() else 10e9
    finding = f"{free / 1e9:.0f} GB free"
    if free < need:
        return NO, finding, f"make room for {need / 1e9:.0f} GB: PyTorch with CUDA is large"
    return OK, finding, ""


def loopback():
    """Check that two processes can connect over loopback; JupyterLab and gloo need no more."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            with socket.create_connection(server.getsockname(), timeout=5):
                return OK, "127.0.0.1 answers", ""
    except OSError as error:
        return NO, str(error), "a firewall or a sandbox closes loopback: allow it for Python"


def port():
    """Check whether JupyterLab's usual port is free."""
    try:
        with socket.create_server(("127.0.0.1", 8888)):
            return OK, "8888 is free", ""
    except OSError:
        return OK, "8888 is taken: JupyterLab takes another and prints it", ""


def private_folder():
    """Check the folder of the ranks' sockets; the path of a Unix socket has about 100 bytes."""
    folder = tempfile.gettempdir()
    if not os.access(folder, os.W_OK):
        return NO, f"{folder} cannot be written", "set TMPDIR to a folder of yours"
    if len(folder) > 60:
        return NOTE, f"{folder} is a long path", "set TMPDIR=/tmp if ranks fail to start"
    return OK, folder, ""


def open_files():
    """Check how many files and sockets a process may open."""
    try:
        import resource
    except ImportError:
        return OK, "not limited in this way here", ""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= limit < 256:
        return NOTE, str(limit), "`ulimit -n 1024` before `make lab`"
    return OK, "no limit" if limit < 0 else str(limit), ""


def start_method():
    """Check how ranks start."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        return OK, "forkserver: ranks start from a server that has PyTorch in memory", ""
    return NOTE, "spawn", "each rank imports PyTorch for itself: the first World takes seconds"


CHECKS = {
    "Python": python,
    "PyTorch": torch,
    "backends": backends,
    "GPUs": gpus,
    "Worlds": worlds,
    "World(4)": four,
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
    """Print a line for each check; return 1 where the course cannot run on this machine."""
    worst = OK
    for name, check in CHECKS.items():
        verdict, finding, remedy = check()
        print(f"{verdict:<5}{name:<16} {finding}")
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
