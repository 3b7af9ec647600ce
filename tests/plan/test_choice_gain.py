from gridcoll.model import declared_model
from gridcoll.plan import choose
from gridcoll.plan.choice import gain_of_best
from gridcoll.schedule import HEURISTICS
from gridcoll.schedule.greedy import SEVEN
from gridcoll.topology import parse_gridfile

UNEQUAL = """
version = 1
name = "unequal"
clusters = [
    {name = "a", ranks = 2}, {name = "b", ranks = 9}, {name = "c", ranks = 2},
    {name = "d", ranks = 5}, {name = "e", ranks = 3},
]
default_link = {latency = "8 ms", rate = "30 Mbit/s"}
links = [
    {between = ["a", "d"], latency = "2 ms", rate = "80 Mbit/s"},
    {between = ["d", "b"], latency = "1 ms", rate = "300 Mbit/s"},
    {between = ["c", "e"], latency = "9 ms", rate = "9 Mbit/s"},
]
"""


def test_best_is_compared_with_the_best_of_the_seven() -> None:
    model = declared_model(parse_gridfile(UNEQUAL), [f"h{rank}" for rank in range(21)])
    choice = choose("bcast", model, 1 << 20, 0)
    stored = {c.name: c.store_and_forward_s for c in choice.candidates}
    assert set(SEVEN) <= set(HEURISTICS)
    assert stored["best"] is not None
    assert all(stored["best"] <= (stored[name] or 0.0) for name in SEVEN)
    least = min(SEVEN, key=lambda name: stored[name] or 0.0)
    assert f"less than {least}" in gain_of_best(choice)


def test_nothing_is_said_where_best_was_not_tried() -> None:
    model = declared_model(parse_gridfile(UNEQUAL), [f"h{rank}" for rank in range(21)])
    assert gain_of_best(choose("bcast", model, 1 << 20, 0, forced="fef")) == ""
