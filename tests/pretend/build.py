"""Makes the pretended GPU: `python tests/pretend/build.py` compiles it into _build/pretend."""

import fcntl
import hashlib
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "_build/pretend"
ENTRY = "[torch.backends]\npretend = pretend_gpu:become_accelerator\n"


def build() -> Path:
    """Gives the folder that, once it is on PYTHONPATH, makes `import torch` see the GPUs."""
    import torch
    from torch.utils import cpp_extension

    sources = sorted(HERE.glob("*.cpp"))
    texts = [path.read_bytes() for path in (*sources, *sorted(HERE.glob("*.h")))]
    state = hashlib.sha256(b"".join([torch.__version__.encode(), *texts])).hexdigest()
    known = FOLDER / "state.txt"
    if not (known.exists() and known.read_text() == state):
        FOLDER.mkdir(parents=True, exist_ok=True)
        one_at_a_time = open(FOLDER / "building", "w")  # noqa: SIM115  (its end gives the lock back)
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        (FOLDER / "lock").unlink(missing_ok=True)  # of a build that was ended: torch waits for it
        whole = FOLDER / "whole.cpp"  # one file: PyTorch's headers take long, and are read once
        whole.write_text("".join(f'#include "{path}"\n' for path in sources))
        flags = ["-O1", "-Wall", "-Wextra", "-Wno-unused-parameter"]
        cpp_extension.load(
            "pretend_c",
            [str(whole)],
            extra_cflags=flags,
            build_directory=str(FOLDER),
            is_python_module=False,
        )
        known.write_text(state)
    shutil.copy(HERE / "pretend_gpu.py", FOLDER)
    told = FOLDER / "pretend_gpu-1.dist-info"
    told.mkdir(exist_ok=True)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: pretend_gpu\nVersion: 1\n")
    (told / "entry_points.txt").write_text(ENTRY)
    return FOLDER


if __name__ == "__main__":
    print(build())
    sys.exit(0)
