"""The locks on GPUs: seen by every process and user, gone with who held them, safe in /tmp."""

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from lib.ranks.gpus import gpu_locks
from lib.ranks.gpus.gpu_locks import GpuLock


@pytest.fixture
def folder(monkeypatch):
    """A directory like /tmp, of this test alone; other users can come in."""
    place = tempfile.mkdtemp(dir="/tmp")
    os.chmod(place, 0o1777)
    monkeypatch.setattr(gpu_locks, "_FOLDER", place)
    yield place
    shutil.rmtree(place)


HOLDER = """
import os, sys, time
import gpu_locks
gpu_locks._FOLDER = sys.argv[1]
if sys.argv[3:]:
    os.setgid(65534), os.setuid(65534)
lock = gpu_locks.GpuLock(sys.argv[2])
print(lock.is_free(), flush=True)
lock.hold()
time.sleep(60)
"""


@contextlib.contextmanager
def another_process(folder, name, *nobody):
    """A process that takes a lock and keeps it; gives it and whether it was free."""
    words = [sys.executable, "-c", HOLDER, folder, name, *nobody]
    path = {**os.environ, "PYTHONPATH": os.path.dirname(gpu_locks.__file__)}  # without torch
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=path)
    try:
        yield process, process.stdout.readline().strip() == "True"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_lock_is_seen_by_other_processes_and_goes_with_its_holder(folder):
    mine = GpuLock("GPU-0")
    with another_process(folder, "GPU-0") as (process, was_free):
        assert was_free
        assert not mine.is_free()
        assert GpuLock("GPU-1").is_free()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert mine.is_free()


def test_another_lock_in_the_same_process_counts_too(folder):
    first, second = GpuLock("GPU-0"), GpuLock("GPU-0")
    assert first.is_free()
    first.hold()
    assert not second.is_free()
    first.release()
    first.release()
    assert second.is_free()


def test_who_shares_a_gpu_keeps_it_taken_when_the_first_has_gone(folder):
    first, second, third = (GpuLock("GPU-0") for _ in range(3))
    for lock in (first, second):
        lock.is_free()
        lock.hold()
    first.release()
    assert not third.is_free()
    second.release()
    assert third.is_free()


def test_a_lock_nobody_refers_to_is_given_back(folder):
    lock = GpuLock("GPU-0")
    lock.hold()
    del lock
    assert GpuLock("GPU-0").is_free()
    assert not gpu_locks._open


def in_a_child(step) -> int:
    """Fork, run a step in the child, and give its process id; the child then waits."""
    ready, told = os.pipe()
    child = os.fork()
    if not child:
        try:
            step()
            os.write(told, b"!")
            time.sleep(60)
        finally:
            os._exit(0)
    os.read(ready, 1)
    os.close(ready), os.close(told)
    return child


@pytest.mark.parametrize("how", ["release", "close"])
def test_a_forked_child_neither_keeps_nor_frees_a_lock(folder, how):
    lock = GpuLock("GPU-0")
    lock.hold()
    child = in_a_child(lock.release)  # it is not the child's
    try:
        assert not GpuLock("GPU-0").is_free()
        if how == "release":
            lock.release()
        else:  # as when the process is killed
            os.close(lock._descriptor)
            gpu_locks._open.discard(lock._descriptor)
        assert GpuLock("GPU-0").is_free()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_child_that_kept_the_file_open_does_not_keep_the_lock(folder):
    lock = GpuLock("GPU-0")
    lock.hold()
    gpu_locks._open.clear()  # so that the child finds nothing to close
    child = in_a_child(lambda: None)
    gpu_locks._open.add(lock._descriptor)
    try:
        lock.release()
        assert GpuLock("GPU-0").is_free()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_new_file_may_be_read_by_everybody_whatever_the_umask(folder):
    before = os.umask(0o077)
    try:
        lock = GpuLock("GPU-0")
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(lock.path).st_mode) == 0o644
    assert os.listdir(folder) == [os.path.basename(lock.path)]  # nothing else stays


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be nobody")


@as_root
def test_the_lock_of_another_user_counts(folder):
    with another_process(folder, "GPU-0", "as nobody") as (_, was_free):
        assert was_free  # the file is nobody's
        assert os.stat(GpuLock("GPU-0").path).st_uid == 65534
        assert not GpuLock("GPU-0").is_free()
    GpuLock("GPU-1").hold()  # root's file
    with another_process(folder, "GPU-1", "as nobody") as (_, was_free):
        assert was_free
        assert not GpuLock("GPU-1").is_free()


def test_a_file_of_another_user_is_not_opened_with_o_creat(folder, monkeypatch):
    """Linux refuses that in a directory like /tmp, whatever the file's mode (protected_regular)."""
    GpuLock("GPU-0")
    real = os.open

    def protected(path, flags, *rest, **named):
        if flags & os.O_CREAT and os.path.exists(path):
            raise PermissionError(path)
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", protected)
    first, second = GpuLock("GPU-0"), GpuLock("GPU-0")
    first.hold()
    assert not second.is_free()


@pytest.mark.parametrize("trap", ["link", "fifo", "directory", "unreadable"])
def test_what_a_stranger_has_put_there_is_left_alone(folder, trap, tmp_path):
    path, treasure = f"{folder}/many-ranks-GPU-0.lock", tmp_path / "treasure"
    treasure.write_text("mine")
    {
        "link": lambda: os.symlink(treasure, path),
        "fifo": lambda: os.mkfifo(path),
        "directory": lambda: os.mkdir(path),
        "unreadable": lambda: os.close(os.open(path, os.O_CREAT, 0)),
    }[trap]()
    lock = GpuLock("GPU-0")
    if trap != "unreadable" or os.geteuid() != 0:  # root may read everything
        assert lock._descriptor is None
    assert lock.is_free()
    lock.hold()
    lock.release()
    assert treasure.read_text() == "mine"


def test_without_a_directory_to_lock_in_every_gpu_counts_as_free(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_locks, "_FOLDER", str(tmp_path / "missing"))
    first, second = GpuLock("GPU-0"), GpuLock("GPU-0")
    first.hold()
    assert second.is_free()
    with gpu_locks.choosing():
        pass


@pytest.mark.quiet
def test_one_chooses_at_a_time_and_nobody_waits_for_ever(folder, monkeypatch):
    monkeypatch.setattr(gpu_locks, "_PATIENCE", 0.2)
    with another_process(folder, "choosing"):
        start = time.monotonic()
        with gpu_locks.choosing():
            assert 0.2 <= time.monotonic() - start < 2
    start = time.monotonic()
    with gpu_locks.choosing():
        assert time.monotonic() - start < 0.1


def test_who_holds_a_gpu_can_be_told(folder):
    with another_process(folder, "GPU-0") as (process, _):
        if not Path("/proc/locks").exists() or not Path("/proc/locks").read_text():
            pytest.skip("this kernel lists no locks")
        assert GpuLock("GPU-0").holders() == [process.pid]
    assert GpuLock("GPU-0").holders() == []
