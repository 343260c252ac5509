"""Make a client's ZooKeeper session. This module imports kazoo, which a client without ZooKeeper does not need."""

from __future__ import annotations

from metaq.coordination.records.paths import DEFAULT_ROOT
from metaq.coordination.runtime.zookeeper_login import ZooKeeperLogin
from metaq.coordination.session.zk_session import DEFAULT_SESSION_TIMEOUT, ZkSession

from ..settings.config import ConnectionConfig

__all__ = ["zk_session"]


def zk_session(
    connect: str,
    root: str = DEFAULT_ROOT,
    session_timeout: float = DEFAULT_SESSION_TIMEOUT,
    *,
    config: ConnectionConfig | None = None,
) -> ZkSession:
    """Create a session that is not started yet, and return it. config: its `zookeeper_tls` says whether and how to use
    TLS, its `zookeeper_user` how to identify the client, and its `listener` at which addresses the session's views show
    brokers. Without `config`, the user's profile says this. The other arguments are those of ZkSession. Raises
    ConfigError.
    """
    config = ConnectionConfig() if config is None else config
    tls, user = config.zookeeper_tls, config.zookeeper_user
    return ZkSession(
        connect,
        root,
        session_timeout,
        tls=None if tls is None else tls.files("zookeeper_tls"),
        listener=config.listener,
        login=None if user is None else ZooKeeperLogin(user.name, user.password, "zookeeper_user"),
    )
