"""Spans, metrics and log lines of the code.

Only OpenTelemetry's API is used here. It does nothing until ``sas.adapters.telemetry`` configures
exporters. A test compares the names with ``infra/telemetry-fields.json``. No payload, result, key
or connection string is ever passed to this package.
"""
