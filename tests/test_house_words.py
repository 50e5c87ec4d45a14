"""The house rules for words in the code: messages that are raised, and docstrings."""

import ast
import re

from tests.test_house import definitions, every_file, shown


def raised_text(node):
    """The words in which the argument of an exception ends; None where they are made elsewhere."""
    if isinstance(node, ast.BinOp):
        node = node.right
    if isinstance(node, ast.JoinedStr):
        node = node.values[-1]
    if isinstance(node, ast.FormattedValue):
        return None if isinstance(node.value, ast.Call) else ""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def first_word(node):
    """The word with which the argument of an exception begins; "" where it is made elsewhere."""
    if isinstance(node, ast.BinOp):
        node = node.left
    if isinstance(node, ast.JoinedStr):
        node = node.values[0]
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
    return text.split(" ")[0]


def uncapitalized(tree):
    """The lines of what is raised with a text that begins neither with a capital nor with a name.

    A name is one that the file has, or a piece of code: `mesh(`, `book.yml`, `bucket_bytes`.
    """
    names = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
              for alias in node.names} | definitions(tree)  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            word = first_word(node.exc.args[0])
            if word[:1].islower() and not (set(word) & set("._(=/") or word.strip(",") in names):
                yield node.lineno


def test_a_message_that_begins_small_is_found():
    texts = ['"the a."', '"The a."', 'f"{a} b."', '"ratio, b."', '"f() b."', 'f"b {a}." + c', "a"]
    raises = "\n".join(f"    raise ValueError({text})" for text in texts)
    assert list(uncapitalized(ast.parse(f"def f(ratio):\n{raises}"))) == [2, 7]


# Words that name what they speak of, as Python's own message does.
AS_PYTHON = {"lib/__init__.py"}


@every_file
def test_every_message_that_is_raised_begins_with_a_capital_or_a_name(path):
    if shown(path) not in AS_PYTHON:
        lines = list(uncapitalized(ast.parse(path.read_text(encoding="utf-8"))))
        assert not lines, f"{shown(path)}: the messages raised in lines {lines} begin small"


def unfinished(tree):
    """The lines of what is raised with a text that ends in no period."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            text = raised_text(node.exc.args[0])
            if text is not None and not text.endswith("."):
                yield node.lineno


def test_a_message_without_a_period_is_found():
    texts = ['"a"', '"a."', 'f"a {b}"', 'f"a {b}."', '"a" + f"{b}: c"', 'f"{a}" "b."', "a", "f(a)"]
    tree = ast.parse("\n".join(f"raise ValueError({text})" for text in texts))
    assert list(unfinished(tree)) == [1, 3, 5]


@every_file
def test_every_message_that_is_raised_ends_in_a_period(path):
    lines = list(unfinished(ast.parse(path.read_text(encoding="utf-8"))))
    assert not lines, f"{shown(path)}: the messages raised in lines {lines} end in no period"


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


NOUNS = re.compile(r"(?:The|An?|This|How|What|Which|Whether|Who|Where|Each|Every|All|Its?)\b")


def nominal(tree):
    """The public functions whose docstring begins with a noun; a property is one, so it may."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            kinds = {ast.unparse(one).rpartition(".")[2] for one in node.decorator_list}
            text = ast.get_docstring(node) or ""
            if NOUNS.match(text) and not kinds & {"property", "cached_property", "setter"}:
                yield node.name


def test_a_docstring_that_begins_with_a_noun_is_found():
    texts = {"a": "The rank.", "b": "Return the rank.", "c": "Itself", "d": "What it is."}
    functions = "\n".join(f'def {name}(): "{text}"' for name, text in texts.items())
    tree = ast.parse(functions + "\n@functools.cached_property\ndef e(): 'The rank.'")
    assert list(nominal(tree)) == ["a", "d"]


@every_file
def test_a_docstring_says_what_a_function_does(path):
    names = list(nominal(ast.parse(path.read_text(encoding="utf-8"))))
    assert not names, f"{shown(path)}: begin the docstrings of {', '.join(names)} with a verb"
