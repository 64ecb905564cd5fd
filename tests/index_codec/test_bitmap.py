"""Bitmap: a bit per element."""

import torch

from igrad.index_codec.bitmap import Bitmap


def test_element_i_is_bit_i_of_its_byte():
    assert Bitmap().encode(torch.tensor([0, 3, 7, 9]), 10).tolist() == [0b10001001, 0b10]


def test_size_does_not_depend_on_the_number():
    for count in (0, 1, 17):
        assert Bitmap().encode(torch.arange(count), 17).numel() == Bitmap().bytes(count, 17) == 3
