"""Writes docs/reference from the docstrings of what is public.

`python -m tools.reference` writes it; with `--check` it only fails if a page is old or something public is not
documented: every parameter under `Args:`, and errors that are there under `Raises:`. A parameter that means the same
in many calls is documented once: under `Throughout:` in the docstring of their class, or of the class that the page
shares.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import errors

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "reference"
PAGES = tomllib.loads((ROOT / "tools" / "reference.toml").read_text())["page"]
SECTIONS = ("Args", "Throughout", "Returns", "Raises")
WIDTH = 110  # of a signature in one line


@dataclass
class Doc:
    """A docstring in parts."""

    text: str
    sections: dict[str, list[tuple[str, str]]] = field(default_factory=dict)


def read_docstring(docstring: str) -> Doc:
    """Split the text from the sections; each of those has lines `name: what it is`."""
    text: list[str] = []
    sections: dict[str, list[tuple[str, str]]] = {}
    current: list[tuple[str, str]] | None = None
    for line in inspect.cleandoc(docstring).splitlines():
        if line.rstrip(":") in SECTIONS and line.endswith(":"):
            current = sections[line.rstrip(":")] = []
        elif current is None:
            text.append(line)
        elif line.startswith("     "):
            name, so_far = current[-1]
            current[-1] = (name, f"{so_far} {line.strip()}")
        elif line.strip():
            name, colon, rest = line.strip().partition(": ")
            is_named = bool(colon) and re.fullmatch(r"[\w*, ]+", name)
            current.append((name, rest) if is_named else ("", line.strip()))
    return Doc("\n".join(text).strip(), sections)


def markdown(text: str) -> str:
    """Docstring marks as Markdown: names in backticks, examples in fences."""
    text = re.sub(r":\w+:`~?(?:penstock\.)?(.+?)`", r"`\1`", text).replace("``", "`")
    return re.sub(r"(?m)^>>> (?:.+\n?)+", _example, text)


def _example(match: re.Match[str]) -> str:
    lines = match[0].rstrip().splitlines()
    if all(line.startswith((">>>", "...")) for line in lines):
        lines, kind = [line[4:] for line in lines], "py"
    else:
        kind = "pycon"
    return "\n".join([f"```{kind}", *lines, "```", ""])


def found(name: str) -> Any:
    """What a dotted name means."""
    module, _, attribute = name.rpartition(".")
    holder = importlib.import_module(module)
    return getattr(holder, attribute) if hasattr(holder, attribute) else importlib.import_module(name)


def signature(name: str, function: Callable[..., Any]) -> str:
    """How it is called, in one line if it fits."""
    shape = inspect.signature(function)
    words = [_word(parameter) for parameter in shape.parameters.values() if parameter.name not in ("self", "cls")]
    kinds = [p.kind for p in shape.parameters.values() if p.name not in ("self", "cls")]
    for index, kind in enumerate(kinds):
        if kind is inspect.Parameter.KEYWORD_ONLY:
            if not any(k is inspect.Parameter.VAR_POSITIONAL for k in kinds):
                words.insert(index, "*")
            break
    words = [
        re.sub(r": '(.*?)'(?= =|$)", r": \1", word)
        .replace(" = typing.Any", " = Any")
        .replace("<class '", "")
        .replace("'>", "")
        for word in words
    ]
    returned = shape.return_annotation
    end = "" if returned in (inspect.Signature.empty, "None") or inspect.isclass(returned) else f" -> {returned}"
    words = [re.sub(r"<object object at .*>", "...", word) for word in words]
    name = f"async {name}" if inspect.iscoroutinefunction(function) else name
    line = f"{name}({', '.join(words)}){end}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){end}"


def _word(parameter: inspect.Parameter) -> str:
    default = parameter.default
    if inspect.isclass(default) or not has_fields(default):
        return str(parameter)
    return f"{parameter.replace(default=inspect.Parameter.empty)} = {short(default)}"


def fields(thing: type) -> list[str]:
    """The source lines of the public fields of a struct or dataclass, with their comments."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    source = textwrap.dedent(inspect.getsource(thing)).splitlines()
    body = tree.body[0]
    assert isinstance(body, ast.ClassDef)
    lines: list[str] = []
    for node in body.body:
        is_field = isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if not is_field or node.target.id.startswith("_") or "ClassVar" in source[node.lineno - 1]:  # type: ignore[union-attr, attr-defined]
            continue
        first = node.lineno - 1
        while source[first - 1].strip().startswith("#"):
            first -= 1
        shown = [line.removeprefix("    ") for line in source[first : node.end_lineno]]
        lines += [re.split(r"  # (?:type:|noqa)", line)[0] for line in shown]
    return lines


