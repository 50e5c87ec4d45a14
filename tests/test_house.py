"""The house rules: floors, sizes, words, and notebooks that hold what they show."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
LIB = ROOT / "lib"
# From the ground up. A file imports from its own folder and from what stands before it here.
FLOORS = ["ledger", "predict", "ranks", "single", "parallel", "recipe", "draw", "course"]
NO_TORCH = {"ledger", "predict", "draw"}
FILE_LINES, FUNCTION_LINES = 250, 60
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
    """The floor of "lib.ranks.world" is "ranks"; lib/_*.py are parts of lib/ledger.py."""
    place = (name.split(".") + [""])[1]
    return "ledger" if place.startswith("_") else place


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
    if floor(module(path)) != "parallel" or path.name == "__init__.py":
        return
    for target in targets(path):  # its own parts begin with an underscore, as in lib/ledger.py
        sibling = floor(target) == "parallel" and not target.split(".")[-1].startswith("_")
        assert not sibling, f"{shown(path)} imports its sibling {target}"


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


@every_file
def test_the_environment_is_read_in_ranks_and_course_only(path):
    if floor(module(path)) in ("ranks", "course"):
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


# --- sizes and words


@every_file
def test_a_file_is_one_sitting(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= FILE_LINES, f"{lines} lines: a file is at most {FILE_LINES}"


@every_file
def test_a_function_is_short(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = node.end_lineno - node.lineno + 1
            assert lines <= FUNCTION_LINES, f"{node.name}, line {node.lineno}: {lines} lines"


def public(body):
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return [node for node in body if isinstance(node, kinds) and not node.name.startswith("_")]


@every_file
def test_what_is_public_says_what_it_is(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), "the file does not say what it is"
    for node in public(tree.body):
        assert ast.get_docstring(node), f"{node.name}, line {node.lineno}, has no docstring"
        if isinstance(node, ast.ClassDef) and not node.bases:  # else a base may have said it
            for method in public(node.body):
                said = ast.get_docstring(method) or len(method.body) == 1
                assert said, f"{node.name}.{method.name}, line {method.lineno}, has no docstring"


def test_git_ignores_nothing_of_lib():
    files = [shown(path) for path in LIB.rglob("*") if path.is_file()]
    files = [name for name in files if "__pycache__" not in name]
    probes = [
        "lib/new.py",
        "lib/parallel/data.py",
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


# --- text


def prose(text):
    """Markdown without code, formulas, tables, tags and what is folded away."""
    text = re.sub(r"<details.*?</details>|```.*?```|<style.*?</style>", " ", text, flags=re.S)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)|\]\([^)]*\)", " ", text)  # pictures, addresses of links
    text = re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$|`[^`\n]*`|<[^>]+>", " x ", text, flags=re.S)
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("|"))


def read(path):
    return nbformat.read(path, as_version=4)


def texts():
    """(name, markdown) of every text a reader sees outside the code."""
    for name in ("README.md", "CONTRIBUTING.md"):
        yield name, (ROOT / name).read_text(encoding="utf-8")
    for path in NOTEBOOKS:
        cells = [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]
        yield path.name, "\n\n".join(cells)


EMOJI = re.compile("[\U0001f300-\U0001faff\u2600-\u26ff\u2705\u274c\u2728]")
TALK = re.compile(r"\b(?:simply|just|magic|magical|magically)\b", re.I)


@pytest.mark.parametrize(("name", "text"), [pytest.param(*pair, id=pair[0]) for pair in texts()])
def test_words_are_plain(name, text):
    plain = prose(text)
    assert not TALK.findall(plain), f"{name} says {TALK.findall(plain)}"
    assert not EMOJI.findall(plain), f"{name} shows {EMOJI.findall(plain)}"


def test_words_are_spelled():
    pytest.importorskip("codespell_lib", reason="codespell is not installed")
    text = "\n".join(prose(text) for _, text in texts())
    call = [sys.executable, "-m", "codespell_lib", "-"]
    found = subprocess.run(call, input=text, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert found.stdout == ""
    code = [
        sys.executable,
        "-m",
        "codespell_lib",
        "--skip=*/_static/*,*/__pycache__/*",
        "lib",
        "tests",
    ]
    assert subprocess.run(code, capture_output=True, text=True, timeout=60, cwd=ROOT).stdout == ""


# --- notebooks

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


@every_notebook
def test_a_chapter_was_run_in_order_from_the_top(path):
    counts = [cell.execution_count for cell in code_cells(path)]
    assert counts == list(range(1, len(counts) + 1)), "run it whole: make refresh"


@every_notebook
def test_a_chapter_stores_no_error_that_it_did_not_announce(path):
    for cell in code_cells(path):
        errors = [out.evalue for out in cell.outputs if out.output_type == "error"]
        announced = "raises-exception" in cell.metadata.get("tags", [])
        assert announced or not errors, f"cell {cell.execution_count}: {errors}"
        assert errors or not announced, (
            f"cell {cell.execution_count} announces an error, shows none"
        )


@every_notebook
def test_a_chapter_is_small(path):
    size = path.stat().st_size
    assert size < NOTEBOOK_BYTES, f"{size // 1000} KB"


@every_notebook
def test_a_chapter_tells_nothing_of_where_it_ran(path):
    book = read(path)
    assert set(book.metadata) <= {"kernelspec", "widgets"}, "make refresh"
    assert not any("execution" in cell.metadata for cell in book.cells), "make refresh"


@every_notebook
def test_code_cells_are_short_and_narrow(path):
    cells = [cell.source.splitlines() for cell in code_cells(path)]
    sizes = sorted(len(lines) for lines in cells)
    assert sizes[len(sizes) // 2] <= 6, f"the median cell has {sizes[len(sizes) // 2]} lines: 6"
    assert sizes[int(len(sizes) * 0.9)] < 18, f"nine in ten stay under 18 lines: {sizes}"
    assert sizes[-1] <= 30, f"the longest cell has {sizes[-1]} lines: 30"
    wide = [line for lines in cells for line in lines if len(line) > 88]
    assert not wide, f"wider than 88 columns: {wide[0]}"


@every_notebook
def test_a_sentence_stands_between_two_code_cells_and_no_essay(path):
    words, earlier = None, False  # words since the last code cell; whether there was one
    for cell in read(path).cells:
        if cell.cell_type == "markdown":
            words = (words or 0) + len(re.findall(r"\w[\w'’-]*", prose(cell.source)))
            continue
        first = cell.source.splitlines()[0] if cell.source else "(an empty cell)"
        assert words, f"no sentence before the cell {first!r}"
        assert words <= 120 or not earlier, f"{words} words before {first!r}: at most 120"
        words, earlier = None, True


@every_notebook
def test_a_chapter_is_a_sitting(path):
    cells = len(read(path).cells)
    assert 35 <= cells <= 55, f"{cells} cells"


@every_notebook
def test_what_a_chapter_imports_it_uses(path):
    code = "\n".join(cell.source for cell in code_cells(path))
    for line in re.findall(r"^(?:from \S+ )?import (.+)$", code, re.M):
        for name in re.findall(r"(\w+)(?:,|$)", line.strip("()")):
            assert len(re.findall(rf"\b{name}\b", code)) > 1, f"{name} is imported and never used"


@every_notebook
def test_cells_write_no_files_and_start_no_launcher(path):
    for cell in code_cells(path):
        assert not re.search(r"^%%writefile|^!\s*torchrun", cell.source, re.M), cell.source
