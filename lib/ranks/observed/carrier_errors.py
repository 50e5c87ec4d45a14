"""Errors of gloo and NCCL: where they came out, and what they tell. Only this file knows the words.

Gloo raises a RuntimeError for everything, and NCCL a DistBackendError, so what happened can be read
from the text alone. The texts are those of PyTorch 2.13.
"""

_WAITED = "lib.ranks: waited in"  # no attribute of anybody's own has such a name
_GLOO_CONNECTION = "gloo/transport"  # the file of gloo's that every error of a connection names
_GLOO_TIME_LIMIT = "Timed out"  # in such an error: a limit that the reader has set
_LOST = ("NCCL", "Connection closed")  # believed where it came out of a launch or a wait
_WAIT_TIMED_OUT = "Operation timed out!"  # what Work.wait says; gloo's own words differ


def broke_off(error: BaseException, tag: int, number: int) -> None:
    """Note on an error that it came out of the launch or the wait (tag, number)."""
    vars(error)[_WAITED] = (tag, number)


def chain(error: BaseException | None) -> list[BaseException]:
    """Give an error and those that it arose from, itself first."""
    errors: list[BaseException] = []
    while error is not None and not any(error is one for one in errors):
        errors.append(error)
        error = error.__cause__ or error.__context__
    return errors


def broken_wait(error: BaseException) -> tuple[int, int] | None:
    """Give (tag, number) of the launch or wait that an error came out of, if it did."""
    return next((vars(one)[_WAITED] for one in chain(error) if _WAITED in vars(one)), None)


def partner_is_lost(error: BaseException) -> bool:
    """Tell whether an error only says that another rank has gone: gloo and NCCL blame the living.

    An error that the reader's code has raised from such a one counts too.
    """
    return any(map(_is_lost, chain(error)))


def _is_lost(error: BaseException) -> bool:
    plain = isinstance(error, RuntimeError) and type(error).__str__ is RuntimeError.__str__
    if not plain:  # words of somebody else's, and perhaps code that makes them
        return False
    text = str(error)
    if _GLOO_CONNECTION in text and _GLOO_TIME_LIMIT not in text:
        return True
    return _WAITED in vars(error) and any(words in text for words in _LOST)


def wait_timed_out(error: RuntimeError) -> bool:
    """Tell whether a wait with a time limit has ended since its time was over."""
    return str(error).startswith(_WAIT_TIMED_OUT)
