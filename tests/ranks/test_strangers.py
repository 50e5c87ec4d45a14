"""Other users of the machine come to the ports that gloo opens, and to our folders, in vain."""

import fcntl
import os
import socket
import stat
import struct
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist

from lib import RankError, World
from lib.ranks.groups import gloo_connections, sockets
from lib.ranks.shared import folders

NOBODY = 65534
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root to be nobody"
)


def total():
    numbers = torch.ones(4)
    dist.all_reduce(numbers)
    return numbers[0].item()


# Strangers at gloo's port.


STRANGER = """
import os, socket, sys, time
if os.geteuid() == 0:
    os.setgid(65534); os.setuid(65534)
kept = [socket.socket() for _ in sys.argv[2:]]
for end, word in zip(kept, sys.argv[2:]):
    end.connect(("127.0.0.1", int(sys.argv[1])))
    end.sendall(bytes.fromhex(word))
print("there", flush=True)
time.sleep(5.0)
"""


def knock(address: str, words: list[bytes]) -> None:
    """Let another process connect to a port, say `words` on a connection each, and stay there."""
    call = [sys.executable, "-ISc", STRANGER, address.split(":")[1], *(w.hex() for w in words)]
    with open(os.devnull) as nothing:
        stranger = subprocess.Popen(call, stdin=nothing, stdout=subprocess.PIPE)
    assert stranger.stdout.readline() == b"there\n"


def let_in(strangers: int, words: list[bytes]) -> None:
    """From now on a stranger comes to each rank's first ports, before any member does."""
    listen, left = gloo_connections._listen, [strangers]
    gloo_connections.seen = []

    def crowded():
        device, door = listen()
        gloo_connections.seen.append(door.own)
        if left[0]:
            left[0] -= 1
            knock(door.own, words)
            time.sleep(0.1)  # gloo takes them in
        return device, door

    gloo_connections._listen, gloo_connections._alone = crowded, listen


def alone_again():
    if hasattr(gloo_connections, "_alone"):  # else this rank was started anew meanwhile
        gloo_connections._listen = gloo_connections._alone


def members(size):
    """What a stranger says who takes himself for each of the members."""
    return [struct.pack("<q", number) for number in range(size)]


@pytest.fixture
def crowd(worlds):
    world = worlds(3)
    yield world
    world.run(alone_again)
    assert world.run(total) == [3.0] * 3


def use_new_group():
    group = dist.new_group([0, 1, 2])
    objects = [None] * 3
    dist.all_gather_object(objects, dist.get_rank(), group=group)
    dist.destroy_process_group(group)
    return objects, len(gloo_connections.seen)


@pytest.mark.parametrize(("strangers", "attempts"), [(0, 1), (1, 2), (2, 3)])
def test_a_stranger_in_a_members_place_is_no_member(crowd, strangers, attempts):
    """Case 19: who says a member's number to gloo's port is found out before the group is used."""
    crowd.run(let_in, strangers, members(3))
    assert crowd.run(use_new_group) == [([0, 1, 2], attempts)] * 3


@pytest.mark.parametrize("words", [[b""] * 3, [b"\x07" * 8] * 2, [b"ab"]])
def test_a_stranger_who_only_knocks_disturbs_nobody(crowd, words):
    """Case 19: connections that take nobody's place are ended, and nothing starts anew."""
    crowd.run(let_in, 1, words)
    assert crowd.run(use_new_group) == [([0, 1, 2], 1)] * 3


def fail():
    if dist.get_rank() == 2:
        raise ValueError("a reason to make all groups anew")
    total()


def test_a_stranger_at_the_start_of_a_world_is_no_member(crowd):
    """Case 19: the group of all ranks is made in the same way, and the ranks keep their state."""
    pids = crowd.run(os.getpid)
    crowd.run(let_in, 1, members(3))
    with pytest.raises(RankError, match="The ranks keep what you made on them"):
        crowd.run(fail)
    assert crowd.run(total) == [3.0] * 3 and crowd.run(os.getpid) == pids
    assert [len(seen) for seen in crowd.run(getattr, gloo_connections, "seen")] == [2, 2, 2]


def test_a_stranger_who_never_tires_is_named(crowd):
    """Case 19: after a bounded number of attempts a sentence says what happens on the machine."""
    crowd.run(let_in, 1000, members(3))
    crowd.run(setattr, gloo_connections, "_ATTEMPTS", 3)
    try:
        with pytest.raises(
            RankError, match="could not connect with each other alone in 3 attempts"
        ):
            crowd.run(use_new_group)
    finally:
        crowd.run(setattr, gloo_connections, "_ATTEMPTS", 30)


