"""The keys of a job are told to nobody."""

from __future__ import annotations

import logging
from typing import Any

import psutil
import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

import pparallel
from pparallel import Runtime
from pparallel.cli import app
from pparallel.interfaces.transport import TransportConfig
from pparallel.testing.patience import PATIENCE
from pparallel_ipc import IpcTransportConfig
from pparallel_zmq import ZmqTransportConfig


def look_around(rt: Runtime) -> tuple[dict[str, str], list[str]]:
    """Return the keys of this member, and what anybody may see of it."""
    transport: Any = rt.transport
    member, process = transport._member, psutil.Process()
    rt.group().barrier(PATIENCE)
    rt.group().rpc_sync(1 - rt.rank, abs, (-1,))
    seen = [process.cmdline(), process.environ(), rt, rt.config, member, vars(transport)]
    keys = {name: key.get_secret_value() for name, key in member.keys.items()}
    return keys, [repr(each) for each in seen]


@pytest.mark.parametrize(
    ("transport", "secret"),
    [
        (IpcTransportConfig(), "ipc"),
        (ZmqTransportConfig(address="ipc"), "secret"),
        (ZmqTransportConfig(address="tcp://127.0.0.1:0"), "secret"),
    ],
    ids=["ipc", "zmq on ipc", "zmq on tcp"],
)
def test_the_keys_of_a_job_are_told_to_nobody(
    transport: TransportConfig,
    secret: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    job = {"members": 2, "launcher": {"backend": "process"}, "transport": transport}
    found = pparallel.launch(job, look_around)
    seen = [text for _, texts in found for text in texts]
    for keys, _ in found:
        named: dict[str, Any] = {name: SecretStr(key) for name, key in keys.items()}
        given = {"key": named["ipc"]} if secret == "ipc" else {"keys": named}
        config = type(transport)(**given)
        seen += [repr(config), str(config), config.model_dump_json()]
    if secret == "ipc":
        seen += [CliRunner().invoke(app, [command]).output for command in ("schema", "doctor")]
    seen += [caplog.text, *capfd.readouterr()]
    hidden = {keys[secret] for keys, _ in found}
    assert all(len(each) >= 32 for each in hidden)
    assert not [text for text in seen if any(each in text for each in hidden)]
