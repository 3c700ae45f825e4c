"""Who may use a server, over what, and that no secret is shown."""

from __future__ import annotations

import io
import logging
import pickle
import ssl
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis_certificates import Certificates, made
from redis_servers import PASSWORD, RedisServer, held_port, running

import pparallel
from pparallel.errors import AuthenticationError, ConfigError, PparallelError
from pparallel.interfaces.ordered_server import OrderedServerConfig
from pparallel.testing.patience import PATIENCE
from pparallel.testing.threads import in_threads
from pparallel_redis import RedisOrderedServerConfig, RedisSentinel, RedisTls
from pparallel_redis.dialing import dialer

#: what the page on Redis says that a user must be allowed to do
COMMANDS = (
    *("evalsha", "script|load", "info", "ping", "scan", "wait"),
    *("publish", "subscribe", "unsubscribe"),
    *("get", "set", "exists", "unlink", "persist", "pexpire", "expire", "pttl"),
    *("hget", "hmget", "hgetall", "hset", "hsetnx", "hdel"),
)


def test_a_wrong_password(redis_server: RedisServer) -> None:
    url = f"unix://{redis_server.socket}"
    for options in ({"password": "wrong-horse"}, {"username": "nobody", "password": PASSWORD}):
        config = RedisOrderedServerConfig(url=url, **options)
        with pytest.raises(AuthenticationError, match="WRONGPASS") as caught:
            pparallel.build(config).open()
        assert PASSWORD not in str(caught.value)
        assert "wrong-horse" not in shown(caught.value)
    with pytest.raises(AuthenticationError, match="Give the option 'password'"):
        pparallel.build(RedisOrderedServerConfig(url=url)).open()


def test_a_user_who_may_do_what_is_needed(redis_server: RedisServer, namespace: str) -> None:
    rules = [f"+{each}" for each in COMMANDS]
    with redis_server.peek() as peek:
        own = (f"~{{{namespace}}}:*", f"&{{{namespace}}}:*")
        peek.execute_command("ACL", "SETUSER", "app", "reset", "on", ">app-pw", *own, *rules)
    config = redis_server.config(
        namespace, url=f"unix://app:app-pw@{redis_server.socket}", version_depth=2, ttl=1000
    )
    with pparallel.build(config) as server:
        for version in range(4):
            assert server.push("k", bytes(50_000 * (version % 2)), version, version - 1)
        assert server.versions("k") == [2, 3]
        assert server.keys() == ["k"]
        assert server.wait("k", 3, timeout=0.02) is None
        assert server.delete("k")
    with pytest.raises(AuthenticationError, match="NOPERM"):
        pparallel.build(redis_server.config("other", url=config.url)).open()


def test_a_user_who_may_not_wait(redis_server: RedisServer, namespace: str) -> None:
    rules = ["+@all", "-subscribe"]
    with redis_server.peek() as peek:
        peek.execute_command("ACL", "SETUSER", "deaf", "reset", "on", ">p", "~*", "&*", *rules)
    url = f"unix://deaf:p@{redis_server.socket}"
    with pparallel.build(redis_server.config(namespace, url=url)) as server:
        assert server.push("k", 1, 1, None)
        with pytest.raises(AuthenticationError, match="subscribe"):
            server.wait("k", 1, PATIENCE)


# -- TLS ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return made(tmp_path_factory.mktemp("certificates"))


def tls(port: int, certificates: Certificates) -> list[str]:
    """Return the options of a server that listens on *port* for what is encrypted."""
    options = {
        "--tls-port": str(port),
        "--tls-cert-file": str(certificates.server),
        "--tls-key-file": str(certificates.server_key),
        "--tls-ca-cert-file": str(certificates.ca),
    }
    return [each for pair in options.items() for each in pair]


@pytest.fixture(scope="module")
def tls_port(certificates: Certificates) -> Iterator[int]:
    with held_port() as port, running(*tls(port, certificates), "--tls-auth-clients", "optional"):
        yield port


