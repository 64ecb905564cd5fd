"""Every codec under conf/index_codec, a new one by existing: positions come back, and others than that are refused."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.strategies import make, options

CODECS = {option: make("index_codec", option) for option in options("index_codec")}
SORTING = [option for option, codec in CODECS.items() if codec.sorts]
VARYING = [option for option, codec in CODECS.items() if codec.varies]
FAR = 2**32
REACHING = [option for option, codec in CODECS.items() if codec.bytes(1, FAR) < 2**20]  # not a bit for each of 2**32
examples = settings(max_examples=60)


@st.composite
def selections(draw):
    """(positions, space), from none to all of them."""
    space = draw(st.one_of(st.integers(0, 40), st.integers(0, 5000), st.integers(2**16 - 1, 2**18)))
    share = draw(st.sampled_from([0.0, 1e-3, 0.1, 0.9, 1.0]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    at_random = torch.rand(space, generator=generator) < share
    chosen = draw(st.sets(st.integers(0, max(0, space - 1)), max_size=min(space, 9)))
    at_random[sorted(chosen)] = True
    return at_random.nonzero().view(-1), space


def check_round_trip(option, positions, space):
    codec = CODECS[option]
    if not codec.sorts:
        positions = positions[torch.randperm(len(positions), generator=torch.Generator().manual_seed(0))]
    data = codec.encode(positions, space)
    assert data.dtype == torch.uint8
    if not codec.varies:
        assert data.numel() == codec.bytes(len(positions), space)
    junk = torch.full((3,), 255, dtype=torch.uint8)
    for message in (data, torch.cat([junk, data, junk])[3:]):  # the values behind it, off the word
        found, used = codec.decode(message, len(positions), space)
        assert found.dtype == torch.int64 and torch.equal(found, positions)
        assert used == data.numel()


@pytest.mark.parametrize("option", CODECS)
@examples
@given(selection=selections())
@example(selection=(torch.arange(0), 0))
@example(selection=(torch.arange(0), 70_000))
@example(selection=(torch.arange(70_000), 70_000))
@example(selection=(torch.tensor([69_999]), 70_000))
def test_positions_come_back(option, selection):
    check_round_trip(option, *selection)


@pytest.mark.parametrize("option", REACHING)
@examples
@given(
    near=st.sets(st.integers(0, 10**6), max_size=9), offsets=st.sets(st.sampled_from([0, 2**16, 2**31, FAR - 10**6]))
)
def test_positions_beyond_four_bytes_with_a_sign_come_back(option, near, offsets):
    positions = sorted({offset + position for offset in offsets for position in near if offset + position < FAR})
    check_round_trip(option, torch.tensor([*positions], dtype=torch.int64), FAR)


@pytest.mark.parametrize("option", VARYING)
@pytest.mark.parametrize("density", (0.5, 0.1, 0.01, 1e-3, 1e-4, 1e-5))
def test_a_size_that_varies_is_about_as_expected(option, density):
    space = round(20_000 / density)
    positions = torch.randint(space, (20_000,), generator=torch.Generator().manual_seed(0)).unique()
    expected = CODECS[option].bytes(len(positions), space)
    assert CODECS[option].encode(positions, space).numel() == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("option", SORTING)
@pytest.mark.parametrize(
    ("positions", "message"),
    (
        ([3, 3], "positions must rise, got 3 after 3"),
        ([0, 9, 4, 2], "positions must rise, got 4 after 9"),
        ([5, -1], "positions must rise, got -1 after 5"),
        ([-1, 5], r"positions must be in \[0, 100\), .*, got -1"),
        ([7, 100], r"positions must be in \[0, 100\), .*, got 100"),
        ([2**40], r"positions must be in \[0, 100\), .*, got 1099511627776"),
    ),
)
def test_what_would_not_come_back_is_refused(option, positions, message):
    with pytest.raises(ValueError, match=f"^{message}[^\n]*$"):
        CODECS[option].encode(torch.tensor(positions), 100)


@pytest.mark.parametrize("option", SORTING)
def test_nothing_fits_into_no_space(option):
    with pytest.raises(ValueError, match=r"positions must be in \[0, 0\)"):
        CODECS[option].encode(torch.tensor([0]), 0)


@pytest.mark.parametrize(
    ("below", "above", "density"),
    (("int32", "row16", 3e-5), ("row16", "gap8", 0.0027), ("row16", "bitmap", 1 / 16), ("gap8", "bitmap", 1 / 8)),
)
def test_each_pays_where_its_docstring_says(below, above, density):
    space = 10**8
    for share, cheaper, dearer in ((0.95, below, above), (1.05, above, below)):
        count = share * density * space
        assert CODECS[cheaper].bytes(count, space) < CODECS[dearer].bytes(count, space)
