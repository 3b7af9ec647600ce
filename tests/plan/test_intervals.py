from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gridcoll.plan.dataflow import IntervalMap

N = 24
spans = st.tuples(st.integers(0, N), st.integers(0, N)).map(sorted)


def flat(runs: list[tuple[int, int]], grows: bool) -> list[int]:
    """Unit by unit; where values grow, each unit of a run is one more than that before it."""
    return [value + (k if grows else 0) for length, value in runs for k in range(length)]


@given(st.booleans(), st.data())
def test_like_an_array(grows: bool, data: st.DataObject) -> None:
    """Whatever is done to it, it holds what a plain list would."""
    runs = IntervalMap(100, (lambda value, offset: value + offset) if grows else lambda v, _: v)
    array = [100 + (k if grows else 0) for k in range(2 * N)]
    for _ in range(data.draw(st.integers(0, 12))):
        start, stop = data.draw(spans)
        action = data.draw(st.sampled_from(["set", "update", "get"]))
        if action == "set":
            lengths = data.draw(st.lists(st.integers(0 if start == stop else 1, 5), max_size=4))
            new = [(length, data.draw(st.integers(0, 9)) * 1000) for length in lengths if length]
            written = flat(new, grows)
            runs.set(start, new)
            array[start : start + len(written)] = written
        elif action == "update":
            runs.update(start, stop, lambda value: value + 5)
            array[start:stop] = [value + 5 for value in array[start:stop]]
        else:
            assert flat(runs.get(start, stop), grows) == array[start:stop]
        assert flat(runs.get(0, 2 * N), grows) == array


def test_nothing_is_nothing() -> None:
    runs = IntervalMap("x")
    runs.set(3, [])
    runs.update(4, 4, str.upper)
    assert runs.get(5, 5) == []
    assert runs.get(0, 9) == [(9, "x")]
