"""The reference, generated from the code: names in Python, commands, settings, models and events.

A page has a part of it between two comments, `<!-- generated: commands -->` and `<!-- end -->`. The
pages are committed, so that they can be read without the site.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from rich.text import Text
from typer.main import get_command

import celu
from celu.cli.app import app
from celu.cli.models import toml_value
from celu.config.job import Job
from celu.config.party import PartySettings
from celu.config.schema import RawSchema
from celu.config.serving import Serving
from celu.config.space import FIXED, Range
from celu.events import EVENT_TYPES
from celu.metrics.names import METRICS
from celu.models.built_in import BOTTOMS, TOPS
from celu.models.losses import LOSSES

_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_BLANK_LINES = re.compile(r"\n{3,}")


def regenerate(text: str) -> str:
    """A page with every part of the reference between two comments as the code is now."""

    def replace(found: re.Match[str]) -> str:
        part = _BLANK_LINES.sub("\n\n", "\n".join(PARTS[found[2]]()).strip())
        return f"{found[1]}\n{part}\n\n{found[3]}"

    return _PART.sub(replace, text)


def update_pages(folder: Path) -> list[Path]:
    """Regenerate the pages of a folder; returns those that changed."""
    changed = []
    for path in sorted(folder.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        new = regenerate(text)
        if new != text:
            path.write_text(new, encoding="utf-8")
            changed.append(path)
    return changed


def python_names() -> Iterator[str]:
    """The public names of `celu`, each with its docstring."""
    for name in sorted(set(celu.__all__) - {"__version__"}, key=lambda name: (name.lower(), name)):
        value = getattr(celu, name)
        yield f"\n### celu.{name}\n"
        if isinstance(value, dict):
            yield f"By name: {', '.join(f'`{key}`' for key in value)}.\n"
            continue
        is_settings = isinstance(value, type) and issubclass(value, BaseModel)
        if callable(value) and not is_settings and not _is_error(value):
            yield f"```python\n{name}{_signature(value)}\n```\n"
        yield (inspect.getdoc(value) or "") + "\n"
        if value is Job:
            yield "Its keys are those of [job.toml](#jobtoml).\n"
        elif is_settings:
            yield from _table(value)
        elif isinstance(value, type):
            yield from _methods(value)


def _is_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def _methods(cls: type) -> Iterator[str]:
    for name, member in vars(cls).items():
        function = member.fget if isinstance(member, property) else member
        if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        shown = name if isinstance(member, property) else f"{name}{_signature(function)}"
        yield f"- `{shown}`: {_paragraph(inspect.getdoc(function))}"
    yield ""


def _signature(function: Callable[..., Any]) -> str:
    text = str(inspect.signature(function)).replace("self, ", "").replace("(self)", "()")
    text = re.sub(r"<[^>]*>( at \w+>)?", "...", text)  # a default without a literal
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text.replace("'", "")).replace(" -> None", "")


def commands() -> Iterator[str]:
    """Every command with its arguments and options, with the texts of `--help`."""
    yield from _command("celu", get_command(app))


def _command(path: str, command: Any) -> Iterator[str]:
    if hasattr(command, "commands"):
        if path != "celu":
            yield f"\n### {path}\n\n{_plain(command.help)}\n"
        for name, inner in command.commands.items():
            yield from _command(f"{path} {name}", inner)
        return
    yield f"\n### {path}\n\n{_plain(command.help)}\n"
    shown = [p for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]
    if shown:
        yield "| option | meaning | default |\n|---|---|---|"
    for param in shown:
        named = param.param_type_name == "option"
        name = ", ".join(param.opts) if named else str(param.name).upper()
        default = (
            "" if param.default in (None, [], ()) or callable(param.default) else param.default
        )
        default = "required" if param.required else f"`{default}`" if default != "" else ""
        yield f"| `{name}` | {_plain(getattr(param, 'help', ''))} | {default} |"


def _plain(text: str | None) -> str:
    return Text.from_markup((text or "").strip().replace("\f", "")).plain


def settings() -> Iterator[str]:
    """Every key of the settings files."""
    for file, model in (
        ("job.toml", Job),
        ("party.toml", PartySettings),
        ("schema.toml", RawSchema),
        ("serving.toml", Serving),
    ):
        yield f"\n### {file}\n\n{inspect.getdoc(model)}\n"
        yield from _table(model)
    fixed = ", ".join(f"`{name}`" for name in FIXED)
    yield (
        "\n### space.toml\n\nWhat `celu tune` varies: settings of `job.toml` by dotted name, each "
        "with a list of values or with a range, which is a table of the keys below. These settings "
        f"cannot vary: {fixed}.\n"
    )
    yield from _table(Range)


def _table(model: type[BaseModel]) -> Iterator[str]:
    yield "\n| key | meaning | value | default |\n|---|---|---|---|"
    yield from _keys(model, "")
    yield ""


def _keys(model: type[BaseModel], prefix: str, required: str = "required") -> Iterator[str]:
    meanings = _meanings(model)
    for name, info in model.model_fields.items():
        inners, by_name = _settings_in(info.annotation)
        default = info.default
        if inners and inners[0].__name__ not in ("IntByRole", "DegreesByRole", "Codecs"):
            within = f"{prefix}{name}.{'NAME.' if by_name else ''}"
            table = within.removesuffix(".")
            inner_required = required if info.is_required() else f"required in `{table}`"
            for inner in inners:
                yield from _keys(inner, within, inner_required + _named(inner, inners))
            continue
        if info.is_required():
            shown = required
        elif default in (None, "") or default is PydanticUndefined:
            shown = "none"
        else:
            shown = f"`{_value(default)}`"
        yield f"| `{prefix}{name}` | {meanings[name]} | {_type(info.annotation)} | {shown} |"


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """The docstring of each field: the string after it, as editors show it."""
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if cls is BaseModel or not issubclass(cls, BaseModel):
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(body, ast.ClassDef)
        for field, after in pairwise(body.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                match after:
                    case ast.Expr(ast.Constant(str(text))):
                        found[field.target.id] = text.strip()
    return found


def models() -> Iterator[str]:
    """The built-in bottoms, tops and losses, with their options."""
    for title, built_in in (("bottom", BOTTOMS), ("top", TOPS)):
        for name, module in built_in.items():
            yield f'\n### {title} = "{name}"\n\n{module.about}\n'
            if module.options:
                yield "| option | meaning | default |\n|---|---|---|"
            for option, default in module.default_values.items():
                yield f"| `{option}` | {module.options[option]} | `{toml_value(default)}` |"
    yield "\n### loss\n\n| loss | meaning | metrics |\n|---|---|---|"
    for name, loss in LOSSES.items():
        about = _paragraph(inspect.getdoc(loss.per_instance))
        yield f"| `{name}` | {about} | {', '.join(METRICS[loss.prediction])} |"


def _named(model: type[BaseModel], models: list[type[BaseModel]]) -> str:
    """How a table says that it is of this model, where it may be of several."""
    return f" with name = {_type(model.model_fields['name'].annotation)}" if models[1:] else ""


def _settings_in(annotation: Any) -> tuple[list[type[BaseModel]], bool]:
    """The settings models inside a key's type; and whether it is a table of them by name."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation], False
    parts = [_settings_in(part) for part in typing.get_args(annotation)]
    found = [model for models, _ in parts for model in models]
    return found, typing.get_origin(annotation) is dict or any(by_name for _, by_name in parts)


