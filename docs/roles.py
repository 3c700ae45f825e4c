"""Shows docstrings as Markdown: cross references and double back-quotes become code."""

from __future__ import annotations

import re
from typing import Any

import griffe
from typing_extensions import override


class Roles(griffe.Extension):
    """Rewrites each docstring before it is rendered; named in mkdocs.yml."""

    @override
    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of one module, class, function or attribute."""
        if obj.docstring is not None:
            text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", obj.docstring.value)
            obj.docstring.value = text.replace("``", "`")
