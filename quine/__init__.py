"""quine: an LLM agent as a POSIX process, whose fork can land on another machine.

For Python programs: `quine.Executor` and `quine.run` (docs/reference/python.md), which are loaded at their first use.
"""

import transport  # noqa: F401 - first: it adds the names that an interpreter lacks

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.python.executor import Executor
    from quine.python.result import JobError, Lost, NeverStarted, Result
    from quine.python.run import run

    __all__ = ["Executor", "JobError", "Lost", "NeverStarted", "Result", "__version__", "run"]
else:
    _PLACES = {
        "Executor": "executor",
        "JobError": "result",
        "Lost": "result",
        "NeverStarted": "result",
        "Result": "result",
        "run": "run",
    }

    def __dir__():
        return sorted({*globals(), *_PLACES})

    def __getattr__(name):
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        globals()[name] = value = getattr(import_module(f"{__name__}.python.{_PLACES[name]}"), name)
        return value
