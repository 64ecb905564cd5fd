"""What the residuals share: a tensor per view, and taking a payload out of one."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from igrad.interfaces import Payload, Select, View


def wide(gradient: Tensor, view: View) -> Tensor:
    """`gradient` with the view's shape, in promote_types(float32, its dtype); a copy only where needed."""
    return gradient.reshape(view.shape).to(torch.promote_types(torch.float32, gradient.dtype))


def rows_of(flat: Tensor, view: View, part: slice) -> Tensor:
    """Elements `part` of a view as (rows, in) where they are whole rows of a matrix, else flat."""
    elements = flat[part]
    if len(view.shape) == 2 and part.start % view.shape[1] == 0 and elements.numel() % view.shape[1] == 0:
        return elements.view(-1, view.shape[1])
    return elements


def payload_at(view: View, source: Tensor, part: slice, indices: Tensor | None) -> Payload:
    """The entries of `source` (shape `view.shape`) at `indices`, relative to `part`."""
    elements = source.view(-1)[part]
    values = elements.clone() if indices is None else elements[indices]  # never an alias of memory
    return Payload(view.name, part.start, elements.numel(), values, indices, elements)


def take(view: View, source: Tensor, select: Select, part: slice, share: float, release: bool) -> Payload:
    """Select among elements `part` of `source`."""
    return payload_at(view, source, part, select(rows_of(source.view(-1), view, part), share, release))


@dataclass(frozen=True)
class Memory:
    """What was not sent yet: a tensor of shape `view.shape` per view, dtype promote_types(float32, gradient.dtype)."""

    tensors: dict[str, Tensor] = field(default_factory=dict)

    def of(self, view: View, like: Tensor) -> Tensor:
        """The view's tensor, made of zeros on first use."""
        if view.name not in self.tensors:
            self.tensors[view.name] = torch.zeros_like(like, memory_format=torch.contiguous_format)
        return self.tensors[view.name]

    def pending(self, view: View) -> Tensor | None:
        """What the view holds back, flat [numel]; None when nothing was ever held."""
        held = self.tensors.get(view.name)
        return None if held is None else held.view(-1)

    def copy(self, view: View) -> Tensor | None:
        """The view's tensor as it is now; None when nothing was ever held."""
        held = self.tensors.get(view.name)
        return None if held is None else held.clone()

    def restore(self, copies: dict[str, Tensor | None]) -> None:
        """Back to what `copy` gave, by the view's name."""
        for name, held in copies.items():
            if held is not None:
                self.tensors[name].copy_(held)
            elif name in self.tensors:
                self.tensors[name].zero_()

    def subtract(self, sent: Payload) -> None:
        """Take out what really went. A view that holds nothing stays so."""
        if sent.view not in self.tensors:
            return
        elements, values = self.tensors[sent.view].view(-1), sent.values
        if sent.numel != elements.numel():  # every operation not called counts: this is once per view and step
            elements = elements[sent.start : sent.start + sent.numel]
        if values.dtype != elements.dtype:  # a bucket may be wider
            values = values.to(elements.dtype)
        if sent.indices is None:
            elements.sub_(values)
        else:
            elements.index_add_(0, sent.indices, values, alpha=-1)

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self.tensors)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.tensors.clear()
        self.tensors.update(state)
