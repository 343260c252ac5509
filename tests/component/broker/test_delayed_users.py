"""Users with rates over real sockets: the broker does not read from the connections of a user beyond his rate."""

import socket
import ssl
import threading
import time

import pytest
from twisted.internet.selectreactor import SelectReactor

from metaq.broker.assembly import server
from metaq.broker.assembly.server import SessionFactory, listen
from metaq.broker.configuration.listeners_ini import ListenerRules
from metaq.broker.network.transport import FastConnection
from metaq.cli.authority import make_authority, make_broker, make_client
from metaq.protocol.access import Access, AccessMode, Permissions, Principal, Quota, User
from metaq.protocol.text import AnswerReader
from tests.unit.broker.harness import Harness, put
