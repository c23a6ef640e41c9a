"""What a product would cost: a placement, a number of sessions, rates.

Takes: a model, hardware, how many people talk for how long. Gives GPU-hours and money, by the same
definition as the meter: a GPU-hour is one GPU held for one hour by a session. Never: measures.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal

from talking_avatar.cost.rates import RateCard
from talking_avatar.cost.usage import total_price
from talking_avatar.engine.diffusion.config import AvatarDiTConfig
from talking_avatar.engine.diffusion.gpus import Hardware
from talking_avatar.engine.diffusion.placement import Candidate, HardwarePlan, plan_for, refusal
from talking_avatar.engine.diffusion.step_time import OURS, Stack

COMPARED = ("4xH100", "5xH100", "4xH200", "5xH200", "2xB200", "3xB200", "8xL40S")
"""Hosts that a comparison shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """How much is talked.

    Attributes:
        sessions: At the busiest moment; each has GPUs of its own.
        hours: That the product is open, in a day or whatever is asked about.
        busy: Mean share of ``sessions`` that run in that time.
        conversation_s: Length of one conversation.
    """

    sessions: int = 1
    hours: float = 1.0
    busy: float = 1.0
    conversation_s: float = 600.0

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ValueError: With the number.
        """
        if self.sessions < 1 or not self.hours > 0 or not self.conversation_s > 0:
            raise ValueError(
                f"{self.sessions} sessions for {self.hours:g} hours, conversations of "
                f"{self.conversation_s:g} s: all must be more than 0"
            )
        if not 0 < self.busy <= 1:
            raise ValueError(f"busy {self.busy:g} must be above 0 and at most 1")

    @property
    def session_hours(self) -> float:
        """Hours of all sessions together."""
        return self.sessions * self.hours * self.busy


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a demand costs on one placement.

    Attributes:
        candidate: The placement, its step and what binds.
        demand: What was asked.
        price_per_session_hour: None while a rate is unknown.
        currency: Of every price.
    """

    candidate: Candidate
    demand: Demand
    price_per_session_hour: Decimal | None
    currency: str = "USD"

    @property
    def gpus_per_session(self) -> int:
        return self.candidate.placement.gpus_held

    @property
    def peak_gpus(self) -> int:
        """GPUs to have for the busiest moment."""
        return self.gpus_per_session * self.demand.sessions

    @property
    def gpu_hours(self) -> float:
        """Held by sessions: what the meter will say."""
        return self.gpus_per_session * self.demand.session_hours

    @property
    def fleet_gpu_hours(self) -> float:
        """Of all GPUs that the peak needs, kept for the whole time."""
        return self.peak_gpus * self.demand.hours

    @property
    def price(self) -> Decimal | None:
        """Of `gpu_hours`."""
        return self._times(self.demand.session_hours)

    @property
    def fleet_price(self) -> Decimal | None:
        """Of `fleet_gpu_hours`."""
        return self._times(self.demand.sessions * self.demand.hours)

    @property
    def price_per_conversation(self) -> Decimal | None:
        return self._times(self.demand.conversation_s / 3600)

    def _times(self, hours: float) -> Decimal | None:
        rate = self.price_per_session_hour
        return None if rate is None else rate * Decimal(repr(hours))


class NotLiveError(ValueError):
    """No placement on that hardware holds 24 frames a second; the text says what would."""


def estimate(
    config: AvatarDiTConfig,
    hardware: Hardware,
    demand: Demand,
    *,
    rates: RateCard | None = None,
    on: date | None = None,
    stack: Stack = OURS,
) -> Estimate:
    """Work out what a demand costs on the best placement.

    Args:
        config: The model.
        hardware: Of one session at most.
        demand: How much is talked.
        rates: What GPUs cost; None: unknown.
        on: The day whose rates count; None: today (UTC).
        stack: How well the software is made.

    Raises:
        NotLiveError: Nothing there holds 24 frames a second.
    """
    plan = plan_for(config, hardware, stack=stack)
    if plan.best is None:
        raise NotLiveError(refusal(config, plan, stack=stack))
    return of_candidate(plan.best, demand, rates=rates, on=on)


def of_candidate(
    candidate: Candidate, demand: Demand, *, rates: RateCard | None = None, on: date | None = None
) -> Estimate:
    """Work out what a demand costs on one placement, live or not."""
    day = on or datetime.now(UTC).date()
    prices = []
    for kind, num in candidate.gpus_held.items():
        rate = None if rates is None else rates.per_hour(kind, day)
        prices.append(None if rate is None else rate * num)
    return Estimate(
        candidate=candidate,
        demand=demand,
        price_per_session_hour=total_price(prices),
        currency="USD" if rates is None else rates.currency,
    )


def compare(
    config: AvatarDiTConfig, hosts: tuple[Hardware, ...], *, stack: Stack = OURS
) -> tuple[tuple[HardwarePlan, Candidate], ...]:
    """Give each host's plan and the placement to show: the best, or the nearest miss."""
    plans = [plan_for(config, hardware, stack=stack) for hardware in hosts]
    return tuple((plan, plan.best or plan.nearest) for plan in plans)
