"""JavaScript as tokens: enough of the language for house rules, without anything to install."""

import re
from functools import cache
from typing import NamedTuple

PLAIN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<number>\d[\w.]*(?:(?<=[eE])[+-]\d+)?)
      | (?P<name>[^\W\d][\w$]*|\$[\w$]*)
      | (?P<sign>=>|\?\.|\?\?|\.\.\.|\S)""",
    re.DOTALL | re.VERBOSE,
)
REGEX = re.compile(r"/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\[\n])+/\w*")
TEMPLATE = re.compile(r"(?:\\.|\$(?!\{)|[^`\\$])*(?:`|\$\{)", re.DOTALL)
OPENS = {"(": ")", "[": "]", "{": "}"}
BEFORE_REGEX = {"return", "typeof", "case", "in", "of", "void", "else", "await", "yield"}
NOT_CALLED = {"if", "for", "while", "switch", "catch", "with"}


class Token(NamedTuple):
    kind: str  # comment, string, number, name, sign, regex or template
    text: str
    line: int
    depth: int  # how many brackets are open around it


@cache
def tokens(text: str) -> list[Token]:
    """All tokens but comments. A template literal gives its texts and, between them, its code."""
    found, at, line, open_ = [], 0, 1, []
    while at < len(text):
        if text[at].isspace():
            line, at = line + (text[at] == "\n"), at + 1
            continue
        kind, end = _next(text, at, found[-1] if found else None, open_)
        piece = text[at:end]
        if piece[0] in ")]}":
            open_.pop()
        if kind != "comment":
            found.append(Token(kind, piece, line, len(open_)))
        if kind == "template" and piece.endswith("${"):
            open_.append("`")
        elif piece in OPENS:
            open_.append(piece)
        line, at = line + piece.count("\n"), end
    if open_:
        raise ValueError(f"{open_[-1]} is never closed.")
    return found


def _next(text: str, at: int, before: Token | None, open_: list[str]) -> tuple[str, int]:
    """The kind of the token that starts at a position, and where it ends."""
    if text[at] == "`" or (text[at] == "}" and open_ and open_[-1] == "`"):
        return "template", TEMPLATE.match(text, at + 1).end()
    if text[at] == "/" and text[at + 1] not in "/*" and not _is_value(before):
        return "regex", REGEX.match(text, at).end()
    match = PLAIN.match(text, at)
    return match.lastgroup, match.end()


def _is_value(token: Token | None) -> bool:
    """Whether a slash after this token divides; else it begins a regular expression."""
    if token is None or token.text in BEFORE_REGEX:
        return False
    if token.kind == "template":
        return token.text.endswith("`")
    return token.kind != "sign" or token.text in ")]}"


class Function(NamedTuple):
    name: str
    line: int
    lines: int


def functions(text: str) -> list[Function]:
    """Every function, method and arrow function with the lines from its name to its end."""
    all_ = tokens(text)
    pairs = _brackets(all_)
    opened = {end: start for start, end in pairs.items()}
    found = []
    for i, token in enumerate(all_):
        if token.text == "=>":
            start = opened.get(i - 1, i - 1)
            end = pairs[i + 1] if all_[i + 1].text == "{" else _expression_end(all_, i + 1)
        elif token.text == "{" and i - 1 in opened and all_[opened[i - 1] - 1].kind == "name":
            start, end = opened[i - 1] - 1, pairs[i]
            if all_[start].text in NOT_CALLED:
                continue
        else:
            continue
        before = start - 2 if all_[start - 1].text == "async" else start - 1
        named = all_[before - 1] if all_[before].text in ("=", ":") else all_[start]
        found.append(Function(named.text, named.line, all_[end].line - named.line + 1))
    return found


def _brackets(all_: list[Token]) -> dict[int, int]:
    """The position of each opening bracket: that of the bracket that closes it."""
    pairs, open_ = {}, []
    for i, token in enumerate(all_):
        if token.kind == "template" and token.text[0] == "}":
            open_.pop()
        if token.text in OPENS or (token.kind == "template" and token.text.endswith("${")):
            open_.append(i)
        elif token.kind == "sign" and token.text in ")]}":
            pairs[open_.pop()] = i
    return pairs


def _expression_end(all_: list[Token], start: int) -> int:
    """The last token of the expression that begins at a position."""
    depth = all_[start].depth
    for i in range(start + 1, len(all_)):
        token = all_[i]
        closed = token.depth < depth or (token.depth == depth and token.text in (",", ";"))
        if closed and token.kind in ("sign", "template"):
            return i - 1
    return len(all_) - 1


@cache
def top_level(text: str) -> set[str]:
    """The names that a file declares outside of all brackets."""
    all_ = tokens(text)
    names = set()
    for i, token in enumerate(all_):
        if token.depth or token.text not in ("function", "class", "const", "let", "var"):
            continue
        if token.text in ("function", "class"):
            names.add(all_[i + 1].text)
            continue
        names |= _declared(all_[i + 1 :])
    return names


def _declared(rest: list[Token]) -> set[str]:
    """The names in `a = 1, [b, c] = two, { d: e } = three;`, which follows a const."""
    names, is_target = set(), True
    for token, after in zip(rest, rest[1:], strict=False):
        if token.depth == 0 and token.text == ";":
            break
        if token.depth == 0 and token.text in ("=", ","):
            is_target = token.text == ","
        elif is_target and token.kind == "name" and after.text != ":":
            names.add(token.text)
    return names


@cache
def imports(text: str) -> dict[str, list[str]]:
    """The names that a file imports, by the file it takes them from."""
    found: dict[str, list[str]] = {}
    taken = r'^import \{([^}]*)\} from "\./([\w-]+)\.js";'
    for names, file in re.findall(taken, text, flags=re.MULTILINE):
        found.setdefault(file, []).extend(n.strip() for n in names.split(",") if n.strip())
    return found


@cache
def exports(text: str) -> set[str]:
    """The names that a file exports; each stands in a declaration of its own."""
    found = r"^export (?:async )?(?:function\*?|const|class) (\w+)"
    return set(re.findall(found, text, flags=re.MULTILINE))


@cache
def used(text: str) -> dict[str, int]:
    """Names that a file refers to, with their lines: not those of properties, nor of imports."""
    names: dict[str, int] = {}
    all_ = tokens(re.sub(r"^import [^;]*;", lambda m: "\n" * m[0].count("\n"), text, flags=re.M))
    for i, token in enumerate(all_):
        before = all_[i - 1].text if i else ""
        after = all_[i + 1].text if i + 1 < len(all_) else ""
        is_key = after == ":" and before in ("{", ",")
        if token.kind == "name" and before not in (".", "?.") and not is_key:
            names.setdefault(token.text, token.line)
    return names