def late():
    if dist.get_rank() == 1:
        time.sleep(1.0)
    return use_new_group()[0]


@linux
def test_no_port_is_open_while_a_member_is_late(crowd):
    """Case 19: gloo listens only once all members have come to `new_group`."""
    from tests.ranks.test_world import listening

    crowd.run(let_in, 0, [])
    pids, seen = crowd.run(os.getpid), []

    def look():
        end = time.monotonic() + 0.8
        while time.monotonic() < end:
            seen.append(listening(pids))

    watcher = threading.Thread(target=look)
    watcher.start()
    assert crowd.run(late) == [[0, 1, 2]] * 3
    watcher.join()
    assert len(seen) > 5 and not any(seen)


def test_links_between_members_only():
    """Case 19: each two members hold one connection, whose ends name each other."""
    a, c = "h:1", "h:3"
    fine = [[(a, "h:7"), ("h:8", c)], [("h:7", a), ("h:9", c)], [(c, "h:8"), (c, "h:9")]]
    assert sockets.only_members(fine) and sockets.only_members([[]])
    assert not sockets.only_members([None, *fine[1:]])  # gloo failed there
    assert not sockets.only_members([[*fine[0], (a, "h:66")], *fine[1:]])  # one too many
    assert not sockets.only_members([[(a, "h:66"), fine[0][1]], *fine[1:]])  # a stranger's
    assert not sockets.only_members([[(a, "h:7")], *fine[1:]])  # one too few
    assert not sockets.only_members([[(a, "h:7"), ("h:7", a)], []])  # both ends in one rank


ATTACKER = """
import os, socket, struct, sys, time
os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})
def ports():
    rows = [row.split(None, 4) for row in open("/proc/net/tcp").readlines()[1:]]
    return {{int(row[1][9:], 16) for row in rows if row[3] == "0A"}}
known, kept, knocks = ports(), [], 0
print("ready", flush=True)
while True:
    now = ports()
    for port in now - known:
        for number in range(2):
            try:
                end = socket.socket(); end.settimeout(0.1); end.connect(("127.0.0.1", port))
                end.sendall(struct.pack("<q", number)); kept.append(end); knocks += 1
            except OSError:
                pass
    known = now; del kept[:-100]
"""


@linux
@root
def test_starts_under_attack_from_a_second_account():
    """Case 19: another account that races for every new port changes no result."""
    source = ATTACKER.format(nobody=NOBODY)
    attacker = subprocess.Popen([sys.executable, "-I", "-c", source], stdout=subprocess.PIPE)
    try:
        assert attacker.stdout.readline() == b"ready\n"
        for _ in range(6):
            with World(2) as world:
                assert world.run(total) == [2.0, 2.0]
                assert world.run(dist.get_rank) == [0, 1]
        assert attacker.poll() is None
    finally:
        attacker.kill()
        attacker.wait()


# What belongs to gloo, and what to the reader.


def own_sockets():
    """The reader's own listening socket and connection live on beside gloo's."""
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    sys.modules["__main__"].own = server, client, server.accept()[0]
    dist.destroy_process_group(dist.new_group([0, 1, 2]))


def use_own_sockets():
    server, client, accepted = sys.modules["__main__"].own
    client.sendall(b"hello")
    with socket.create_connection(server.getsockname()):
        server.accept()[0].close()
    return accepted.recv(5)


def test_new_groups_and_cuts_leave_the_readers_sockets_alone(worlds):
    """Case 29: `new_group` closes gloo's port and a cut ends gloo's connections, no others."""
    world = worlds(3)
    world.run(own_sockets)
    assert world.run(use_own_sockets) == [b"hello"] * 3
    with pytest.raises(RankError):
        world.run(fail)
    assert world.run(use_own_sockets) == [b"hello"] * 3


def count_after_groups(count):
    for _ in range(count):
        dist.destroy_process_group(dist.new_group([0, 1, 2]))
    return len(os.listdir("/dev/fd")), len(os.listdir("/proc/self/task"))


@linux
def test_a_destroyed_group_leaves_no_threads_and_no_descriptors(worlds):
    """Case 29: ten groups, made and destroyed, leave what one leaves."""
    few = worlds(3).run(count_after_groups, 1)
    for _ in range(5):  # a socket may take a moment to close
        many = worlds(3).run(count_after_groups, 10)
        if many == few:
            break
    assert many == few


