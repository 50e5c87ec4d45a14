"""A server extension of JupyterLab: copies of chapters, their glossary, and files saved unchanged.

`.venv/etc/jupyter` names it, so that `jupyter lab` loads it as `make lab` does.
"""

import json
import os
from pathlib import Path

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado.web import HTTPError, authenticated

from lib.course import glossary_marks
from lib.course.tools import copies
from lib.course.tools.widgets import STATE


class Chapter(APIHandler):
    """Answers `many-ranks/chapter?path=my-chapters/00-ranks.ipynb`, with JupyterLab's own path."""

    auth_resource = "contents"

    @authenticated
    @authorized
    def get(self):
        """Send {title, copy, is_copy, newer, changed} of a chapter, {} of any other notebook."""
        root, path, copy = asked(self)
        about = {}
        if copy:
            about = {"title": copy.title, "copy": copy.path.relative_to(root).as_posix()}
            about |= {"is_copy": path == copy.path, "newer": copy.newer, "changed": copy.changed}
        self.finish(about)

    @authenticated
    @authorized
    def post(self):
        """Make the copy, or make it again; send {copy, kept}, the names of both files."""
        root, _, copy = asked(self)
        if not copy:
            raise HTTPError(404, "This notebook is not a chapter of the course.")
        kept = None
        try:
            if (self.get_json_body() or {}).get("again"):
                kept = copy.again()
            elif not copy.path.exists():
                copies.prepare(copy.path.parents[1])
        except OSError as error:
            raise HTTPError(403, f"{copy.path.parent} cannot be written: {error}.") from error
        self.finish(
            {"copy": copy.path.relative_to(root).as_posix(), "kept": kept.name if kept else ""}
        )


class Glossary(APIHandler):
    """Answers `many-ranks/glossary?path=my-chapters/00-ranks.ipynb`, with JupyterLab's own path."""

    auth_resource = "contents"

    @authenticated
    @authorized
    def get(self):
        """Send all entries of the glossary and, for a chapter, what is marked in its text."""
        _, _, copy = asked(self)
        self.finish(glossary_marks.definitions(copy.number if copy else ""))


def asked(handler: APIHandler) -> tuple[Path, Path, copies.Copy | None]:
    """Return the served folder, the path that was asked for, and its chapter if it is one."""
    root = Path(handler.contents_manager.root_dir)
    path = Path(os.path.abspath(root / handler.get_query_argument("path")))
    copy = copies.of(path)
    return root, path, copy if copy and path.parents[1].is_relative_to(root) else None


def as_stored(model, path, contents_manager) -> None:
    """Restore the numbers of the widgets, as the file has them, before a notebook is saved.

    Browsers write 1.0 as 1, so every save would change lines that the reader did not change.
    """
    try:
        file = Path(contents_manager.root_dir) / path.strip("/")
        old = json.loads(file.read_text(encoding="utf-8"))["metadata"]["widgets"][STATE]["state"]
        new = model["content"]["metadata"]["widgets"][STATE]["state"]
    except (OSError, ValueError, KeyError, TypeError):  # no notebook, or one without widgets
        return
    for name in new.keys() & old.keys():
        if _from_browser(new[name]) == _from_browser(old[name]):
            new[name] = old[name]


def _from_browser(value) -> str:
    """Return JSON with numbers as browsers write them."""
    whole = json.loads(json.dumps(value), parse_float=_number)
    return json.dumps(whole, sort_keys=True)


def _number(text: str) -> int | float:
    return int(float(text)) if float(text).is_integer() else float(text)


def _jupyter_server_extension_points():
    return [{"module": "lib.course.tools.lab_server"}]


def _load_jupyter_server_extension(app):
    ours = url_path_join(app.web_app.settings["base_url"], "many-ranks")
    handlers = [(f"{ours}/chapter", Chapter), (f"{ours}/glossary", Glossary)]
    app.web_app.add_handlers(".*$", handlers)
    app.contents_manager.register_pre_save_hook(as_stored)
