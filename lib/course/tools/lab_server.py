"""A server extension of JupyterLab: the course, its chapters and words; files saved unchanged.

`.venv/etc/jupyter` names it, so that `jupyter lab` loads it as `make lab` does.
"""

import json
import os
from pathlib import Path

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado.ioloop import IOLoop
from tornado.web import HTTPError, authenticated

from lib.course import glossary_marks, progress
from lib.course.jupyter import landing
from lib.course.tools import copies
from lib.course.tools.book import BookError
from lib.course.tools.widgets import STATE
from lib.predict import readers_folder


class Course(APIHandler):
    """Answers `many-ranks/course` with all that the page "The course" shows."""

    auth_resource = "contents"

    @authenticated
    @authorized
    async def get(self):
        """Send what landing.overview gives, with JupyterLab's paths; {} where no course is."""
        course, root = readers_folder.course(), Path(self.contents_manager.root_dir)
        about = {}
        if course.is_relative_to(root):
            try:
                about = await IOLoop.current().run_in_executor(None, landing.overview, course)
            except (BookError, OSError) as error:
                self.log.warning(f"many-ranks: the course is not shown. {error}")
        for chapter in about.get("chapters", []):
            chapter["path"] = (course / chapter["path"]).relative_to(root).as_posix()
        self.finish(about)


class Chapter(APIHandler):
    """Answers `many-ranks/chapter?path=my-chapters/00-ranks.ipynb`, with JupyterLab's own path."""

    auth_resource = "contents"

    @authenticated
    @authorized
    def get(self):
        """Send {title, copy, is_copy, newer, changed, cell, solved, previous, next}, or {}.

        `solved` has the names of the exercises that the reader has solved.
        """
        root, path, copy = asked(self)
        about = {}
        if copy:
            course = copy.path.parents[1]
            about = {"title": copy.title, "copy": copy.path.relative_to(root).as_posix()}
            about["solved"] = progress.solved().get(copy.path.stem, [])
            about |= {"is_copy": path == copy.path, "newer": copy.newer, "changed": copy.changed}
            about |= {"cell": landing.place(copy)}
            for way, other in landing.neighbours(course, copy.path.stem).items():
                there = (course / other["path"]).relative_to(root).as_posix()
                about[way] = {"title": other["title"], "path": there}
        self.finish(about)

    @authenticated
    @authorized
    def put(self):
        """Remember the cell that the reader is at: {cell}, its id."""
        cell = (self.get_json_body() or {}).get("cell")
        _, path, copy = asked(self)
        if copy and path == copy.path and isinstance(cell, str) and len(cell) <= 64:
            try:
                landing.note(copy, cell)
            except OSError:  # a full disk: the reader goes on without a bookmark
                pass
        self.finish({})

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
                landing.note(copy, "")
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


def leave_out(contents_manager) -> None:
    """Let lists of files show none that the course keeps for itself; who asks for one gets it."""
    own = [landing.FILE, progress.FILE]
    contents_manager.hide_globs = [*contents_manager.hide_globs, *own]


def _jupyter_server_extension_points():
    return [{"module": "lib.course.tools.lab_server"}]


def _load_jupyter_server_extension(app):
    base = app.web_app.settings["base_url"]
    kinds = {"chapter": Chapter, "course": Course, "glossary": Glossary}
    handlers = [(url_path_join(base, "many-ranks", name), kind) for name, kind in kinds.items()]
    app.web_app.add_handlers(".*$", handlers)
    app.contents_manager.register_pre_save_hook(as_stored)
    leave_out(app.contents_manager)