def short(thing: Any) -> str:
    """A struct or dataclass with the fields that are not as by default."""
    plain = type(thing)()
    names = getattr(thing, "__struct_fields__", None) or thing.__dataclass_fields__
    changed = [name for name in names if getattr(plain, name) != getattr(thing, name)]
    given = [f"{name}={getattr(thing, name)!r}" for name in changed]
    return f"{type(thing).__name__}({', '.join(given)})"


def has_fields(thing: Any) -> bool:
    """Whether its fields are its interface."""
    return hasattr(thing, "__struct_fields__") or hasattr(thing, "__dataclass_fields__")


def entries() -> Iterator[tuple[dict[str, Any], str, Any, list[str], bool]]:
    """What is public: page, name, object, members, and whether it is made by users."""
    for page in PAGES:
        for name, members in page["names"].items():
            thing = found(name.removesuffix("()"))
            names = public_members(thing) if members == "*" else members.split()
            yield page, name.removesuffix("()"), thing, names, name.endswith("()")


def public_members(thing: Any) -> list[str]:
    """All members that do not begin with an underscore; of a module those that it does not import."""
    return [
        name
        for name, value in vars(thing).items()
        if not name.startswith("_")
        and (isinstance(value, property) or callable(value))
        and (inspect.isclass(thing) or getattr(value, "__module__", None) == thing.__name__)
    ]


def callables() -> Iterator[tuple[str, Callable[..., Any], Doc]]:
    """Everything that has to say what it takes, with its docstring."""
    for page, name, thing, members, is_made in entries():
        if page.get("brief") or inspect.ismodule(thing):
            continue
        if inspect.isfunction(thing):
            yield name, thing, documented(thing, page)
        if is_made and not has_fields(thing):
            yield name, thing.__init__, documented(thing, page)
        for member in members:
            if not isinstance(inspect.getattr_static(thing, member), property):
                yield f"{name}.{member}", getattr(thing, member), documented(getattr(thing, member), page, thing)


def documented(thing: Callable[..., Any], page: dict[str, Any], holder: type | None = None) -> Doc:
    """Its docstring, with every parameter: its own, then those of the class it is in, then those of the page."""
    is_class = inspect.isclass(thing)
    doc = read_docstring((thing.__dict__.get("__doc__") if is_class else inspect.getdoc(thing)) or "")
    of = thing if is_class else holder
    classes = [*(of.__mro__ if of else ()), *([found(page["shared"])] if "shared" in page else [])]
    words = {}
    for one in reversed(classes):
        throughout = read_docstring(one.__dict__.get("__doc__") or "").sections.get("Throughout", [])
        words.update((name, text) for names, text in throughout for name in names.split(", "))
    own = doc.sections.get("Args", [])
    said = {name for names, _ in own for name in names.split(", ")}
    doc.sections["Args"] = []
    for name in parameters(thing.__init__ if is_class else thing):  # type: ignore[misc]
        if name in said:
            doc.sections["Args"] += [one for one in own if one[0].split(", ")[0] == name]
        elif name in words:
            doc.sections["Args"].append((name, words[name]))
    strange = [one for one in own if one not in doc.sections["Args"]]
    doc.sections["Args"] += strange
    return doc


def parameters(function: Callable[..., Any]) -> list[str]:
    """What it takes, with the stars."""
    return [
        {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "") + parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in ("self", "cls")
    ]


def problems() -> list[str]:
    """Parameters that are not documented, documented ones that are not there, errors that are not there."""
    found_problems = []
    for name, function, doc in callables():
        taken = parameters(function)
        said = [word for names, _ in doc.sections.get("Args", []) for word in names.split(", ")]
        if taken != said:
            found_problems.append(f"{name} takes {taken}, its docstring says {said}")
        for error, _ in doc.sections.get("Raises", []):
            if not issubclass(getattr(errors, error, None) or getattr(__builtins__, error, int), Exception):
                found_problems.append(f"{name} raises {error!r}, which is not an error")
    return found_problems


