"""Which tier a pause's KV goes to: the one that will have cost least, or none."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agentkv.policy.placement import TierOffer, choose_tier

SSD = TierOffer("ssd", price=0.001, store_s=0.2, load_s=0.1)
REDIS = TierOffer("redis", price=0.0005, store_s=0.6, load_s=0.5, is_shared=True)
times = st.floats(0.0, 1e5)
offers_ = st.lists(
    st.builds(
        TierOffer,
        name=st.text(max_size=3),
        price=st.floats(0.0, 1.0),
        store_s=times,
        load_s=times,
        is_shared=st.booleans(),
    ),
    max_size=5,
)


def test_without_an_offer_there_is_no_tier() -> None:
    assert choose_tier([], wait_s=60.0, recompute_s=9.0) is None


def test_a_tier_slower_than_computing_again_is_not_used() -> None:
    """A86: bytes over bandwidth against tokens over speed."""
    assert choose_tier([SSD], wait_s=60.0, recompute_s=0.11) is SSD
    assert choose_tier([SSD], wait_s=60.0, recompute_s=0.1) is None
    assert choose_tier([SSD, REDIS], wait_s=1e6, recompute_s=0.3) is SSD, "cheap, but too slow"


def test_moving_decides_a_short_wait_and_rent_a_long_one() -> None:
    assert choose_tier([REDIS, SSD], wait_s=60.0, recompute_s=9.0) is SSD
    assert choose_tier([REDIS, SSD], wait_s=3600.0, recompute_s=9.0) is REDIS


def test_the_wait_at_which_both_cost_the_same() -> None:
    """0.3 + 0.001 w = 1.1 + 0.0005 w."""
    break_even_s = 0.8 / 0.0005
    assert choose_tier([REDIS, SSD], wait_s=0.99 * break_even_s, recompute_s=9.0) is SSD
    assert choose_tier([REDIS, SSD], wait_s=1.01 * break_even_s, recompute_s=9.0) is REDIS


def test_a_turn_that_may_come_elsewhere_makes_a_shared_tier_worth_more() -> None:
    """What is lost is the difference between computing and loading, as often as that happens."""
    chance = (0.8 - 0.0005 * 60.0) / (9.0 - 0.1)
    for elsewhere, tier in ((0.0, SSD), (0.99 * chance, SSD), (1.01 * chance, REDIS), (1.0, REDIS)):
        found = choose_tier([SSD, REDIS], wait_s=60.0, recompute_s=9.0, elsewhere=elsewhere)
        assert found is tier
    alone = choose_tier([SSD], wait_s=60.0, recompute_s=9.0, elsewhere=1.0)
    assert alone is SSD, "better than nothing"


def test_of_equal_offers_the_first_is_taken() -> None:
    again = replace(SSD, name="again")
    assert choose_tier([SSD, again], wait_s=60.0, recompute_s=9.0) is SSD
    assert choose_tier([again, SSD], wait_s=60.0, recompute_s=9.0) is again


@given(offers_, times, times, st.floats(0.0, 1.0))
def test_the_choice_is_useful_and_none_is_cheaper(
    offers: list[TierOffer], wait_s: float, recompute_s: float, elsewhere: float
) -> None:
    def cost_s(offer: TierOffer) -> float:
        lost_s = 0.0 if offer.is_shared else elsewhere * (recompute_s - offer.load_s)
        return wait_s * offer.price + offer.store_s + offer.load_s + lost_s

    found = choose_tier(offers, wait_s=wait_s, recompute_s=recompute_s, elsewhere=elsewhere)
    useful = [offer for offer in offers if offer.load_s < recompute_s]
    assert (found is None) == (not useful)
    if found is not None:
        assert found in useful
        assert cost_s(found) <= min(map(cost_s, useful)) * (1 + 1e-9)


@given(offers_, times, times)
def test_the_order_of_the_offers_changes_no_cost(
    offers: list[TierOffer], wait_s: float, recompute_s: float
) -> None:
    found = choose_tier(offers, wait_s=wait_s, recompute_s=recompute_s)
    again = choose_tier(offers[::-1], wait_s=wait_s, recompute_s=recompute_s)
    assert (found is None) == (again is None)
    if found is not None and again is not None:
        costs = [o.price * wait_s + o.store_s + o.load_s for o in (found, again)]
        assert costs[0] == costs[1]
