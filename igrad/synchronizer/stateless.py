"""What the baselines share: a synchronizer that holds nothing back and remembers nothing."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from igrad.interfaces import SyncStats, View


class Stateless:
    """All is said by `synchronize`; what a baseline does besides, it says itself."""

    uses_importance = False
    overlaps = False

    def ready(self, view: View, gradient: Tensor, step: int) -> None:
        """Nothing leaves before all is there."""

    def reconcile(self, parameters: dict[View, Tensor], step: int) -> SyncStats:
        return SyncStats()

    def flush(self, gradients: dict[View, Tensor], parameters: dict[View, Tensor]) -> SyncStats | None:
        return None

    def pending(self, view: View) -> Tensor | None:
        return None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
