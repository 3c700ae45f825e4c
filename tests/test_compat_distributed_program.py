"""The program of machin's that moves by its import lines, with three members in processes."""

from __future__ import annotations

import pytest
from compat_distributed_crew import free_ports
from moving import output_of


@pytest.mark.parametrize("transport", ["zmq", "ipc", "torch_rpc"])
@pytest.mark.costly
def test_the_program(transport: str) -> None:
    ports = map(str, free_ports())
    printed = output_of("machin", *ports, env={"PPARALLEL_MACHIN_TRANSPORT": transport})
    lines = printed.splitlines()
    assert lines[0] == "3 members counted to 6"
    assert f"{(100 * 100 + 100) * 4 / 2**20:.4f} MB on cpu, cpu" in lines
