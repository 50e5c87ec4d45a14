"""Stores the widgets of a notebook: those that its outputs show, once each, without random ids.

JupyterLab (trusted, without a kernel) and the book restore a picture from this state alone.
"""

import ast
import hashlib
import json
import re

from lib.draw.parts.javascript import inflated

STATE = "application/vnd.jupyter.widget-state+json"
VIEW = "application/vnd.jupyter.widget-view+json"
POINTER = "IPY_MODEL_"  # how a widget's state names another widget
LAYOUT = "LayoutModel"
NOTHING = {"_view_count", "tabbable", "tooltip"}  # None in Python, and without them in JavaScript


def states(notebook) -> dict[str, dict]:
    """Return every stored widget of a notebook by its id: {model_name, ..., state}."""
    return notebook.metadata.get("widgets", {}).get(STATE, {}).get("state", {})


def tidy(notebook) -> None:
    """Keep the widgets that outputs show and those they need, under ids made from their content.

    Widgets of plain data with the same content (a picture's JavaScript) share one entry. A view of
    a widget that does not exist is removed; its PNG and its text remain.
    """
    kept = {name: _lean(model) for name, model in states(notebook).items()}
    bare = {name for name, model in kept.items() if _is_bare(model)}
    for model in kept.values():
        if model["model_module"] == "anywidget" and _target(model["state"].get("layout")) in bare:
            del model["state"]["layout"]
    shown = []
    for data in _views(notebook):
        if data[VIEW]["model_id"] in kept:
            shown.append(data[VIEW]["model_id"])
        else:
            del data[VIEW]
    names = _names(kept, _reached(kept, shown))
    for data in _views(notebook):
        data[VIEW]["model_id"] = names[data[VIEW]["model_id"]]
    notebook.metadata.pop("widgets", None)
    if names:
        state = {names[old]: _renamed(kept[old], names) for old in names}
        notebook.metadata["widgets"] = {
            STATE: {"state": state, "version_major": 2, "version_minor": 0}
        }


def lifeless(notebook) -> list[str]:
    """Return a sentence for each picture that cannot be restored from what `notebook` stores."""
    models, sentences = states(notebook), []
    for place, data in _pictures(notebook):
        if VIEW not in data:
            sentences.append(f"{place} shows the still of a picture, and no living one.")
            continue
        name = data[VIEW]["model_id"]
        needs = [name, *_pointers(models[name]["state"])] if name in models else [name]
        if any(need not in models for need in needs):
            sentences.append(f"{place} shows a picture whose state is not in the file.")
    return sentences


def lifeless_in_page(notebook, page: str) -> list[str]:
    """Return a sentence for each picture of `notebook` that the HTML `page` cannot restore."""
    script = '<script type="application/vnd.jupyter.widget-%s\\+json">(.*?)</script>'
    views = [json.loads(text)["model_id"] for text in re.findall(script % "view", page, re.S)]
    parts = [json.loads(text)["state"] for text in re.findall(script % "state", page, re.S)]
    stored = {name for part in parts for name in part}
    return [
        f"{place} shows a picture that does not live in the book's page."
        for place, data in _pictures(notebook)
        if VIEW in data and data[VIEW]["model_id"] not in stored.intersection(views)
    ]


def code(notebook) -> list[str]:
    """Return the JavaScript that a notebook's pictures carry, which is the same in every run."""
    parts = [model["state"] for model in states(notebook).values()]
    texts = {part["_esm"] for part in parts if "_esm" in part}
    return sorted(texts | {inflated(part["packed"]) for part in parts if "packed" in part})


def digest(text: str) -> str:
    """Return sixty-four hexadecimal digits that depend only on `text`."""
    return hashlib.sha256(text.encode()).hexdigest()


def _lean(model: dict) -> dict:
    empty = model["model_name"] == LAYOUT
    state = {
        key: value
        for key, value in model["state"].items()
        if value is not None or not (empty or key in NOTHING)
    }
    return {**model, "state": state}


def _is_bare(model: dict) -> bool:
    """Return True for a layout that sets nothing, which a picture does not need."""
    return model["model_name"] == LAYOUT and all(key[0] == "_" for key in model["state"])


def _views(notebook):
    """Return the data, by type, of each output with a widget's view, in reading order."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if VIEW in output.get("data", {}):
                yield output["data"]


def _pictures(notebook):
    """Return (name of the cell, data by type) of each picture, in reading order."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if VIEW in data or "image/png" in data:
                last = (cell.source.splitlines() or [""])[-1]
                yield f"cell [{cell.execution_count}], `{last}`,", data


def _target(value) -> str | None:
    """Return the id that a value points to."""
    if isinstance(value, str) and value.startswith(POINTER):
        return value.removeprefix(POINTER)
    return None


def _pointers(value):
    """Return every id that a state points to, at any depth."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _pointers(part)
    elif target := _target(value):
        yield target


def _reached(models: dict, shown: list[str]) -> list[str]:
    """Return the shown widgets and all that they point to, each after those it points to."""
    order, seen = [], set()

    def visit(name: str) -> None:
        if name in seen or name not in models:
            return
        seen.add(name)
        for target in _pointers(models[name]["state"]):
            visit(target)
        order.append(name)

    for name in shown:
        visit(name)
    return order


def _names(models: dict, order: list[str]) -> dict[str, str]:
    """Return an id made from content for every random id.

    Equal content shares an id where it is plain data; otherwise its ids are numbered.
    """
    names, count = {}, {}
    for old in order:
        known = {**dict.fromkeys(models, ""), **names}  # a cycle names itself as nothing
        text = json.dumps(_renamed(models[old], known), sort_keys=True)
        number = count[text] = count.get(text, -1) + 1
        plain = models[old]["model_name"] == "WidgetModel"
        names[old] = digest(text if plain else f"{number}{text}")[:32]
    return names


def _renamed(value, names: dict[str, str]):
    if isinstance(value, dict):
        return {key: _renamed(part, names) for key, part in value.items()}
    if isinstance(value, list):
        return [_renamed(part, names) for part in value]
    target = _target(value)
    return POINTER + names[target] if target in names else value


def untold(notebook) -> list[tuple[str, str]]:
    """Return (cell, text) for what code above a living picture says and its output does not.

    Such a picture was stored by other code: captions and questions are texts of more than 20
    characters, and a text with braces is filled in first, so it is not looked for.
    """
    models, missing = states(notebook), []
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        views = [out["data"][VIEW]["model_id"] for out in outputs if VIEW in out.get("data", {})]
        if views and not cell.source.startswith("%%"):
            told = json.dumps(outputs) + "".join(
                json.dumps(data_of(models[view])) for view in views
            )
            quoted = [(text, json.dumps(text)[1:-1]) for text in _sentences(cell.source)]
            missing += [(cell.id, text) for text, inside in quoted if inside not in told]
    return missing


def data_of(model: dict) -> dict:
    """Return the data of a picture, of which large ones are stored packed."""
    data = model["state"]["data"]
    return json.loads(inflated(data["packed"])) if "packed" in data else data


def _sentences(source: str) -> list[str]:
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    texts = [node.value.strip() for node in nodes if isinstance(node.value, str)]
    return [text for text in texts if len(text) > 20 and " " in text and "{" not in text]
