"""The fixtures of tests/transport."""

from transport.conftest import companies, federate

__all__ = ["companies", "federate"]