@pytest.fixture(scope="module")
def strict_port(certificates: Certificates) -> Iterator[int]:
    """Of a server that asks for clients' certificates."""
    with held_port() as port, running(*tls(port, certificates)):
        yield port


def over_tls(port: int, **options: Any) -> RedisOrderedServerConfig:
    return RedisOrderedServerConfig(
        url=f"rediss://:{PASSWORD}@127.0.0.1:{port}", tls=RedisTls(**options), timeout=PATIENCE
    )


def one_of(acts: list[Callable[[], object]], number: int) -> object:
    return acts[number]()


def test_everything_over_tls(tls_port: int, certificates: Certificates) -> None:
    with pparallel.build(over_tls(tls_port, ca_file=certificates.ca)) as server:
        large = bytes(range(256)) * 20_000
        assert server.push("k", large, 1, None)
        assert server.pull("k") == (large, 1)
        for number in range(1, 20):
            acts: list[Callable[[], object]] = [
                partial(server.wait, "k", number, PATIENCE),
                partial(server.push, "k", number, number + 1, number),
            ]
            assert in_threads(2, partial(one_of, acts))[0] == (number, number + 1)
        assert server.delete("k")


def test_a_certificate_of_somebody_else(tls_port: int, certificates: Certificates) -> None:
    for options in ({"ca_file": certificates.other_ca}, {}):
        with pytest.raises(AuthenticationError, match=r"(?s)no TLS .*tls.ca_file"):
            pparallel.build(over_tls(tls_port, **options)).open()
    named = over_tls(tls_port, ca_file=certificates.ca, server_name="other.example")
    with pytest.raises(AuthenticationError, match=r"(?s)no TLS .*ismatch"):
        pparallel.build(named).open()
    with pparallel.build(over_tls(tls_port, verify=False)) as server:
        assert server.keys() == []


def test_a_client_needs_a_certificate(strict_port: int, certificates: Certificates) -> None:
    config = over_tls(strict_port, ca_file=certificates.ca).model_copy(update={"timeout": 1.0})
    with pytest.raises((AuthenticationError, ConnectionError), match=r"TLS|certificate"):
        pparallel.build(config).open()
    own = {"cert_file": certificates.client, "key_file": certificates.client_key}
    with pparallel.build(over_tls(strict_port, ca_file=certificates.ca, **own)) as server:
        assert server.push("k", 1, 1, None)


def test_files_that_are_no_certificates(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for option in ("ca_file", "cert_file"):
        for path in (tmp_path / "absent", tmp_path / "empty"):
            config = over_tls(1, **{option: path})
            with pytest.raises(ConfigError, match=f"tls.{option} cannot be used"):
                pparallel.build(config).open()


# -- other machines --------------------------------------------------------------------------------


def test_other_machines_need_protection() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"url": "redis://10.0.0.1"}, "without TLS .* and a password"),
        ({"url": "redis://:pw@10.0.0.1"}, "without TLS"),
        ({"url": "rediss://redis.example"}, "without a password"),
        ({"url": "redis://[fe80::1]:7000"}, r"\[fe80::1\]:7000 is another machine"),
        ({"sentinel": {"addresses": ["10.0.0.2"], "service": "s"}}, "10.0.0.2:26379 is another"),
    ]
    for options, missing in refused:
        with pytest.raises(ConfigError, match=missing):
            RedisOrderedServerConfig(**options)
        RedisOrderedServerConfig(**options, allow_insecure=True)


def test_what_is_protected_or_here() -> None:
    accepted: list[dict[str, Any]] = [
        {"url": "rediss://:pw@10.0.0.1"},
        {"url": "redis://10.0.0.1", "password": "pw", "tls": {}},
        {"url": "rediss://10.0.0.1", "tls": {"cert_file": "mine.pem"}},
        {"url": "redis://localhost"},
        {"url": "redis://127.0.0.2:1"},
        {"url": "redis://[::1]"},
        {"url": "unix:///run/redis.sock"},
    ]
    for options in accepted:
        RedisOrderedServerConfig(**options)


