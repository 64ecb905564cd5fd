"""The launcher: processes live and die together, points are run once, mistakes and failures are one line each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import hydra
import pytest
from omegaconf import OmegaConf

from igrad import compose, launch, ranks
from igrad.config import config_hash
from igrad.config_reference import knobs
from igrad.progress import Progress

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def signals():
    """run_ranks and main put signal handlers in place; pytest wants its own back."""
    known = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(signum) for signum in known]
    yield
    for signum, handler in zip(known, before, strict=True):
        signal.signal(signum, handler)


# ------------------------------------------------------------------------------------------------ ranks


@pytest.fixture(scope="module")
def forkserver():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "PRELOAD", ["torch"])
        ranks.start_forkserver()
        yield
        ranks.stop_forkserver()


@pytest.fixture
def cfg():
    return OmegaConf.create({"num_processes": 2, "cluster": {"_target_": "igrad.cluster.local.Local"}})


def test_ranks_get_torchruns_environment_and_their_own_port(forkserver, signals, cfg, tmp_path):
    told = []
    for repetition in ("a", "b"):
        ranks.run_ranks(cfg, tmp_path / repetition, "inputs", "tests.entries.report")
        told.append([json.loads((tmp_path / repetition / f"told{rank}.json").read_text()) for rank in (0, 1)])
    for run in told:
        assert [t["env"]["RANK"] for t in run] == ["0", "1"]
        assert {t["env"]["WORLD_SIZE"] for t in run} == {"2"}
        assert {t["sum"] for t in run} == {2.0}
        assert {t["inputs"] for t in run} == {"inputs"}
        assert {t["threads"] for t in run} == {1}
    assert told[0][0]["env"]["MASTER_PORT"] != told[1][0]["env"]["MASTER_PORT"]
    assert OmegaConf.load(tmp_path / "a" / "config.yaml") == cfg


@pytest.mark.parametrize(("entry", "code", "out"), [("report", 0, "rank 0 speaks\n"), ("one_raises", 1, "")])
def test_the_terminal_sees_rank_0_and_nothing_else(tmp_path, entry, code, out):
    """Neither the other ranks nor the agent, which is talkative when a rank fails."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.entries", str(tmp_path), f"tests.entries.{entry}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (code, out, "")
    logged = (tmp_path / "logs" / "rank1.log").read_text()
    assert ("rank 1 speaks" if code == 0 else "Traceback") in logged


@pytest.mark.parametrize(
    ("entry", "cause"),
    [
        ("one_raises", "rank 1: ValueError: window 7 is empty and a second line"),
        ("one_is_killed", "rank 1 was killed by SIGKILL (out of memory?)"),
        ("misspelt", "ImportError: Error loading 'tests.entries.misspelt'"),  # on both ranks; either may be first
    ],
)
def test_one_failing_rank_ends_all_at_once_with_its_cause(forkserver, signals, cfg, tmp_path, entry, cause):
    start = time.monotonic()
    with pytest.raises(ranks.RankError) as caught:
        ranks.run_ranks(cfg, tmp_path, None, f"tests.entries.{entry}")
    assert cause in str(caught.value)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - start < 60


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_the_launcher(tmp_path, signum):
    launcher = subprocess.Popen(
        [sys.executable, "-m", "tests.entries", str(tmp_path), "tests.entries.all_wait"],
        cwd=ROOT, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    files = [tmp_path / "pid0", tmp_path / "pid1"]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files))
    pids = [int(file.read_text()) for file in files]
    launcher.send_signal(signum)
    _, err = launcher.communicate(timeout=60)
    assert launcher.returncode == (-signum if signum == signal.SIGKILL else 128 + signum)
    assert err == ""
    wait_until(lambda: not any(alive(pid) for pid in pids))


def wait_until(condition, limit_s: float = 90) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0]
    return False


# ----------------------------------------------------------------------------------------------- sweeps


@hydra.main(version_base="1.3", config_path=str(compose.CONF), config_name="config")
def task(cfg):
    launch.run_point(cfg)