# Folders in a directory where others may write.


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """A directory where everybody may write, taken for the temporary one."""
    monkeypatch.setattr(folders, "_homes", lambda: [str(tmp_path)])
    return tmp_path


def abandoned(home, *, mode=0o700, mark=folders._MARK, name="ranks-left"):
    place = home / name
    place.mkdir(mode=mode)
    place.chmod(mode)
    (place / "alive").write_bytes(mark)
    return place


def test_only_our_own_abandoned_folders_are_removed(shared):
    """Case 20: a user's own folder that happens to match stays; so does a link, or a living one."""
    left = abandoned(shared)
    living = abandoned(shared, name="ranks-living")
    stays = [
        living,
        abandoned(shared, mark=b"my notes\n", name="ranks-mine"),
        abandoned(shared, mode=0o755, name="ranks-open"),
    ]
    (shared / "ranks-new").mkdir(mode=0o700)  # of a start at this moment
    (shared / "ranks-link").symlink_to(abandoned(shared, name="elsewhere"))
    stays += [shared / "ranks-new", shared / "elsewhere", shared / "ranks-link"]
    with open(living / "alive") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = folders.make()
    assert not left.exists() and all(place.exists() for place in stays)
    assert stat.S_IMODE(os.stat(made).st_mode) == 0o700
    folders.remove(made)
    assert not os.path.exists(made)


@pytest.mark.quiet
def test_a_fifo_in_a_folder_blocks_nobody(shared):
    """Case 20: what is no regular file is not waited for."""
    for name in ("ranks-x", "ranks-y"):
        place = abandoned(shared, name=name)
        (place / "alive").unlink()
        os.mkfifo(place / "alive")
    began = time.monotonic()
    folders.remove(folders.make())
    assert time.monotonic() - began < 1.0 and (shared / "ranks-x").exists()


@root
def test_a_strangers_folder_stays_his(shared):
    """Case 20: not even root removes, or waits for, what belongs to another account."""
    place = abandoned(shared)
    os.chown(place, NOBODY, NOBODY)
    folders.remove(folders.make())
    assert place.exists()


def test_the_lock_is_held_before_its_file_has_a_name(shared, monkeypatch):
    """Case 20: a sweep between any two steps of a start does not take the new folder for left."""
    swept, rename = [], os.rename

    def look(old, new):
        folders.sweep(str(shared))
        rename(old, new)
        folders.sweep(str(shared))
        swept.append(os.path.exists(new))

    monkeypatch.setattr(os, "rename", look)
    folders.remove(folders.make())
    assert swept == [True]


def test_the_runtime_directory_comes_first(tmp_path, monkeypatch):
    """Case 20: where the user has a runtime directory of his own, folders are made there."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o755)
    assert folders._homes()[0] != str(tmp_path)  # others can look into it
    tmp_path.chmod(0o700)
    assert folders._homes()[0] == str(tmp_path)
    made = folders.make()
    assert os.path.dirname(made) == str(tmp_path)
    folders.remove(made)


SCRIPT = """
import sys
from lib import World
if __name__ == "__main__":
    try:
        with World(2) as world:
            print(world.run(len, "abc"))
    except Exception as error:
        print(type(error).__name__, error)
"""


def script(**environment):
    return subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=100,
        env={**os.environ, **environment},
    )  # fmt: skip


def test_a_temporary_directory_with_a_long_path(tmp_path):
    """Case 29: a TMPDIR longer than the path of a socket can be works."""
    long = tmp_path / ("d" * 120)
    long.mkdir()
    done = script(TMPDIR=str(long), XDG_RUNTIME_DIR="")
    assert done.stdout == "[3, 3]\n" and done.stderr == ""
    left = [path.name for path in long.iterdir()]
    assert not [name for name in left if name.startswith(("ranks-", "pymp-"))]


def test_no_directory_for_the_private_folder_is_a_sentence(tmp_path, monkeypatch):
    """Case 29: where no directory can hold the folder, the message names them all."""
    monkeypatch.setattr(folders, "_homes", lambda: [str(tmp_path / "none"), str(tmp_path)])

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RankError) as caught:
        folders.make()
    assert "none: No such file or directory" in str(caught.value)
    assert f"{tmp_path}: No space left on device" in str(caught.value)
    assert "Free some space there, or set TMPDIR" in str(caught.value)
    assert list(tmp_path.iterdir()) == []
