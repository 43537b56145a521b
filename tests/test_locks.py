"""What set-up installs: every archive by its hash, in the versions of constraints.txt, and all that is asked for."""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = ("all", "sim", "torch", "torch-cpu")


def entries(name: str) -> dict[str, tuple[Requirement, frozenset[str]]]:
    """The packages of a lock by name: the pin with its marker, and its hashes."""
    text = (ROOT / "locks" / f"{name}.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    found: dict[str, tuple[Requirement, frozenset[str]]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            pin, *hashes = (part.strip() for part in line.split("--hash="))
            found[canonicalize_name(Requirement(pin).name)] = (Requirement(pin), frozenset(hashes))
    return found


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    return {canonicalize_name(pin.name): str(pin.specifier) for pin in pins}


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_has_one_version_and_hashes(name: str) -> None:
    for pin, hashes in entries(name).values():
        assert re.fullmatch(r"==[\w.+]+", str(pin.specifier)), pin
        assert hashes
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", one) for one in hashes), pin


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_names_no_address(name: str) -> None:
    text = (ROOT / "locks" / f"{name}.txt").read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"--(index|extra-index|find)", text)


def test_the_locks_and_the_constraints_have_the_same_versions() -> None:
    everything, torch = entries("all"), entries("torch")
    versions = {name: str(pin.specifier) for name, (pin, _) in everything.items()}
    assert versions | {"torch": str(torch["torch"][0].specifier)} == pinned()
    assert entries("sim").items() <= everything.items()
    assert not torch.keys() & everything.keys()


def test_the_two_builds_of_torch_are_in_files_of_their_own() -> None:
    """In one file pip takes the index's build, with gigabytes of CUDA: only of that one it knows the hash early."""
    (cpu,), torch = entries("torch-cpu").values(), entries("torch")["torch"]
    assert str(cpu[0].specifier) == f"{torch[0].specifier}+cpu"
    assert not cpu[1] & torch[1]


def test_the_lock_holds_what_the_project_asks_for() -> None:
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = about["project"]["optional-dependencies"]
    for name, wanted in (("sim", extras["sim"]), ("all", chain(*extras.values()))):
        lock = entries(name) | entries("torch")
        for text in (*about["build-system"]["requires"], *about["project"]["dependencies"], *wanted):
            asked = Requirement(text)
            if asked.name != "fedstale":
                pin, _ = lock[canonicalize_name(asked.name)]
                assert asked.specifier.contains(str(pin.specifier).removeprefix("=="), prereleases=True), text
