"""The reference, from the code itself: Python names, commands, and keys of the settings files.

A page asks for a part of it by a comment, `<!-- generated: commands -->`.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from rich.text import Text
from typer.main import get_command

import celu
from celu.cli.app import app
from celu.config.job import Job
from celu.config.party import PartySettings
from celu.config.schema import RawSchema

_ASKED = re.compile(r"<!-- generated: (\w+) -->")


def fill_in(text: str) -> str:
    """A page with the parts that it asks for in their places."""
    return _ASKED.sub(lambda asked: "\n".join(PARTS[asked[1]]()), text)


def python_names() -> Iterator[str]:
    """The public names of `celu`, each with its docstring."""
    for name in sorted(set(celu.__all__) - {"__version__"}, key=str.lower):
        value = getattr(celu, name)
        yield f"\n### celu.{name}\n"
        if isinstance(value, dict):
            yield f"By name: {', '.join(f'`{key}`' for key in value)}.\n"
            continue
        is_settings = isinstance(value, type) and issubclass(value, BaseModel)
        if callable(value) and not is_settings and not _is_an_error(value):
            yield f"```python\n{name}{_signature(value)}\n```\n"
        yield (inspect.getdoc(value) or "") + "\n"
        if value is Job:
            yield "Its keys are those of [job.toml](#jobtoml).\n"
        elif is_settings:
            yield from _table(value)
        elif isinstance(value, type):
            yield from _methods(value)


def _is_an_error(value: Any) -> bool:
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
    text = re.sub(r"<[^>]*>( at \w+>)?", "...", text)  # a default that has no literal
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text.replace("'", "")).replace(" -> None", "")


def commands() -> Iterator[str]:
    """Every command with its arguments and options, as `--help` gives them."""
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
        yield "| option | what | default |\n|---|---|---|"
    for param in shown:
        named = param.param_type_name == "option"
        name = ", ".join(param.opts) if named else str(param.name).upper()
        default = (
            "" if param.default in (None, [], ()) or callable(param.default) else param.default
        )
        default = "must be given" if param.required else f"`{default}`" if default != "" else ""
        yield f"| `{name}` | {_plain(getattr(param, 'help', ''))} | {default} |"


def _plain(text: str | None) -> str:
    return Text.from_markup((text or "").strip().replace("\f", "")).plain


def settings() -> Iterator[str]:
    """Every key of the three settings files."""
    for file, model in (
        ("job.toml", Job),
        ("party.toml", PartySettings),
        ("schema.toml", RawSchema),
    ):
        yield f"\n### {file}\n\n{inspect.getdoc(model)}\n"
        yield from _table(model)


def _table(model: type[BaseModel]) -> Iterator[str]:
    yield "\n| key | value | default |\n|---|---|---|"
    yield from _keys(model, "")
    yield ""


def _keys(model: type[BaseModel], prefix: str, required: str = "must be given") -> Iterator[str]:
    for name, info in model.model_fields.items():
        inner, by_name = _settings_in(info.annotation)
        default = info.default
        if inner is not None and inner.__name__ not in ("IntByRole", "DegreesByRole", "Codecs"):
            within = f"{prefix}{name}.{'NAME.' if by_name else ''}"
            table = within.removesuffix(".")
            must = required if info.is_required() else f"must be given in `{table}`"
            yield from _keys(inner, within, must)
            continue
        if info.is_required():
            shown = required
        elif default in (None, "") or default is PydanticUndefined:
            shown = "none"
        else:
            shown = f"`{_value(default)}`"
        yield f"| `{prefix}{name}` | {_type(info.annotation)} | {shown} |"


def _settings_in(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The settings that a key holds, if it holds some; and whether several, each by a name."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    inside = [_settings_in(part) for part in typing.get_args(annotation)]
    found = next((model for model, _ in inside if model is not None), None)
    return found, typing.get_origin(annotation) is dict or any(named for _, named in inside)


def _value(default: Any) -> str:
    if isinstance(default, BaseModel):
        values = list(default.model_dump().values())
        if len(set(values)) == 1:
            return _value(values[0])
        inside = ", ".join(f"{key} = {_value(v)}" for key, v in default.model_dump().items())
        return f"{{ {inside} }}"
    return str(default).lower() if isinstance(default, bool) else str(default)


def _type(annotation: Any) -> str:
    """A type in words."""
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in inside)
    if origin is typing.Annotated:
        return _type(inside[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(part) for part in inside if part is not types.NoneType)
    if origin is list:
        return f"list of {_type(inside[0])}"
    if origin is dict:
        return f"table of {_type(inside[1])}"
    words = {int: "whole number", float: "number", str: "text", bool: "true or false"}
    names = {"Path": "path", "IntByRole": "whole number, or one a role"}
    names |= {"DegreesByRole": "degrees, or those of each role", "Codecs": "a codec, or one a kind"}
    return words.get(annotation) or names.get(annotation.__name__, annotation.__name__)


def _paragraph(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "python": python_names,
    "commands": commands,
    "settings": settings,
}
