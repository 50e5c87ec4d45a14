"""`%%ranks`: a cell that runs on every rank, in a namespace that stays there."""

import builtins
import linecache
import symtable

from lib.ranks import failures


def ranks_cell(line: str, text: str) -> None:
    """Run a cell on the ranks of the last World: `%%ranks`, or `%%ranks 0,2` on some of them.

    Names made there stay there. Names of the notebook that the cell reads go along, the first time
    and whenever they are bound anew. The value of the last line is shown, rank by rank.
    """
    from lib.ranks.world import current

    world = current()
    if world is None:
        raise failures.RankError("there are no ranks yet: make them first, world = World(4)")
    shell = _shell()
    filename, source = f"<ranks In[{shell.execution_count}]>", "\n" + text
    compile(source, filename, "exec")  # a slip in the text is shown here, as for any cell
    failures.cells[filename] = f"cell In[{shell.execution_count}]"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    world.cell(source, filename, _wanted(source, filename, shell.user_ns), _ranks_of(line))


def _ranks_of(line: str) -> list[int] | None:
    if not line.strip():
        return None
    try:
        return sorted({int(part) for part in line.split(",")})
    except ValueError:
        raise ValueError(
            f"%%ranks {line}: name ranks by number, as in %%ranks 0,2, or none for all"
        ) from None


def _wanted(source: str, filename: str, names: dict) -> dict:
    """Give what the cell reads and the notebook has; names the cell itself makes are its own."""
    read, made = set(), set()

    def walk(table):
        for symbol in table.get_symbols():
            if symbol.is_global() or table.get_type() == "module":
                (made if symbol.is_assigned() or symbol.is_imported() else read).add(
                    symbol.get_name()
                )
        for child in table.get_children():
            walk(child)

    walk(symtable.symtable(source, filename, "exec"))
    known = {"In", "Out", "exit", "quit", "get_ipython"} | set(dir(builtins))
    return {"made": made} | {
        "read": {n: names[n] for n in read - made - known if n in names and n[0] != "_"}
    }


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
