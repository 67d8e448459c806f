"""The plan that a driver posts: all settings have a form on the wire."""

from tests.builders import edge, graph, node
from weir.config import ChannelConfig, JobConfig, NetworkSecurity
from weir.managed.managed_driver import planned
from weir.protocol.wire import decode_message, encode_message


def test_settings_travel_as_plain_values() -> None:
    pipeline = graph([node("source"), node("sink")], [edge("source", "sink")])
    config = JobConfig(channels=ChannelConfig(security=NetworkSecurity.TLS))
    plan = planned(pipeline, config, "local-1", 5)
    assert decode_message(encode_message(plan)) == plan
    assert plan.settings["channels"]["security"] == "tls"
    assert type(plan.settings["channels"]["security"]) is str
