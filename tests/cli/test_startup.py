"""What is imported when, and the ways out of the program."""

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fluidserve
from fluidserve import cli

HEAVY = ("jax", "numpy", "scipy", "fluidserve.io")  # pydantic comes with typer's options


def loaded_by(code: str) -> set[str]:
    """Heavy packages in a fresh process after some code."""
    script = (
        f"import sys\n{code}\nprint(*(m for m in {HEAVY!r} if m in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


@pytest.mark.parametrize("argv", [["--help"], ["plan", "--help"], ["simulate", "--help"], []])
def test_help_imports_nothing_heavy(argv):
    code = f"from fluidserve.cli import main\nassert main({argv!r}) == 0"
    assert loaded_by(code) == set()


def test_the_package_imports_nothing_heavy():
    code = (
        "import fluidserve\nassert 'plan' in dir(fluidserve)\nassert 'pydantic' not in sys.modules"
    )
    assert loaded_by(code) == set()


@pytest.mark.parametrize("name", fluidserve.__all__)
def test_public_names_load(name):
    assert getattr(fluidserve, name).__name__ == name


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="plam"):
        _ = fluidserve.plam


def test_module_is_runnable():
    done = subprocess.run(
        [sys.executable, "-m", "fluidserve", "frobnicate"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "frobnicate" in done.stderr


def test_version(capsys, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"{name} 9.9")
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == "fluidserve 9.9\n"


def test_version_of_a_source_tree(capsys, monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", absent)
    assert cli.main(["--version"]) == 0
    project = tomllib.loads((Path(cli.__file__).parents[2] / "pyproject.toml").read_text())
    assert capsys.readouterr().out == project["project"]["version"] + "\n"


def test_bugs_leave_as_exceptions_and_interrupts_quietly(ask, monkeypatch):
    def broken(flags):
        raise ZeroDivisionError

    monkeypatch.setattr("fluidserve.cli.plan.run", broken)
    with pytest.raises(ZeroDivisionError):
        ask("plan")

    def interrupted(flags):
        raise KeyboardInterrupt

    monkeypatch.setattr("fluidserve.cli.plan.run", interrupted)
    answer = ask("plan")
    assert (answer.code, answer.err) == (130, "")


def test_a_reader_that_has_gone_is_no_bug():
    code = "import sys\nfrom fluidserve.cli import main\nsys.exit(main(['gpus', '--json']))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("argv", [["gpus"], ["gpus", "--json"]])
def test_a_full_disk_is_one_line(argv):
    code = f"import sys\nfrom fluidserve.cli import main\nsys.exit(main({argv!r}))"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 74
    assert done.stderr == "error: the answer cannot be written (No space left on device)\n"
