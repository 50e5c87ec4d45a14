"""Inside a rank: wait for a call, carry it out, answer; beside it a watcher that can end waits."""

import contextlib
import faulthandler
import io
import os
import shutil
import signal
import sys
import threading
import time
import traceback

import torch

from lib.ranks import groups, namespace, wire
from lib.ranks.board import IDLE, RUNNING, Board
from lib.ranks.desk import desk, hidden


class Stopped(BaseException):
    """The kernel ended this call: the stop button, or another rank's failure."""


class Printed(io.TextIOBase):
    """What the reader's code prints on this rank, kept for the kernel, or streamed as it comes."""

    def __init__(self, kept: list, stream: str):
        self.kept, self.stream = kept, stream
        self.live, self.begun = None, ""

    def writable(self):
        return True

    def write(self, text: str) -> int:
        if self.live:  # line by line, so that ranks do not cut into each other's lines
            *lines, self.begun = (self.begun + text).split("\n")
            if lines:
                self.live("\n".join(lines))
        else:
            self.kept.append((self.stream, text))
        return len(text)

    def finish(self) -> None:
        """Send on a last line that did not end."""
        if self.live and self.begun:
            self.live(self.begun)
        self.begun = ""


class Rank:
    """One rank's process: its connections, its names, and the call it is in."""

    def __init__(self, rank, tasks, answers, folder):
        self.rank, self.tasks, self.answers, self.folder = rank, tasks, answers, folder
        self.call = 0  # the call being carried out; 0 between calls
        self.number = 0  # the same, and afterwards still the last one
        self.stop = 0  # the call that the kernel wants ended
        self.kept: list = []
        self.speaking = threading.Lock()
        namespace.renew()
        sys.stdout, sys.stderr = Printed(self.kept, "stdout"), Printed(self.kept, "stderr")
        self.tail = _own_descriptors(folder, rank)

    def serve(self) -> None:
        """Answer calls until the kernel closes the connection."""
        while True:
            buffers = wire.receive(self.tasks)
            number, live, buffers[0] = *_HEAD(buffers[0][:9]), buffers[0][9:]
            try:
                answer = self._carry_out(number, live, buffers)
            except Stopped as late:  # the order to stop came between the last line and here
                self.call = 0
                answer = wire.pack((number, "stopped", _error(late), self._printed()))
            desk.events = None
            if desk.board:
                desk.board.state(self.rank, IDLE)
            with self.speaking:
                wire.send(self.answers, answer)

    def _carry_out(self, number, live, buffers) -> list:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, Printed):
                stream.live = self._speak if live else None
        desk.running()
        self.number = number
        try:
            self.call = number
            if self.stop >= number:
                raise Stopped
            step, args, kwargs = wire.unpack(buffers)
            namespace.lend(step)
            value = step(*args, **kwargs)
            self.call = 0
        except BaseException as error:
            self.call = 0
            kind = "stopped" if isinstance(error, Stopped) or self.stop >= number else "raised"
            return wire.pack((number, kind, _error(error), self._printed()))
        try:
            return wire.pack((number, "ok", value, self._printed()))
        except Exception as error:
            reason = wire.culprit(value) or str(error)
            told = {
                "type": "unpicklable",
                "text": reason,
                "frames": [],
                "when": time.monotonic_ns(),
            }
            return wire.pack((number, "raised", told, self._printed()))

    def _printed(self) -> list:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, Printed):
                stream.finish()
        with contextlib.suppress(OSError):
            text = self.tail.read()  # what C code and child processes wrote to descriptor 1
            if text:
                self.kept.append(("stdout", text))
        printed, self.kept[:] = list(self.kept), []
        return printed

    def _speak(self, text: str) -> None:
        with self.speaking:
            wire.send(self.answers, wire.pack((self.number, "print", text, [])))

    def watch(self, control) -> None:
        """Listen to the kernel while the main thread works: end the call, or end with it."""
        main = threading.main_thread().ident
        try:
            while True:
                order, call = control.recv()
                self.stop = call
                if order == "cut":
                    groups.cut()
                for _ in range(100):  # again and again: code may swallow the first
                    if self.call != call:
                        break
                    signal.pthread_kill(main, signal.SIGINT)
                    time.sleep(0.02)
        except (EOFError, OSError):
            _end(self.folder)

    def interrupted(self, *_) -> None:
        """Handle SIGINT: only the kernel's order counts, not a Ctrl-C that reached everyone."""
        if self.call and self.call == self.stop:
            raise Stopped


def _HEAD(raw) -> tuple[int, bool]:
    return int.from_bytes(raw[:8], "little"), bool(raw[8])


def _end(folder) -> None:
    """End with the kernel: nothing may outlive it, neither this process nor the world's folder."""
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _own_descriptors(folder, rank):
    """Send descriptors 1 and 2 to files: what C code prints, and the last words of a crash."""
    out, err = (os.path.join(folder, f"rank-{rank}.{end}") for end in ("out", "err"))
    for path, descriptor in ((out, 1), (err, 2)):
        with open(path, "w") as file:
            os.dup2(file.fileno(), descriptor)
    faulthandler.enable(2, all_threads=False)
    return open(out, errors="replace")


def _error(error: BaseException) -> dict:
    """Describe an exception so that the kernel can show it: the reader's own frames, no others."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not hidden(frame.filename)] or frames[-1:]
    told = {
        "type": type(error).__name__,
        "text": str(error),
        "frames": [(f.filename, f.lineno, f.name, f.line) for f in own],
        "when": time.monotonic_ns(),
        "where": getattr(error, "where", None),
        "waited": getattr(error, "waited", None),
    }
    if isinstance(error, SystemExit):
        told["text"] = f"sys.exit({error.code!r})"
    with contextlib.suppress(Exception):
        wire.unpack(wire.pack(error))
        told["exception"] = error.with_traceback(None)
    return told


def main(_, rank, size, tasks, answers, control, folder, board, threads, environment, path):
    """Live as rank `rank` of `size` until the kernel goes; started by `world`."""
    os.environ.update(environment)
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    sys.path[:] = path
    torch.set_num_threads(threads)
    # An OSError here means that the world was closed before this rank was ready, or ends with it.
    with contextlib.suppress(EOFError, OSError):
        desk.rank, desk.board = rank, Board(board, size)
        desk.board.clear(rank)
        me = Rank(rank, tasks, answers, folder)
        signal.signal(signal.SIGINT, me.interrupted)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked since `launch.warm`
        threading.Thread(target=me.watch, args=(control,), daemon=True, name="watcher").start()
        wire.send(answers, wire.pack((0, "ok", RUNNING, [])))
        me.serve()
    _end(folder)
