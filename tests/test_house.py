"""The house rules: floors, sizes, words, and notebooks that hold what they show."""

import ast
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIB = ROOT / "lib"
# From the ground up. A file imports from its own folder and from what stands before it here.
FLOORS = ["ledger", "predict", "ranks", "single", "parallel", "recipe", "draw", "course"]
NO_TORCH = {"ledger", "predict", "draw"}
LONG_FILE, FILE_LINES, FUNCTION_LINES = 250, 400, 60
NOTEBOOK_BYTES = 600_000

FILES = sorted(path for path in LIB.rglob("*.py") if "__pycache__" not in path.parts)
NOTEBOOKS = sorted((ROOT / "chapters").glob("*.ipynb"))


def shown(path):
    return str(path.relative_to(ROOT))


def git(*words):
    """git's answer; the test is skipped, aloud, where the tree is no checkout."""
    try:
        call = ["git", "-c", "safe.directory=*", *words]
        done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("git is not installed")
    if done.returncode == 128:
        pytest.skip("this tree is no git checkout")
    return done.stdout


def module(path):
    """lib/ranks/world.py -> "lib.ranks.world"; a folder's __init__ is the folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def floor(name):
    """The floor of "lib.ranks.world" is "ranks"."""
    return (name.split(".") + [""])[1]


def imports(path):
    """Every import of a file, those inside functions too: (module, names it takes from it)."""
    package = module(path).split(".")
    package = package if path.name == "__init__.py" else package[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*base, *filter(None, [node.module])])
            yield base, tuple(alias.name for alias in node.names)


def targets(path):
    """The modules of lib that a file imports; `from lib.predict import play` is a module too."""
    known = {module(file) for file in FILES}
    for base, names in imports(path):
        if base.split(".")[0] == "lib":
            found = [f"{base}.{name}" for name in names if f"{base}.{name}" in known]
            yield from found or [base]


every_file = pytest.mark.parametrize("path", FILES, ids=shown)


# --- floors


@every_file
def test_imports_point_down_only(path):
    here = floor(module(path))
    if not here:  # lib/__init__ is the table of contents
        return
    assert here in FLOORS, f"lib/{here} stands on no floor: house rules name {', '.join(FLOORS)}"
    for target in targets(path):
        there = floor(target)
        if there in FLOORS:
            assert FLOORS.index(there) <= FLOORS.index(here), f"{here} imports {target}, above it"


@every_file
def test_methods_never_import_one_another(path):
    if floor(module(path)) != "parallel":
        return
    family = module(path).split(".")[2:3]
    for target in targets(path):
        if floor(target) == "parallel":
            assert target.split(".")[2:3] == family, f"{shown(path)} imports {target}, a sibling"


@every_file
def test_one_device_has_never_heard_of_a_rank(path):
    if floor(module(path)) == "single":
        for target, _ in imports(path):
            assert not target.startswith(("lib.ranks", "torch.distributed")), target


@every_file
def test_paper_and_pictures_import_no_torch(path):
    if floor(module(path)) in NO_TORCH:
        for target, _ in imports(path):
            assert target.split(".")[0] != "torch", f"{shown(path)} imports {target}"
        for target in targets(path):
            assert floor(target) in NO_TORCH, f"{shown(path)} imports {target}, which has torch"


def test_paper_and_pictures_leave_torch_out_when_they_run():
    names = [module(path) for path in FILES if floor(module(path)) in NO_TORCH]
    code = f"import sys, {', '.join(['lib', *names])}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=120).returncode == 0


# What reads the environment below: where the reader's files are, which two floors must agree on.
ENVIRONMENT = {"lib/predict/readers_folder.py"}


@every_file
def test_the_environment_is_read_in_ranks_and_course_only(path):
    if floor(module(path)) in ("ranks", "course") or shown(path) in ENVIRONMENT:
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        name = getattr(node, "attr", getattr(node, "name", ""))
        assert name not in ("environ", "getenv", "putenv"), f"{shown(path)} touches os.{name}"


def definitions(tree):
    """The names a module defines itself, at its top level or in a branch there."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


@every_file
def test_only_folders_re_export(path):
    files = {module(file): file for file in FILES if file.name != "__init__.py"}
    for base, names in imports(path):
        if base in files:
            own = definitions(ast.parse(files[base].read_text(encoding="utf-8")))
            for name in names:
                assert name in own or name == "*", f"{shown(path)}: {base} only imports {name}"


def cycles(arrows):
    """The groups of modules that import one another, in a circle: each sorted, none of one."""
    reach = {}

    def reached(name):
        if name not in reach:
            reach[name] = seen = set()
            queue = [name]
            while queue:
                for target in arrows.get(queue.pop(), ()):
                    if target not in seen:
                        seen.add(target)
                        queue.append(target)
        return reach[name]

    circles = {
        tuple(sorted({name} | {n for n in reached(name) if name in reached(n)}))
        for name in arrows
        if name in reached(name)
    }
    return sorted(circles)


def test_a_cycle_is_found():
    assert cycles({"a": ["b"], "b": ["c"], "c": ["b", "d"], "d": []}) == [("b", "c")]
    assert cycles({"a": ["b", "c"], "b": ["c"], "c": []}) == []


def test_no_modules_import_one_another():
    """Neither when they are loaded nor inside a function."""
    arrows = {module(path): set(targets(path)) for path in FILES}
    assert arrows and cycles(arrows) == []


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