def body(doc: Doc) -> list[str]:
    """The text, then a table of the parameters, then what comes back and what is raised."""
    lines = [markdown(doc.text), ""]
    if given := doc.sections.get("Args"):
        lines += ["| parameter | |", "|---|---|"]
        lines += [f"| {', '.join(f'`{n}`' for n in names.split(', '))} | {markdown(text)} |" for names, text in given]
        lines.append("")
    if returned := doc.sections.get("Returns"):
        lines += [f"**Returns** {markdown(' '.join(f'{n}: {t}' if n else t for n, t in returned))}", ""]
    if raised := doc.sections.get("Raises"):
        lines += ["**Raises**", ""]
        lines += [f"- `{error}`: {markdown(text)}" for error, text in raised]
        lines.append("")
    return lines


def page_lines(page: dict[str, Any]) -> list[str]:
    """One page."""
    lines = [f"# {page['title']}", "", "<!-- Written by tools/reference.py from the docstrings. -->", ""]
    if page.get("intro"):
        lines += [page["intro"].strip(), ""]
    for of, name, thing, members, is_made in entries():
        if of is not page:
            continue
        if inspect.ismodule(thing):
            lines += [f"## `{name}`", "", markdown(inspect.getdoc(thing) or ""), ""]
            for member in members:
                lines += _member(member, member, thing, {**page, "brief": True})
            continue
        lines += [f"## `{name}`", ""]
        if inspect.isfunction(thing):
            lines += ["```py", signature(thing.__name__, thing), "```", "", *body(documented(thing, page))]
        elif inspect.isclass(thing):
            lines += _class_lines(thing, page, is_made)
            for member in members:
                lines += _member(f"{thing.__name__}.{member}", member, thing, page)
        else:
            lines += ["```py", f"{name.rpartition('.')[2]} = {short(thing)}", "```", ""]
    return lines


def _class_lines(thing: type, page: dict[str, Any], is_made: bool) -> list[str]:
    doc = read_docstring(thing.__dict__.get("__doc__") or "")
    lines = []
    if has_fields(thing):
        shown = fields(thing)
        if shown:
            lines += ["```py", f"class {thing.__name__}:", *(f"    {line}".rstrip() for line in shown), "```", ""]
    elif is_made:
        lines += ["```py", signature(thing.__name__, thing.__init__), "```", ""]  # type: ignore[misc]
        doc = documented(thing, page)
    return [*lines, *body(doc)]


def _member(title: str, name: str, holder: Any, page: dict[str, Any]) -> list[str]:
    value = inspect.getattr_static(holder, name)
    if isinstance(value, property):
        return [f"### `{title}`", "", *body(read_docstring(value.__doc__ or ""))]
    if inspect.isclass(value):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        return [f"### `{title}`", "", f"({bases}) {markdown(inspect.getdoc(value) or '')}", ""]
    call = getattr(holder, name)
    if page.get("brief"):
        about = [markdown(read_docstring(inspect.getdoc(call) or "").text), ""]
    else:
        about = body(documented(call, page, holder))
    return [f"### `{title}`", "", "```py", signature(name, call), "```", "", *about]


def index_lines() -> list[str]:
    """The first page: every name, with the page that it is on."""
    lines = [
        "# Reference",
        "",
        "<!-- Written by tools/reference.py from the docstrings. -->",
        "",
        "Everything that is public, under the module it is imported from; what is not here is private. "
        "The words are in the [glossary](../glossary.md).",
        "",
        'A *duration* is a `timedelta` or a text such as `"45m"`; a time is an aware `datetime`.',
        "",
    ]
    for page in PAGES:
        names = [name for of, name, *_ in entries() if of is page]
        links = ", ".join(f"[`{name}`]({page['file']}.md#{re.sub('[^a-z0-9_]', '', name.lower())})" for name in names)
        lines += [f"- **[{page['title']}]({page['file']}.md)**: {links}"]
    return [*lines, ""]


def pages() -> dict[Path, str]:
    """The text of every page."""
    written = {FOLDER / "index.md": index_lines()}
    written |= {FOLDER / f"{page['file']}.md": page_lines(page) for page in PAGES}
    return {path: re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n" for path, lines in written.items()}


def main(arguments: list[str]) -> int:
    """Write the pages, or look whether they are as they would be written."""
    wrong = problems()
    texts = pages()
    if "--check" in arguments:
        wrong += [
            f"{path.relative_to(ROOT)} is old: run python -m tools.reference"
            for path, text in texts.items()
            if not path.exists() or path.read_text() != text
        ]
        wrong += [f"{path.relative_to(ROOT)} is on no list" for path in FOLDER.glob("*.md") if path not in texts]
    else:
        FOLDER.mkdir(exist_ok=True)
        for path, text in texts.items():
            path.write_text(text)
    for line in wrong:
        print(f"reference: {line}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
