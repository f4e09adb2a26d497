"""A session in a marimo notebook: one widget, one stream to the page, controls that reach Python.

marimo shows any object that has ``comm``, ``_model_id``, ``get_state`` and ``set_state`` as a widget. Its own
comm class is private, so marimo is pinned and a test holds what is used here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import resources
from typing import Any
from uuid import uuid4

from marimo._plugins.ui._impl.anywidget.init import WIDGET_COMM_MANAGER, CommLifecycleItem
from marimo._plugins.ui._impl.comm import MarimoComm
from marimo._runtime.context import get_context
from marimo._types.ids import WidgetModelId

# In the order in which they use each other.
SCRIPTS = ("format.js", "store.js", "look.js", "plots.js", "lanes.js", "blocks.js", "controls.js", "compare.js",
           "picture.js", "desk.js")  # fmt: skip
_IMPORT = re.compile(r"^import .*?;\n", re.MULTILINE | re.DOTALL)


def script() -> str:
    """The browser side as one module: the chart library, then our modules without their imports."""
    assets = resources.files("visualizers.desk") / "assets"
    library = (assets / "vendor" / "uPlot.iife.min.js").read_text(encoding="utf-8")
    ours = [_IMPORT.sub("", (assets / name).read_text(encoding="utf-8")) for name in SCRIPTS]
    plain = [re.sub(r"^export (?!default)", "", text, flags=re.MULTILINE) for text in ours]
    return "\n".join([library, *plain])


def styles() -> str:
    assets = resources.files("visualizers.desk") / "assets"
    library = (assets / "vendor" / "uPlot.min.css").read_text(encoding="utf-8")
    return library + (assets / "desk.css").read_text(encoding="utf-8")


class Widget:
    """What ``mo.ui.anywidget`` asks for, and no more."""

    def __init__(self, on_message: Callable[[dict[str, Any]], None]) -> None:
        self._model_id = WidgetModelId(uuid4().hex)
        self._on_message = on_message
        self.comm = MarimoComm(
            comm_id=self._model_id,
            comm_manager=WIDGET_COMM_MANAGER,
            target_name="jupyter.widgets",
            data={"method": "open", "state": {"_esm": script(), "_css": styles()}, "buffer_paths": []},
        )
        self.comm.on_msg(self._received)
        get_context().cell_lifecycle_registry.add(CommLifecycleItem(self.comm))

    def _received(self, message: Any) -> None:
        data = message["content"]["data"]
        if data["method"] == "custom":
            self._on_message(data["content"])

    @property
    def closed(self) -> bool:
        """Whether its cell has run again, or its kernel ends."""
        return bool(self.comm._closed)

    def send(self, content: dict[str, Any]) -> None:
        self.comm.send({"method": "custom", "content": content}, buffers=[])

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass
