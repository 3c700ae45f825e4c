"""Write what in the docs follows from the code: ``python docs/generate.py``.

Pages of docs/reference, the files of the example plugin in the page that goes through it, and the
verdicts of the training suite.

``tests/pages/test_docs.py`` checks that what is committed is what this writes.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, ByteSize, SecretStr
from pydantic.fields import FieldInfo

from pparallel import RuntimeConfig, errors
from pparallel.builder.runtime_config import MemberConfig
from pparallel.cli.schema.attributes import descriptions
from pparallel.config import BackendConfig, Config
from pparallel.registry import INTERFACES, Offer, default_registry
from pparallel.testing.features import features_of, suite_of
from pparallel.testing.training.cases import every
from pparallel.testing.training.verdicts import Equal, Verdict, word

DOCS = Path(__file__).resolve().parent
TESTS = DOCS.parent / "tests" / "helpers"
REFERENCE = DOCS / "reference"
EXAMPLE = DOCS.parent / "plugins" / "pparallel-example"
NOTE = "<!-- Written by docs/generate.py; change the docstrings instead. -->"

_BOUNDS = {
    annotated_types.Ge: ("ge", "at least"),
    annotated_types.Gt: ("gt", "more than"),
    annotated_types.Le: ("le", "at most"),
    annotated_types.Lt: ("lt", "less than"),
    annotated_types.MinLen: ("min_length", "with a length of at least"),
}

_WORDS: dict[Any, str] = {
    bool: "yes or no",
    int: "whole number",
    ByteSize: "bytes (a number, or text such as `500MB`)",
    float: "number",
    str: "text",
    Path: "path",
    SecretStr: "secret text",
    list: "list",
    tuple: "list",
    dict: "mapping",
    Mapping: "mapping",
    Callable: "function",
}

#: the columns of the table of verdicts: their key there, and their title
_COLUMNS = {
    "local": "`local`",
    "grad_server": "`grad_server`",
    "all_reduce": "`all_reduce`",
    "overlap": "`all_reduce` with `overlap`",
    "diloco": "`diloco`",
    "model_server": "`model_server`",
}


def pages() -> dict[Path, str]:
    """Return the text of each generated page."""
    return {
        REFERENCE / "configs.md": "\n".join(_configs()),
        REFERENCE / "errors.md": "\n".join(_errors()),
        REFERENCE / "features.md": "\n".join(_features()),
        DOCS / "training.md": _with_verdicts((DOCS / "training.md").read_text()),
        DOCS / "write_a_backend.md": _with_example((DOCS / "write_a_backend.md").read_text()),
    }


def _with_example(page: str) -> str:
    """Return *page* with each file of the example that it shows as that file is now."""

    def shown(match: re.Match[str]) -> str:
        name, language = match.groups()
        return f"`{name}`:\n\n```{language}\n{(EXAMPLE / name).read_text()}```\n"

    return re.sub(r"^`([\w./-]+)`:\n\n```(\w+)\n.*?^```\n", shown, page, flags=re.M | re.S)


def _with_verdicts(page: str) -> str:
    """Return *page* with the table of the verdicts that the training suite checks."""
    table = "\n".join(_verdicts())
    return re.sub(r"(?<=^<!-- verdicts -->\n).*?(?=^<!-- end -->$)", table, page, flags=re.M | re.S)


def _verdicts() -> Iterator[str]:
    sys.path.insert(0, str(TESTS))
    from training_verdicts import ALONE, TOGETHER

    notes: dict[str, int] = {}
    yield ""
    yield f"| | {' | '.join(_COLUMNS.values())} |"
    yield "| --- |" + " --- |" * len(_COLUMNS)
    for case in every():
        cells = []
        for column in _COLUMNS:
            given = [table[column] for table in (TOGETHER, ALONE) if column in table]
            cells.append(_verdict([each.get(case.name, case.verdict) for each in given], notes))
        yield f"| {case.title} | {' | '.join(cells)} |"
    yield ""
    for sentence, number in notes.items():
        yield f"{number}. {sentence[0].upper()}{sentence[1:]}."
    yield "\n"


def _verdict(verdicts: Sequence[Verdict], notes: dict[str, int]) -> str:
    """Return a cell: the verdict of several members, and of one alone where it differs."""
    together, *alone = [_noted(each, notes) for each in verdicts]
    return together if alone in ([], [together]) else f"{together}; alone {alone[0]}"


def _noted(verdict: Verdict, notes: dict[str, int]) -> str:
    if isinstance(verdict, Equal):
        return word(verdict)
    return f"{word(verdict)} ({notes.setdefault(verdict.sentence, len(notes) + 1)})"


def _configs() -> Iterator[str]:
    yield from ("# Configs", "", NOTE, "")
    yield "What each section of a config takes. [Configuration](../configuration.md) says how they"
    yield "are put together. The class is what a typed config is made of."
    yield ""
    yield "## The job\n"
    yield "`pparallel.RuntimeConfig`\n"
    yield from _table(RuntimeConfig)
    yield "## A member\n"
    yield "An entry of `members` that says more than a name.\n"
    yield from _table(MemberConfig)
    registry = default_registry()
    offers = [each for each in registry.offers() if each.package == "pparallel"]
    for interface in INTERFACES:
        yield f"## {interface}\n"
        yield f"Default: `{registry.default(interface)}`, unless the table of"
        yield "[defaults](../configuration.md#defaults) says otherwise.\n"
        own = [each for each in offers if each.interface == interface]
        if not own:
            yield "No backend of it is there yet.\n"
            yield from _table(INTERFACES[interface])
        for offer in own:
            yield from _backend(offer, registry.config(interface, offer.name))


def _backend(offer: Offer, config: type[BackendConfig[Any]]) -> Iterator[str]:
    yield f"### {offer.interface}: `{offer.name}`\n"
    features = ", ".join(f"`{each}`" for each in offer.features) or "none"
    yield f"`{_home(config)}.{config.__name__}`; features: {features}.\n"
    yield from _table(config)
    for name, field in config.model_fields.items():
        for each in _kinds(field.annotation):
            yield f"`{name}` with `kind: {each.model_fields['kind'].default}`:\n"
            yield from _table(each)


def _kinds(annotation: Any) -> Iterator[type[Config]]:
    """Find the configs of which an option is one, told apart by their kind."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        if "kind" in annotation.model_fields:
            yield annotation
        return
    for each in get_args(annotation):
        yield from _kinds(each)


