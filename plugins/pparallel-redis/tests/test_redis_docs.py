"""What the pages say holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from test_redis_security import COMMANDS

import pparallel
from pparallel_redis import RedisOrderedServerConfig, RedisSentinel, RedisTls

HERE = Path(__file__).resolve().parent.parent
PAGES = [HERE / "README.md", HERE.parent.parent / "docs" / "redis.md"]
BLOCKS = [
    pytest.param(found[1], id=f"{page.name}-{number}")
    for page in PAGES
    for number, found in enumerate(
        re.finditer(r"^```yml\n(.*?)^```$", page.read_text(), re.M | re.S)
    )
]


@pytest.mark.parametrize("text", BLOCKS)
def test_yaml_is_a_config(text: str) -> None:
    assert pparallel.load(yaml.safe_load(text)).names


def test_every_option_is_explained() -> None:
    page = PAGES[1].read_text()
    for config in (RedisOrderedServerConfig, RedisTls, RedisSentinel):
        for name in config.model_fields:
            assert f"`{name}`" in page or f"{name}: " in page, name


def test_the_rights_of_a_user_are_those_that_are_tested() -> None:
    block = re.search(r"^user trainer .*?^```$", PAGES[1].read_text(), re.M | re.S)
    assert block is not None
    assert sorted(re.findall(r"\+([a-z|]+)", block[0])) == sorted(COMMANDS)
