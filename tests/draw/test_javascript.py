"""House rules for JavaScript: true imports, short functions, one style, layouts without a page."""

import re
from pathlib import Path

import pytest

from lib.draw.parts import javascript
from tests import javascript as js

ROOT = Path(__file__).parents[2]
SITE = ROOT / "lib" / "course" / "site"
PICTURES = {path.stem: path.read_text("utf-8") for path in sorted(javascript.JS.glob("*.js"))}
SCRIPTS = [*sorted(javascript.JS.glob("*.js")), *sorted((SITE / "lab").glob("*.js"))]
SCRIPTS += sorted((SITE / "_static").glob("*.js"))
FUNCTION_LINES, WIDTH = 60, 100
EACH_KIND = "picture"  # the one name that more than one file exports: a kind of picture each
PAGE_FILES = {"answers", "controls", "covers", "frame", "kernel", "keys", "paint", "pointer"}
PAGE_FILES |= {"motion", "stylesheet", "tools"}
PAGE = {"document", "window", "globalThis", "matchMedia", "performance", "dispatchEvent"}
PAGE |= {"addEventListener", "removeEventListener", "requestAnimationFrame", "setTimeout"}
PAGE |= {
    "ResizeObserver",
    "MutationObserver",
    "CustomEvent",
    "DOMMatrix",
    "fetch",
    "navigator",
    "localStorage",
}

every_picture = pytest.mark.parametrize("name", PICTURES)
every_script = pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)


def wrong_imports(files: dict[str, str]) -> list[str]:
    """Sentences about imports that are missing, unused, not exported, or that go in a circle."""
    exported = {name: js.exports(text) for name, text in files.items()}
    owners = {one: file for file, names in exported.items() for one in names if one != EACH_KIND}
    wrong = []
    for file, text in files.items():
        imported = js.imports(text)
        taken = {name for names in imported.values() for name in names}
        used = js.used(text)
        for other, names in imported.items():
            missing = set(names) - exported.get(other, set())
            wrong += [f"{file}.js imports {name}, which {other}.js does not export."
                      for name in sorted(missing)]  # fmt: skip
        wrong += [
            f"{file}.js imports {name} and never uses it." for name in sorted(taken - set(used))
        ]
        wrong += [f"{file}.js, line {line}, uses {name} of {owners[name]}.js without an import."
                  for name, line in used.items()
                  if owners.get(name, file) != file and name not in taken]  # fmt: skip
    return wrong + [f"{file}.js is imported in a circle." for file in in_circles(files)]


def in_circles(files: dict[str, str]) -> list[str]:
    """The files that import themselves, by way of others."""
    ahead = {file: set(js.imports(text)) for file, text in files.items()}
    for middle in files:
        for file in files:
            if middle in ahead[file]:
                ahead[file] |= ahead.get(middle, set())
    return [file for file in files if file in ahead[file]]


def test_every_import_is_true():
    """A file imports what it uses of other files, and nothing else."""
    assert len(PICTURES) > 20 and wrong_imports(PICTURES) == []


def test_an_import_that_is_missing_unused_or_untrue_is_found():
    one = 'import { b } from "./two.js";\nexport function a() {\n  return `${b(1)} ${x.c}`;\n}\n'
    two = "export function b(c) {\n  return c;\n}\nexport const d = 1;\n"
    assert wrong_imports({"one": one, "two": two}) == []
    without = one.split("\n", 1)[1]
    (missing,) = wrong_imports({"one": without, "two": two})
    assert missing == "one.js, line 2, uses b of two.js without an import."
    (unused,) = wrong_imports({"one": one.replace("{ b }", "{ b, d }"), "two": two})
    assert unused == "one.js imports d and never uses it."
    untrue = wrong_imports({"one": one, "two": two.replace("export function", "function")})
    assert untrue == ["one.js imports b, which two.js does not export."]
    circle = wrong_imports({"one": one, "two": 'import { a } from "./one.js";\n' + two + "a();\n"})
    assert circle == ["one.js is imported in a circle.", "two.js is imported in a circle."]


@every_picture
def test_each_import_that_is_there_is_needed(name):
    """Taken out of any file, an import is missed."""
    text = PICTURES[name]
    for line in re.findall(r"^import \{[^}]*\} from [^\n]*\n", text, flags=re.MULTILINE):
        without = PICTURES | {name: text.replace(line, "")}
        assert any("without an import" in sentence for sentence in wrong_imports(without)), line