def _home(config: type[BackendConfig[Any]]) -> str:
    """Return the shortest module that *config* can be imported from."""
    parts = config.__module__.split(".")
    names = [".".join(parts[: n + 1]) for n in range(len(parts))]
    return next(each for each in names if config.__name__ in _exported(each))


def _exported(module: str) -> Sequence[str]:
    exported: Sequence[str] = getattr(importlib.import_module(module), "__all__", ())
    return exported


def _table(config: type[BaseModel]) -> Iterator[str]:
    told, own = descriptions(config), ("backend", "kind")
    options = {name: each for name, each in config.model_fields.items() if name not in own}
    if not options:
        yield "It takes no options.\n"
        return
    yield "| option | type | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for name, field in options.items():
        meaning = _cell(told.get(name, ""))
        yield f"| `{name}` | {_type(field)} | {_default(field)} | {meaning} |"
    yield ""


def _cell(text: str) -> str:
    """Return a description as a cell of a table."""
    return re.sub(r"(?<![*\w])\*(\w+)\*", r"`\1`", text).replace("|", "\\|").replace("\n", " ")


def _type(field: FieldInfo) -> str:
    bounds = [
        f"{words} {getattr(each, attribute)}"
        for each in field.metadata
        for kind, (attribute, words) in _BOUNDS.items()
        if isinstance(each, kind)
    ]
    return ", ".join(filter(None, [_words(field.annotation), " and ".join(bounds)]))


def _words(annotation: Any) -> str:
    """Say in words what values an annotation allows; that None is one is seen by the default."""
    if annotation in _WORDS:
        return _WORDS[annotation]
    if isinstance(annotation, type) and issubclass(annotation, BackendConfig):
        return f"`{annotation.interface}` section"
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return f"`kind: {annotation.model_fields['kind'].default}`"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{each}`" for each in arguments)
    if origin is Annotated:
        return _words(arguments[0])
    if origin in (Union, UnionType):
        parts = [_words(each) for each in arguments if each is not type(None)]
        return " or ".join(dict.fromkeys(parts))
    if origin in _WORDS:
        return _WORDS[origin]
    message = f"docs/generate.py has no words for the type {annotation!r}"
    raise LookupError(message)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "-"
    if isinstance(value, BaseModel):
        return f"`{{backend: {getattr(value, 'backend', '')}}}`"
    if isinstance(value, dict) and "backend" in value:
        return f"`{{backend: {value['backend']}}}`"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"`{value}`" if value or value == 0 else "none"


def _errors() -> Iterator[str]:
    yield from ("# Errors", "", NOTE, "")
    doc = (errors.__doc__ or "").partition("\n\n")
    yield "All are in `pparallel.errors`, as one tree. In brackets stand the standard classes that"
    yield "they are too, so that existing handlers catch them.\n"
    yield from ("```text", doc[2].rstrip(), "```", "")
    for name, cls in vars(errors).items():
        if isinstance(cls, type) and issubclass(cls, errors.PparallelError):
            yield f"::: pparallel.errors.{name}\n"


def _features() -> Iterator[str]:
    yield from ("# Features", "", NOTE, "")
    yield "A guarantee that not every backend of an interface can give is a feature. A backend's"
    yield "record declares those that it has, and the interface's suite runs the tests that they"
    yield "call for: see [conformance](../conformance.md). `pparallel backends` lists what each"
    yield "installed backend declares.\n"
    offers = [each for each in default_registry().offers() if each.package == "pparallel"]
    for interface in INTERFACES:
        yield f"## {interface}\n"
        own = [each for each in offers if each.interface == interface]
        if not (features := features_of(interface)):
            yield "All its guarantees hold for every backend.\n"
        for feature in features:
            yield f"### {interface}: `{feature.name}`\n"
            yield _prose(feature.promise) + "\n"
            having = [f"`{each.name}`" for each in own if feature.name in each.features]
            yield f"- Declared by: {', '.join(having) or 'none of the built-in backends'}."
            yield f"- Tests of `{suite_of(interface).__name__}`: {_listed(feature.tests)}."
            if feature.instead:
                yield f"- Where it is not declared: {_listed(feature.instead)}."
            yield ""


def _prose(text: str) -> str:
    """Return what a docstring says as it is written in a page."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")
    return text[0].upper() + text[1:]


def _listed(tests: Sequence[str]) -> str:
    return ", ".join(f"`{each}`" for each in tests) or "none"


def main() -> None:
    """Write the pages, or with ``--check`` only look; say which differ."""
    check = sys.argv[1:] == ["--check"]
    different = [
        path for path, text in pages().items() if not path.exists() or path.read_text() != text
    ]
    for path in different:
        sys.stdout.write(f"{'out of date' if check else 'wrote'}: docs/{path.relative_to(DOCS)}\n")
        if not check:
            path.write_text(pages()[path])
    sys.exit(bool(different) and check)


if __name__ == "__main__":
    main()
