"""Configurations whose connections speak one protocol."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar, cast

from metaq import ConsumerConfig, ProducerConfig
from metaq.client.settings.config import Protocol

Config = TypeVar("Config", ProducerConfig, ConsumerConfig)


def speaking(protocol: str, config: Config) -> Config:
    return replace(config, connection=replace(config.connection, protocol=cast(Protocol, protocol)))
