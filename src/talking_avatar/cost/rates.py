"""What an hour of a device costs. Takes what the caller pays; knows no price of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from json import JSONDecodeError
from pathlib import Path

from talking_avatar.engine.base import DeviceKind


@dataclass(frozen=True, slots=True)
class Rate:
    """The price of one kind of device.

    Attributes:
        kind: ``"H200"``...; ``"cpu"`` for a core.
        per_hour: Of one device held for an hour; of a core-hour for ``"cpu"``.
        since: First day (UTC) on which it counts; None: always did.
    """

    kind: DeviceKind
    per_hour: Decimal
    since: date | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be a price.

        Raises:
            ValueError: It is negative, not finite, or not a `Decimal`.
        """
        if not isinstance(self.per_hour, Decimal):
            raise ValueError(
                f"the rate of {self.kind} is a {type(self.per_hour).__name__}: "
                "give a Decimal, or use RateCard.of with text, so that no cent is rounded away"
            )
        if not self.per_hour.is_finite() or self.per_hour < 0:
            raise ValueError(f"the rate of {self.kind} is {self.per_hour}: it must be at least 0")


@dataclass(frozen=True, slots=True)
class RateCard:
    """Rates in one currency. A session is priced by the card of the day (UTC) on which it began.

    Attributes:
        rates: In any order; of one kind, the latest that has begun counts.
        currency: As ISO 4217 names it.
    """

    rates: tuple[Rate, ...]
    currency: str = "USD"

    def __post_init__(self) -> None:
        """Refuse two rates of one kind and day.

        Raises:
            ValueError: Naming them, or the currency.
        """
        if not re.fullmatch(r"[A-Z]{3}", self.currency):
            raise ValueError(f"currency {self.currency!r} must be three capitals, such as USD")
        seen = set()
        for rate in self.rates:
            if (rate.kind, rate.since) in seen:
                raise ValueError(f"two rates of {rate.kind} since {rate.since or 'always'}")
            seen.add((rate.kind, rate.since))

    @classmethod
    def of(cls, rates: Mapping[DeviceKind, Decimal | str | int], currency: str = "USD") -> RateCard:
        """Make a card of rates that always count: ``RateCard.of({"H200": "3.50"})``.

        Raises:
            ValueError: One is not a price.
        """
        return cls(tuple(Rate(kind, _decimal(kind, p)) for kind, p in rates.items()), currency)

    @classmethod
    def parse(cls, words: Iterable[str], currency: str = "USD") -> RateCard:
        """Read ``H100=2.99`` and the like, as a command line gives them; ``H100=2.99@2026-07-01``.

        Raises:
            ValueError: One is not of that form.
        """
        return cls(tuple(_parsed(word) for word in words), currency)

    @classmethod
    def load(cls, path: Path) -> RateCard:
        """Read a JSON file: ``{"currency": "EUR", "rates": {"H200": "3.50"}}``.

        A rate may be a list of ``{"per_hour": "3.50", "since": "2026-07-01"}`` instead.

        Raises:
            ValueError: It does not say that.
            OSError: It cannot be read.
        """
        try:
            plain = json.loads(path.read_text(), parse_float=Decimal)
            rates = []
            for kind, given in plain["rates"].items():
                for one in given if isinstance(given, list) else [{"per_hour": given}]:
                    since = _date(kind, one.get("since"))
                    rates.append(Rate(kind, _decimal(kind, one["per_hour"]), since))
            return cls(tuple(rates), plain.get("currency", "USD"))
        except (KeyError, AttributeError, TypeError, UnicodeDecodeError, JSONDecodeError) as error:
            raise ValueError(
                f'{path.name} is no rate card: it should be {{"rates": {{"H200": "3.50"}}}}'
            ) from error

    def per_hour(self, kind: DeviceKind, on: date) -> Decimal | None:
        """Give the rate of a kind on a day; None where none is known."""
        begun = [r for r in self.rates if r.kind == kind and (r.since is None or r.since <= on)]
        if not begun:
            return None
        return max(begun, key=lambda rate: rate.since or date.min).per_hour


def _decimal(kind: str, given: Decimal | str | int) -> Decimal:
    if isinstance(given, float | bool):
        raise ValueError(
            f"the rate of {kind} is the {type(given).__name__} {given}: give it as text"
        )
    try:
        return Decimal(given)
    except InvalidOperation:
        raise ValueError(f"the rate of {kind} is {given!r}: that is no number") from None


def _date(kind: str, given: str | None) -> date | None:
    if not given:
        return None
    try:
        return date.fromisoformat(given)
    except ValueError:
        raise ValueError(
            f"the rate of {kind} since {given!r}: that is no day, such as 2026-07-01"
        ) from None


def _parsed(word: str) -> Rate:
    kind, found, rest = word.partition("=")
    price, _, since = rest.partition("@")
    if not found or not kind:
        raise ValueError(f"rate {word!r} must be KIND=PRICE, such as H100=2.99")
    return Rate(kind, _decimal(kind, price), _date(kind, since))
