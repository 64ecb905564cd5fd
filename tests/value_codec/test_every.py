"""Every codec under conf/value_codec, a new one by existing: what was sent does not depend on who shares a message."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.strategies import make, options

OPTIONS = options("value_codec")
DTYPES = (torch.float32, torch.float64)
examples = settings(max_examples=40)
LONG = 600  # values; more than a default block of anything


@st.composite
def payload_lists(draw):
    """Float32 payloads, some empty, of magnitudes far apart and with zeros among them."""
    payloads = []
    for count, seed in draw(st.lists(st.tuples(st.integers(0, LONG), st.integers(0, 99)), max_size=4)):
        generator = torch.Generator().manual_seed(seed)
        exponents = torch.randint(-seed // 9, seed // 9 + 1, (count,), generator=generator)
        zeros = torch.rand(count, generator=generator) < 0.1
        payloads.append((torch.randn(count, generator=generator) * 10.0**exponents).masked_fill(zeros, 0))
    few = st.floats(-(2.0**100), 2.0**100, width=32)
    return [*payloads, *(torch.tensor(values) for values in draw(st.lists(st.lists(few, max_size=9), max_size=3)))]


def code(codec, payloads, dtype=torch.float32):
    """What comes back of some payloads in one message of a bucket of this type."""
    counts = [len(payload) for payload in payloads]
    values = torch.cat([torch.zeros(0), *payloads]).to(dtype)
    return codec.decode(codec.encode(values, counts), counts, dtype)


NOTHING, ZEROS = [], [torch.zeros(300), torch.zeros(0)]
LEAST = [torch.tensor([1e-45, -2.5e-43]), torch.tensor([3e-44, 0.0])]  # subnormal


@pytest.mark.parametrize("option", OPTIONS)
@examples
@given(payloads=payload_lists())
@example(payloads=NOTHING)
@example(payloads=ZEROS)
@example(payloads=LEAST)
def test_payloads_together_are_payloads_apart(option, payloads):
    """So no packing changes a bit; nor does a wide neighbour that makes the bucket's type float64."""
    codec = make("value_codec", option)
    together = code(codec, payloads)
    apart = [code(codec, [payload]) for payload in payloads]
    assert torch.equal(together, torch.cat([torch.zeros(0), *apart]))
    assert torch.equal(together, code(codec, payloads[::-1] + payloads)[len(together) :])
    assert torch.equal(together.double(), code(codec, payloads, torch.float64))


@pytest.mark.parametrize("option", OPTIONS)
@examples
@given(payloads=payload_lists())
@example(payloads=NOTHING)
@example(payloads=ZEROS)
@example(payloads=LEAST)
def test_zeros_stay_signs_stay_and_everything_is_finite(option, payloads):
    codec = make("value_codec", option)
    values = torch.cat([torch.zeros(0), *payloads])
    for dtype in DTYPES:
        found = code(codec, payloads, dtype)
        assert found.dtype == dtype and found.shape == values.shape
        assert found.isfinite().all()
        assert (found * values >= 0).all() and not found[values == 0].any()
        assert torch.equal(code(codec, [-payload for payload in payloads], dtype), -found)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("power", (-20, 3, 40))
@examples
@given(count=st.integers(0, LONG), seed=st.integers(0, 99))
def test_a_power_of_two_does_not_matter(option, power, count, seed):
    """What is lost is relative: small gradients are written as well as large ones."""
    codec = make("value_codec", option)
    values = torch.randn(count, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(code(codec, [values * 2.0**power]), code(codec, [values]) * 2.0**power)


@pytest.mark.parametrize("option", OPTIONS)
@examples
@given(payloads=payload_lists())
@example(payloads=NOTHING)
def test_size_is_as_it_says_and_the_rest_of_a_message_does_not_matter(option, payloads):
    codec, counts = make("value_codec", option), [len(payload) for payload in payloads]
    values = torch.cat([torch.zeros(0), *payloads])
    data = codec.encode(values, counts)
    assert data.dtype == torch.uint8
    assert data.numel() == sum(codec.bytes(count) for count in counts)
    for dtype in DTYPES:
        data = codec.encode(values.to(dtype), counts)
        junk = torch.full((3,), 255, dtype=torch.uint8)
        longer = torch.cat([junk, data, junk])[3:]  # off the word
        assert torch.equal(codec.decode(longer, counts, dtype), codec.decode(data, counts, dtype))
