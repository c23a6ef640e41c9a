"""Sums over the ledger's sessions. Takes sessions, gives lines; adds integers, then says hours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Literal, TypeAlias

from talking_avatar.cost import RateCard, SessionTally, Usage
from talking_avatar.cost.usage import total_price, usage_of
from talking_avatar.engine.base import DeviceKind
from talking_avatar.ledger.store import DaySpan, LedgerSession

Grouping: TypeAlias = Literal["session", "day", "tag"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a report.

    Attributes:
        key: Session id, day, or tags.
        currency: Of ``price``; sums of two currencies are two lines.
        num_sessions: That had any time in it; how many of them were killed.
        num_killed: Those whose process ended without closing them.
        usage: All of it: hours, energy, minutes of speech. Its own prices are empty.
        price: None while the rate of any device is unknown.
    """

    key: str
    currency: str
    num_sessions: int
    num_killed: int
    usage: Usage
    price: Decimal | None


@dataclass(slots=True)
class _Sum:
    """What falls into one line."""

    sessions: dict[str, LedgerSession]
    days: list[tuple[LedgerSession, DaySpan]]


def report(
    sessions: Iterable[LedgerSession],
    *,
    by: Grouping = "session",
    tag: str | None = None,
    rates: RateCard | None = None,
) -> tuple[Line, ...]:
    """Sum sessions up.

    Args:
        sessions: As read.
        by: What makes a line.
        tag: With ``by="tag"``: this tag only; None: all tags of a session together.
        rates: For devices whose rate was not known when they were held.
    """
    groups: dict[tuple[str, str], _Sum] = {}
    for session in sessions:
        currency = _currency(session, rates)
        for day in session.days:
            key = (_key(session, day.day, by, tag), currency)
            group = groups.setdefault(key, _Sum({}, []))
            group.sessions[session.session_id] = session
            group.days.append((session, day))
    lines = (_line(key, currency, group, rates) for (key, currency), group in groups.items())
    return tuple(lines if by == "session" else sorted(lines, key=lambda line: line.key))


def _currency(session: LedgerSession, rates: RateCard | None) -> str:
    """Give a session's currency; one that ran without any rate has that of the later card."""
    has_rate = any(rate is not None for day in session.days for rate in day.rates)
    return session.currency if rates is None or has_rate else rates.currency


def _key(session: LedgerSession, day: date, by: Grouping, tag: str | None) -> str:
    if by == "session":
        return session.session_id
    if by == "day":
        return day.isoformat()
    if tag is not None:
        return session.tags.get(tag, "")
    return " ".join(f"{name}={value}" for name, value in sorted(session.tags.items()))


def _line(key: str, currency: str, group: _Sum, rates: RateCard | None) -> Line:
    days = [day for _, day in group.days]
    tally = SessionTally(
        devices=tuple(device for day in days for device in day.devices),
        wall_ns=sum(day.wall_ns for day in days),
        num_samples=sum(day.num_samples for day in days),
    )
    return Line(
        key=key,
        currency=currency,
        num_sessions=len(group.sessions),
        num_killed=sum(s.state == "killed" for s in group.sessions.values()),
        usage=usage_of(tally, lambda kind: None, currency),
        price=total_price(_price(s, day, currency, rates) for s, day in group.days),
    )


def _price(
    session: LedgerSession, day: DaySpan, currency: str, rates: RateCard | None
) -> Decimal | None:
    """Price a day as the session was: with the rates of the day on which it began."""

    def later(kind: DeviceKind) -> Decimal | None:
        if rates is None or rates.currency != currency:
            return None
        return rates.per_hour(kind, session.began.date())

    def price(place: int) -> Decimal | None:
        tally, rate = day.devices[place], day.rates[place]
        known = later(tally.device.kind) if rate is None else rate
        return usage_of(SessionTally((tally,)), lambda kind: known).price

    return total_price(price(place) for place in range(len(day.devices)))
