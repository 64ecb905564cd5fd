"""No communication: not even a process group is needed, and nothing is touched."""

import copy

import torch

from igrad.interfaces import SyncStats
from igrad.synchronizer.noop import Noop
from tests.test_laws import IMPORTANT, VIEWS, local_gradient, parts_of


def test_nothing_is_sent_and_nothing_is_touched():
    assert not torch.distributed.is_initialized()
    synchronizer = Noop()
    synchronizer.prepare(VIEWS, IMPORTANT)
    gradients = parts_of({view: local_gradient(view, 0, 0) for view in VIEWS})
    parameters = parts_of({view: local_gradient(view, 0, 1) for view in VIEWS})
    before = copy.deepcopy((gradients, parameters))
    assert synchronizer.synchronize(gradients, 0) == SyncStats(), "no bytes; nothing deferred: the optimizer steps all"
    assert synchronizer.reconcile(parameters, 0) == SyncStats()
    assert synchronizer.flush(gradients, parameters) is None
    for view in VIEWS:
        assert torch.equal(gradients[view], before[0][view]) and torch.equal(parameters[view], before[1][view])
        assert synchronizer.pending(view) is None
