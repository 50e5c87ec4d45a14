"""The widgets of a notebook as it is stored: what its outputs show, once each, and nothing random.

JupyterLab (trusted, without a kernel) and the book revive a picture from this state alone.
"""

import hashlib
import json

STATE = "application/vnd.jupyter.widget-state+json"
VIEW = "application/vnd.jupyter.widget-view+json"
POINTER = "IPY_MODEL_"  # how a widget's state names another widget
LAYOUT = "LayoutModel"
NOTHING = {"_view_count", "tabbable", "tooltip"}  # None in Python, and without them in JavaScript


def states(notebook) -> dict[str, dict]:
    """Every stored widget of a notebook by its id: {model_name, ..., state}."""
    return notebook.metadata.get("widgets", {}).get(STATE, {}).get("state", {})


def tidy(notebook) -> None:
    """Keeps the widgets that outputs show and those they need, under ids made from content.

    Two that hold the same share one entry where they are plain data (a picture's JavaScript). A
    view of a widget that is not there is taken out: its PNG and its words remain.
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


def code(notebook) -> list[str]:
    """The JavaScript that a notebook's pictures carry: the same in every run."""
    parts = [model["state"] for model in states(notebook).values()]
    return sorted({part[key] for part in parts for key in ("_esm", "text") if key in part})


def digest(text: str) -> str:
    """Sixty-four hexadecimal digits that depend on `text` and on nothing else."""
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
    """True for a layout that asks for nothing: a picture does without it."""
    return model["model_name"] == LAYOUT and all(key[0] == "_" for key in model["state"])


def _views(notebook):
    """What each output that has a widget's view holds, by type; in reading order."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if VIEW in output.get("data", {}):
                yield output["data"]


def _target(value) -> str | None:
    """The id that a value points to."""
    if isinstance(value, str) and value.startswith(POINTER):
        return value.removeprefix(POINTER)
    return None


def _pointers(value):
    """Every id that a state points to, at any depth."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _pointers(part)
    elif target := _target(value):
        yield target


def _reached(models: dict, shown: list[str]) -> list[str]:
    """The shown widgets and all they point to, each after what it points to."""
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
    """For every random id one made from content; equal content is numbered, or shared if plain."""
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
