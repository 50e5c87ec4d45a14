"""Messages between two members of an observed group: counted by pair, compared like collectives."""

import functools
import time

from lib.ranks.observed.gpu_staging import elsewhere
from lib.ranks.observed.observed_work import ObservedWork
from lib.ranks.observed.signature import bytes_of, say
from lib.ranks.shared.failures import list_of
from lib.ranks.shared.notice_board import tag_of
from lib.ranks.shared.notice_slots import Kind, Launch
from lib.ranks.state.this_rank import this_rank


class Messages:
    """What an ObservedGroup does for send and recv; each (source, destination) counts its own."""

    def send(self, tensors, peer: int, tag: int = 0):
        """Send to one member."""
        call = self._call("send", (tensors, peer, tag), ())
        work = self._message("send", tensors, peer, call, tag)
        self.sending = [known for known in self.sending if not known.is_completed()]
        if self.asked is None:  # in a batch nothing is sent yet
            self.sending.append(work)  # gloo drops a message whose work nobody holds
        return work

    def recv(self, tensors, peer: int, tag: int = 0):
        """Receive from one member."""
        call = self._call("recv", (tensors, peer, tag), tensors)
        return self._message("recv", tensors, peer, call, tag)

    def recv_anysource(self, tensors, tag: int = 0):
        """Receive from whichever member sends first: nothing to compare with until it has."""
        key = tag_of("any", self.tag, this_rank.rank, tag)
        number = self.messages[key] = self.messages.get(key, -1) + 1
        launch = Launch(Kind.ANY, "message", say(tensors))
        name = self._name_of("any", this_rank.rank, tag)
        self._note(key, number, launch, self.members, name, self._scope(tag))
        call = self._call("recv_anysource", (tensors, tag), tensors)
        work = self._go("recv", bytes_of(tensors), call, key, number, self.members)
        work.before = functools.partial(self._await_sender, tag)
        work.then.append(functools.partial(self._received, tag))
        return self._as_long_as_it_takes(work, tensors)

    def _message(self, op, tensors, peer, call, tag):
        """Note one send or receive; each pair (source, destination) counts its own messages."""
        way = "to send to" if op == "send" else "to receive from"
        rank, partner = this_rank.rank, self.member(peer, way)
        if op == "recv" and partner == rank and not self.streamed:
            raise ValueError(
                f"Rank {rank} receives from itself, and gloo carries nothing from a rank to "
                "itself. Name the rank that sends."
            )
        if self.asked is not None:
            return self._later(self._message, op, tensors, peer, call, tag)
        pair = (rank, partner) if op == "send" else (partner, rank)
        if self.streamed and self.due is None and elsewhere(tensors[0]):
            self._note_order(pair, partner)
        key = tag_of("pair", self.tag, pair, tag)
        number = self.messages.get(key, 0)
        self.messages[key] = number + 1
        launch = self._by_device(Launch(Kind.PAIR, "message", say(tensors)), tensors)
        self._note(key, number, launch, pair, self._name_of(*pair, tag), self._scope(tag), pair[0])
        other = this_rank.board and partner != rank
        if other and this_rank.board.differs((partner,), key, number, launch):
            message = f"message {number} from rank {pair[0]} to rank {pair[1]} differs."
            raise self._refusal(message, key, number, pair)
        work = self._go(op, bytes_of(tensors), call, key, number, pair, partner)
        return self._as_long_as_it_takes(work, tensors)

    def _by_device(self, launch: Launch, tensors) -> Launch:
        """Say which tensors are the CPU's, where those of GPUs go another way: by NCCL."""
        beside = self.streamed and tensors and not any(map(elsewhere, tensors))
        return launch._replace(what=f"cpu {launch.what}") if beside else launch

    def _scope(self, tag: int) -> int:
        """Give the number that all messages of this group under one of the reader's tags share."""
        return tag_of("messages", self.tag, tag)

    def _name_of(self, source, destination: int, tag: int) -> str:
        """Write the name of a pair's messages; each tag of the reader's is counted for itself."""
        return f"{source}>{destination} {self.label}" + (f" tag {tag}" if tag else "")

    def _note_order(self, pair, partner: int) -> None:
        """Refuse a message that would never arrive: NCCL moves one at a time between two ranks."""
        low, high = sorted(pair)
        key = tag_of("lane", self.tag, low, high)
        number = self.messages.get(key, 0)
        self.messages[key] = number + 1
        launch = Launch(Kind.ORDER, "message", f"{pair[0]}>{pair[1]}")
        self._note(key, number, launch, (low, high), f"{low}:{high} {self.label}")
        if this_rank.board and this_rank.board.differs((partner,), key, number, launch):
            message = (
                f"message {number} between ranks {low} and {high} differs: NCCL moves one message "
                "at a time between two ranks, in the order of the calls, and these two wait for "
                "each other. Let one rank send and the other receive first, or let both leave "
                "together with dist.batch_isend_irecv."
            )
            raise self._refusal(message, key, number, (low, high))

    def _as_long_as_it_takes(self, work, tensors):
        """Let the wait for a message know no limit where gloo carries it."""
        if isinstance(work, ObservedWork) and not (self.streamed and elsewhere(tensors[0])):
            work.limit = self.message_limit
        return work

    def _await_sender(self, tag) -> None:
        """Wait in Python until a member has sent: gloo cannot end its own wait for any source."""
        pairs = [(member, this_rank.rank) for member in self.members if member != this_rank.rank]
        keys = [(pair[0], tag_of("pair", self.tag, pair, tag)) for pair in pairs]
        pause = 0.00001
        while this_rank.board and not self.closed:
            if any(this_rank.board.launches(m, k) > self.messages.get(k, 0) for m, k in keys):
                return
            time.sleep(pause)
            pause = min(2 * pause, 0.0005)

    def _received(self, tag, work) -> None:
        """Count a message from any source once it is known whose it was."""
        pair = (self.members[work._source_rank()], this_rank.rank)
        key = tag_of("pair", self.tag, pair, tag)
        self.messages[key] = self.messages.get(key, 0) + 1
        if this_rank.board:
            name, scope = self._name_of(*pair, tag), self._scope(tag)
            known = self.messages[key], pair, name, Kind.PAIR, scope, pair[0]
            this_rank.board.count(this_rank.rank, key, *known)

    def member(self, place: int, what: str) -> int:
        """Give the rank of a member; say so where the group has none at that place."""
        if 0 <= place < len(self.members):
            return self.members[place]
        raise ValueError(
            f"There is no rank {place} {what}: group {self.label} has {list_of(self.members)}. At "
            "the ends of a chain leave this call out; in a ring take the number modulo the size."
        )
