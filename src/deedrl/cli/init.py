"""The command ``deedrl init``."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from typing import Annotated

import typer

from deedrl.errors import ConfigError

FILES = {
    "environment.py.j2": "{name}.py",
    "test_environment.py.j2": "test_{name}.py",
    "recipe.yaml.j2": "recipe.yaml",
    "README.md.j2": "README.md",
    "gitignore.j2": ".gitignore",
}
"""Template → file of the project."""


def init(
    project: Annotated[Path, typer.Argument(metavar="NAME", help="Folder to make; its name becomes the module's.")],
) -> None:
    """Write a project with a small job that works at once: environment, tasks, fixtures, tests and a recipe."""
    written = write_project(project)
    typer.echo(f"{project}: {', '.join(path.name for path in written)}")
    typer.echo(f"next: cd {project} && pytest && deedrl run recipe.yaml --dry-run")


def write_project(folder: Path) -> list[Path]:
    """The files written. `ConfigError` if the name is no module's, or if one of the files is there already."""
    import jinja2

    name = folder.name
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,60}", name) or keyword.iskeyword(name) or name in ("deedrl", "pytest"):
        raise ConfigError(
            f"expected a name of small letters, digits and '_' that is no word of Python's, e.g. my_job, got '{name}'"
        )
    targets = {template: folder / file.format(name=name) for template, file in FILES.items()}
    if present := [path.name for path in targets.values() if path.exists()]:
        raise ConfigError(f"{folder} has {', '.join(present)} already, and nothing is overwritten; choose another name")
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("project")),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    values = {"name": name, "class_name": "".join(part.capitalize() for part in name.split("_")) or "Job"}
    texts = {path: templates.get_template(template).render(values) for template, path in targets.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return list(texts)