def _value(default: Any) -> str:
    if isinstance(default, BaseModel):
        values = list(default.model_dump().values())
        if len(set(values)) == 1:
            return _value(values[0])
        pairs = ", ".join(f"{key} = {_value(v)}" for key, v in default.model_dump().items())
        return f"{{ {pairs} }}"
    return str(default).lower() if isinstance(default, bool) else str(default)


def _type(annotation: Any) -> str:
    """A readable name of a type."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in args)
    if origin is typing.Annotated:
        return _type(args[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(part) for part in args if part is not types.NoneType)
    if origin is list:
        return f"list of {_type(args[0])}"
    if origin is dict:
        return f"table of {_type(args[1])}"
    plain = {int: "integer", float: "number", str: "string", bool: "true or false"}
    names = {
        "Path": "path",
        "IntByRole": "integer, or a table with one for each role",
        "DegreesByRole": "degrees, or a table with those of each role",
        "Codecs": "codec, or a table with one for each kind of message",
    }
    return plain.get(annotation) or names.get(annotation.__name__, annotation.__name__)


def _paragraph(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


def events() -> Iterator[str]:
    """Every type of event with its fields, except name and time."""
    yield "| type | `event` | when | fields |\n|---|---|---|---|"
    for name, kind in EVENT_TYPES.items():
        fields = ", ".join(
            f"`{field}`" for field in kind.model_fields if field not in ("event", "t")
        )
        yield f"| `{kind.__name__}` | `{name}` | {_paragraph(inspect.getdoc(kind))} | {fields} |"


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "python": python_names,
    "commands": commands,
    "settings": settings,
    "models": models,
    "events": events,
}
