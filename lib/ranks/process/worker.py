"""Inside a rank: wait for a call, carry it out, answer; beside it a watcher that can end waits."""

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import struct
import sys
import threading
import time
import traceback

import torch

from lib.ranks.groups import process_group
from lib.ranks.observed.carrier_errors import broken_wait, partner_is_lost
from lib.ranks.process import child_processes
from lib.ranks.process.carried_call import CarriedCall, carry_out
from lib.ranks.shared import folders
from lib.ranks.shared.notice_board import IDLE, RUNNING, NoticeBoard
from lib.ranks.state import gpu_streams, namespace
from lib.ranks.state.ambient import ambient
from lib.ranks.state.default_device import gpu_by_default
from lib.ranks.state.this_rank import Mismatch, hidden, this_rank
from lib.ranks.transport import framing, packing
from lib.ranks.transport.printed import Printed, Stderr, Tail, last_lines

_IMPORT = 3.0  # seconds that an import may go on after the order to stop
_BEAT = 0.25  # seconds between two looks at what was printed, where that is shown
_HEAD = struct.Struct("<Q?")  # number of the call, whether what is printed is shown as it comes


class Stopped(BaseException):
    """The kernel ended this call: the stop button, or another rank's failure."""


class Rank:
    """One rank's process: its connections, its names, and the call it is in."""

    def __init__(self, rank, tasks, answers, folder):
        self.rank, self.tasks, self.answers, self.folder = rank, tasks, answers, folder
        self.call = 0  # the call being carried out; 0 between calls
        self.number = 0  # the same, and afterwards still the last one
        self.stop = 0  # the call that the kernel wants ended
        self.ordered = 0.0  # when it wanted that first
        self.kept: list = []
        self.speaking = threading.Lock()
        self.sending = False  # the main thread sends: half a message would be the last
        self.turning = threading.Lock()  # a call ends, or its connections are cut: never both
        namespace.renew()
        out, err = _own_descriptors(folder, rank)
        self.streams = Printed(self.kept, "stdout", 1, out), Printed(self.kept, "stderr", 2, err)
        sys.stdout, sys.stderr = self.streams

    def serve(self) -> None:
        """Answer calls until the kernel closes the connection."""
        arriving = framing.messages(self.tasks)
        while True:
            try:
                head, *buffers = framing.receive(arriving)
            except framing.TooLarge as error:
                head, buffers = error.received[0], error.with_traceback(None)
            number, live = _HEAD.unpack(head)
            try:
                answer = self._carry_out(number, live, buffers)
            except Stopped as late:  # the order to stop came between the last line and here
                self._ended()
                answer = packing.pack((number, "stopped", _error(late), self._printed()))
            this_rank.recording = None
            if this_rank.board:
                this_rank.board.state(self.rank, IDLE)
            with self.speaking:
                framing.send(self.answers, answer)
            self._restore()  # while the kernel reads the answer

    def _carry_out(self, number, live, buffers) -> list:
        for stream in self.streams:
            stream.live = self._speak if live else None
        if isinstance(buffers, MemoryError):  # there was no room for the function's arguments
            return packing.pack((number, "raised", _error(buffers), []))
        this_rank.running()
        self.number = number
        try:
            self.call = number
            if self.stop >= number:
                raise Stopped
            call = CarriedCall(*_unpacked(buffers))
            namespace.lend(call.step)
            with ambient.within():
                value = carry_out(call)
                gpu_streams.settle()
            self._ended()
        except BaseException as error:
            self._ended()
            kind = "stopped" if isinstance(error, Stopped) or self.stop >= number else "raised"
            return packing.pack((number, kind, _error(error), self._printed()))
        try:
            return packing.pack((number, "ok", value, self._printed()))
        except Exception as error:
            reason = packing.culprit(value) or str(error)
            description = {"type": "unpicklable", "text": reason, "when": time.monotonic_ns()}
            return packing.pack((number, "raised", description, self._printed()))

    def _restore(self) -> None:
        """Let the next call begin as in the notebook, whatever this one has set."""
        sys.stdout, sys.stderr = self.streams
        ambient.restore()

    def _ended(self) -> None:
        """The call is over: an order to cut its connections that comes now comes too late."""
        with self.turning:
            self.call = 0

    def _printed(self) -> list:
        for stream in self.streams:
            stream.finish()
        printed, self.kept[:] = list(self.kept), []
        return printed

    def _speak(self, text: str) -> None:
        main = threading.current_thread() is threading.main_thread()
        try:
            self.sending = self.sending or main
            with self.speaking:
                framing.send(self.answers, packing.pack((self.number, "print", text, [])))
        finally:
            self.sending = self.sending and not main
        if main:
            self.interrupted()  # while it was sending

    def _show(self, call: int, control) -> None:
        """Show the last lines printed, until `call` has ended or the kernel orders something."""
        seen = 0
        while self.number < call or self.call == call:
            # Never wait for it here: an order to stop must be heard. The answer comes after this.
            if len(self.kept) > seen and self.speaking.acquire(blocking=False):
                try:
                    if self.call == call:
                        seen, lines = len(self.kept), last_lines(self.kept)
                        framing.send(self.answers, packing.pack((call, "show", lines, [])))
                finally:
                    self.speaking.release()
            if control.poll(_BEAT):
                return

    def watch(self, control) -> None:
        """Listen to the kernel while the main thread works: end the call, or end with it."""
        main = threading.main_thread().ident
        try:
            while True:
                order, call = control.recv()
                if order == "end":
                    _exit()
                if order == "show":
                    self._show(call, control)
                    continue
                if self.stop != call:
                    self.stop, self.ordered = call, time.monotonic()
                with self.turning:
                    if order == "cut" and self.call == call:
                        process_group.cut()
                for _ in range(200):  # again and again: code may swallow the first
                    if self.call != call:
                        break
                    signal.pthread_kill(main, signal.SIGINT)
                    if control.poll(0.02):
                        break  # an order that goes further
        except (EOFError, OSError):
            _end(self.folder)

    def interrupted(self, _=None, frame=None) -> None:
        """Handle SIGINT: only the kernel's order counts, not a Ctrl-C that reached everyone.

        An import is let finish within reason: a package that is cut off half-way is forgotten by
        Python but not by C++, which refuses to register its operators again at the next import.
        """
        if not self.call or self.call != self.stop or self.sending:
            return
        if time.monotonic() - self.ordered > _IMPORT or not _imports(frame or sys._getframe()):
            raise Stopped