def test_no_two_files_have_the_same_name_at_their_top():
    names = [name for text in PICTURES.values() for name in js.top_level(text)]
    twice = {name for name in names if names.count(name) > 1}
    assert len(names) > 100 and twice == {EACH_KIND}


def test_the_hand_needs_nothing_else_and_stands_in_order():
    """What a file imports comes before it, in the shared files and in those of each kind."""
    for kind in [name for name, text in PICTURES.items() if "function picture(" in text]:
        order = [*javascript.HAND, *(path.stem for path in javascript.sources(kind))]
        assert len(order) == len(set(order)) and order[-1] == kind
        for place, name in enumerate(order):
            assert set(js.imports(PICTURES[name])) <= set(order[:place]), (kind, name)


@every_script
def test_a_javascript_function_is_short(path):
    functions = js.functions(path.read_text("utf-8"))
    assert functions
    for name, line, lines in functions:
        assert lines <= FUNCTION_LINES, f"{name}, line {line}: {lines} lines"


LINES = '  x("}", /[}/]/, `}${y({})}`); // }\n' * FUNCTION_LINES


@pytest.mark.parametrize(
    "text",
    [
        f"function long() {{\n{LINES}}}",
        f"const a = {{\n  long(b, c) {{\n{LINES}}},\n}};",
        f"const long = async (b) => {{\n{LINES}}};",
        f"const long = b => [\n{LINES.replace(';', ',')}];",
        f"const a = {{ c: 1, long: (b) => ({{ d: [\n{LINES.replace(';', ',')}] }}) }};",
        f"run(() => 1, function long() {{\n{LINES}}});",
    ],
)
def test_a_long_function_of_any_form_is_found(text):
    found = [one for one in js.functions(f"if (f()) {{\n  g();\n}}\n{text}\n") if one.lines > 9]
    assert [one.name for one in found] == ["long"] and found[0].lines > FUNCTION_LINES


@every_script
def test_javascript_has_one_style(path):
    """As `deno fmt` writes it, as far as that can be seen without it; and no pragma for any."""
    text = path.read_text("utf-8")
    assert not re.search(r"(prettier|deno-fmt|eslint|deno-lint|biome)-ignore|eslint-disable", text)
    assert text.endswith("\n") and "\t" not in text and "\r" not in text
    for number, line in enumerate(text.splitlines(), 1):
        assert len(line) <= WIDTH, f"line {number} has {len(line)} characters"
        assert line == line.rstrip(), f"line {number} ends in blanks"
    for token in js.tokens(text):
        single = token.kind == "string" and token.text[0] == "'" and '"' not in token.text
        assert not single, f"line {token.line}: {token.text} has single quotes"
    ends = [token for token in js.tokens(text) if not token.depth and token.text == ";"]
    imports = re.findall(r"^import ", text, flags=re.MULTILINE)
    assert len(ends) >= len(imports)


@every_script
def test_what_is_exported_says_what_it_is(path):
    """A file and each of its exports begin with a comment that is a sentence."""
    lines = path.read_text("utf-8").splitlines()
    starts = [place for place, line in enumerate(lines) if line.startswith("export ")]
    for place in starts:
        assert lines[place - 1].startswith("//"), f"line {place + 1} has no comment: {lines[place]}"
    for end in [next(n for n, line in enumerate(lines) if not line.startswith("//")), *starts]:
        start = end
        while start and lines[start - 1].startswith("//"):
            start -= 1
        comment = " ".join(line.removeprefix("// ") for line in lines[start:end])
        assert re.fullmatch(r"[^a-z].*\.", comment), f"line {end + 1}: {comment!r} is no sentence"


@every_picture
def test_a_picture_is_laid_out_where_there_is_no_page(name):
    """Only the frame and what it needs know of a page; no file does while it is read."""
    code = js.tokens(PICTURES[name])
    touched = {token.text for before, token in zip([None, *code], code, strict=False)
               if token.kind == "name" and token.text in PAGE
               and (before is None or before.text not in (".", "?."))}  # fmt: skip
    assert name in PAGE_FILES or not touched, f"{name}.js touches the page: {touched}"
    outside = {token.text for token in code if not token.depth} & (PAGE - {"globalThis"})
    assert not outside, f"{name}.js touches the page while it is read: {outside}"
