"""The guests of one remote job, by model: of a file on this machine, or of the broker, which has the keys.

Law: the guests of files are few. The broker bounds its own.
"""

from __future__ import annotations

import _thread

from quine.agent import env, tools
from quine.base.errors import Failure
from quine.base.messages import Guest, Refused, Request
from quine.broker import finding
from quine.broker.client import Broker
from quine.providers import metering, vendors
from quine.providers.relay import BrokeredGuest
from quine.providers.vendors import FILES, Config
from transport.errors import RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from quine.budget.ledger import Ledger

MOST_MODELS = 16  # of one job


class Guests:
    """`model` is that of the job's session; `environ` that of its proxy. Raises Failure if no guest is configured."""

    def __init__(
        self,
        settings: env.Settings,
        environ: Mapping[str, str],
        ledger: Ledger,
        concurrent: int,
        model: str,
        note: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._environ = dict(environ)
        self._ledger = ledger
        self._concurrent = concurrent
        self._model = model
        self._note = note
        self._lock = _thread.allocate_lock()
        self._config: Config | None = None
        self._local: dict[str, Guest] = {}
        self._broker: Broker | None = None
        if environ.get("QUINE_API_TYPE") in FILES:
            self._config = env.guest(settings, self._environ)
            metering.price(self._config, bool(ledger.mark.cost))  # checked before anything is asked

    def of(self, request: Request) -> tuple[Guest, metering.Price | None]:
        """Return the guest of the model that is asked for, and its price where it is paid here.

        Raises Refused or RequestError.
        """
        with self._lock:
            try:
                if self._config:
                    model = request.model or self._model or self._config.model
                    return self._of_file(self._config._replace(model=model), request)
                return self._of_broker(), None
            except Failure as failure:
                raise Refused(failure.detail, failure.hint, failure.status) from None

    def _of_file(self, config: Config, request: Request) -> tuple[Guest, metering.Price | None]:
        price = metering.price(config, bool(self._ledger.mark.cost or request.cost))
        if config.model not in self._local:
            if len(self._local) >= MOST_MODELS:
                raise RequestError(f"infer: more than {MOST_MODELS} models in one job")
            self._local[config.model] = vendors.build(config)
        return self._local[config.model], price

    def _of_broker(self) -> Guest:
        if self._broker is None:
            environ = {**self._environ, "QUINE_MODEL_ID": self._model} if self._model else self._environ
            more = (self._settings.memo, environ, self._settings.secrets)
            self._broker = finding.broker(self._ledger, self._concurrent, tools.TOOLS, *more)
        guest = BrokeredGuest(self._broker.ask)
        guest.note = self._note
        return guest

    def close(self) -> None:
        with self._lock:
            if self._broker:
                self._broker.close()