@pytest.fixture
def run(monkeypatch, tmp_path, signals, capsys):
    """run.py in this process with stand-ins for what lies beyond the launcher: (argv) -> code, out, err, steps run."""
    started: list[int] = []

    def run_ranks(cfg, directory, inputs):
        started.append(cfg.steps)
        if cfg.steps == 13:
            raise ranks.RankError("rank 0: ValueError: unlucky", directory)
        if cfg.steps == 14:
            raise ranks.Interrupted(signal.SIGINT)
        summary = {"status": "finished", "error": None, "config_hash": config_hash(cfg)}
        (directory / "summary.json").write_text(json.dumps(summary))

    from igrad import data, profile

    monkeypatch.setattr(data, "prepare", lambda cfg: data.Inputs(model="model", windows="windows"))
    monkeypatch.setattr(profile, "resolve", lambda cfg, inputs, run_ranks: None)
    monkeypatch.setattr(launch, "run_ranks", run_ranks)
    monkeypatch.setattr(launch, "start_forkserver", lambda: None)
    monkeypatch.setattr(launch, "planned", {})
    monkeypatch.setattr(launch, "progress", Progress())
    monkeypatch.chdir(tmp_path)

    def call(*argv: str):
        started.clear()
        monkeypatch.setattr(sys, "argv", ["run.py", *argv])
        code = launch.main(task, list(argv))
        return code, *capsys.readouterr(), list(started)

    return call


def test_a_sweep_runs_each_point_once(run):
    code, out, err, started = run("steps=5,6", "study=rq3", "-m")
    assert (code, err, started) == (0, "", [5, 6])
    assert out.endswith("2 runs finished in outputs/rq3\nnext: python analysis/make_figures.py rq3\n")
    code, out, _, started = run("steps=5,6,7", "study=rq3", "-m")
    assert (code, started) == (0, [7])
    assert out.count("already finished; rerun=true runs it again") == 2
    _, out, _, started = run("steps=6", "study=rq3", "rerun=true")
    assert started == [6] and "1 run finished" in out


def test_every_point_of_a_sweep_is_counted_skipped_or_not(run):
    run("steps=6", "study=mine")
    _, out, _, _ = run("steps=5,6,7", "study=mine", "-m")
    lines = out.splitlines()
    assert [line.split(" ")[0] for line in lines[:3]] == ["[1/3]", "[2/3]", "[3/3]"]
    assert "already finished" in lines[1] and "left" not in lines[1]
    assert lines[2].endswith(" left)"), "one has run, so that the rest can be told"
    _, out, _, _ = run("steps=8", "study=mine")
    assert out.startswith("outputs/mine/steps=8-")


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["study=rq3"], "rq3"),
        (["study=rq5_lr"], "rq5_lr"),
        (["study=rq3_mine"], "rq3_mine"),
        (["+rq=rq3", "study=mine", "release_period=4"], "mine"),
        (["+rq=rq5_frontier_topk", "study=mine", "density=0.01", "seed=42"], "mine"),
    ],
)
def test_a_question_says_how_it_is_drawn_whatever_the_study(run, argv, told):
    _, out, _, _ = run("steps=5,6", *argv, "-m")
    assert out.endswith(f"\nnext: python analysis/make_figures.py {told}\n")


@pytest.mark.parametrize("study", ["rq9", "rq3x", "mine"])
def test_a_study_of_ones_own_says_where_its_results_are(run, study):
    """A table of all runs, or the files of the one there is; and how to upload what W&B has."""
    _, out, _, _ = run("steps=5,6", f"study={study}", "-m")
    assert out.endswith(
        f"next: python -c \"from igrad import results; print(results.load('{study}').table())\"  # a row per run\n"
    )
    [directory] = Path(f"outputs/{study}").glob("steps=5-*")
    (directory / "wandb" / "offline-run-1").mkdir(parents=True)
    _, out, _, _ = run("steps=5", f"study={study}")
    first, second = out.splitlines()[-2:]
    assert first.startswith(f"next: {directory}/summary.json") and second.startswith(
        f"next: wandb sync {directory}/wandb/"
    )


@pytest.mark.parametrize("study", ["rq3", "mine"])
def test_tensorboard_is_told_where_to_look(run, study):
    """In one run's folder, or the study's."""
    run("steps=5,6", f"study={study}", "-m")
    directories = [path.parent for path in Path(f"outputs/{study}").glob("*/summary.json")]
    for directory in directories:
        (directory / "tensorboard").mkdir()
    _, out, _, _ = run("steps=5,6", f"study={study}", "-m")
    assert out.splitlines()[-1] == f"next: tensorboard --logdir outputs/{study}"
    [directory] = Path(f"outputs/{study}").glob("steps=5-*")
    _, out, _, _ = run("steps=5", f"study={study}")
    assert out.splitlines()[-1] == f"next: tensorboard --logdir {directory}"


def test_manifest_names_all_points_and_the_command(run):
    run("steps=5,6", "density=0.1", "study=mine", "-m")
    [path] = Path("outputs/mine/sweeps").glob("*.json")
    manifest = json.loads(path.read_text())
    assert manifest["command"] == "python run.py steps=5,6 density=0.1 study=mine -m"
    assert manifest["overrides"] == ["steps=5,6", "density=0.1", "study=mine"]
    assert manifest["study"] == "mine"
    for point in manifest["points"]:
        assert (Path("outputs/mine") / point["name"] / "summary.json").exists()
        assert point["name"].endswith(point["config_hash"])
    assert len(manifest["points"]) == 2


