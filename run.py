"""Run one point or a sweep: `python run.py [key=value ...] [-m]`; `python run.py --help` lists what there is."""

import sys

import hydra
from omegaconf import DictConfig

from igrad import launch


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def run(cfg: DictConfig) -> None:
    """One point of the sweep, composed and checked."""
    launch.run_point(cfg)


if __name__ == "__main__":
    sys.exit(launch.main(run, sys.argv[1:]))