def _imports(frame) -> bool:
    """Tell whether an import is under way in this frame or in one that called it."""
    while frame and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def _unpacked(buffers) -> tuple:
    """Unpack what the notebook sent; raise MemoryError, in words, where it does not fit."""
    try:
        return packing.unpack(buffers, gpu_by_default() or "cpu")
    except MemoryError:
        size = sum(len(buffer) for buffer in buffers) / 1e9
    raise MemoryError(f"The {size:.1f} GB that were sent do not fit into the memory of this rank.")


def _end(place) -> None:
    """End with the kernel: nothing here outlives it, nor its folders, once it is really gone.

    A kernel that closes its World says so and removes the folder itself. One that was killed lets
    go of its connections a moment before it lets go of the folder's lock.
    """
    child_processes.end_own()
    limit = time.monotonic() + 1.5
    while os.path.exists(place) and time.monotonic() < limit:
        with contextlib.suppress(OSError):
            folders.sweep(os.path.dirname(place))  # leaves a living kernel's alone
        time.sleep(0.02)
    os._exit(0)


def _exit() -> None:
    child_processes.end_own()
    os._exit(0)


def _own_descriptors(folder, rank):
    """Send descriptors 1 and 2 to files: what C code prints, and the last words of a crash."""
    out, err = (os.path.join(folder, f"rank-{rank}.{end}") for end in ("out", "err"))
    for path, descriptor in ((out, 1), (err, 2)):
        with open(path, "w") as file:
            os.dup2(file.fileno(), descriptor)
    faulthandler.enable(2, all_threads=False)
    return Tail(out), Stderr(err, rank)


def _error(error: BaseException) -> dict:
    """Describe an exception so that the kernel can show it; if need be, by its type alone."""
    try:
        return _description(error)
    except Exception as worse:
        text = f"(it cannot be described: that raised {type(worse).__name__})"
        return {"type": type(error).__name__, "text": text, "when": time.monotonic_ns()}


def _description(error: BaseException) -> dict:
    """Give type, words, the reader's own frames and no others, and what the kernel judges by."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not hidden(frame.filename)] or frames[-1:]
    description = {
        "type": type(error).__name__,
        "text": _in_words(error, str),
        "frames": [(f.filename, f.lineno, f.name, f.line) for f in own],
        "when": time.monotonic_ns(),
        "where": error.where if isinstance(error, Mismatch) else None,
        "waited": broken_wait(error),
        "lost": partner_is_lost(error),
    }
    if isinstance(error, SystemExit):
        description["text"] = f"sys.exit({_in_words(error.code, repr)})"
    with contextlib.suppress(Exception):  # it goes along if it can be made again
        packed = [bytes(buffer) for buffer in packing.pack(error)]
        packing.unpack(packed)
        description["exception"] = packed
    return description


def _in_words(item, how) -> str:
    """Write an item by its own `str` or `repr`, which may raise another exception."""
    try:
        return how(item)
    except Stopped:
        raise
    except BaseException as worse:
        return f"(its words are lost: its {how.__name__}() raised {type(worse).__name__})"


def main(_, rank, size, tasks, answers, control, folder, board, threads, environment, path):
    """Live as rank `rank` of `size` until the kernel goes; started by `launch`."""
    os.environ.update(environment)
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    sys.path[:] = path
    torch.set_num_threads(threads)
    child_processes.lead()
    # A DataLoader forks its workers where it can: a cell's Dataset need not be pickled then.
    multiprocessing.set_start_method("fork" if sys.platform == "linux" else None, force=True)
    # An OSError here means that the world was closed before this rank was ready, or ends with it.
    with contextlib.suppress(EOFError, OSError):
        this_rank.rank, this_rank.board = rank, NoticeBoard(board, size)
        this_rank.board.clear(rank)
        me = Rank(rank, tasks, answers, folder)
        signal.signal(signal.SIGINT, me.interrupted)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked since `launch.warm`
        threading.Thread(target=me.watch, args=(control,), daemon=True, name="watcher").start()
        framing.send(answers, packing.pack((0, "ok", RUNNING, [])))
        me.serve()
    _end(folder)