def test_a_failed_point_does_not_stop_the_sweep(run):
    code, _, err, started = run("steps=13,6", "-m")
    assert (code, started) == (1, [13, 6])
    [line] = err.splitlines()
    assert line.startswith("failed: steps=13-")
    assert "rank 0: ValueError: unlucky" in line
    code, _, _, started = run("steps=13,6", "-m")  # what failed is tried again, what finished is not
    assert (code, started) == (1, [13])


def test_an_interrupted_sweep_says_how_to_go_on(run):
    code, _, err, started = run("steps=5,14,6", "rerun=true", "-m")
    assert (code, started) == (130, [5, 14])
    assert "finished runs are kept; go on with: python run.py steps=5,14,6 -m" in err
    for path in Path("outputs/runs").glob("*/summary.json"):
        status = "failed" if path.parent.name.startswith("steps=14") else "finished"
        assert json.loads(path.read_text())["status"] == status


def test_what_was_checked_is_what_runs(run, monkeypatch, tmp_path):
    """A yaml that is edited while a sweep runs changes no point of that sweep."""
    (tmp_path / "scale").mkdir()
    (tmp_path / "scale" / "mine.yaml").write_text("# @package _global_\nsteps: 5\n")
    plan = launch.plan

    def plan_then_edit(argv):
        sweep = plan(argv)
        (tmp_path / "scale" / "mine.yaml").write_text("# @package _global_\nsteps: 6\n")
        return sweep

    monkeypatch.setattr(launch, "plan", plan_then_edit)
    code, _, _, started = run("--config-dir", str(tmp_path), "+scale=mine", "seed=1,2", "-m")
    assert (code, started) == (0, [5, 5])


def test_a_point_that_is_killed_says_failed(run, monkeypatch):
    monkeypatch.setattr(launch, "run_ranks", lambda *args: os._exit(9))
    pid = os.fork()
    if pid == 0:
        run("steps=5")
    os.waitpid(pid, 0)
    [path] = Path("outputs/runs").glob("*/summary.json")
    assert json.loads(path.read_text())["status"] == "failed"


def test_one_bad_point_stops_the_sweep_before_the_first(run):
    code, out, err, started = run("density=0.5,0", "-m")
    assert (code, out, started) == (2, "", [])
    assert err == "error: density must be in (0, 1], got 0.0\n"
    assert not Path("outputs").exists()


# --------------------------------------------------------------------------------------- the command line


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("relase_period=8", "unknown key 'relase_period'; did you mean 'release_period'?"),
        ("density=abc", "density must be a number, got 'abc'"),
        ("+rq=nope", "unknown option 'nope' of group 'rq'; options:"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, argument, message):
    done = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), argument], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert message in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seconds", (1.0, 2.5))
def test_ctrl_c_while_everything_is_being_imported_is_one_line(tmp_path, seconds):
    """A terminal sends it to the fork server too."""
    process = subprocess.Popen([sys.executable, str(ROOT / "run.py"), "tracking=none"], cwd=tmp_path, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in told and told.splitlines()[-1].startswith("interrupted"), told


def test_help_fits_on_a_screen_and_names_every_group_option_and_knob(tmp_path):
    (tmp_path / "sparsifier").mkdir()
    (tmp_path / "sparsifier" / "mine.yaml").write_text("_target_: mine.Mine\n")
    argv = [sys.executable, str(ROOT / "run.py"), "--help", "--config-dir", str(tmp_path)]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 120
    words = done.stdout.replace("=", " ").replace(",", " ").replace("*", " ").split()
    assert {knob.name for knob in knobs()} - {"method"} <= set(words)
    for group in [path.name for path in (ROOT / "conf").iterdir() if path.is_dir()]:
        assert f"{group}:" in words or f"+{group}:" in words
        assert {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")} <= set(words)
    assert "mine" in words, "options of --config-dir too"


@pytest.mark.parametrize("argv", [["+rq=rq3"], ["+rq=rq3", "+scale=paper"], ["--config-dir", "mine", "+scale=small"]])
def test_a_configuration_can_be_seen(run, argv, tmp_path):
    (tmp_path / "mine" / "scale").mkdir(parents=True)
    (tmp_path / "mine" / "scale" / "small.yaml").write_text("# @package _global_\nsteps: 5\n")
    code, out, err, started = run(*argv, "--cfg", "job")
    assert (code, err, started) == (0, "", [])
    shown = OmegaConf.create(out)
    assert shown.num_processes == (4 if "+scale=paper" in argv else 2) and "hydra" not in shown
