"""A scorer for GPUlayer: jobs go where the hour costs least, and nowhere where it costs too much.

Its options are variables of the control plane:

``GPULAYER_PLUGIN_CHEAPEST_HOUR_PRICES``  dollars an hour of one device, by a word of its model: ``H100=3.20, L4=0.70``
``GPULAYER_PLUGIN_CHEAPEST_HOUR_TARIFF``  factors by hour of the day, in UTC: ``22-6=0.5, 17-20=1.5``
``GPULAYER_PLUGIN_CHEAPEST_HOUR_MOST``    machines that cost more dollars an hour now get nothing: ``8``

A worker with the label ``usd-per-hour`` has that price, whatever its devices are.
"""

from typing import Final

from gpulayer.plugins import Context, Scorer, hookimpl
from gpulayer_cheapest_hour.prices import parse_most, parse_prices, parse_tariff
from gpulayer_cheapest_hour.scorer import CheapestHour

__all__ = ["GPULAYER_API", "CheapestHour", "gpulayer_register_scorers"]

GPULAYER_API: Final = "1.0"


@hookimpl
def gpulayer_register_scorers(ctx: Context) -> list[Scorer]:
    """One scorer. Raises ValueError for options that make no sense: the plugin is then shown as broken, with that."""
    return [
        CheapestHour(
            prices=parse_prices(ctx.options.get("prices", "")),
            tariff=parse_tariff(ctx.options.get("tariff", "")),
            most=parse_most(ctx.options.get("most", "")),
        )
    ]