@every_file
def test_what_is_private_stays_in_its_folder(path):
    folder = module(path) if path.name == "__init__.py" else module(path).rpartition(".")[0]
    for base, names in imports(path):
        parts = base.split(".")
        if parts[0] == "lib" and any(map(is_private, [*parts, *names])):
            home = base if f"{base}.{names[0]}" in KNOWN else base.rpartition(".")[0]
            assert home == folder, f"{shown(path)} takes {', '.join(names)} from {base}"


# Public in spite of the underscore: the methods of every named tuple, and PyTorch's and Python's
# own names that we happen to have written too.
ELSEWHERE = {"_replace", "_asdict", "_fields", "_make", "_exit", "_data", "_indices"}
ELSEWHERE |= {"_get_backend", "_world"}


def private_names(tree):
    """The private names that a file defines or stores as attributes."""
    stored = {node.attr for node in ast.walk(tree)
              if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}  # fmt: skip
    return {name for name in definitions(tree) | stored if is_private(name)}


def taken_attributes(tree):
    """The private attributes that a file reads from something that is not itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            itself = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not itself:
                yield node.attr, node.lineno


def test_a_private_attribute_that_is_taken_is_found():
    tree = ast.parse("self._a\nworld._b\nworld.c._d = 1\nworld.__class__\n_e = 1\ncls._f")
    assert list(taken_attributes(tree)) == [("_b", 2), ("_d", 3)]
    assert private_names(tree) == {"_d", "_e"}


@pytest.fixture(scope="module")
def homes():
    """Each private name that lib defines: the folders in which it is defined."""
    folders = {}
    for path in FILES:
        for name in private_names(ast.parse(path.read_text(encoding="utf-8"))) - ELSEWHERE:
            folders.setdefault(name, set()).add(path.parent)
    return folders


@every_file
def test_private_attributes_stay_in_their_folder(path, homes):
    for name, line in taken_attributes(ast.parse(path.read_text(encoding="utf-8"))):
        assert path.parent in homes.get(name, {path.parent}), (
            f"{shown(path)}, line {line}, takes {name}, which is private to another folder"
        )


KNOWN = {module(file) for file in FILES}
CROWDS = {
    "lib/draw/js": "a file for each kind of picture, beside what all of them share",
    "lib/draw": "a file for each kind of picture; what they share is in parts/",
    "lib/predict": "one model of time and one of memory, beside shapes, machines and their rates",
    "lib/predict/sharded": "three methods and offload, beside parts of FSDP and what is published",
    "lib/predict/tensor": "one line of ranks, split sequences, and grids, on the same shapes",
    "lib/parallel/sharded": "three methods on the same shards, beside the parts of FSDP",
}
CROWD = 14


def test_a_folder_is_seen_at_a_glance():
    folders = {path.parent for path in LIB.rglob("*") if path.suffix in {".py", ".js"}}
    sizes = {shown(folder): len([*folder.glob("*.py"), *folder.glob("*.js")]) for folder in folders}
    crowded = {name for name, files in sizes.items() if files > CROWD + 1}  # and __init__.py
    assert crowded == set(CROWDS), "a folder has at most 14 files, or a reason that stands here"


# The rooms of lib/ranks, from the ground up: a file imports from its own and from those before it.
ROOMS = ["gpus", "shared", "state", "slow", "observed", "transport", "groups", "process", "kernel"]
ROOMS += ["launched"]


@every_file
def test_rooms_of_ranks_import_from_those_below(path):
    def room(name):
        return name.split(".")[2] if name.startswith("lib.ranks.") and name.count(".") == 3 else ""

    if here := room(module(path)):
        for target in targets(path):
            there = room(target)
            assert there or not target.startswith("lib.ranks."), (
                f"{here} imports {target}, above it"
            )
            assert not there or ROOMS.index(there) <= ROOMS.index(here), f"{here} imports {target}"


# --- sizes and words


@every_file
def test_a_file_is_one_sitting(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    if lines > LONG_FILE:
        warnings.warn(f"{shown(path)} has {lines} lines: think about its parts", stacklevel=1)
    assert lines <= FILE_LINES, f"{lines} lines: a file is at most {FILE_LINES}"


TESTS = sorted((ROOT / "tests").rglob("*.py"))


@pytest.mark.parametrize("path", TESTS, ids=shown)
def test_a_file_of_tests_is_one_sitting(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= FILE_LINES, f"{lines} lines: a file is at most {FILE_LINES}"


@every_file
def test_a_function_is_short(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = node.end_lineno - node.lineno + 1
            assert lines <= FUNCTION_LINES, f"{node.name}, line {node.lineno}: {lines} lines"


def test_git_ignores_nothing_of_lib():
    files = [shown(path) for path in LIB.rglob("*") if path.is_file()]
    files = [name for name in files if "__pycache__" not in name]
    probes = [
        "lib/new.py",
        "lib/parallel/data/ddp.py",
        "lib/course/site/_static/new.js",
        "data/new.yaml",
    ]
    assert git("check-ignore", "--no-index", *files, *probes) == ""


UNFINISHED = re.compile(
    r"\b(?:TODO|FIXME|XXX|HACK)\b|coming soon|\(soon\)|NotImplementedError|lorem ip", re.I
)


def test_nothing_is_promised_and_not_there():
    tracked = git("ls-files", "-co", "--exclude-standard").splitlines()
    for name in tracked:
        path = ROOT / name
        if name == shown(Path(__file__)) or path.suffix not in {
            ".py",
            ".md",
            ".yml",
            ".yaml",
            ".ipynb",
        }:
            continue
        if path.is_file() and (found := UNFINISHED.search(path.read_text(encoding="utf-8"))):
            pytest.fail(f"{name} says {found.group()!r}")
