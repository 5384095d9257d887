"""Variables that are spelt almost like a setting are refused, and those of others left alone.

A misspelt key of the file was always refused; a misspelt variable was once ignored, and the default held in silence.
"""

from __future__ import annotations

import pytest

from cursus_broker.settings import PROFILES, BrokerSettings
from cursus_gateway.settings import GatewaySettings
from cursus_service.settings import SettingsError, load
from cursus_service.settings.declare import schema_of
from cursus_service.settings.variables import SERVICES


def load_broker(**environ: str) -> BrokerSettings:
    return load(BrokerSettings, [], environ, program="cursus-broker", profiles=PROFILES).settings


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("CURSUS_DATADIR", "CURSUS_DATA_DIR"),
        ("CURSUS_DATA_DRI", "CURSUS_DATA_DIR"),
        ("CURSUS_GRCP_PORT", "CURSUS_GRPC_PORT"),
        ("CURSUS_LOG_LINGER", "CURSUS_LOG_LINGER_MS"),
        ("CURSUS_LOGGING_LEVL", "CURSUS_LOGGING_LEVEL"),
        ("CURSUS_PROFIL", "CURSUS_PROFILE"),
    ],
)
def test_a_misspelt_variable_is_refused_with_what_was_meant(written: str, meant: str) -> None:
    with pytest.raises(SettingsError, match=f"unknown variable {written}; did you mean {meant}\\?"):
        load_broker(**{written: "7"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CURSUS_GATEWAY_SERVICE_HOST", "10.0.0.1"),
        ("CURSUS_GRPC_SERVICE_PORT", "50051"),
        ("CURSUS_BROKER_SERVICE_PORT_GRPC", "50051"),
        ("CURSUS_GRPC_PORT_50051_TCP_ADDR", "10.0.0.1"),
        ("CURSUS_HEALT_PORT", "tcp://10.0.0.1:9081"),
        ("CURSUS_CLI_DATA_DIR", "x"),
        ("CURSUS_CLIENT_TLS_CERT", "x"),
        ("CURSUS_BROKER", "localhost:50051"),
        ("CURSUS_TLS_CA", "ca.pem"),
        ("CURSUS_SOMETHING_OF_MY_OWN", "x"),
        ("CURSUS", "x"),
    ],
)
def test_what_is_somebody_elses_is_left_alone(name: str, value: str) -> None:
    load_broker(**{name: value})


@pytest.mark.parametrize("settings", [BrokerSettings, GatewaySettings])
def test_no_service_stumbles_over_a_variable_of_another(settings: type) -> None:
    foreign = SERVICES - {leaf.variable for leaf in schema_of(settings).leaves()} - {"CURSUS_CONFIG"}
    load(settings, [], dict.fromkeys(foreign, "x"), program="cursus")


def test_the_list_of_variables_is_that_of_the_settings() -> None:
    known = {leaf.variable for settings in (BrokerSettings, GatewaySettings) for leaf in schema_of(settings).leaves()}
    assert known | {"CURSUS_CONFIG", "CURSUS_PROFILE"} == SERVICES
