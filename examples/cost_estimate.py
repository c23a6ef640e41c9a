"""From one session to a month of a product: what a live character costs.

    python examples/cost_estimate.py

The rates are examples; put in what you pay. Nothing here needs a GPU.
"""

from __future__ import annotations

from decimal import Decimal

from talking_avatar.cost import RateCard
from talking_avatar.engine.diffusion.config import named_config
from talking_avatar.engine.diffusion.gpus import Hardware
from talking_avatar.estimate import Demand, Estimate, estimate

RATES = RateCard.of({"H100": "2.99", "H200": "3.79", "B200": "5.50"})
OPEN_HOURS, DAYS = 8, 30
DAY = Demand(sessions=100, hours=OPEN_HOURS, busy=0.6, conversation_s=600)


def cents(amount: Decimal | None) -> str:
    return "unknown" if amount is None else f"{amount:,.2f} USD"


def describe(name: str, day: Estimate) -> None:
    month, fleet = day.price, day.fleet_price
    print(f"{name}: {day.candidate.placement.name}, {day.candidate.fps:.1f} fps")
    print(f"  one session for an hour: {cents(day.price_per_session_hour)}")
    print(f"  one conversation of ten minutes: {cents(day.price_per_conversation)}")
    print(f"  a day: {day.gpu_hours:,.0f} GPU-hours, {cents(day.price)}")
    print(f"  a month: {cents(None if month is None else month * DAYS)}")
    print(f"  with all {day.peak_gpus} GPUs kept: {cents(None if fleet is None else fleet * DAYS)}")


def main() -> None:
    model = named_config("avatar-57b")
    for name in ("5xH100", "2xB200"):
        describe(name, estimate(model, Hardware.parse(name), DAY, rates=RATES))


if __name__ == "__main__":
    main()
