"""Data about a run, and its forms: terminal, notebook, HTML page, JSON. Nothing here imports torch.

`autofuse.report(model)` and the folder `autofuse/report/` share a name, and Python binds the folder to it as soon as
anything in here is imported. So the module is callable, and calling it is calling the public function. It imports
none of its parts: the command line needs some of them at every start, and few of those need rich.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autofuse.report.sites import Report


class _CallableModule(ModuleType):
    def __call__(self, model: Any) -> Report:
        """What optimize did to `model`; the function behind the public name `autofuse.report`."""
        public_face = sys.modules["autofuse"]
        result: Report = public_face.__getattr__("report")(model)
        return result


sys.modules[__name__].__class__ = _CallableModule
