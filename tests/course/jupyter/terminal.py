"""A terminal in which a test types, and reads what a reader would see."""

import os
import pty
import select
import subprocess
import sys
import time

# Makes the terminal the one whose Ctrl-C the process hears, also where the tests run in the
# background of a shell, which ignores it; then becomes what was asked for.
OWN = "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
OWN += "signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
CTRL_C = "\x03"


class Terminal:
    """A command that runs in a terminal of its own."""

    def __init__(self, *words, **options):
        self._ours, theirs = pty.openpty()
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        call = [sys.executable, "-c", OWN, *map(str, words)]
        self.process = subprocess.Popen(call, start_new_session=True, **streams, **options)
        os.close(theirs)
        self.said = ""

    def type(self, text: str) -> None:
        """Type; what was said until now is forgotten."""
        self.said = ""
        os.write(self._ours, text.encode())

    def wait_for(self, text: str, seconds: float = 90) -> str:
        """Return all that was said since something was typed, once `text` is in it."""
        end = time.monotonic() + seconds
        while text not in self.said:
            assert time.monotonic() < end, f"{text!r} is not in {self.said!r}"
            self.read(0.2)
        return self.said

    def read(self, seconds: float) -> None:
        """Hear what is said within some seconds."""
        if select.select([self._ours], [], [], seconds)[0]:
            try:
                self.said += os.read(self._ours, 65536).decode(errors="replace")
            except OSError:  # nobody has the terminal any more
                time.sleep(seconds)

    def wait(self, seconds: float = 60) -> int:
        """Return the exit status once the command has ended; hear all that it says."""
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.1)
        self.read(0)
        return self.process.wait(1)

    def close(self) -> None:
        """End the command as a closed terminal does."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)
        os.close(self._ours)
