"""`%%ranks`: a cell that runs on every rank, in a namespace that stays there."""

import linecache

from lib.ranks.kernel import open_worlds
from lib.ranks.shared import failures


def ranks_cell(line: str, text: str) -> None:
    """Run a cell on the ranks of the newest open World: `%%ranks`, or `%%ranks 0,2` on some.

    Names that cells make on the ranks stay there, and are the ranks' own from then on, also for
    functions of the notebook. All other names that the cell reads, itself or through functions, are
    the notebook's: each goes along the first time, and again when it was bound anew or its value
    has changed *in the notebook*. Until then the ranks keep their copy, with what they have done
    to it: a model that they train stays trained. The value of the last line is shown, rank by rank.
    """
    world = open_worlds.current()
    if world is None:
        raise failures.RankError("There are no ranks yet. Make them first: world = World(4).")
    shell = _shell()
    filename, source = f"<ranks In[{shell.execution_count}]>", "\n" + text
    compile(source, filename, "exec")  # a slip in the text is shown here, as for any cell
    failures.cells[filename] = f"cell In[{shell.execution_count}]"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    hidden = {n for n, v in shell.user_ns_hidden.items() if shell.user_ns.get(n) is v}
    world.cell(source, filename, shell.user_ns, _ranks_of(line), hidden)


def _ranks_of(line: str) -> list[int] | None:
    if not line.strip():
        return None
    try:
        return sorted({int(part) for part in line.split(",")})
    except ValueError:
        raise ValueError(
            f"%%ranks {line}: name the ranks by number, as in %%ranks 0,2, or leave them out to "
            "run the cell on all of them."
        ) from None


def _shell():
    from IPython import get_ipython

    return get_ipython()


def register() -> None:
    """Make `%%ranks` known where there is an IPython; elsewhere do nothing."""
    try:
        shell = _shell()
    except ImportError:
        return
    if shell is not None and "ranks" not in shell.magics_manager.magics["cell"]:
        shell.register_magic_function(ranks_cell, "cell", "ranks")