# -- secrets ---------------------------------------------------------------------------------------

SECRETS = ("s3cret-user", "s3cret-pass", "s3cret-key", "s3cret-sentinel")


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))


def assert_hidden(text: str) -> None:
    assert not [each for each in SECRETS if each in text]


@pytest.mark.parametrize(
    "options",
    [
        {"url": "redis://s3cret-user:s3cret-pass@localhost:1/2"},
        {"username": "s3cret-user", "password": "s3cret-pass"},
        {"tls": RedisTls(key_password="s3cret-key"), "password": "s3cret-pass"},
        {
            "sentinel": RedisSentinel(
                addresses=["127.0.0.1:1"],
                service="s",
                username="s3cret-user",
                password="s3cret-sentinel",
            )
        },
    ],
)
def test_no_secret_is_shown(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    config = RedisOrderedServerConfig(**options, timeout=0.05)
    reached = dialer(config)
    looks: list[Callable[[object], object]] = [repr, str, lambda each: f"{each}"]
    for each in (config, reached, reached.place, *reached.sentinels):
        assert_hidden("".join(str(look(each)) for look in looks))
    assert_hidden(config.model_dump_json() + str(config.model_dump()))
    assert_hidden(str(type(config).model_json_schema()))
    assert pickle.loads(pickle.dumps(config)) == config, "members are given it whole"
    server = pparallel.build(config)
    with pytest.raises(PparallelError) as caught:
        server.open()
    assert_hidden(shown(caught.value))
    assert_hidden(repr(server) + caplog.text + "".join(capfd.readouterr()))


def test_a_password_from_the_environment(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PPARALLEL__ORDERED_SERVER__PASSWORD", PASSWORD)
    url = f"unix://{redis_server.socket}"
    with pparallel.build({"ordered_server": {"backend": "redis", "url": url}}) as rt:
        assert rt.ordered_server.keys() == []
        assert PASSWORD not in repr(rt.config)


REVEALING: list[dict[str, Any]] = [
    {"url": "http://s3cret-user:s3cret-pass@h"},
    {"url": "redis://:s3cret-pass@h:port"},
    {"url": "redis://:s3cret-pass@localhost/x"},
    {"url": "redis://:s3cret-pass@localhost/?db=1"},
    {"url": "redis://:s3cret-pass@10.0.0.1"},
    {"url": "unix://:s3cret-pass@host/path"},
    {"url": "redis://[:s3cret-pass@h"},
    {"url": "redis://:s3cret-pass@localhost", "password": "s3cret-key"},
    {"url": ["s3cret-pass"]},
    {"password": {"s3cret-pass": 1}},
    {"username": b"s3cret-user"},
    {"url": "unix:///p", "tls": {"key_password": ["s3cret-key"]}},
    {"url": "redis://:s3cret-pass@h", "sentinel": {"addresses": ["h"], "service": "s"}},
]


def test_no_refusal_shows_a_secret() -> None:
    for options in REVEALING:
        loads: list[Callable[[], object]] = [
            partial(RedisOrderedServerConfig, **options),
            partial(pparallel.load, OrderedServerConfig, {"backend": "redis", **options}),
            partial(pparallel.load, {"ordered_server": {"backend": "redis", **options}}),
        ]
        for load in loads:
            with pytest.raises(ConfigError) as caught:
                load()
            assert_hidden(shown(caught.value))


def test_no_certificate_is_asked_for_at_the_terminal(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSL would ask for the password of an encrypted key."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    context = ssl.create_default_context()
    assert context.verify_mode == ssl.CERT_REQUIRED
    key = tmp_path / "key.pem"
    key.write_text(
        "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n"
        "DEK-Info: AES-128-CBC,00000000000000000000000000000000\n\nAAAA\n"
        "-----END EC PRIVATE KEY-----\n"
    )
    config = over_tls(1, cert_file=certificates.client, key_file=key)
    with pytest.raises(ConfigError, match=r"tls.cert_file cannot be used"):
        pparallel.build(config).open()
