"""Links that carry one message at a time: each becomes a row of its own, with messages as actions.

[Note: a link is a row]
A rank sends in the order of its own row, so the order on a link is known before any time is. A link
is therefore simulated like a rank (clock.py): its messages follow one another, each as early as it
can, and an action that needs a message waits for the link instead of the sender. Where a receiver
must ask for a message first, an action of no duration stands before the message and waits for the
receiver.
"""

from typing import NamedTuple

import numpy as np

LINKS = (None, "pair", "device")


class Queues(NamedTuple):
    """Holds the rows of ranks and links: what each action needs, and how long it takes.

    `sent` are the places of the actions that send, link after link; `carried` is the place of each
    of these messages, and `asked` that of the receiver's action which allows it (-1 for none).
    `begin` and `end` are those of all rows, each link beside its sender.
    """

    begin: np.ndarray
    end: np.ndarray
    needs: np.ndarray
    busy: np.ndarray
    sent: np.ndarray
    carried: np.ndarray
    asked: np.ndarray


def queues(grid, send, link: str, ahead: int | None) -> Queues:
    """Order the messages of a schedule on its links; `send` holds each action's message time."""
    actions, ranks = len(grid.codes), len(grid.first) - 1
    # 1. Order the messages of each link as in its sender's row.
    sent = np.flatnonzero(grid.receiver >= 0)
    pair = grid.rank[sent] * ranks + grid.receiver[sent]
    order = np.argsort(pair, kind="stable") if link == "pair" else np.arange(len(sent))
    sent, pair = sent[order], pair[order]
    lane = pair if link == "pair" else grid.rank[sent]
    # 2. Add two actions for each message: the receiver asks for it, the link carries it.
    computed = sent.copy()
    computed[np.isin(sent, grid.overlapped)] += 1  # a pair's results are ready when both are done
    asked = np.full(len(sent), -1) if ahead is None else _asked(grid, sent, pair, ahead)
    needs = np.concatenate([grid.waits, np.stack([asked, computed], 1).ravel()])
    busy = np.stack([np.zeros(len(sent)), send[sent]], 1).ravel()
    carried = actions + 2 * np.arange(len(sent)) + 1
    # 3. Let an action that needs a message wait for the link.
    message_of = np.full(actions + 1, -1)
    message_of[sent] = carried
    link_of = message_of[grid.needs]
    needs[:actions][link_of >= 0] = link_of[link_of >= 0]
    # 4. Put each link's row beside its sender's, so that `_turns` meets them in that order.
    fresh = np.flatnonzero(np.diff(lane, prepend=-1))
    begin = np.append(grid.first[:-1], actions + 2 * fresh)
    end = np.append(grid.first[1:], actions + 2 * np.append(fresh[1:], len(sent)))
    ends_of = np.minimum(grid.rank[sent], grid.receiver[sent])[fresh]
    rows = np.argsort(np.append(np.arange(ranks), ends_of + 0.5), kind="stable")
    return Queues(begin[rows], end[rows], needs, busy, sent, carried, asked)


def _asked(grid, sent, pair, ahead: int) -> np.ndarray:
    """Return the action after which a receiver asks for each message; -1 for the beginning.

    A rank that begins an action asks for what it and the next `ahead` actions need, and for all
    earlier messages of the same sender.
    """
    needer = np.full(len(grid.codes) + 1, -1)
    needer[grid.needs] = np.arange(len(grid.needs))
    needer = needer[sent]
    # 1. Find the earliest action that asks for a message, or for a later one of the same pair.
    far = len(grid.codes) + 1
    number = np.cumsum(np.diff(pair, prepend=-1) != 0)
    later = np.minimum.accumulate((needer + number * far)[::-1])[::-1]
    needer = later - number * far
    # 2. Go `ahead` + 1 cells up its row, where an overlapped pair is one cell.
    last = np.ones(len(grid.codes), bool)
    last[grid.overlapped] = False
    place, cells = np.flatnonzero(last), np.cumsum(last) - last
    up = cells[needer] - ahead - 1
    asked = place[np.maximum(up, 0)]
    return np.where((up >= 0) & (asked >= grid.first[grid.rank[needer]]), asked, -1)
